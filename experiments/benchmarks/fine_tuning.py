"""How fast fine-tuning is, beside transformers: rows a second of MRPC or SQuAD, at real lengths.

    python -m experiments.benchmarks.fine_tuning mrpc ../shared/data/glue/MRPC MODEL
    python -m experiments.benchmarks.fine_tuning squad-1.1 SQUAD MODEL --size base --rows 96

MODEL is a checkpoint that transformers reads as well; with --size the model is one of that shape
and random weights instead, and only the vocabulary is MODEL's. SQUAD is a folder, or a file that is
trained on. Both contenders get the same rows of ids, AdamW, dropout and a clipped global norm;
transformers gets them in random order, each batch padded to its longest row, as it is usually done.
Each runs in a fresh process, in turn, so that a busy machine slows both alike: an epoch to warm up,
which is shown too, and one that counts.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks import contenders

_OURS = """
from keras_bert_ref import BertAdamW, BertClassifier, BertConfig, BertSpanLabeler
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.tasks.batching import TrainingBatches
from keras_bert_ref.tasks.contract import Row
from keras_bert_ref.tasks.dataset import epochs_of
kind = BertSpanLabeler if spans else BertClassifier
options = {"dtype": precision} if spans else {"labels": ["0", "1"], "dtype": precision}
if size:
    model = kind(BertConfig.from_name(size, vocab_size=vocabulary), **options)
else:
    model = kind.from_pretrained(where, **options)
model.compile(optimizer=BertAdamW(5e-5))
batches = TrainingBatches([Row(**row) for row in rows], batch, 512, 0)
@tf.function(autograph=False)
def step(data):
    return model.train_step(next(data))["loss"]
dataset = epochs_of(batches)
def epoch():
    data = iter(dataset)
    for _ in range(batches.per_epoch):
        loss = step(data)
    return float(loss)
"""
_THEIRS = """
import numpy as np, torch
from transformers import (
    AutoModelForQuestionAnswering, AutoModelForSequenceClassification, BertConfig,
)
from keras_bert_ref import BertConfig as Shape
kind = AutoModelForQuestionAnswering if spans else AutoModelForSequenceClassification
if size:
    c = Shape.from_name(size, vocab_size=vocabulary)
    model = kind.from_config(BertConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads, intermediate_size=c.intermediate_size,
    ))
else:
    model = kind.from_pretrained(where)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
rng = np.random.default_rng(0)
low = precision != "float32"
names = {"label_ids": "labels"}
def batch_of(chosen):
    longest = max(len(row["input_ids"]) for row in chosen)
    fill = lambda values: values + [0] * (longest - len(values))
    features = {
        "input_ids": [fill(row["input_ids"]) for row in chosen],
        "attention_mask": [fill([1] * len(row["input_ids"])) for row in chosen],
        "token_type_ids": [fill(row["segment_ids"]) for row in chosen],
    }
    for name in chosen[0]["labels"]:
        features[names.get(name, name)] = [row["labels"][name] for row in chosen]
    return {name: torch.tensor(values) for name, values in features.items()}
def epoch():
    order = rng.permutation(len(rows))
    for first in range(0, len(rows), batch):
        features = batch_of([rows[n] for n in order[first : first + batch]])
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = model(**features).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())
"""
_RUN = """
import json, os, sys, time, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
where, size, precision, batch, vocabulary, source = sys.argv[1:]
batch, vocabulary = int(batch), int(vocabulary)
rows = json.load(open(source))
spans = "start_positions" in rows[0]["labels"]
{contender}
seconds = []
for _ in range(2):
    began = time.perf_counter()
    epoch()
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""


def training_rows(task, data, model, count):
    """Returns so many rows of a training set, as JSON, and the size of the vocabulary."""
    from keras_bert_ref.checkpoints.opening import open_checkpoint
    from keras_bert_ref.tasks import make_task, read_split

    task, tokenizer = make_task(task), open_checkpoint(model).tokenizer
    data = Path(data)
    examples = task.read(data, "train") if data.is_file() else read_split(task, data, "train")
    labels = task.labels(examples)
    rows = []
    for example in examples:
        for row in task.features(example, tokenizer, labels, True):
            ids, segments = (
                [int(x) for x in values] for values in (row.input_ids, row.segment_ids)
            )
            own = {name: int(value) for name, value in row.labels.items()}
            rows.append({"input_ids": ids, "segment_ids": segments, "labels": own})
        if len(rows) >= count:
            break
    return rows[:count], tokenizer.vocab_size


def compare(task, data, model, size, rows, batch, precisions, rounds):
    """Returns (precision, contender) → rows a second in each turn.

    Args:
        task, data, model, size, rows, batch, rounds: see `main`.
        precisions: Keras dtype policies.

    Returns:
        The rates of the second epoch, those of the first, and the lengths of the rows.
    """
    programs = contenders.installed(_OURS, {"transformers": ("transformers", _THEIRS)})
    found, vocabulary = training_rows(task, data, model, rows)
    rates, first = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "rows.json")
        source.write_text(json.dumps(found))
        for _ in track(range(rounds), description="turns"):
            for kind in precisions:
                for name, contender in programs.items():
                    program = _RUN.format(contender=contender)
                    arguments = model, size, kind, str(batch), str(vocabulary), str(source)
                    seconds = contenders.run(program, *arguments)
                    first.setdefault((kind, name), []).append(len(found) / seconds[0])
                    rates.setdefault((kind, name), []).append(len(found) / seconds[1])
    return rates, first, [len(row["input_ids"]) for row in found]


def main(
    task: Annotated[str, typer.Argument(help="A classification, or a SQuAD.")],
    data: Annotated[Path, typer.Argument(help="Its folder or file.")],
    model: Annotated[str, typer.Argument(help="A checkpoint in the format of transformers.")],
    size: Annotated[str, typer.Option(help="A name BertConfig.from_name takes.")] = "",
    rows: Annotated[int, typer.Option(help="Rows of an epoch.")] = 800,
    batch: Annotated[int, typer.Option(help="Rows of an update.")] = 16,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 3,
    precision: Annotated[
        list[str] | None, typer.Option(help="float32, mixed_bfloat16; by default both.")
    ] = None,
):
    """Prints medians of rows a second."""
    kinds = precision or ("float32", "mixed_bfloat16")
    rates, first, lengths = compare(task, data, model, size, rows, batch, kinds, rounds)
    table = Table(
        title=f"{task}, {size or Path(model).name}, {len(lengths)} rows of {min(lengths)} to "
        f"{max(lengths)} pieces (mean {statistics.mean(lengths):.0f}), {batch} an update, "
        f"{rounds} turns: rows a second"
    )
    for column in ("", "", "median", "(range)", "first epoch", "ours is faster by"):
        table.add_column(column, justify="right" if column else "left")
    for (kind, name), turns in rates.items():
        ours = rates[kind, "this library"]
        table.add_row(
            kind,
            name,
            f"{statistics.median(turns):.1f}",
            f"{min(turns):.1f} – {max(turns):.1f}",
            f"{statistics.median(first[kind, name]):.1f}",
            "" if turns is ours else f"× {contenders.ratio(ours, turns):.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
