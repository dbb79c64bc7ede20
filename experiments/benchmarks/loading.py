"""How long a checkpoint takes to load, and how much memory: ours in each format, and transformers'.

    python -m experiments.benchmarks.loading

Makes a checkpoint of the size with random weights, then loads it in fresh processes, all kinds in
turn, so that a busy machine slows all alike. transformers and torch are compared where installed.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

_OURS = """
import json, sys, time
began = time.perf_counter()
from keras_bert_ref import BertEncoder
from keras_bert_ref._tensorflow import tf
imported = time.perf_counter()
before = peak()
model = BertEncoder.from_pretrained(sys.argv[1], strict=True)
loaded = time.perf_counter()
"""
_THEIRS = """
import json, sys, time
began = time.perf_counter()
from transformers import BertModel
imported = time.perf_counter()
before = peak()
model = BertModel.from_pretrained(sys.argv[1])
sum(float(p.sum()) for p in model.parameters())  # its weights stay in the mapped file until used
loaded = time.perf_counter()
"""
_REPORT = """
print(json.dumps([imported - began, loaded - imported, peak() - before]))
"""
# Of this process alone: what getrusage says includes the one that started it.
_PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
"""


def measure(program, folder):
    """Returns seconds to import, seconds to load, and the growth of peak memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PEAK + program + _REPORT, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(
    size: Annotated[str, typer.Option(help="tiny, mini, small, medium, base or large.")] = "base",
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 5,
):
    """Prints medians of seconds to import and to load, and what loading adds to peak memory."""
    from keras_bert_ref import BertConfig, BertEncoder, WordPieceTokenizer

    with tempfile.TemporaryDirectory() as folder:
        model = BertEncoder(BertConfig.from_name(size))
        model.tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
        contenders = {}
        for name in ("own", "hf", "tf1"):
            model.save_pretrained(Path(folder) / name, format=name)
            contenders[f"this library, {name}"] = (_OURS, Path(folder) / name)
        if all(map(importlib.util.find_spec, ("transformers", "torch"))):
            contenders["transformers"] = (_THEIRS, Path(folder) / "hf")
        weights = 4 * model.count_params() / 2**20
        results = {name: [] for name in contenders}
        for turn in track(range(rounds + 1), description="turns"):
            for name, contender in contenders.items():
                result = measure(*contender)
                if turn:  # the first only fills the page cache
                    results[name].append(result)
    table = Table(title=f"BERT-{size}, {weights:,.0f} MiB of float32 weights, {rounds} turns")
    for column in ("", "import, s", "load, s", "(range)", "peak memory, MiB"):
        table.add_column(column, justify="right" if column else "left")
    for name, rows in results.items():
        imports, loads, peaks = zip(*rows, strict=True)
        table.add_row(
            name,
            f"{statistics.median(imports):.2f}",
            f"{statistics.median(loads):.2f}",
            f"{min(loads):.2f} – {max(loads):.2f}",
            f"{statistics.median(peaks):,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
