"""The training loop: one for every strategy, with checkpoints that continue exactly.

`model.fit` is fine for short runs on one machine. A long run needs what is here: several steps to a
host call, checkpoints that hold everything the next step depends on, evaluation on the way, and a
defined end when the loss is no longer finite.
"""

import dataclasses
import functools
import json
import math
import time
from pathlib import Path

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import CheckpointError, ConfigError, DivergedError, OutputError
from keras_bert_ref.files import first_line, read_json, replace_text, writing

STRATEGIES = ("auto", "one-device", "mirrored")

# A host call runs as many steps as take about this long: few enough calls to cost nothing, and
# enough of them to keep a progress bar alive and an interrupt answered.
_SECONDS_PER_CALL = 1.0


def make_strategy(name="auto"):
    """Returns the `tf.distribute` strategy to build and train a model under.

    Args:
        name: "one-device" (the first GPU, else the CPU), "mirrored" (all GPUs of this machine), or
            "auto" (mirrored where there is more than one GPU).

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy {name!r} is unknown: choose one of {', '.join(STRATEGIES)}")
    gpus = tf.config.list_logical_devices("GPU")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


def whole_step_compiles():
    """Returns whether XLA is the fast path here: on GPU and TPU it is, on CPU it is not."""
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def fast_precision():
    """Returns the dtype policy that trains fastest on this machine's first device.

    bfloat16 where there are units for it (TPU, NVIDIA from compute capability 8, CPUs with AMX or
    AVX512-BF16), else float32.
    """
    if tf.config.list_physical_devices("TPU"):
        return "mixed_bfloat16"
    if gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        fast = details.get("compute_capability", (0, 0)) >= (8, 0)
    else:
        try:
            flags = Path("/proc/cpuinfo").read_text()
        except OSError:
            flags = ""
        fast = "amx_bf16" in flags or "avx512_bf16" in flags
    return "mixed_bfloat16" if fast else "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """When the loop does what, counted in training steps."""

    steps: int  # updates in the whole run
    log_every: int = 100  # metrics to TensorBoard and metrics.jsonl
    evaluate_every: int = 1000  # held-out metrics; also at the end
    checkpoint_every: int = 1000  # also at the end and when interrupted
    keep: int = 3  # checkpoints that stay on disk
    micro_batches: int = 1  # parts a replica's batch is computed in, to save memory

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, int) or value < 1:
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

    Args:
        model: a compiled `TaskModel`, built under the strategy it is to be trained with.
        folder: where the run lives; made if absent.
        schedule: a `TrainingSchedule`.
        jit_compile: whether XLA compiles the whole step; "auto" does on GPU and TPU, where it is
            fast, and not on CPU, where it is not.

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
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self.strategy.scope():
            model.optimizer.build(model.trainable_variables)
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        # By position, not by name: the order is that of construction, and a run never continues
        # with another configuration (see `hold_settings`).
        self._checkpoint = tf.train.Checkpoint(
            step=self._step,
            model=[variable.value for variable in model.variables],
            optimizer=[variable.value for variable in model.optimizer.variables],
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            str(self.folder / "checkpoints"),
            max_to_keep=schedule.keep,
            checkpoint_name="step",
        )

    @property
    def step(self):
        """The number of batches trained on so far."""
        return int(self._step.numpy())

    @property
    def latest_checkpoint(self):
        """The checkpoint that training would go on from; None if there is none."""
        # One whose files someone deleted does not count.
        kept = (p for p in reversed(self._manager.checkpoints) if Path(f"{p}.index").exists())
        return next(kept, None)

    def restore(self):
        """Loads the latest checkpoint, if there is one; returns the step training continues at.

        Raises:
            CheckpointError: the checkpoint is damaged or belongs to another model.
        """
        latest = self.latest_checkpoint
        if latest is None:
            return 0
        try:
            self._checkpoint.restore(latest).assert_consumed()
        except Exception as error:  # by damage: OpError, IndexError, AssertionError, ValueError, …
            raise CheckpointError(
                f"{latest} cannot be restored into this model: {first_line(error)}. Delete "
                f"{latest}.* to go on from the checkpoint before, or start in another folder."
            ) from None
        return self.step

    def train(self, make_dataset, evaluation=None, *, report=None):
        """Trains up to the last step of the schedule, from the latest checkpoint if there is one.

        Args:
            make_dataset: a function from (first step, `tf.distribute.InputContext`) to an endless
                dataset of (features, labels), of the batch size of one replica; a step takes a
                batch for each replica. The same first step must always give the same batches.
            evaluation: a finite dataset of (features, labels) in batches of any size, which the
                replicas share; a function that returns metrics, name → number; or None.
            report: a function called with (step, metrics) after each host call, where metrics is
                None between logged steps.

        Returns:
            The metrics of the last evaluation, or of the last training interval without one.

        Raises:
            DivergedError: the loss is not finite.
            CheckpointError: there is a checkpoint that cannot be restored.
            OutputError: the folder cannot be written.
            tf.errors.OpError: the data are damaged; `tfrecords.reader.explain` says where.
        """
        schedule, step, report = self.schedule, self.restore(), report or (lambda *_: None)
        self._keep_metrics_until(step)
        batches = iter(
            self.strategy.distribute_datasets_from_function(
                lambda context: make_dataset(step, context)
            )
        )
        run = self._steps_function(batches)
        writer = tf.summary.create_file_writer(str(self.folder / "logs"))
        results, steps_per_second = {}, 0.0
        self.model.reset_metrics()
        try:
            if evaluation is not None and self._owes_evaluation(step):
                results = self._log(writer, step, "heldout", self.evaluate(evaluation))
                self.model.reset_metrics()
            while step < schedule.steps and not self.stop:
                due = schedule.next_event(step)
                count = min(due - step, max(1, int(steps_per_second * _SECONDS_PER_CALL)))
                began = time.perf_counter()
                loss = run(tf.constant(count, tf.int64))
                done, step = self.step - step, self.step
                if not math.isfinite(float(loss)):
                    raise self._diverged(step)
                # The first call also traces the step; its time says nothing.
                if steps_per_second or done > 1:
                    steps_per_second = done / (time.perf_counter() - began)
                else:
                    steps_per_second = 1.0
                last = step == schedule.steps
                evaluates = evaluation is not None and (last or step % schedule.evaluate_every == 0)
                logs = None
                if last or evaluates or step % schedule.log_every == 0:
                    logs = results = self._log(writer, step, "train", self._results())
                    self.model.reset_metrics()
                report(step, logs)
                if evaluates:
                    results = self._log(writer, step, "heldout", self.evaluate(evaluation))
                    self.model.reset_metrics()
                # Last, so that a run which goes on from here has nothing to catch up on.
                if last or self.stop or step % schedule.checkpoint_every == 0:
                    self._save(step)
        except KeyboardInterrupt:
            if self.step:
                self._save(self.step)
            raise
        if evaluation is not None and not results:  # the run had ended before
            results = self.evaluate(evaluation)
        return results

    def evaluate(self, dataset):
        """Returns the metrics over a finite dataset of (features, labels), or of a function."""
        if callable(dataset):
            return dataset()
        self.model.reset_metrics()
        for batch in self.strategy.experimental_distribute_dataset(dataset):
            self._test_function(batch)
        return self._results()

    def _steps_function(self, batches):
        parts = self.schedule.micro_batches

        @tf.function(jit_compile=self.jit_compile, autograph=False)
        def train_step(features, labels):
            micro_batches = _split((features, labels), parts) if parts > 1 else [(features, labels)]
            return self.model.train_on_micro_batches(micro_batches)["loss"]

        @tf.function
        def run(count):
            done, loss = tf.constant(0, tf.int64), tf.constant(0.0)
            # A loss that is no longer finite ends the loop, so that the step is known.
            while done < count and tf.math.is_finite(loss):
                losses = self.strategy.run(train_step, args=next(batches))
                loss = self.strategy.experimental_local_results(losses)[0]
                done += 1
                self._step.assign_add(1)
            return loss

        return run

    @functools.cached_property
    def _test_function(self):
        @tf.function(reduce_retracing=True, autograph=False)
        def test(batch):
            self.strategy.run(lambda *data: self.model.test_step(data), args=batch)

        return test

    def _owes_evaluation(self, step):
        """Returns whether the run was interrupted when it had saved `step`, but not evaluated."""
        if not step or (step % self.schedule.evaluate_every and step != self.schedule.steps):
            return False
        path = self.folder / "metrics.jsonl"
        lines = read_metrics(path) if path.exists() else []
        return not any(line["split"] == "heldout" and line["step"] == step for line in lines)

    def _results(self):
        return {name: float(value) for name, value in self.model.get_metrics_result().items()}

    def _save(self, step):
        # A gradient that is not finite spoils the weights before any loss shows it.
        if not all(tf.reduce_all(tf.math.is_finite(v)) for v in self.model.trainable_variables):
            raise self._diverged(step)
        with writing(self.folder / "checkpoints"):
            try:
                self._manager.save(checkpoint_number=step)
            except tf.errors.OpError as error:
                raise OutputError(
                    f"the checkpoint of step {step} cannot be written to "
                    f"{self._manager.directory}: {first_line(error)}"
                ) from None

    def _diverged(self, step):
        latest = self.latest_checkpoint
        good = f"the last good checkpoint is {latest}" if latest else "there is no checkpoint yet"
        return DivergedError(
            f"the loss or a weight is not finite at step {step}; {good}. A lower learning rate or "
            "a longer warmup usually helps."
        )

    def _log(self, writer, step, split, metrics):
        with writing(self.folder):
            try:
                with writer.as_default(step=step):
                    for name, value in metrics.items():
                        tf.summary.scalar(f"{split}/{name}", value)
                writer.flush()
            except tf.errors.OpError as error:
                raise OutputError(
                    f"{self.folder / 'logs'} cannot be written: {first_line(error)}"
                ) from None
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "split": split, **metrics}) + "\n")
        return metrics

    def _keep_metrics_until(self, step):
        """Drops what a previous start logged after its last checkpoint: it will come again."""
        path = self.folder / "metrics.jsonl"
        if path.exists():
            kept = [line for line in read_metrics(path) if line["step"] <= step]
            replace_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def read_metrics(path):
    """Returns the objects of a `metrics.jsonl`, without a last line that was cut short."""
    lines = []
    for text in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def hold_settings(folder, settings):
    """Records a run's settings in `run.json`, or checks that they are the ones recorded there.

    Args:
        folder: the run's folder; made if absent.
        settings: a dict that JSON can hold.

    Raises:
        CheckpointError: the folder holds a run with other settings; each that differs is named.
    """
    path = Path(folder) / "run.json"
    settings = json.loads(json.dumps(settings))
    if path.exists():
        recorded = read_json(path)
        differing = sorted(
            f"{name} was {recorded.get(name)!r} and is now {settings.get(name)!r}"
            for name in recorded.keys() | settings.keys()
            if recorded.get(name) != settings.get(name)
        )
        if differing:
            raise CheckpointError(
                f"{folder} holds a run with other settings: {'; '.join(differing)}. "
                "Continue it with the same settings, or choose another folder."
            )
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(settings, indent=2) + "\n")


def _split(batch, parts):
    """A batch of B rows to a list of batches of B/parts rows."""
    flat = [tf.split(tensor, parts) for tensor in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, part) for part in zip(*flat, strict=True)]
