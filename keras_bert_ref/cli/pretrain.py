"""`pretrain`: TFRecord shards to a pretrained encoder."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_ref.cli import app
from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import ConfigError, OutputError

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
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
    seed: int = 0  # of weights, dropout, data order and dynamic masks

    def __post_init__(self):
        check_precision(self.precision)
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"optimizer {self.optimizer!r} is unknown: choose {' or '.join(OPTIMIZERS)}"
            )
        for name in ("steps", "batch_size", "micro_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be at least 0 and below 2³², not {self.seed}")

    @property
    def warmup(self):
        """The number of warmup steps, decided."""
        return self.steps // 100 if self.warmup_steps is None else self.warmup_steps


@app.command()
def pretrain(
    data: Annotated[
        str,
        typer.Option(help="A folder that create-data made, or a glob of the original's shards."),
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; a run found there is continued.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="tiny, mini, small, medium, base (the default), large, or a bert_config.json."
        ),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(help="A checkpoint of the same vocabulary to start from, with its --config."),
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option(help="Vocabulary of shards that come without a manifest.")
    ] = None,
    lower_case: Annotated[
        bool, typer.Option("--lower-case/--cased", help="Casing of shards without a manifest.")
    ] = True,
    steps: Annotated[int, typer.Option(help="Updates in the whole run.")] = Recipe.steps,
    batch_size: Annotated[int, typer.Option(help="Rows an update.")] = Recipe.batch_size,
    optimizer: Annotated[
        str, typer.Option(help="adamw, or lamb for batches of thousands.")
    ] = Recipe.optimizer,
    learning_rate: Annotated[float, typer.Option(help="The peak.")] = Recipe.learning_rate,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Updates until the peak; by default 1 % of the steps.")
    ] = None,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = Recipe.precision,
    attention: Annotated[
        str, typer.Option(help="bidirectional or left_to_right.")
    ] = Recipe.attention,
    micro_batches: Annotated[
        int, typer.Option(help="Parts an update's rows are computed in, to save memory.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of weights, dropout, data order and masks.")] = 0,
    strategy: Annotated[str, typer.Option(help="auto, one-device or mirrored.")] = "auto",
    log_every: Annotated[int, typer.Option(help="Steps between logged metrics.")] = 100,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = 1000,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 1000,
    keep: Annotated[int, typer.Option(help="Checkpoints that stay on disk.")] = 3,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew, deleting a run found at --out.")
    ] = False,
):
    """Pretrain a BERT on TFRecord shards: masked language model and next sentence prediction.

    A run that ended early goes on from its last checkpoint when the command is given again. The
    split "heldout" of the data, if there is one, is what the run is evaluated on.
    """
    recipe = Recipe(
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        precision=precision,
        attention=attention,
        micro_batches=micro_batches,
        seed=seed,
    )
    try:
        results = run(
            data,
            out,
            config,
            recipe,
            init_from=init_from,
            vocab=vocab,
            lower_case=lower_case,
            strategy=strategy,
            overwrite=overwrite,
            log_every=log_every,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            keep=keep,
        )
    except KeyboardInterrupt:
        if (out / "checkpoints" / "checkpoint").exists():
            console.print("saved: the same command goes on from here")
        raise
    console.print("  ".join(f"{name} {value:.4f}" for name, value in results.items()))
    console.print(
        f"model: {out / 'model'}", f"curves: tensorboard --logdir {out / 'logs'}", sep="\n"
    )


def run(
    data,
    out,
    config,
    recipe,
    *,
    init_from=None,
    vocab=None,
    lower_case=True,
    strategy="auto",
    overwrite=False,
    **every,
):
    """Pretrains with a progress bar, or continues; returns the last metrics.

    Args:
        data: see the command's `--data`.
        out: the run's folder.
        config: a size's name or the path of a `bert_config.json`; None for base, or for that of
            `init_from`.
        recipe: a `Recipe`.
        init_from: a checkpoint that gives the weights to start from; None for fresh ones.
        vocab: the vocabulary file of shards without a manifest.
        lower_case: the casing of shards without a manifest.
        strategy: see `make_strategy`.
        overwrite: whether a run found at `out` is deleted first.
        **every: fields of `TrainingSchedule`.
    """
    from keras_bert_ref.checkpoints.saving import check_free
    from tfrecords.reader import open_shards, pretraining_dataset

    shards = open_shards(data)
    held_out = None
    if os.path.isdir(data) and "heldout" in shards.manifest.splits:
        held_out = open_shards(data, "heldout")
    tokenizer = _tokenizer(shards, vocab, lower_case)
    if init_from is None:
        config = _config(config or "base", tokenizer)
    else:
        config = _config_of(init_from, config, recipe, tokenizer)
    _check_sizes(config, tokenizer, shards)
    next_sentence = shards.manifest is None or shards.manifest.settings.next_sentence
    _check_place(out, shards)
    check_free(out / "model", overwrite=True)

    from keras_bert_ref import optimization, training
    from keras_bert_ref._tensorflow import keras

    schedule = training.TrainingSchedule(
        steps=recipe.steps, micro_batches=recipe.micro_batches, **every
    )
    rate = optimization.WarmupLinear(recipe.learning_rate, recipe.steps, recipe.warmup)
    strategy = training.make_strategy(strategy)
    rows = _rows_per_replica(recipe, strategy.num_replicas_in_sync)
    keras.utils.set_random_seed(recipe.seed)
    with strategy.scope():
        model = _model(config, recipe, next_sentence, init_from)
        model.compile(optimizer=getattr(optimization, OPTIMIZERS[recipe.optimizer])(rate))

    def batches(first, context):
        return pretraining_dataset(
            shards,
            rows,
            seed=recipe.seed,
            start_batch=first * context.num_replicas_in_sync // context.num_input_pipelines,
            input_context=context,
            vocab_size=config.vocab_size,
        )

    evaluation = held_out and pretraining_dataset(
        held_out,
        recipe.batch_size,
        shuffle=False,
        epochs=1,
        drop_remainder=False,
        vocab_size=config.vocab_size,
    )
    # All settings have proven good; only now is anything deleted or written.
    if overwrite and out.exists():
        shutil.rmtree(out)
    training.hold_settings(
        out,
        {
            **dataclasses.asdict(recipe),
            "config": config.to_dict(),
            "init_from": init_from,
            "data": _fingerprint(shards),
            "vocabulary": tokenizer.vocabulary_sha256,
        },
    )
    trainer = training.Trainer(model, out, schedule)
    console.print(
        f"{model.count_params():,} parameters, {sum(shards.records):,} rows of "
        f"{shards.max_seq_length}, {recipe.precision}"
    )
    if trainer.latest_checkpoint:
        console.print(f"continuing from {trainer.latest_checkpoint}", markup=False)
    with progress_bar("steps") as bars, _explaining([shards, held_out], config.vocab_size):
        bar = bars.add_task("", total=recipe.steps, note="")

        def report(step, metrics):
            note = {"note": _note(metrics)} if metrics else {}
            bars.update(bar, completed=step, **note)

        results = trainer.train(batches, evaluation, report=report)
    model.tokenizer = tokenizer
    model.save_pretrained(out / "model", overwrite=True)
    return results


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
        for shards in filter(None, splits):
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


def _tokenizer(shards, vocab, lower_case):
    from keras_bert_ref.tokenization import WordPieceTokenizer

    if shards.manifest is not None:
        if vocab is not None:
            raise ConfigError(f"--vocab is for shards without a manifest; {shards.folder} has one")
        return shards.tokenizer()
    if vocab is None:
        raise ConfigError(
            f"{shards.files[0]} comes without a manifest: name its vocabulary with --vocab"
        )
    return WordPieceTokenizer.from_vocab(vocab, lower_case)


def _config(config, tokenizer):
    if config.endswith(".json") or os.sep in config:
        return BertConfig.from_json(config)
    return BertConfig.from_name(config, vocab_size=tokenizer.vocab_size)


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


def _model(config, recipe, next_sentence, init_from):
    """Returns the model to train, with fresh weights or those of a checkpoint."""
    from keras_bert_ref.checkpoints.opening import open_checkpoint
    from keras_bert_ref.encoder import BertEncoder
    from keras_bert_ref.models import BertPretrainer

    options = {"dtype": recipe.precision}
    if init_from is None:
        encoder = BertEncoder(config, attention=recipe.attention, pooler=next_sentence, **options)
    elif open_checkpoint(init_from).has("masked_lm"):
        return BertPretrainer.from_pretrained(init_from, next_sentence=next_sentence, **options)
    else:
        encoder = BertEncoder.from_pretrained(init_from, pooler=next_sentence, **options)
    return BertPretrainer(encoder, next_sentence=next_sentence)


def _check_sizes(config, tokenizer, shards):
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


def _check_place(out, shards):
    """Makes sure that `out` is free, or holds a run and not the data."""
    free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not free and not (out / "run.json").is_file():
        raise OutputError(f"{out} is in use and holds no run: choose another folder")
    if any(Path(file).resolve().is_relative_to(out.resolve()) for file in shards.files):
        raise OutputError(f"{out} holds the data: choose another folder for the run")


def _rows_per_replica(recipe, replicas):
    rows, rest = divmod(recipe.batch_size, replicas)
    if rest or rows % recipe.micro_batches:
        raise ConfigError(
            f"batch_size {recipe.batch_size} does not divide into {replicas} devices × "
            f"{recipe.micro_batches} micro-batches"
        )
    return rows


def _fingerprint(shards):
    """Names the data: what was written, not where it lies."""
    files = [(os.path.basename(f), n) for f, n in zip(shards.files, shards.records, strict=True)]
    manifest = shards.manifest and dataclasses.asdict(shards.manifest)
    return hashlib.sha256(repr((files, shards.bytes, manifest)).encode()).hexdigest()
