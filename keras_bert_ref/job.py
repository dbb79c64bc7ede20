"""The processes of one training job: what they tell each other, besides gradients."""

import json

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError


class Job:
    """All processes that train one model under a strategy; mostly there is one.

    Every method must be called by all of them, in the same order.

    Args:
        strategy: a `tf.distribute.Strategy`.

    Attributes:
        is_first: whether this process is the one that writes files and shows progress.
        size: the number of processes.
    """

    def __init__(self, strategy):
        self.strategy = strategy
        self.is_first = strategy.extended.should_checkpoint
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.size = strategy.cluster_resolver.cluster_spec().num_tasks("worker") if several else 1
        if several and "chief" in strategy.cluster_resolver.cluster_spec().jobs:
            self.size += 1
        self._mean = tf.function(self._mean_over_replicas, autograph=False)

    def mean(self, *values):
        """Returns the mean of each number over the processes, as floats."""
        if self.size == 1:
            return [float(value) for value in values]
        return self._mean(tf.constant(values, tf.float32)).numpy().tolist()

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
            differing = [
                f"{name} is {first.get(name)!r} in the first and {other.get(name)!r} in that one"
                for name in sorted(first.keys() | other.keys())
                if first.get(name) != other.get(name)
            ]
            if differing:
                raise ConfigError(
                    f"the workers differ; replica {number} has other settings than the first: "
                    f"{'; '.join(differing)}. Start all workers with the same command, data and "
                    "version."
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
