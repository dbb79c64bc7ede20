"""How fast a pretraining step is, beside transformers and keras-hub, and where its time goes.

    python -m experiments.benchmarks.pretraining_step
    python -m experiments.benchmarks.pretraining_step --size mini --batch 32 --operations 20

Each contender trains a model of the same shape on the same random ids without padding, dropout on,
with AdamW and a clipped global norm, in the precision named: a fresh process each, in turn, so that
a busy machine slows all alike. The peak is the best of a few products of matrices in TensorFlow,
and the share of it what a step's own products would take at that rate
(`keras_bert_ref.planning.training_flops`). transformers projects only the masked positions onto the
vocabulary here, as the others do; left to itself, it projects all. keras-hub has no next sentence
prediction. With --operations nothing is compared: TensorFlow's profiler says what a step is made
of.
"""

import collections
import glob
import json
import statistics
import tempfile
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks import contenders

_OURS = """
from experiments.benchmarks.pretraining_step import compiled_step
step = compiled_step(**shape)
def train():
    return float(step()["loss"])
"""
_TRANSFORMERS = """
import torch
from transformers import BertConfig, BertForPreTraining
torch.manual_seed(0)
config = BertConfig(
    vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=c.num_hidden_layers,
    num_attention_heads=c.num_attention_heads, intermediate_size=c.intermediate_size,
)
model = BertForPreTraining(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
draw = lambda top, *size: torch.randint(top, size)
ids, segments = draw(c.vocab_size, batch, length), draw(2, batch, length)
mask, positions = torch.ones_like(ids), draw(length, batch, predictions)
labels, order = draw(c.vocab_size, batch, predictions), draw(2, batch)
entropy = torch.nn.functional.cross_entropy
low = precision != "float32"
def train():
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        out = model.bert(ids, attention_mask=mask, token_type_ids=segments)
        index = positions[:, :, None].expand(-1, -1, c.hidden_size)
        masked = torch.gather(out.last_hidden_state, 1, index)
        pieces, nexts = model.cls(masked, out.pooler_output)
        loss = entropy(pieces.float().flatten(0, 1), labels.flatten())
        loss = loss + entropy(nexts.float(), order)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())
"""
_KERAS_HUB = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
import keras, keras_hub, numpy as np
random = np.random.default_rng(0)
backbone = keras_hub.models.BertBackbone(
    c.vocab_size, c.num_hidden_layers, c.num_attention_heads, c.hidden_size, c.intermediate_size,
    dtype=precision,
)
model = keras_hub.models.BertMaskedLM(backbone)
model.compile(
    optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,  # which is the faster of the two on CPU
)
draw = lambda top, *size: random.integers(top, size=size).astype("int32")
x = {
    "token_ids": draw(c.vocab_size, batch, length),
    "padding_mask": np.ones((batch, length), "int32"),
    "segment_ids": draw(2, batch, length),
    "mask_positions": draw(length, batch, predictions),
}
y = draw(c.vocab_size, batch, predictions)
def train():
    return float(model.train_on_batch(x, y, return_dict=True)["loss"])
"""
_RUN = """
import json, os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from keras_bert_ref import BertConfig
shape = json.loads(sys.argv[1])
steps = shape.pop("steps")
size, batch, length, predictions, vocabulary, precision = shape.values()
c = BertConfig.from_name(size, vocab_size=vocabulary)
{contender}
train()
train()
seconds = []
for _ in range(steps):
    began = time.perf_counter()
    train()
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""
_PEAK = """
import json, sys, time
from keras_bert_ref._tensorflow import tf
best = 0
for rows, inner, columns in ((2048, 768, 3072), (2048, 3072, 768), (4096, 4096, 4096)):
    a, b = (tf.cast(tf.random.normal(s), sys.argv[1]) for s in ((rows, inner), (inner, columns)))
    product = tf.function(lambda a, b: tf.matmul(a, b))
    product(a, b)
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(4):
            c = product(a, b)
        c.numpy()
        best = max(best, 8 * rows * inner * columns / (time.perf_counter() - began))
print(json.dumps(best))
"""


def compiled_step(size, batch, length, predictions, vocabulary, precision):
    """Returns a function without arguments that trains this library's model for a step."""
    from keras_bert_ref import BertAdamW, BertConfig, BertPretrainer
    from keras_bert_ref._tensorflow import tf
    from keras_bert_ref.strategies import whole_step_compiles

    model = BertPretrainer(BertConfig.from_name(size, vocab_size=vocabulary), dtype=precision)
    model.compile(optimizer=BertAdamW(1e-4))
    data = random_batch(batch, length, predictions, vocabulary)
    return tf.function(
        lambda: model.train_step(data), jit_compile=whole_step_compiles() or None, autograph=False
    )


