"""What the training loop costs: beside bare `fit`, for a checkpoint, and for its input.

    python -m experiments.benchmarks.training_loop DATA

DATA is a folder that create-data made. Loop and `fit` train the same model on the same batches, in
fresh processes that take turns. A checkpoint stops training while variables are copied; the time
is given beside what writing them takes in the background. The input is read as quickly as it comes,
without training.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.contenders import run

_RUN = """
import json, sys, time
from keras_bert_ref import BertAdamW, BertConfig, BertEncoder, BertPretrainer
from keras_bert_ref import training_state
from keras_bert_ref.strategies import make_strategy
from keras_bert_ref.training import Trainer, TrainingSchedule
from tfrecords.reader import open_shards, pretraining_dataset

way, data, size, folder, precision, rows, steps = sys.argv[1:6] + [int(x) for x in sys.argv[6:]]
shards = open_shards(data)
stall = write = None

def dataset(first=0, context=None):
    return pretraining_dataset(shards, rows, start_batch=first)

if way == "input":
    batches = iter(dataset())
    next(batches)
    began = time.perf_counter()
    for _ in range(10 * steps):
        next(batches)
    rate = 10 * steps / (time.perf_counter() - began)
else:
    config = BertConfig.from_name(size, vocab_size=shards.vocab_size)
    strategy = make_strategy("one-device")
    with strategy.scope():
        model = BertPretrainer(BertEncoder(config, dtype=precision))
        model.compile(optimizer=BertAdamW(1e-4))
    if way == "fit":
        model.fit(dataset(), steps_per_epoch=5, verbose=0)  # traces
        began = time.perf_counter()
        model.fit(dataset(), steps_per_epoch=steps, verbose=0)
        rate = steps / (time.perf_counter() - began)
    else:
        times = {"save": [], "_write": []}
        def timed(name):
            method = getattr(training_state.TrainingState, name)
            def call(*arguments):
                began = time.perf_counter()
                method(*arguments)
                times[name].append(time.perf_counter() - began)
            setattr(training_state.TrainingState, name, call)
        timed("save"), timed("_write")
        every = steps if way == "loop" else max(1, steps // 4)
        seen = []
        schedule = TrainingSchedule(steps=steps + 5, log_every=5, checkpoint_every=every)
        trainer = Trainer(model, folder, schedule)
        trainer.train(dataset, report=lambda step, _: seen.append((step, time.perf_counter())))
        (first, began), (last, ended) = next(one for one in seen if one[0] >= 5), seen[-1]
        rate = (last - first) / (ended - began)
        # The first makes the copies' variables.
        stall, write = (sorted(times[name])[len(times[name]) // 2] for name in ("save", "_write"))
print(json.dumps({"rate": rate, "stall": stall, "write": write}))
"""

WAYS = {
    "fit": "model.fit",
    "loop": "the loop",
    "saving": "the loop, four checkpoints",
    "input": "the input alone",
}


def main(
    data: Annotated[Path, typer.Argument(help="A folder that create-data made.")],
    size: Annotated[str, typer.Option(help="tiny … large.")] = "mini",
    rows: Annotated[int, typer.Option(help="Of a batch.")] = 16,
    steps: Annotated[int, typer.Option(min=20, help="Of each turn.")] = 60,
    precision: Annotated[str, typer.Option(help="A Keras dtype policy.")] = "float32",
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 3,
):
    """Prints steps a second, and what a checkpoint takes."""
    found = {}
    for number in track(range(rounds), description="turns"):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                arguments = (way, data, size, Path(folder, str(number)), precision, rows, steps)
                found.setdefault(way, []).append(run(_RUN, *map(str, arguments)))
    table = Table(title=f"{size}, {rows} rows, {precision}; medians of {rounds} turns (range)")
    for column in ("", "steps/s", "(range)", "a checkpoint stops it", "is written in"):
        table.add_column(column, justify="right" if column else "left")

    def seconds(values):
        values = [value for value in values if value is not None]
        return f"{1000 * statistics.median(values):,.0f} ms" if values else ""

    for way, results in found.items():
        rates = [one["rate"] for one in results]
        table.add_row(
            WAYS[way],
            f"{statistics.median(rates):.2f}",
            f"{min(rates):.2f} – {max(rates):.2f}",
            seconds([one["stall"] for one in results]),
            seconds([one["write"] for one in results]),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
