"""`pretrain`: TFRecord shards to a pretrained encoder."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bert_ref.cli import app
from keras_bert_ref.cli.pretraining import PRECISIONS, Recipe, run
from keras_bert_ref.cli.progress import console


@app.command()
def pretrain(
    data: Annotated[
        str,
        typer.Option(help="A folder that create-data made, or a glob of the original's shards."),
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; a run found there is continued.")],
    long_data: Annotated[
        str | None,
        typer.Option(help="Data of longer rows, for the last steps (the paper's 512 after 128)."),
    ] = None,
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
    long_steps: Annotated[
        int | None, typer.Option(help="Updates on --long-data; by default the last tenth.")
    ] = None,
    long_micro_batches: Annotated[
        int | None, typer.Option(help="The parts of those; by default as many.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, dropout, data order and masks.")] = 0,
    strategy: Annotated[
        str, typer.Option(help="auto, one-device, mirrored, multi-worker or tpu.")
    ] = "auto",
    tpu: Annotated[
        str | None, typer.Option(help="A TPU's name or address; local for this machine's.")
    ] = None,
    worker_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the other workers of TF_CONFIG.")
    ] = 600,
    on_divergence: Annotated[
        str,
        typer.Option(
            help="stop, or roll-back: to the last checkpoint, leaving out the data since."
        ),
    ] = "stop",
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
    split "heldout" of the data, if there is one, is what the run is evaluated on. On SIGTERM it
    saves and ends with exit code 75.
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
        long_steps=long_steps,
        long_micro_batches=long_micro_batches,
        seed=seed,
    )
    try:
        results = run(
            data,
            out,
            config,
            recipe,
            long_data=long_data,
            init_from=init_from,
            vocab=vocab,
            lower_case=lower_case,
            strategy=strategy,
            tpu=tpu,
            worker_timeout=worker_timeout,
            overwrite=overwrite,
            on_divergence=on_divergence,
            log_every=log_every,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            keep=keep,
        )
    except KeyboardInterrupt:
        if (out / "checkpoints" / "checkpoint").exists():
            console.print("saved: the same command goes on from here")
        raise
    if results is None:
        return
    console.print("  ".join(f"{name} {value:.4f}" for name, value in results.items()))
    console.print(
        f"model: {out / 'model'}", f"curves: tensorboard --logdir {out / 'logs'}", sep="\n"
    )
