"""How fast text becomes pretraining data, and in how much memory, as the text grows.

    python -m experiments.benchmarks.data_creation '../shared/data/text/eltec/*.txt' VOCAB
    python -m experiments.benchmarks.data_creation TEXT VOCAB --megabytes 600 --processes 2

Every corpus is files of TEXT, again and again under other names until there is enough. Each turn
runs in a fresh process, whose time does not count its start. Memory is the most that a process had,
less what a process has that only imports the library; pages of the memory-mapped store are in it,
which the system may take back.
"""

import glob
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks import contenders

_RUN = """
import json, resource, sys, time
from keras_bert_ref import WordPieceTokenizer
from tfrecords.create import create_pretraining_data
from tfrecords.settings import InstanceSettings

def most():
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024

if __name__ == "__main__":
    text, vocab, out, processes, dupe_factor = sys.argv[1:]
    tokenizer = WordPieceTokenizer.from_vocab(vocab)
    settings = InstanceSettings(dupe_factor=int(dupe_factor))
    before, began = most(), time.perf_counter()
    manifest = create_pretraining_data(
        text, tokenizer, out, settings, split_sentences="en", processes=int(processes)
    )
    seconds = time.perf_counter() - began
    rows = manifest.splits["train"].records
    print(json.dumps({"seconds": seconds, "memory": most() - before, "rows": rows}))
"""


def grow(files, megabytes, folder):
    """Fills a folder with links to `files` until they hold so many MB; returns their MB."""
    size, number = 0, 0
    while size < megabytes * 1e6:
        file = Path(files[number % len(files)]).resolve()
        (folder / f"{number:06d}.txt").symlink_to(file)
        size += file.stat().st_size
        number += 1
    return size / 1e6


def compare(text, vocab, megabytes, processes, dupe_factor, rounds):
    """Returns (MB of the corpus, processes) → what was found in each turn."""
    files = sorted(glob.glob(text))
    if not files:
        raise typer.BadParameter(f"there is no file {text}")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for wanted in megabytes:
            corpus = Path(folder, f"corpus-{wanted}")
            corpus.mkdir()
            sizes[corpus] = grow(files, wanted, corpus)
        for number in track(range(rounds), description="turns"):
            for corpus, size in sizes.items():
                for count in processes:
                    out = Path(folder, f"out-{number}-{count}-{corpus.name}")
                    arguments = str(corpus / "*.txt"), str(vocab), str(out)
                    done = contenders.run(_RUN, *arguments, str(count), str(dupe_factor))
                    done["rate"] = size / done["seconds"]
                    found.setdefault((size, count), []).append(done)
                    shutil.rmtree(out)
    return found


def main(
    text: Annotated[str, typer.Argument(help="A glob of text files, a paragraph a line.")],
    vocab: Annotated[Path, typer.Argument(help="A vocab.txt.")],
    megabytes: Annotated[
        list[float] | None, typer.Option(help="Sizes of the corpus; by default 10 and 60.")
    ] = None,
    processes: Annotated[
        list[int] | None, typer.Option(help="Numbers of processes; by default 1.")
    ] = None,
    dupe_factor: Annotated[int, typer.Option(help="Passes over the text.")] = 2,
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 3,
):
    """Prints medians of megabytes (of UTF-8) a second."""
    found = compare(text, vocab, megabytes or (10, 60), processes or (1,), dupe_factor, rounds)
    table = Table(title=f"dupe_factor {dupe_factor}, rows of 128, {rounds} turns")
    for column in ("MB", "processes", "rows", "MB/s, median", "(range)", "MB of memory"):
        table.add_column(column, justify="right")
    for (size, count), turns in found.items():
        rates = [turn["rate"] for turn in turns]
        table.add_row(
            f"{size:.0f}",
            str(count),
            f"{turns[0]['rows']:,}",
            f"{statistics.median(rates):.2f}",
            f"{min(rates):.2f} – {max(rates):.2f}",
            f"{max(turn['memory'] for turn in turns):.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
