"""A pretraining run: its recipe, its phases, and what it shows while it goes on."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import uuid
from pathlib import Path

from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import ConfigError, OutputError
from keras_bert_ref.files import writing
from keras_bert_ref.planning import COMPUTE_BYTES

PRECISIONS = tuple(COMPUTE_BYTES)
OPTIMIZERS = {"adamw": "BertAdamW", "lamb": "Lamb"}


def check_precision(precision):
    """Raises ConfigError unless it is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision {precision!r} is unknown: choose one of {', '.join(PRECISIONS)}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides the result of a pretraining run; the defaults are the paper's (appendix A.2)."""

    steps: int = 1_000_000
    batch_size: int = 256  # rows, over all devices and micro-batches
    optimizer: str = "adamw"  # or "lamb", for batches of thousands of rows
    learning_rate: float = 1e-4  # the peak
    warmup_steps: int | None = None  # None for 1 % of the steps, as the paper's 10,000 are
    precision: str = "float32"  # a Keras dtype policy
    attention: str = "bidirectional"  # or "left_to_right" (table 5)
    micro_batches: int = 1
    long_steps: int | None = None  # the last steps, on longer rows; None for a tenth of all
    long_micro_batches: int | None = None  # theirs; None for as many as of the others
    seed: int = 0  # of weights, dropout, data order and dynamic masks

    def __post_init__(self):
        check_precision(self.precision)
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"optimizer {self.optimizer!r} is unknown: choose {' or '.join(OPTIMIZERS)}"
            )
        for name in ("steps", "batch_size", "micro_batches", "long_micro_batches"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be at least 0 and below 2³², not {self.seed}")

    def phases(self, long):
        """Returns (first step, step after the last, micro-batches) of each phase.

        Args:
            long: whether there is a second one, on longer rows (the paper's last tenth, A.2).
        """
        if not long:
            if self.long_steps is not None or self.long_micro_batches is not None:
                raise ConfigError(
                    "long_steps and long_micro_batches are of a phase on longer rows, which this "
                    "run has not: name --long-data"
                )
            return [(0, self.steps, self.micro_batches)]
        last = self.steps // 10 if self.long_steps is None else self.long_steps
        if not 1 <= last < self.steps:
            raise ConfigError(
                f"long_steps is {last}: it must be at least 1 and below the {self.steps} of the run"
            )
        border = self.steps - last
        micro_batches = self.long_micro_batches or self.micro_batches
        return [(0, border, self.micro_batches), (border, self.steps, micro_batches)]

    @property
    def warmup(self):
        """The number of warmup steps, decided."""
        return self.steps // 100 if self.warmup_steps is None else self.warmup_steps


def run(
    data,
    out,
    config,
    recipe,
    *,
    long_data=None,
    init_from=None,
    vocab=None,
    lower_case=True,
    strategy="auto",
    tpu=None,
    worker_timeout=600,
    overwrite=False,
    **every,
):
    """Pretrains with a progress bar, or continues.

    Args:
        data: see the command's `--data`.
        out: the run's folder.
        config: a size's name or the path of a `bert_config.json`; None for base, or for that of
            `init_from`.
        recipe: a `Recipe`.
        long_data: the data of the last steps; None for the same to the end.
        init_from: a checkpoint that gives the weights to start from; None for fresh ones.
        vocab: the vocabulary file of shards without a manifest.
        lower_case: the casing of shards without a manifest.
        strategy, tpu: see `make_strategy`.
        worker_timeout: seconds to wait for other workers.
        overwrite: whether a run found at `out` is deleted first.
        **every: fields of `TrainingSchedule`.

    Returns:
        The last metrics; None in all workers but the first.
    """
    from keras_bert_ref.checkpoints.saving import check_free

    phases = _open_phases(data, long_data, recipe)
    tokenizer = _tokenizer(phases, vocab, lower_case)
    if init_from is None:
        config = read_config(config or "base", vocab_size=tokenizer.vocab_size)
    else:
        config = _config_of(init_from, config, recipe, tokenizer)
    _check_sizes(config, tokenizer, phases)

    from keras_bert_ref import optimization, run_folder, training
    from keras_bert_ref._tensorflow import keras
    from keras_bert_ref.job import Job
    from keras_bert_ref.strategies import make_strategy

    schedules = [
        training.TrainingSchedule(steps=phase.last, micro_batches=phase.micro_batches, **every)
        for phase in phases
    ]
    rate = optimization.WarmupLinear(recipe.learning_rate, recipe.steps, recipe.warmup)
    strategy = make_strategy(strategy, tpu=tpu, timeout=worker_timeout)
    job = Job(strategy)
    settings = {
        **dataclasses.asdict(recipe),
        "config": config.to_dict(),
        "init_from": init_from,
        "data": _fingerprint(phases[0].shards),
        "long_data": _fingerprint(phases[1].shards) if long_data else None,
        "vocabulary": tokenizer.vocabulary_sha256,
    }
    with job.ending_together(), training.noticing_sigterm():
        held_out = [phase.held_out and _fingerprint(phase.held_out) for phase in phases]
        job.check_same({**settings, **every, "held_out": held_out})
        rows = _rows_per_replica(recipe, phases, strategy.num_replicas_in_sync)
        if job.is_first:
            _check_place(out, phases)
            check_free(out / "model", overwrite=True)
        keras.utils.set_random_seed(recipe.seed)
        with strategy.scope():
            model = _model(config, recipe, phases, init_from)
            model.compile(optimizer=getattr(optimization, OPTIMIZERS[recipe.optimizer])(rate))
        if job.size > 1:
            job.check_same({"weights to start from": _digest(model)})
        # All settings have proven good; only now is anything deleted or written.
        if job.is_first:
            if overwrite and out.exists():
                _delete(out)
            run_folder.hold_settings(out, settings)
            _introduce(phases, model, recipe, job)
        else:
            console.print("training; the first worker shows progress")
        job.wait()
        results = _train(job, model, out, phases, schedules, rows, recipe, config)
        if job.is_first:
            model.tokenizer = tokenizer
            model.save_pretrained(out / "model", overwrite=True)
        job.wait()
    return results if job.is_first else None


def _train(job, model, out, phases, schedules, rows, recipe, config):
    """Trains one phase after the other; returns the last metrics."""
    from keras_bert_ref.training import Trainer

    with progress_bar("steps", disable=not job.is_first) as bars:
        bar = bars.add_task("", total=recipe.steps, note="")

        def report(step, metrics):
            note = {"note": _note(metrics)} if metrics else {}
            bars.update(bar, completed=step, **note)

        for phase, schedule in zip(phases, schedules, strict=True):
            trainer = Trainer(model, out, schedule)
            done = trainer.latest_step
            job.check_same({"the last checkpoint": done})  # before any of them passes a phase over
            if done > phase.last:
                continue
            if done > phase.first and job.is_first:
                console.print(f"continuing from {trainer.latest_checkpoint}", markup=False)
            with _explaining(phase.splits, config.vocab_size):
                results = trainer.train(
                    phase.batches(rows, model, recipe.seed),
                    phase.evaluation(recipe.batch_size, model),
                    report=report,
                )
    return results


def _introduce(phases, model, recipe, job):
    """Says what is about to be trained."""
    for phase in phases:
        packed = ""
        if phase.shards.sequences_per_row > 1:
            packed = f", packed with up to {phase.shards.sequences_per_row} sequences"
        console.print(
            f"steps {phase.first:,} – {phase.last:,}: {sum(phase.shards.records):,} rows of "
            f"{phase.shards.max_seq_length}{packed}"
        )
    devices = job.strategy.num_replicas_in_sync
    console.print(
        f"{model.count_params():,} parameters, {recipe.precision}, on {devices} "
        f"{'device' if devices == 1 else 'devices'}"
        + (f" of {job.size} workers" if job.size > 1 else "")
    )


def _delete(folder):
    """Deletes a run, so that a half deleted one never stands in its place."""
    folder = folder.resolve()
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
    with writing(folder):
        folder.rename(old)
        shutil.rmtree(old)


def _digest(model):
    found = hashlib.sha256()
    for variable in model.variables:
        found.update(variable.numpy().tobytes())
    return found.hexdigest()


@dataclasses.dataclass(frozen=True)
class _Phase:
    """A part of the run on data of one length, from step `first` until before step `last`."""

    shards: object
    held_out: object  # the shards that it is evaluated on, or None
    first: int
    last: int
    micro_batches: int

    @property
    def splits(self):
        return [shards for shards in (self.shards, self.held_out) if shards is not None]

    @property
    def next_sentence(self):
        manifest = self.shards.manifest
        return manifest is None or manifest.settings.next_sentence

    def batches(self, rows, model, seed):
        """Returns a function as `Trainer.train` takes it; `rows` are of one replica."""
        from tfrecords.reader import pretraining_dataset

        def make(first, context):
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            return pretraining_dataset(
                self.shards,
                rows,
                seed=seed,
                start_batch=(first - self.first) * replicas,
                input_context=context,
                **_read_for(model),
            )

        return make

    def evaluation(self, rows, model):
        """Returns a dataset of the held-out rows, once; None without."""
        from tfrecords.reader import pretraining_dataset

        return self.held_out and pretraining_dataset(
            self.held_out,
            rows,
            shuffle=False,
            epochs=1,
            drop_remainder=False,
            **_read_for(model),
        )


def _read_for(model):
    """Returns the options of `pretraining_dataset` that a model decides."""
    encoder = model.encoder
    return {
        "vocab_size": encoder.config.vocab_size,
        "sequences_per_row": encoder.sequences_per_row,
    }


def _open_phases(data, long_data, recipe):
    from tfrecords.reader import open_shards

    phases = []
    parts = recipe.phases(long_data is not None)
    for where, part in zip(filter(None, (data, long_data)), parts, strict=True):
        shards, held_out = open_shards(where), None
        if os.path.isdir(where) and "heldout" in shards.manifest.splits:
            held_out = open_shards(where, "heldout")
        phases.append(_Phase(shards, held_out, *part))
    if phases[-1].shards.max_seq_length < phases[0].shards.max_seq_length:
        raise ConfigError(
            f"the rows of --long-data have {phases[1].shards.max_seq_length} pieces, those of "
            f"--data {phases[0].shards.max_seq_length}: are the two exchanged?"
        )
    if phases[-1].next_sentence != phases[0].next_sentence:
        raise ConfigError(
            "only one of --data and --long-data was made for next sentence prediction"
        )
    return phases


@contextlib.contextmanager
def _explaining(splits, vocab_size):
    """Names the record behind an error that TensorFlow raises while it reads `splits`."""
    from keras_bert_ref._tensorflow import tf
    from tfrecords.reader import explain

    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise ConfigError(
            "the device is out of memory: lower --batch-size, or compute it in more --micro-batches"
        ) from error
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        console.print("looking for the record behind this error")
        for shards in splits:
            if found := explain(error, shards, vocab_size=vocab_size):
                raise found from error
        raise


def _note(metrics):
    shown = {"masked_lm_loss": "loss", "masked_lm_accuracy": "MLM", "next_sentence_accuracy": "NSP"}
    values = [
        f"{label} {metrics[name]:{'.3f' if label == 'loss' else '.1%'}}"
        for name, label in shown.items()
        if name in metrics
    ]
    return " ".join(values)


def _tokenizer(phases, vocab, lower_case):
    from keras_bert_ref.tokenization import WordPieceTokenizer

    kept = {phase.shards.tokenizer().vocabulary_sha256 for phase in phases if phase.shards.manifest}
    if len(kept) > 1:
        raise ConfigError(
            "--data and --long-data were made with different vocabularies: make both with one"
        )
    shards = next((p.shards for p in phases if p.shards.manifest), phases[0].shards)
    if shards.manifest is not None:
        if vocab is not None:
            raise ConfigError(f"--vocab is for shards without a manifest; {shards.folder} has one")
        return shards.tokenizer()
    if vocab is None:
        raise ConfigError(
            f"{shards.files[0]} comes without a manifest: name its vocabulary with --vocab"
        )
    return WordPieceTokenizer.from_vocab(vocab, lower_case)


def read_config(config, **changes):
    """Returns the configuration of a size's name, with changes, or of a `bert_config.json`."""
    if config.endswith(".json") or os.sep in config:
        return BertConfig.from_json(config)
    return BertConfig.from_name(config, **changes)


def _config_of(where, config, recipe, tokenizer):
    """Returns the configuration of a checkpoint, if training may go on from it."""
    from keras_bert_ref.checkpoints.opening import open_checkpoint

    if config is not None:
        raise ConfigError("--config is that of the checkpoint of --init-from: leave it out")
    checkpoint = open_checkpoint(where)
    if checkpoint.attention != recipe.attention:
        raise ConfigError(
            f"{where} has {checkpoint.attention} attention, which --attention must name"
        )
    own = checkpoint.tokenizer
    if own is not None and own.vocabulary_sha256 != tokenizer.vocabulary_sha256:
        raise ConfigError(
            f"the vocabulary of {where} is not that of the data: create the data with it"
        )
    return checkpoint.config


def _model(config, recipe, phases, init_from):
    """Returns the model to train, with fresh weights or those of a checkpoint."""
    from keras_bert_ref.checkpoints.opening import open_checkpoint
    from keras_bert_ref.encoder import BertEncoder
    from keras_bert_ref.models import BertPretrainer

    next_sentence = phases[0].next_sentence
    options = {
        "dtype": recipe.precision,
        "sequences_per_row": max(phase.shards.sequences_per_row for phase in phases),
    }
    if init_from is None:
        encoder = BertEncoder(config, attention=recipe.attention, pooler=next_sentence, **options)
    elif open_checkpoint(init_from).has("masked_lm"):
        return BertPretrainer.from_pretrained(init_from, next_sentence=next_sentence, **options)
    else:
        encoder = BertEncoder.from_pretrained(init_from, pooler=next_sentence, **options)
    return BertPretrainer(encoder, next_sentence=next_sentence)


def _check_sizes(config, tokenizer, phases):
    shards = phases[-1].shards
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the vocabulary has {tokenizer.vocab_size} pieces, the configuration's vocab_size is "
            f"{config.vocab_size}: it must hold them all"
        )
    if shards.max_seq_length > config.max_position_embeddings:
        raise ConfigError(
            f"the rows have {shards.max_seq_length} pieces, the configuration's "
            f"max_position_embeddings is {config.max_position_embeddings}: make them as long"
        )


def _check_place(out, phases):
    """Makes sure that `out` is free, or holds a run and not the data."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    # One that was killed while it began leaves no more than this.
    free = not out.exists() or names <= {"run.json.part"}
    if not free and not (out / "run.json").is_file():
        raise OutputError(f"{out} is in use and holds no run: choose another folder")
    files = [Path(file).resolve() for phase in phases for file in phase.shards.files]
    if any(file.is_relative_to(out.resolve()) for file in files):
        raise OutputError(f"{out} holds the data: choose another folder for the run")


def _rows_per_replica(recipe, phases, replicas):
    rows, rest = divmod(recipe.batch_size, replicas)
    for phase in phases:
        if rest or rows % phase.micro_batches:
            raise ConfigError(
                f"batch_size {recipe.batch_size} does not divide into {replicas} devices × "
                f"{phase.micro_batches} micro-batches"
            )
    return rows


def _fingerprint(shards):
    """Names the data: what was written, not where it lies."""
    files = [(os.path.basename(f), n) for f, n in zip(shards.files, shards.records, strict=True)]
    manifest = shards.manifest and dataclasses.asdict(shards.manifest)
    return hashlib.sha256(repr((files, shards.bytes, manifest)).encode()).hexdigest()
