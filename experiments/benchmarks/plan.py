"""What `keras-bert-ref plan` computes, beside what training takes: memory and time.

    python -m experiments.benchmarks.plan

Small sizes, a few steps of each in a process of its own. Memory is compared between two batch sizes
of one model, for what a process takes apart from them, such as TensorFlow itself, is no part of a
plan. Time is compared through the share of the peak of matrix products, which is measured as well:
the plan takes it as given, so it should be one number for all sizes.
"""

import statistics
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.contenders import run
from keras_bert_ref.config import BertConfig
from keras_bert_ref.planning import memory, training_flops

SIZES = ("mini", "small", "medium")
LENGTH, PREDICTIONS = 128, 20

_PEAK = """
import json, sys, time
from keras_bert_ref._tensorflow import tf
dtype = tf.bfloat16 if sys.argv[1] == "mixed_bfloat16" else tf.float32
x = tf.cast(tf.random.normal([2048, 2048]), dtype)
product = tf.function(lambda x: tf.matmul(x, x))
product(x)
rates = []
for _ in range(8):
    began = time.perf_counter()
    product(x)[0, 0].numpy()
    rates.append(2 * 2048**3 / (time.perf_counter() - began))
print(json.dumps(sorted(rates)[4]))
"""

_STEPS = """
import json, sys, time
import numpy as np
from keras_bert_ref import BertAdamW, BertConfig, BertEncoder, BertPretrainer
from keras_bert_ref._tensorflow import tf

precision, name, rows, length, predictions, steps = sys.argv[1:3] + [int(x) for x in sys.argv[3:]]
config = BertConfig.from_name(name)
model = BertPretrainer(BertEncoder(config, dtype=precision))
model.compile(optimizer=BertAdamW(1e-4))
rng = np.random.default_rng(0)
features = {
    "input_ids": rng.integers(0, config.vocab_size, (rows, length)),
    "input_mask": np.ones((rows, length), int),
    "segment_ids": np.zeros((rows, length), int),
    "masked_lm_positions": np.tile(np.arange(predictions), (rows, 1)),
}
labels = {
    "masked_lm_ids": rng.integers(0, config.vocab_size, (rows, predictions)),
    "next_sentence_labels": rng.integers(0, 2, rows),
}
data = tf.nest.map_structure(lambda x: tf.constant(x, tf.int32), (features, labels))
data[1]["masked_lm_weights"] = tf.ones([rows, predictions])
step = tf.function(model.train_step, autograph=False)
seconds = []
for _ in range(steps):
    began = time.perf_counter()
    step(data)["loss"].numpy()
    seconds.append(time.perf_counter() - began)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024
print(json.dumps({"peak": peak, "seconds": sorted(seconds[2:])[(steps - 2) // 2]}))
"""


def main(
    precision: Annotated[str, typer.Option(help="A Keras dtype policy.")] = "float32",
    few: Annotated[int, typer.Option(help="Rows of the smaller batch.")] = 8,
    many: Annotated[int, typer.Option(help="Rows of the larger one.")] = 40,
    steps: Annotated[int, typer.Option(min=4, help="Of each.")] = 6,
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 3,
):
    """Prints measured and computed memory, and the share of the peak that steps reach."""
    table = Table(title=f"{precision}, {many} rows less {few}; medians of {rounds} processes each")
    for column in ("", "measured (MB)", "planned (MB)", "ratio", "s a step", "TFLOP/s", "share"):
        table.add_column(column, justify="right" if column else "left")
    found = {}
    peaks = []
    for _ in track(range(rounds), description="turns"):
        peaks.append(run(_PEAK, precision))
        for size in SIZES:
            for rows in (few, many):
                arguments = (precision, size, rows, LENGTH, PREDICTIONS, steps)
                found.setdefault((size, rows), []).append(run(_STEPS, *map(str, arguments)))
    peak = statistics.median(peaks)
    for size in SIZES:
        config = BertConfig.from_name(size)
        taken = {
            rows: statistics.median(one["peak"] for one in found[size, rows])
            for rows in (few, many)
        }
        planned = {
            rows: memory(config, rows, LENGTH, PREDICTIONS, precision).total for rows in (few, many)
        }
        seconds = statistics.median(one["seconds"] for one in found[size, many])
        rate = many * training_flops(config, LENGTH, PREDICTIONS) / seconds
        measured, computed = taken[many] - taken[few], planned[many] - planned[few]
        table.add_row(
            size,
            f"{measured / 1e6:,.0f}",
            f"{computed / 1e6:,.0f}",
            f"{measured / computed:.2f}",
            f"{seconds:.2f}",
            f"{rate / 1e12:.3f}",
            f"{rate / peak:.0%}",
        )
    console = Console(width=100)
    console.print(table)
    console.print(f"peak of products of matrices of 2048: {peak / 1e12:.3f} TFLOP/s")


if __name__ == "__main__":
    typer.run(main)
