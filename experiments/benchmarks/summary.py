"""Everything people wait for beside its peers: measured, and what is asked of it.

    make bench            # the peers are in the extra [bench]
    python -m experiments.benchmarks.summary ../shared/data MODEL --out runs/bench

Runs the benchmarks beside this file one after the other, and keeps what each found in a file of the
folder, so that the command goes on where it stopped. Where a peer offers several precisions the
fastest of each side counts. A ratio is the median of those of the turns. DATA holds
`squad/dev-v1.1.json`, `glue/MRPC`, `text/eltec/*.txt` and `vocab/bert-base-uncased-vocab.txt`.
"""

import dataclasses
import glob
import importlib.util
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import (
    data_creation,
    feature_extraction,
    fine_tuning,
    packing,
    pretraining_step,
    serving,
)
from experiments.benchmarks.contenders import ratio
from keras_bert_ref.files import replace_text

# The original's create_pretraining_data.py with dupe_factor 2, on one core of a Xeon with AMX.
_ORIGINAL_MB_PER_SECOND = 0.77
_STEP = {"size": "base", "batch": 16, "length": 128, "predictions": 20, "vocabulary": 30522}


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the data and the model lie."""

    data: Path
    model: str

    @property
    def squad(self):
        return self.data / "squad" / "dev-v1.1.json"

    @property
    def vocab(self):
        return self.data / "vocab" / "bert-base-uncased-vocab.txt"

    @property
    def novels(self):
        return str(self.data / "text" / "eltec" / "*.txt")

    def check(self):
        """Raises `typer.BadParameter` if something is missing."""
        for place in (self.squad, self.vocab, self.data / "glue" / "MRPC", Path(self.model)):
            if not place.exists():
                raise typer.BadParameter(f"there is no {place}")
        if not glob.glob(self.novels):
            raise typer.BadParameter(f"there is no {self.novels}")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A benchmark, and the rows of the table that it fills.

    Attributes:
        name: of the file that keeps what it found.
        measure: a function from `Places` and turns to a value for each row, None where no peer is
            installed; and what they were computed from, as JSON takes it.
        rows: (work, against, what is asked) of each.
    """

    name: str
    measure: Callable
    rows: tuple


def _pretraining(precision):
    def measure(places, rounds):
        shape = {**_STEP, "precision": precision}
        rates, peaks = pretraining_step.compare(shape, 5, rounds)
        ours, peers = _parted(rates)
        share = pretraining_step.share_of_peak(shape, ours, peaks)
        return [_by_fastest(ours, peers), share], {"sequences a second": rates, "FLOP/s": peaks}

    return measure


def _packing(size):
    def measure(places, rounds):
        values, found = [], []
        for text in (places.novels, str(places.squad)):
            turns, _ = packing.compare(
                text, str(places.vocab), size=size, length=512, places=8, rows=4, steps=8,
                learning_rate=1e-4, precision="mixed_bfloat16", rounds=rounds, score=False,
                processes=2,
            )  # fmt: skip
            plain, packed = ([turn["rate"] for turn in one] for one in turns.values())
            values.append(ratio(packed, plain))
            found.append(turns)
        return values, found

    return measure


def _fine_tuning(task, size):
    def measure(places, rounds):
        folder = places.data / "glue" / "MRPC" if task == "mrpc" else places.squad
        count = (160 if size else 800) if task == "mrpc" else (64 if size else 320)
        kinds = "float32", "mixed_bfloat16"
        rates, *_ = fine_tuning.compare(task, folder, places.model, size, count, 16, kinds, rounds)
        return [_best_by_best(rates)], _named(rates)

    return measure


def _features(size):
    def measure(places, rounds):
        kinds = ("bfloat16",) if size else ("float32", "bfloat16")
        rates, *_ = feature_extraction.compare(
            places.squad, places.model, size, 1500, 300, kinds, rounds
        )
        found = []
        for peer in ("sentence-transformers", "keras-hub"):
            known = [
                ratio(rates[kind, "this library"], rates[kind, peer])
                for kind in kinds
                if (kind, peer) in rates
            ]
            found.append(known or [None] * len(kinds))
        theirs, hub = found
        return [*theirs, None if None in hub else min(hub)], _named(rates)

    return measure


def _serving(places, rounds):
    found = serving.compare(places.squad, places.model, 100, 1, rounds)
    # Requests a second, so that more is better here as well.
    rates = {
        (precision, "this library" if name == "constants" else name): [
            1 / statistics.median(turn["single"]["64"]) for turn in turns
        ]
        for (name, precision), turns in found.items()
        if name != "variables"
    }
    return [_best_by_best(rates)], _named(rates)


def _tokenization(places, rounds):
    if not importlib.util.find_spec("tokenizers"):
        return [None], {}
    from experiments.benchmarks import tokenization

    rates, *_ = tokenization.compare(places.data, rounds)
    ours, peers = _parted(rates, "keras-bert-ref token_ids")
    return [_by_fastest(ours, peers)], rates