def random_batch(batch, length, predictions, vocabulary):
    """Returns (features, labels) as `BertPretrainer` takes them."""
    import numpy as np

    from keras_bert_ref._tensorflow import tf

    random = np.random.default_rng(0)

    def ids(limit, *shape):
        return tf.constant(random.integers(limit, size=shape), tf.int32)

    features = {
        "input_ids": ids(vocabulary, batch, length),
        "input_mask": tf.ones([batch, length], tf.int32),
        "segment_ids": ids(2, batch, length),
        "masked_lm_positions": ids(length, batch, predictions),
    }
    labels = {
        "masked_lm_ids": ids(vocabulary, batch, predictions),
        "masked_lm_weights": tf.ones([batch, predictions]),
        "next_sentence_labels": ids(2, batch),
    }
    return features, labels


def operations(step, steps=3):
    """Returns {operation: (milliseconds a step, calls a step)} as TensorFlow's profiler sees it."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from keras_bert_ref._tensorflow import tf

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(steps):
                float(step()["loss"])
        space = xplane_pb2.XSpace()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        with open(path, "rb") as file:
            space.ParseFromString(file.read())
    spent, calls = collections.Counter(), collections.Counter()
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            kind = name.rpartition(":")[2]  # an operation's event is called "name:type"
            if name == "CpuExecutable::ExecuteAsyncOnStream":
                kind = "(compiled by XLA)"
            elif name.count(":") != 1 or not kind.isidentifier():
                continue
            spent[kind] += event.duration_ps / 1e9 / steps
            calls[kind] += 1 / steps
    return {kind: (spent[kind], calls[kind]) for kind, _ in spent.most_common()}


def profile(shape, count):
    """Prints the operations of a step that take longest."""
    step = compiled_step(**shape)
    for _ in range(2):
        float(step()["loss"])
    began = time.perf_counter()
    float(step()["loss"])
    seconds = time.perf_counter() - began
    table = Table(title=f"a step of {_named(shape)}: {1000 * seconds:,.0f} ms")
    for column in ("operation", "ms", "calls"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for kind, (spent, calls) in list(operations(step).items())[:count]:
        table.add_row(kind, f"{spent:,.1f}", f"{calls:.0f}")
    Console().print(table)


def compare(shape, steps, rounds):
    """Returns contender → sequences a second in each turn, and the peak in each, in FLOP/s.

    Args:
        shape: the arguments of `compiled_step`.
        steps: timed in a turn.
        rounds: turns.
    """
    programs = contenders.installed(
        _OURS,
        {
            "transformers": ("transformers", _TRANSFORMERS),
            "keras-hub": ("keras_hub", _KERAS_HUB),
        },
    )
    rates, peaks = {}, []
    for _ in track(range(rounds), description="turns"):
        peaks.append(contenders.run(_PEAK, shape["precision"].removeprefix("mixed_")))
        for name, program in programs.items():
            program = _RUN.format(contender=program)
            seconds = contenders.run(program, json.dumps(shape | {"steps": steps}))
            rates.setdefault(name, []).append(shape["batch"] / statistics.median(seconds))
    return rates, peaks


def share_of_peak(shape, rates, peaks):
    """Returns the median share of the peak that a step's products are computed at."""
    from keras_bert_ref import BertConfig
    from keras_bert_ref.planning import training_flops

    config = BertConfig.from_name(shape["size"], vocab_size=shape["vocabulary"])
    flops = training_flops(config, shape["length"], shape["predictions"])
    return contenders.ratio([rate * flops for rate in rates], peaks)


def _named(shape):
    return (
        f"{shape['size']}, B={shape['batch']}, S={shape['length']}, P={shape['predictions']}, "
        f"{shape['precision']}"
    )


def main(
    size: Annotated[str, typer.Option(help="A name BertConfig.from_name takes.")] = "base",
    batch: Annotated[int, typer.Option(help="Sequences in a step, B.")] = 16,
    length: Annotated[int, typer.Option(help="Pieces in a sequence, S.")] = 128,
    predictions: Annotated[int, typer.Option(help="Masked pieces of each, P.")] = 20,
    vocabulary: Annotated[int, typer.Option(help="Pieces known, V.")] = 30522,
    precision: Annotated[str, typer.Option(help="mixed_bfloat16 or float32.")] = "mixed_bfloat16",
    steps: Annotated[int, typer.Option(help="Steps to time in a turn, after two others.")] = 5,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 3,
    listed: Annotated[
        int, typer.Option("--operations", help="List so many, instead of comparing.")
    ] = 0,
):
    """Prints medians of sequences a second, and shares of the peak."""
    shape = {
        "size": size,
        "batch": batch,
        "length": length,
        "predictions": predictions,
        "vocabulary": vocabulary,
        "precision": precision,
    }
    if listed:
        return profile(shape, listed)
    rates, peaks = compare(shape, steps, rounds)
    peak = statistics.median(peaks) / 1e12
    table = Table(title=f"{_named(shape)}, {rounds} turns; peak {peak:.2f} TFLOP/s")
    for column in ("", "sequences/s, median", "(range)", "share of peak", "ours is faster by"):
        table.add_column(column, justify="right" if column else "left")
    ours = rates["this library"]
    for name, turns in rates.items():
        table.add_row(
            name,
            f"{statistics.median(turns):.2f}",
            f"{min(turns):.2f} – {max(turns):.2f}",
            f"{share_of_peak(shape, turns, peaks):.0%}",
            "" if turns is ours else f"× {contenders.ratio(ours, turns):.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
