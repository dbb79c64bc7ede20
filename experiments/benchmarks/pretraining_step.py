"""How fast one pretraining step is, and where its time goes.

    python -m experiments.benchmarks.pretraining_step --size mini --batch 32 --vocabulary 8000

Inputs are random ids without padding. Wall time is what a run takes; processor time, summed over
cores, is what to compare on a machine that others use too.
"""

import argparse
import collections
import glob
import statistics
import tempfile
import time

import numpy as np

from keras_bert_ref import BertAdamW, BertConfig, BertPretrainer
from keras_bert_ref._tensorflow import tf


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="base", help="a name BertConfig.from_name takes")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step, B")
    parser.add_argument("--length", type=int, default=128, help="pieces in a sequence, S")
    parser.add_argument("--predictions", type=int, default=20, help="masked pieces each, P")
    parser.add_argument("--vocabulary", type=int, default=30522, help="pieces known, V")
    parser.add_argument("--precision", default="mixed_bfloat16", help="a Keras dtype policy")
    parser.add_argument("--steps", type=int, default=10, help="steps to time, after a first one")
    parser.add_argument("--compile", action="store_true", help="compile the whole step with XLA")
    parser.add_argument(
        "--operations", type=int, default=0, metavar="N", help="list the N that take longest"
    )
    return parser.parse_args()


def random_batch(batch, length, predictions, vocabulary):
    """Returns (features, labels) as `BertPretrainer` takes them."""
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


def timed(step):
    """Returns the wall and the processor seconds of one step."""
    wall, processor = time.perf_counter(), time.process_time()
    float(step()["loss"])
    return time.perf_counter() - wall, time.process_time() - processor


def operations(step, steps=3):
    """Returns {operation: (milliseconds a step, calls a step)} as TensorFlow's profiler sees it."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(steps):
                timed(step)
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


def main():
    args = arguments()
    config = BertConfig.from_name(args.size, vocab_size=args.vocabulary)
    model = BertPretrainer(config, dtype=args.precision)
    model.compile(optimizer=BertAdamW(1e-4))
    data = random_batch(args.batch, args.length, args.predictions, args.vocabulary)
    function = tf.function(
        lambda: model.train_step(data), jit_compile=args.compile or None, autograph=False
    )

    print(f"{args.size} B={args.batch} S={args.length} P={args.predictions} {args.precision}")
    first, _ = timed(function)
    walls, processors = zip(*(timed(function) for _ in range(args.steps)), strict=True)
    wall = statistics.median(walls)
    print(f"first step, with tracing  {first:7.2f} s")
    print(f"step                      {wall:7.3f} s  ({min(walls):.3f} to {max(walls):.3f})")
    print(f"processor time of a step  {statistics.median(processors):7.3f} s")
    print(f"steps a second            {1 / wall:7.2f}")
    print(f"sequences a second        {args.batch / wall:7.2f}")
    if args.operations:
        print(f"\n{'ms a step':>10} {'calls':>6}  operation")
        for kind, (spent, calls) in list(operations(function).items())[: args.operations]:
            print(f"{spent:10.2f} {calls:6.0f}  {kind}")


if __name__ == "__main__":
    main()