def _data_creation(places, rounds):
    (turns,) = data_creation.compare(places.novels, places.vocab, [60], [1], 2, rounds).values()
    rate = statistics.median(turn["rate"] for turn in turns)
    return [rate / _ORIGINAL_MB_PER_SECOND], turns


def _by_fastest(ours, peers):
    """Returns our rate by that of the fastest of the peers; None without any."""
    return min((ratio(ours, rates) for rates in peers.values()), default=None)


def _best_by_best(rates):
    """Returns the ratio of this library's best precision and the peer's; None without a peer."""
    best = {}
    for (_, name), turns in rates.items():
        best.setdefault(name, []).append(turns)
    best = {name: max(found, key=statistics.median) for name, found in best.items()}
    return _by_fastest(*_parted(best))


def _parted(rates, own="this library"):
    """Returns our rates, and those of the peers."""
    return rates[own], {name: turns for name, turns in rates.items() if name != own}


def _named(rates):
    return {", ".join(key): turns for key, turns in rates.items()}


_PEERS = "the faster of transformers and keras-hub"
_SENTENCES = "sentence-transformers"
MEASUREMENTS = (
    Measurement(
        "pretraining-bfloat16",
        _pretraining("mixed_bfloat16"),
        (
            ("pretraining step, base, bfloat16", _PEERS, 2.0),
            ("the same", "share of the machine's peak", 0.35),
        ),
    ),
    Measurement(
        "pretraining-float32",
        _pretraining("float32"),
        (
            ("pretraining step, base, float32", _PEERS, 1.2),
            ("the same", "share of the machine's peak", None),
        ),
    ),
    Measurement(
        "packing",
        _packing("base"),
        (
            ("pretraining at 512, novels, packed", "our own unpacked run", 1.8),
            ("the same, paragraphs of Wikipedia", "our own unpacked run", 1.8),
        ),
    ),
    *(
        Measurement(
            f"fine-tuning-{task}-{size or 'minilm'}",
            _fine_tuning(task, size),
            (
                (
                    f"fine-tuning on {task}, {size or 'MiniLM'}",
                    "transformers, padded to the longest of a batch",
                    2.0,
                ),
            ),
        )
        for task in ("mrpc", "squad-1.1")
        for size in ("", "base")
    ),
    Measurement(
        "features-minilm",
        _features(""),
        (
            ("feature extraction, MiniLM, float32", _SENTENCES, 1.5),
            ("feature extraction, MiniLM, bfloat16", _SENTENCES, 1.5),
            ("feature extraction, MiniLM, both", "keras-hub, rows of 256", 3.0),
        ),
    ),
    Measurement(
        "features-base",
        _features("base"),
        (
            ("feature extraction, base, bfloat16", _SENTENCES, 1.3),
            ("feature extraction, base, bfloat16", "keras-hub, rows of 256", 3.0),
        ),
    ),
    Measurement("serving", _serving, (("text-in serving, 64 pieces, p50", "transformers", 1.0),)),
    Measurement("tokenization", _tokenization, (("tokenization, one core", "tokenizers", 4.0),)),
    Measurement(
        "data-creation",
        _data_creation,
        (("pretraining data, one core, dupe_factor 2", "the original, 0.77 MB/s", 8.0),),
    ),
)


def main(
    data: Annotated[Path, typer.Argument(help="Folder of glue, squad, text and vocab.")],
    model: Annotated[str, typer.Argument(help="A checkpoint in the format of transformers.")],
    out: Annotated[Path, typer.Option(help="Where what was found is kept.")] = Path("runs/bench"),
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure these alone, such as tokenization.")
    ] = None,
):
    """Measures what is not yet measured, and prints the table."""
    names = [one.name for one in MEASUREMENTS]
    if unknown := set(only or ()) - set(names):
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(names)}")
    out.mkdir(parents=True, exist_ok=True)
    places, console = Places(data, model), Console(width=110)
    places.check()
    for one in MEASUREMENTS:
        path = out / f"{one.name}.json"
        if not path.exists() and (not only or one.name in only):
            console.print(one.name)
            values, found = one.measure(places, rounds)
            if None in values:  # of a peer that is not installed
                console.print(f"{one.name}: {values}")
            else:
                replace_text(path, json.dumps({"values": values, "found": found}) + "\n")
    console.print(table(out))


def table(out):
    """Returns the table of what a folder holds."""
    found = Table(title="measured and asked")
    for column in ("work", "against", "measured", "asked"):
        found.add_column(column, justify="right" if column in ("measured", "asked") else "left")
    for one in MEASUREMENTS:
        path = out / f"{one.name}.json"
        values = json.loads(path.read_text())["values"] if path.exists() else [None] * len(one.rows)
        for (work, against, asked), value in zip(one.rows, values, strict=True):
            show = "{:.0%}".format if against.startswith("share") else "{:.2f} ×".format
            measured = "–" if value is None else show(value)
            if value is not None and asked is not None and value < asked:
                measured = f"[bold]below[/] {measured}"
            found.add_row(work, against, measured, "" if asked is None else show(asked))
    return found


if __name__ == "__main__":
    typer.run(main)
