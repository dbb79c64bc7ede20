"""The training loop: one for every strategy, with checkpoints that continue exactly.

`model.fit` is fine for short runs on one machine. A long run needs what is here: several steps to a
host call, checkpoints that hold everything the next step depends on, evaluation on the way, and a
defined end when the loss is no longer finite, the process is told to end, or another one dies.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import threading
import time
from pathlib import Path

import keras_bert_ref
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import (
    BertWarning,
    ConfigError,
    DivergedError,
    PreemptedError,
)
from keras_bert_ref.files import writing
from keras_bert_ref.job import Job
from keras_bert_ref.run_folder import MetricsLog, read_metrics
from keras_bert_ref.strategies import whole_step_compiles
from keras_bert_ref.training_state import TrainingState

# A host call runs as many steps as take about this long: few enough calls to cost nothing, and
# enough of them to keep a progress bar alive and an interrupt answered.
_SECONDS_PER_CALL = 1.0
_BATCHES_BETWEEN_QUESTIONS = 16  # of an evaluation, for the workers to agree whether it goes on

# What to do about a loss that is not finite, see `TrainingSchedule`.
ON_DIVERGENCE = ("stop", "roll-back")
_ROLL_BACKS = 3  # from one checkpoint, before it is given up


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """When the loop does what, counted in training steps."""

    steps: int  # updates in the whole run
    log_every: int = 100  # metrics to TensorBoard and metrics.jsonl
    evaluate_every: int = 1000  # held-out metrics; also at the end
    checkpoint_every: int = 1000  # also at the end and when interrupted
    keep: int = 3  # checkpoints that stay on disk
    micro_batches: int = 1  # parts a replica's batch is computed in, to save memory
    # What to do when the loss is not finite: "stop", or "roll-back" to the last checkpoint and go
    # on with the data that follow, up to three times from the same one. Where a loss is scaled
    # (mixed_float16), an update that is not finite is passed over in either case.
    on_divergence: str = "stop"

    def __post_init__(self):
        if self.on_divergence not in ON_DIVERGENCE:
            raise ConfigError(
                f"on_divergence {self.on_divergence!r} is unknown: choose one of "
                f"{', '.join(ON_DIVERGENCE)}"
            )
        for name, value in dataclasses.asdict(self).items():
            if name != "on_divergence" and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a whole number above 0, not {value!r}")

    def next_event(self, step):
        """Returns the first step after `step` at which something is due."""
        every = (self.log_every, self.evaluate_every, self.checkpoint_every)
        return min(self.steps, *((step // n + 1) * n for n in every))


class Trainer:
    """Trains a compiled `TaskModel`, keeping its state in a folder.

    ```python
    strategy = make_strategy()
    with strategy.scope():
        model = BertPretrainer(config)
        model.compile(optimizer=BertAdamW(WarmupLinear(1e-4, steps, warmup)))
    Trainer(model, "run", TrainingSchedule(steps=steps)).train(datasets)
    ```

    The folder gets `checkpoints/`, `metrics.jsonl` (one object a line: step, split and metrics) and
    TensorBoard logs in `logs/`. If it holds a checkpoint, training goes on from there: the
    variables, the optimizer's state and the random state of dropout are as they were, and
    `make_dataset` is asked for the batches that follow.

    Several workers must all see the folder; the first of them writes to it.

    Args:
        model: a compiled `TaskModel`, built under the strategy it is to be trained with.
        folder: where the run lives; made if absent.
        schedule: a `TrainingSchedule`.
        jit_compile: whether XLA compiles the whole step; "auto" does on GPU, where it is fast, and
            not on CPU, where it is not. On TPU it is always compiled.

    Attributes:
        stop: set it, such as in a function that evaluates, to end training before the last step.
    """

    def __init__(self, model, folder, schedule, *, jit_compile="auto"):
        self.model = model
        self.folder = Path(folder)
        self.schedule = schedule
        self.strategy = model.distribute_strategy
        if getattr(model, "optimizer", None) is None:
            raise ConfigError("the model has no optimizer: call model.compile(optimizer=…) first")
        self.jit_compile = whole_step_compiles() if jit_compile == "auto" else jit_compile
        self.stop = False
        self.job = Job(self.strategy)
        if self.job.is_first:
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
        with self.strategy.scope():
            model.optimizer.build(model.trainable_variables)
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            # Batches taken from the data: more than steps, once a roll-back has left some out.
            self._batch = tf.Variable(0, dtype=tf.int64, trainable=False, name="batch")
        self._state = TrainingState(
            self.folder / "checkpoints",
            keep=schedule.keep,
            writes=self.job.is_first,
            step=self._step,
            batch=self._batch,
            model=[variable.value for variable in model.variables],
            optimizer=[variable.value for variable in model.optimizer.variables],
        )
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        self._loss_scale = model.optimizer.dynamic_scale if scaled else None

    @property
    def step(self):
        """The number of batches trained on so far."""
        return int(self._step.numpy())

    @property
    def latest_checkpoint(self):
        """The checkpoint that training would go on from; None if there is none."""
        return self._state.latest

    @property
    def latest_step(self):
        """The step that training would go on from, without loading anything."""
        return self._state.latest_number or 0

    def restore(self):
        """Loads the latest checkpoint, if there is one; returns the step training continues at.

        Raises:
            CheckpointError: the checkpoint is damaged or belongs to another model.
            ConfigError: other workers see another one.
        """
        latest = self.latest_checkpoint
        self.job.check_same({"the last checkpoint": latest and Path(latest).name})
        return self.step if self._state.restore() else 0

    def train(self, make_dataset, evaluation=None, *, report=None):
        """Trains up to the last step of the schedule, from the latest checkpoint if there is one.

        Args:
            make_dataset: a function from (first step, `tf.distribute.InputContext`) to an endless
                dataset of (features, labels), of the batch size of one replica; a step takes a
                batch for each replica. The same first step must always give the same batches.
            evaluation: a finite dataset of (features, labels) in batches of any size, which the
                replicas share; a function that returns metrics, name → number, which SIGTERM does
                not end early; or None.
            report: a function called with (step, metrics) after each host call, where metrics is
                None between logged steps.

        Returns:
            The metrics of the last evaluation, or of the last training interval without one. Where
            the loss is scaled, `skipped_updates` counts those of the run that were not finite.

        Raises:
            DivergedError: the loss is not finite.
            PreemptedError: the process was sent SIGTERM; the state is saved.
            WorkerError: another worker has ended.
            CheckpointError: there is a checkpoint that cannot be restored.
            OutputError: the folder cannot be written.
            tf.errors.OpError: the data are damaged; `tfrecords.reader.explain` says where.
        """
        with self.job.ending_together(), noticing_sigterm() as sigterm:
            self.job.check_same(
                {
                    **dataclasses.asdict(self.schedule),
                    "evaluation": evaluation is not None,
                    "version": keras_bert_ref.__version__,
                    "TensorFlow": tf.__version__,
                }
            )
            self.restore()
            try:
                results = self._train(make_dataset, evaluation, report, sigterm)
                self._state.wait()
            except KeyboardInterrupt:
                if self.step and self._weights_are_finite():
                    self._state.save(self.step)
                    self._state.wait()
                raise
            if evaluation is not None and not results:  # the run had ended before
                results = self._evaluate(evaluation, sigterm)
            self.job.wait()
        return results

    def _train(self, make_dataset, evaluation, report, sigterm):
        schedule, log = self.schedule, None
        if self.job.is_first:
            log = MetricsLog(self.folder, self.step)
        results, steps_per_second, roll_backs = {}, 0.0, 0
        run = self._steps_function(make_dataset)
        self.model.reset_metrics()

        def logged(split, metrics):
            if log:
                log.write(self.step, split, metrics)
            self.model.reset_metrics()
            return metrics

        if evaluation is not None and self.job.any(self._owes_evaluation()):
            results = logged("heldout", self._evaluate(evaluation, sigterm))
        while (step := self.step) < schedule.steps:
            # All workers end at the same step, though only one of them may have been told to.
            steps_per_second, ending, stop = self.job.mean(
                steps_per_second, sigterm.came, self.stop
            )
            if stop and step:
                self._save()
            if stop:
                break
            if ending:
                self._end_early()
            due = schedule.next_event(step)
            count = min(due - step, max(1, int(steps_per_second * _SECONDS_PER_CALL)))
            began = time.perf_counter()
            fine = run(tf.constant(count, tf.int64))
            done, step = self.step - step, self.step
            # The first call also traces the step; its time says nothing.
            if steps_per_second or done > 1:
                steps_per_second = done / (time.perf_counter() - began)
            else:
                steps_per_second = 1.0
            last = step == schedule.steps
            saves = last or step % schedule.checkpoint_every == 0
            # A gradient that is not finite spoils the weights before any loss shows it.
            if not fine or (saves and not self._weights_are_finite()):
                roll_backs += 1
                self._roll_back(roll_backs)
                if log:
                    log.keep_until(self.step)
                run = self._steps_function(make_dataset)
                continue
            evaluates = evaluation is not None and (last or step % schedule.evaluate_every == 0)
            logs = None
            if last or evaluates or step % schedule.log_every == 0:
                logs = results = logged("train", self._results())
            if report:
                report(step, logs)
            # Before an evaluation, which may be long: killed in it, a run goes on with it.
            if saves:
                self._state.save(step)  # of weights found finite above
                roll_backs = 0
            if evaluates:
                results = logged("heldout", self._evaluate(evaluation, sigterm))
        return results

    def _end_early(self):
        step = self.step
        if step:
            self._save()
        self._state.wait()
        self.job.wait()  # for the first worker to have written it
        place = f"at step {step}, which is saved" if step else "before the first step"
        raise PreemptedError(f"told to end (SIGTERM) {place}: the same command goes on from here")

    def _evaluate(self, evaluation, sigterm):
        """Returns the metrics of a dataset, if SIGTERM does not come first, or of a function."""
        if callable(evaluation):
            return evaluation()
        every = 1 if self.job.size == 1 else _BATCHES_BETWEEN_QUESTIONS
        for number in self._test(evaluation):
            if number % every == 0 and self.job.any(sigterm.came):
                self._end_early()
        return self._results()

    def evaluate(self, dataset):
        """Returns the metrics over a finite dataset of (features, labels).

        Args:
            dataset: in batches of any size, which the replicas share.
        """
        for _ in self._test(dataset):
            pass
        return self._results()

    def _test(self, dataset):
        """Yields the number of each batch, from 1, when the metrics have seen it."""
        self.model.reset_metrics()
        if self.job.size > 1:  # every worker reads all, and takes its share of the rows
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = (
                tf.data.experimental.AutoShardPolicy.DATA
            )
            dataset = dataset.with_options(options)
        batches = self.strategy.experimental_distribute_dataset(dataset)
        for number, batch in enumerate(batches, start=1):
            self._test_function(batch)
            yield number

    def _steps_function(self, make_dataset):
        """Returns a function that trains so many steps, and returns whether all went well."""
        first, parts = int(self._batch.numpy()), self.schedule.micro_batches
        batches = iter(
            self.strategy.distribute_datasets_from_function(
                lambda context: make_dataset(first, context)
            )
        )

        @tf.function(jit_compile=self.jit_compile, autograph=False)
        def train_step(features, labels):
            micro_batches = _split((features, labels), parts) if parts > 1 else [(features, labels)]
            loss = self.model.train_on_micro_batches(micro_batches)["loss"]
            if self._loss_scale is None:
                fine = tf.math.is_finite(loss)
            else:  # halved at each update that is not finite: below 1 no scale would help
                fine = tf.convert_to_tensor(self._loss_scale) >= 1
            return tf.cast(tf.logical_not(fine), tf.float32)

        @tf.function
        def run(count):
            done, fine = tf.constant(0, tf.int64), tf.constant(True)
            # The loop ends with the step that went wrong, on all replicas, though the loss of one
            # alone may show it.
            while done < count and fine:
                each = self.strategy.run(train_step, args=next(batches))
                fine = self.strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None) == 0
                done += 1
                self._step.assign_add(1)
                self._batch.assign_add(1)
            return fine

        return run

    @functools.cached_property
    def _test_function(self):
        @tf.function(reduce_retracing=True, autograph=False)
        def test(batch):
            self.strategy.run(lambda *data: self.model.test_step(data), args=batch)

        return test

    def _owes_evaluation(self):
        """Returns whether the run was interrupted when it had saved a step, but not evaluated."""
        step = self.step
        if not step or (step % self.schedule.evaluate_every and step != self.schedule.steps):
            return False
        path = self.folder / "metrics.jsonl"
        lines = read_metrics(path) if path.exists() else []
        return not any(line["split"] == "heldout" and line["step"] == step for line in lines)

    def _results(self):
        results = {name: float(value) for name, value in self.model.get_metrics_result().items()}
        if self._loss_scale is not None:
            results["skipped_updates"] = self.step - int(self.model.optimizer.iterations.numpy())
        return results

    def _weights_are_finite(self):
        return all(tf.reduce_all(tf.math.is_finite(v)) for v in self.model.trainable_variables)

    def _save(self):
        if not self._weights_are_finite():
            raise self._diverged()
        self._state.save(self.step)

    def _roll_back(self, count):
        """Goes back to the last checkpoint, but not to the data that followed it.

        Raises:
            DivergedError: the schedule says to stop, or it was in vain before.
        """
        self._state.wait()
        self.job.wait()  # for the first worker to have written what the others read
        if (
            self.schedule.on_divergence == "stop"
            or count > _ROLL_BACKS
            or self.latest_checkpoint is None
        ):
            raise self._diverged()
        step, batch = self.step, int(self._batch.numpy())
        self.restore()
        self._batch.assign(batch)
        self.model.reset_metrics()
        BertWarning.issue(
            f"the loss or a weight was not finite at step {step}: training goes on from step "
            f"{self.step}, with the data that follow"
        )

    def _diverged(self):
        latest = self.latest_checkpoint
        good = f"the last good checkpoint is {latest}" if latest else "there is no checkpoint yet"
        return DivergedError(
            f"the loss or a weight is not finite at step {self.step}; {good}. A lower learning "
            "rate or a longer warmup usually helps."
        )


class _Sigterm:
    """Whether SIGTERM came, as machines that are taken away send it in advance."""

    came = False

    def __call__(self, *_):
        self.came = True


_sigterm = None  # the one that notices, if any


@contextlib.contextmanager
def noticing_sigterm():
    """Yields an object whose `came` tells whether SIGTERM came since the outermost of these.

    One that came when there was nothing left to end is sent again at the end of the outermost.
    """
    global _sigterm
    # Python handles signals in the main thread alone.
    if _sigterm is not None or threading.current_thread() is not threading.main_thread():
        yield _sigterm or _Sigterm()
        return
    _sigterm = _Sigterm()
    before = signal.signal(signal.SIGTERM, _sigterm)
    try:
        yield _sigterm
        came = _sigterm.came
    finally:
        _sigterm = None
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
    if came:
        os.kill(os.getpid(), signal.SIGTERM)


def _split(batch, parts):
    """A batch of B rows to a list of batches of B/parts rows."""
    flat = [tf.split(tensor, parts) for tensor in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, part) for part in zip(*flat, strict=True)]
