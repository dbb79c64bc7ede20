"""`export`: a checkpoint as a SavedModel for TensorFlow Serving."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from keras_bert_ref.cli import app
from keras_bert_ref.cli.checkpoints import Where
from keras_bert_ref.cli.features import parse_layers
from keras_bert_ref.cli.pretraining import PRECISIONS, check_precision
from keras_bert_ref.cli.progress import console
from keras_bert_ref.errors import ConfigError

# What an example request says for each input of text.
_EXAMPLES = {
    "texts": "It rained.",
    "pairs": "The weather was wet.",
    "questions": "What was wet?",
    "contexts": "It rained. The weather was wet.",
    "choices": ["The street was wet.", "The street was dry."],
}


@app.command()
def export(
    where: Where,
    out: Annotated[
        Path, typer.Option(help="The folder to make: NAME/1 for version 1 of the model NAME.")
    ],
    variables: Annotated[
        bool,
        typer.Option(
            "--variables", help="Keep weights as variables; constants are faster on a CPU."
        ),
    ] = False,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "float32",
    max_length: Annotated[
        int | None, typer.Option(help="The most pieces of a text; by default its task's.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="squad-1.1 or squad-2.0, where the model does not say it.")
    ] = None,
    top: Annotated[int | None, typer.Option(help="Pieces for each [MASK], by default 5.")] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="Export features instead, as of the command features: mean, max, mean_max, cls, "
            "pooler, first_piece, last_piece, mean_piece or pieces."
        ),
    ] = None,
    layers: Annotated[
        str, typer.Option(help="Of features: 'last4', 'all', or numbers as -1,-2.")
    ] = "last4",
    combine: Annotated[
        str, typer.Option(help="Of features: concat, sum, mean or stack several layers.")
    ] = "concat",
    specials: Annotated[
        bool,
        typer.Option("--specials/--no-specials", help="Of features: whether [CLS], [SEP] count."),
    ] = True,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Of features: scale vectors to length 1.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a SavedModel found at --out.")
    ] = False,
):
    """Write a SavedModel that takes ids or text, for TensorFlow Serving (docs/serving.md)."""
    check_precision(precision)
    if pooling is None and (layers, combine, specials, normalize) != (
        "last4",
        "concat",
        True,
        False,
    ):
        raise ConfigError("--layers, --combine, --no-specials and --normalize need --pooling")
    layers = parse_layers(layers)
    from keras_bert_ref.checkpoints.loading import load_pretrained
    from keras_bert_ref.export import check_place, export_saved_model
    from keras_bert_ref.features.extractor import FeatureExtractor

    out = check_place(out, overwrite)
    with console.status(f"reading {escape(where)}"):
        if pooling is None:
            model = load_pretrained(where, dtype=precision)
        else:
            model = FeatureExtractor(
                where,
                layers=layers,
                combine=combine,
                pooling=pooling,
                specials=specials,
                normalize=normalize,
                max_length=max_length,
                dtype=precision,
            )
            max_length = None
    with console.status("writing, and trying it in a process of its own"):
        signatures = export_saved_model(
            model,
            out,
            freeze=not variables,
            max_length=max_length,
            task=task,
            top=top,
            overwrite=overwrite,
        )
    _show(signatures, out)


def _show(signatures, out):
    table = Table("signature", "takes", "returns")
    for name, (inputs, outputs) in signatures.items():
        table.add_row(
            name, *(", ".join(map(_described, specs.values())) for specs in (inputs, outputs))
        )
    console.print(table)
    name = out.parent.name
    request = json.dumps(example_request(signatures))
    console.print(f"{out} can be served. One request:", markup=False, highlight=False)
    if not out.name.isdigit():
        console.print(
            f"TensorFlow Serving looks for versions, folders of a number: move it to {out}/1",
            markup=False,
            highlight=False,
        )
    console.print(
        f"curl http://localhost:8501/v1/models/{name}:predict -d '{request}'",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _described(spec):
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.name} {spec.dtype.name}[{sizes}]"


def example_request(signatures):
    """Returns a request for TensorFlow Serving's REST interface that these signatures answer.

    Args:
        signatures: what `export_saved_model` returned.
    """
    if "serving_text" not in signatures:
        one = {"input_ids": [2, 1, 3], "input_mask": [1, 1, 1], "segment_ids": [0, 0, 0]}
        inputs, _ = signatures["serving_default"]
        if inputs["input_ids"].shape.rank == 3:
            one = {name: [row, row] for name, row in one.items()}
        return {"instances": [one]}
    inputs, _ = signatures["serving_text"]
    one = {name: _EXAMPLES[name] for name in inputs}
    # Of a single input the name is left out.
    one = one if len(one) > 1 else next(iter(one.values()))
    return {"signature_name": "serving_text", "instances": [one]}
