"""The processes of one training job: what they tell each other, besides gradients."""

import contextlib
import json
import re

from keras_bert_ref._tensorflow import tell_other_processes, tf
from keras_bert_ref.errors import ConfigError, DivergedError, PreemptedError, WorkerError
from keras_bert_ref.files import first_line
from keras_bert_ref.run_folder import differences


class Job:
    """All processes that train one model under a strategy; mostly there is one.

    `mean`, `wait` and `check_same` must be called by all of them, in the same order.

    Args:
        strategy: a `tf.distribute.Strategy`.

    Attributes:
        is_first: whether this process is the one that writes files and shows progress.
        size: the number of processes.
    """

    def __init__(self, strategy):
        self.strategy = strategy
        self.is_first = strategy.extended.should_checkpoint
        self.size, self._name = 1, None
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            self.size = sum(map(len, resolver.cluster_spec().as_dict().values()))
            self._name = f"{resolver.task_type} {resolver.task_id}"
        self._mean = tf.function(self._mean_over_replicas, autograph=False)

    def mean(self, *values):
        """Returns the mean of each number over the processes, as floats."""
        if self.size == 1:
            return [float(value) for value in values]
        return self._mean(tf.constant(values, tf.float32)).numpy().tolist()

    def any(self, value):
        """Returns whether a value is true in one process at least."""
        return self.mean(bool(value))[0] > 0

    def wait(self):
        """Waits until all processes have come here."""
        self.mean(0.0)

    def check_same(self, settings):
        """Makes sure that every process has the same settings.

        Args:
            settings: a dict that JSON can hold.

        Raises:
            ConfigError: a process has others; each that differs is named.
        """
        if self.size == 1:
            return
        texts = self._gather(json.dumps(settings, sort_keys=True))
        first = json.loads(texts[0])
        for number, other in enumerate(map(json.loads, texts)):
            if differing := [
                f"{name} is {value!r} in the first and {another!r} in that one"
                for name, value, another in differences(first, other)
            ]:
                error = ConfigError(
                    f"the workers differ; replica {number} has other settings than the first: "
                    f"{'; '.join(differing)}. Start all workers with the same command, data and "
                    "version."
                )
                error.agreed = True
                raise error

    @contextlib.contextmanager
    def ending_together(self):
        """Around what the processes do in step: where one of them ends, so do the others.

        An error of this process is told to the others, which would else wait for it for ever; what
        the end of another makes TensorFlow say becomes a `WorkerError`.
        """
        if self.size == 1:
            yield
            return
        try:
            yield
        except tf.errors.OpError as error:
            if isinstance(error, _LOST) and (found := _COLLECTIVE.search(str(error))):
                raise self._lost(error, found) from error
            self._tell_others(error)
            raise
        except (WorkerError, PreemptedError, DivergedError):  # these, all raise alike
            raise
        except BaseException as error:
            if not getattr(error, "agreed", False):
                self._tell_others(error)
            raise

    def _tell_others(self, error):
        tell_other_processes(f"{self._name} ended by {type(error).__name__}: {first_line(error)}")

    def _lost(self, error, found):
        text = str(error)
        if told := re.search(r"\w+ \d+ ended by [^\n]*", text[found.start() :]):
            reason = told[0]
        else:
            tasks = re.findall(r"/job:(\w+)/replica:0/task:(\d+)", text[found.start() :])
            names = sorted({f"{job} {task}" for job, task in tasks} - {self._name})
            reason = f"{', '.join(names) or 'another worker'} has ended or cannot be reached"
        return WorkerError(
            f"{reason}: see what it printed itself. This worker ends too; start all workers again, "
            "and training goes on from the last checkpoint"
        )

    def _mean_over_replicas(self, values):
        def reduce():
            context = tf.distribute.get_replica_context()
            # A copy, on the replica's own device.
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(values))

        return self.strategy.experimental_local_results(self.strategy.run(reduce))[0]

    def _gather(self, text):
        """Returns the texts of all replicas."""
        codes = tf.constant([ord(character) for character in text], tf.int32)

        def gather():
            context = tf.distribute.get_replica_context()
            own = tf.identity(codes)
            return context.all_gather(tf.shape(own), axis=0), context.all_gather(own, axis=0)

        run = tf.function(lambda: self.strategy.run(gather), autograph=False)
        lengths, codes = (self.strategy.experimental_local_results(x)[0].numpy() for x in run())
        parts = tf.split(codes, lengths)
        return ["".join(map(chr, part.numpy())) for part in parts]


# What TensorFlow raises in a process when another one has ended, and how its text shows it.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
_COLLECTIVE = re.compile(r"Collective ops|[Cc]oordination|heartbeat|[Ss]ocket closed|ended by")
