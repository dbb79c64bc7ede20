"""`info`, `convert`, `fill-mask`: what a checkpoint holds, in another format, what it knows."""

import collections
import enum
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from keras_bert_ref.cli import app
from keras_bert_ref.cli.progress import console
from keras_bert_ref.errors import CheckpointError, OutputError

_WHERE = "A checkpoint: a folder of any known format, a TensorFlow prefix, or hf://owner/name."

Where = Annotated[str, typer.Argument(metavar="DIR", help=_WHERE)]


class Format(enum.StrEnum):
    own = enum.auto()
    hf = enum.auto()
    tf1 = enum.auto()


@app.command()
def info(where: Where):
    """Show what a checkpoint holds, without loading its weights."""
    from keras_bert_ref.checkpoints.opening import open_checkpoint

    checkpoint = open_checkpoint(where)
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    dtypes = collections.Counter(stored.dtype for stored in checkpoint.weights.values())
    parameters = sum(math.prod(stored.shape) for stored in checkpoint.weights.values())
    table = Table.grid(padding=(0, 2))

    def row(name, text):
        table.add_row(Text(name, style="bold"), Text(text))

    row("format", checkpoint.format)
    row("model", checkpoint.model)
    row(
        "size",
        f"{config.num_hidden_layers} layers, hidden {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"{config.max_position_embeddings} positions, {config.hidden_act}",
    )
    if checkpoint.attention != "bidirectional":
        row("attention", checkpoint.attention.replace("_", " "))
    row("parameters", f"{parameters:,} in {len(checkpoint.weights)} weights")
    row("dtype", ", ".join(dtypes))
    row("heads", ", ".join(checkpoint.heads) or "none")
    if not checkpoint.has("pooler"):
        row("pooler", "none")
    if checkpoint.model in ("BertClassifier", "BertTagger"):
        labels = [n if n.isprintable() else repr(n) for n in checkpoint.labels or ()]
        row("labels", ", ".join(labels) or "one number (regression)")
    row(
        "vocabulary",
        f"{tokenizer.vocab_size:,} pieces, {'uncased' if tokenizer.lower_case else 'cased'}"
        + ("" if tokenizer.strip_accents == tokenizer.lower_case else ", accents kept")
        if tokenizer
        else "none came along",
    )
    for head, fault in checkpoint.faults.items():
        row("fault", f"{head}: {fault}")
    if checkpoint.ignored:
        row("not read", ", ".join(checkpoint.ignored))
    console.print(table)


@app.command()
def convert(
    source: Where,
    target: Annotated[Path, typer.Argument(metavar="TO", help="The folder to make.")],
    format: Annotated[
        Format,
        typer.Option(help="own: this library's; hf: Hugging Face's; tf1: Google's release."),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model found at TO.")
    ] = False,
):
    """Write a checkpoint in another format: weights to the bit, heads, labels, vocabulary."""
    from keras_bert_ref.checkpoints.saving import check_free

    target = check_free(target, overwrite)
    if Path(source).expanduser().resolve().is_relative_to(target):
        raise OutputError(f"{target} holds what is to be converted: choose another folder")
    from keras_bert_ref.checkpoints.loading import load_pretrained

    with console.status(f"reading {escape(str(source))}"):
        model = load_pretrained(source)
    report = model.load_report
    if report.initialized:
        raise CheckpointError(
            f"{source} has no values for {', '.join(report.initialized)}: a conversion would make "
            "them up"
        )
    with console.status(f"writing {escape(str(target))}"):
        model.save_pretrained(target, format=format.value, overwrite=overwrite)
    console.print(str(report), markup=False, highlight=False)
    console.print(f"{type(model).__name__} in {target}", markup=False, highlight=False)


@app.command()
def fill_mask(
    where: Where,
    text: Annotated[str, typer.Argument(help='A text with "[MASK]" in it.')],
    top: Annotated[int, typer.Option(min=1, help="Predictions for each [MASK].")] = 5,
):
    """Show what a masked language model puts in the place of [MASK]."""
    from keras_bert_ref.masked_prediction import fill_mask
    from keras_bert_ref.models import BertPretrainer

    with console.status(f"reading {escape(where)}"):
        model = BertPretrainer.from_pretrained(where)
    for number, predictions in enumerate(fill_mask(model, text, top=top), start=1):
        table = Table("piece", "probability", title=f"[MASK] {number}", title_style="bold")
        table.columns[1].justify = "right"
        for piece, probability in predictions:
            table.add_row(Text(piece), f"{probability:.1%}")
        console.print(table)
