"""Table 7, features of a frozen BERT for named entities (paper, section 5.3).

    python -m experiments.feature_based_ner DATA MODEL --out runs/ner

DATA is a folder with CoNLL-2003's eng.train, eng.testa and eng.testb, MODEL a checkpoint. Features
are computed once and kept in the folder of the run, as is each result: given again, the same
command goes on where it stopped.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from experiments.feature_tagger import Recipe, Split, train
from experiments.table7 import ROWS, seeds_of, table, write_report
from experiments.word_features import word_features
from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.errors import BertError, ConfigError, OutputError
from keras_bert_ref.features.combining import layer_numbers
from keras_bert_ref.files import replace_text
from keras_bert_ref.tasks import conll

_FILES = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}

# What one layer knows by itself: no BiLSTM, which would add what the layer lacks. Layers whose
# states are small learn slowly, so there is no early stop.
_PROBE = Recipe(lstm_layers=0, dropout=0.0, learning_rate=5e-3, epochs=20, patience=20)


def run(
    data,
    where,
    out,
    *,
    rows=tuple(ROWS),
    seeds=5,
    finalists=2,
    per_layer=False,
    max_length=None,
    recipe=None,
):
    """Trains a tagger for each row of the table, and for each seed.

    Args:
        data: the folder of CoNLL-2003.
        where: a checkpoint, or an encoder with its tokenizer.
        out: the folder of the run.
        rows: names in `ROWS`.
        seeds: how many taggers a finalist gets; the other rows get one.
        finalists: how many rows, the best on dev of seed 0, are finalists.
        per_layer: whether to train a linear tagger on each layer as well.
        max_length: the most pieces that the encoder reads at once; None for all that it can, 512 at
            most. Fewer suit one that has been trained on short texts.
        recipe: a `Recipe`, of the taggers of the table.

    Returns:
        The content of `results.json`: `settings`, and `results` by "row/seed", see `train`.

    Raises:
        ConfigError: there is no such row.
        InputError: data cannot be read.
        OutputError: the folder belongs to another run.
    """
    out, recipe = Path(out), recipe or Recipe()
    for name in rows:
        if name not in ROWS:
            raise ConfigError(f"there is no row {name!r}: rows are {', '.join(ROWS)}")
    documents = {name: conll.read(Path(data, file)) for name, file in _FILES.items()}
    features, extractor = word_features(where, documents, out / "features", max_length)
    count = extractor.encoder.config.num_hidden_layers
    settings = {
        "model_name": name_of(where),
        "layers": count,
        "lower_case": extractor.tokenizer.lower_case,
        "max_length": extractor.max_length,
        "recipe": dataclasses.asdict(recipe),
        "probe": dataclasses.asdict(_PROBE),
    }
    results = _Results(out / "results.json", settings)

    def one(name, seed, layers, mixed, recipe):
        if results.has(name, seed):
            return
        splits = {
            split: Split.of(documents[split], features[split][min(layers) : max(layers) + 1])
            for split in documents
        }
        with progress_bar("epochs") as progress:
            task = progress.add_task(f"{name}, seed {seed}", total=recipe.epochs, note="")

            def show(epoch, f1, seconds):
                progress.update(task, completed=epoch, note=f"dev F1 {f1:.2f}")
                console.print(
                    f"{name}, seed {seed}, epoch {epoch}: dev F1 {f1:.2f}, {seconds:.0f} s"
                )

            results.add(name, seed, train(splits, mixed, recipe, seed, show))

    def row(name, seed):
        layers = range(1, count + 1) if ROWS[name].layers == "all" else ROWS[name].layers
        one(name, seed, layer_numbers(tuple(layers), count), ROWS[name].mixed, recipe)

    for name in rows:
        row(name, 0)
    ranking = sorted(rows, key=lambda name: -seeds_of(results.content, name)[0]["dev"]["f1"])
    for name in ranking[:finalists]:
        for seed in range(1, seeds):
            row(name, seed)
    if per_layer:
        for layer in range(count + 1):
            one(f"layer {layer}", 0, (layer,), False, _PROBE)
    return results.content


def name_of(where):
    """Returns what to call a checkpoint in a report: the end of its path."""
    return "/".join(Path(where).parts[-2:]) if isinstance(where, str | Path) else where.name


class _Results:
    """The results so far, in a file that is replaced as a whole."""

    def __init__(self, path, settings):
        self._path = path
        self.content = {"settings": settings, "results": {}}
        if not path.exists():
            return
        try:
            self.content = json.loads(path.read_text(encoding="utf-8"))
            stored = self.content["settings"]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{path} is damaged: delete it to train all taggers again") from None
        other = sorted(name for name in settings if settings[name] != stored.get(name))
        if other:
            raise OutputError(
                f"{path} has results of another run ({', '.join(other)} differ): choose another "
                "--out, or delete it"
            )

    def has(self, name, seed):
        return f"{name}/{seed}" in self.content["results"]

    def add(self, name, seed, result):
        self.content["results"][f"{name}/{seed}"] = result
        replace_text(self._path, json.dumps(self.content, indent=1) + "\n")


def main(
    data: Annotated[Path, typer.Argument(help="folder of eng.train, eng.testa and eng.testb")],
    model: Annotated[str, typer.Argument(help="checkpoint")],
    out: Annotated[Path, typer.Option(help="folder of the run")],
    row: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(ROWS)}; all")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="taggers of each finalist")] = 5,
    finalists: Annotated[int, typer.Option(min=0, help="rows with more than one seed")] = 2,
    per_layer: Annotated[bool, typer.Option(help="a linear tagger on each layer as well")] = False,
    max_length: Annotated[int | None, typer.Option(help="pieces read at once; all it can")] = None,
    precision: Annotated[
        str | None, typer.Option(help="of the taggers' matrix products; what is fastest here")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Markdown file to write")] = None,
):
    """Trains a BiLSTM on frozen features in the six ways of the paper's table 7."""
    from keras_bert_ref.strategies import fast_precision

    try:
        rows = tuple(row or ROWS)
        content = run(
            data,
            model,
            out,
            rows=rows,
            seeds=seeds,
            finalists=finalists,
            per_layer=per_layer,
            max_length=max_length,
            recipe=Recipe(dtype=precision or fast_precision()),
        )
        console.print(table(content), markup=False, soft_wrap=True)
        if report:
            write_report(content, report)
    except BertError as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
