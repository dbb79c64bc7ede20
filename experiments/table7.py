"""The rows of the paper's table 7, and a report of measured beside published figures."""

import dataclasses
import statistics
from pathlib import Path

from experiments.layer_curve import Panel, draw
from keras_bert_ref.files import replace_text


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        title: as in the paper.
        layers: of the encoder, counted from the end; 0 the embeddings; "all" without them.
        mixed: whether they are summed by learned weights, else concatenated.
        published: F1 on dev, of BERT-base.
    """

    title: str
    layers: tuple[int, ...] | str
    mixed: bool
    published: float


ROWS = {
    "embeddings": Row("Embeddings", (0,), False, 91.0),
    "second-to-last": Row("Second-to-last hidden", (-2,), False, 95.6),
    "last": Row("Last hidden", (-1,), False, 94.9),
    "sum-last-4": Row("Weighted sum last four hidden", (-4, -3, -2, -1), True, 95.9),
    "concat-last-4": Row("Concat last four hidden", (-4, -3, -2, -1), False, 96.1),
    "sum-all": Row("Weighted sum all layers", "all", True, 95.5),
}

# F1 on dev and test, as published.
_OTHERS = {
    "BERT-large, fine-tuned": (96.6, 92.8),
    "BERT-base, fine-tuned": (96.4, 92.4),
    "ELMo": (95.7, 92.2),
}


def seeds_of(content, name):
    """Returns the results of a row, seed by seed."""
    found = content["results"]
    return [result for key, result in found.items() if key.rpartition("/")[0] == name]


def table(content):
    """Returns the results as a Markdown table beside the published ones."""
    lines = [
        "| | paper: dev F1 | test F1 | here: dev F1 | test F1 | taggers | best epoch | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        results = seeds_of(content, name)
        cells = [row.title, f"{row.published:.1f}", "", "", "", "", "", ""]
        if results:
            cells[3:] = (
                _spread([result["dev"]["f1"] for result in results]),
                _spread([result["test"]["f1"] for result in results]),
                str(len(results)),
                ", ".join(str(result["epoch"]) for result in results),
                f"{statistics.mean(result['seconds'] for result in results) / 60:.1f}",
            )
        lines.append(f"| {' | '.join(cells)} |")
    for title, (dev, test) in _OTHERS.items():
        lines.append(f"| {title} | {dev:.1f} | {test:.1f} | | | | | |")
    return "\n".join(lines) + "\n"


def _spread(values):
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def write_report(content, path):
    """Writes a Markdown page and, of layers that have been probed, a picture of the same name.

    Args:
        content: what `feature_based_ner.run` returns.
        path: the page.
    """
    path = Path(path)
    settings = content["settings"]
    parts = [
        "# Named entities from frozen features (table 7)\n",
        f"CoNLL-2003, {settings['model_name']} ({settings['layers']} layers, windows of "
        f"{settings['max_length']} pieces of a document). F1 is entity-level, counted "
        "as `conlleval` does; of several taggers mean ± standard deviation. The published figures "
        "are BERT-base's, cased.\n",
        table(content),
    ]
    if settings["lower_case"]:
        parts.append(
            "The vocabulary here is uncased: the encoder does not see which words are capitalized, "
            "the best sign of a name in English. The paper's is cased.\n"
        )
    for name, row in ROWS.items():
        for result in seeds_of(content, name)[: row.mixed]:
            shares = ", ".join(f"{share:.2f}" for share in result["mix"])
            parts.append(f"{row.title}: the learned shares are {shares}, from low to high.\n")
    if seeds_of(content, "layer 0"):
        picture = path.with_suffix(".png")
        draw_layers(content, picture)
        parts.append(
            "What each layer knows by itself, by a linear tagger (no BiLSTM) on its features; 0 is "
            f"the embeddings:\n\n![F1 by layer]({picture.name})\n"
        )
    recipe = ", ".join(f"{name} {value}" for name, value in settings["recipe"].items())
    parts.append(f"Taggers: {recipe}.\n")
    replace_text(path, "\n".join(parts))


def draw_layers(content, path):
    """Draws F1 on dev and test of the linear tagger on each layer."""
    layers = range(content["settings"]["layers"] + 1)
    probes = {n: found[0] for n in layers if (found := seeds_of(content, f"layer {n}"))}
    curves = {
        split: {n: probe[split]["f1"] for n, probe in probes.items()} for split in ("dev", "test")
    }
    draw([Panel("CoNLL-2003, a linear tagger on each layer", "F1", curves)], path)
