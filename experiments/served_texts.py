"""Exported models held against the library, with real weights and thousands of real texts.

    python -m experiments.served_texts ../shared/data MODEL

DATA has the folders `glue` and `squad`; MODEL is a checkpoint of an encoder, whose task models get
new heads. Every kind is exported, which checks it in a process of its own, and asked; what it
answers is compared with what the library says in Python. Then eight threads ask one of them for a
while.
"""

import random
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.feature_extraction import read_texts
from keras_bert_ref.tasks.registry import make_task

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC")
AT_ONCE = 64


def mixed_texts(data, count):
    """Returns sentences, questions and paragraphs, and odd ones made of them, in random order."""
    order = random.Random(0)
    lines = Path(data, "glue", "SST-2", "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[0] for line in lines]
    texts += read_texts(Path(data, "squad", "dev-v1.1.json"), 6000, 1000)
    signs = ["\u0301", "ß", "İ", "中文", "\u200b", "\xa0", "ΑΣ", "[MASK]", "\t", "😀", "ﬁ", "'"]
    while len(texts) < count:
        one = list(order.choice(texts))
        for _ in range(order.randint(1, 6)):
            one.insert(order.randint(0, len(one)), order.choice(signs))
        texts.append("".join(one))
    order.shuffle(texts)
    return texts[:count]


def kinds(where):
    """Yields name, model, options of the export, and task → what the library says of texts."""
    from keras_bert_ref import (
        BertClassifier,
        BertEncoder,
        BertMultipleChoice,
        BertPretrainer,
        BertSpanLabeler,
        BertTagger,
        FeatureExtractor,
    )

    labels = ["negative", "neutral", "positive"]
    yield "classifier", BertClassifier.from_pretrained(where, labels=labels), {"max_length": 128}
    yield "regression", BertClassifier.from_pretrained(where, labels=None), {"max_length": 128}
    yield "span", BertSpanLabeler.from_pretrained(where), {"task": make_task("squad-2.0")}
    yield "choice", BertMultipleChoice.from_pretrained(where), {"max_length": 128}
    yield "tagger", BertTagger.from_pretrained(where, labels=TAGS), {"max_length": 512}
    encoder = BertEncoder.from_pretrained(where)
    pretrainer = BertPretrainer(encoder)
    pretrainer.tokenizer = encoder.tokenizer
    yield "pretrainer", pretrainer, {}
    yield "encoder", encoder, {"max_length": 128}
    yield "features", FeatureExtractor(encoder, pooling="mean_piece", max_length=128), {}


def expected(kind, model, texts):
    """Returns the inputs for a signature, and what the library answers: output → list."""
    from keras_bert_ref import fill_mask

    others = texts[1:] + texts[:1]
    if kind == "classifier":
        found = make_task("classification", max_length=128).predict(
            model, zip(texts, others, strict=True)
        )
        values = {
            "label": [one["label"] for one in found],
            "probabilities": [list(one["probabilities"].values()) for one in found],
        }
        return "serving_text_pairs", {"texts": texts, "pairs": others}, values
    if kind == "regression":
        found = make_task("regression", max_length=128).predict(model, texts)
        return "serving_text", {"texts": texts}, {"scores": [one["score"] for one in found]}
    if kind == "span":
        found = make_task("squad-2.0").predict(model, zip(others, texts, strict=True))
        values = {
            "answer": [one["answer"] for one in found],
            "null_odds": [one["null_odds"] for one in found],
        }
        return "serving_text", {"questions": others, "contexts": texts}, values
    if kind == "choice":
        choices = [list(pair) for pair in zip(others, others[1:] + others[:1], strict=True)]
        given = [{"context": a, "choices": b} for a, b in zip(texts, choices, strict=True)]
        found = make_task("swag", max_length=128).predict(model, given)
        values = {
            "choice": [one["choice"] for one in found],
            "probabilities": [one["probabilities"] for one in found],
        }
        return "serving_text", {"texts": texts, "choices": choices}, values
    if kind == "tagger":
        found = make_task("conll-2003", max_length=512).predict(model, texts)
        return "serving_text", {"texts": texts}, {"tags": [one["tags"] for one in found]}
    if kind == "pretrainer":
        texts = [f"{text[:200]} [MASK]." for text in texts[:200]]
        pieces = [[piece for piece, _ in fill_mask(model, text)[-1]] for text in texts]
        return "serving_text", {"texts": texts}, {"pieces": pieces}
    if kind == "encoder":
        from keras_bert_ref import FeatureExtractor

        extractor = FeatureExtractor(model, layers=-1, pooling="pooler", max_length=128)
        return "serving_text", {"texts": texts}, {"pooled_output": extractor.extract(texts)}
    return "serving_text", {"texts": texts}, {"features": model.extract(texts)}


def ask(served, signature, inputs):
    """Yields output → array for parts of the inputs."""
    import tensorflow as tf

    count = len(next(iter(inputs.values())))
    for begin in range(0, count, AT_ONCE):
        part = {name: tf.constant(x[begin : begin + AT_ONCE]) for name, x in inputs.items()}
        yield {name: x.numpy() for name, x in served.signatures[signature](**part).items()}


def compare(answers, values):
    """Returns how many values were compared, how many differ, and how far numbers are apart.

    Strings and choices differ where they are not equal; numbers where they are not within 1e-5.
    """
    compared = different = 0
    apart, begin = 0.0, 0
    for answer in answers:
        size = len(next(iter(answer.values())))
        for name, wanted in values.items():
            for n, value in enumerate(wanted[begin : begin + size]):
                found = answer[name][n]
                if name == "pieces":  # of the last [MASK]
                    found = found[answer["positions"][n] >= 0][-1]
                if np.asarray(value).dtype.kind == "f":
                    found = found[: len(value)] if np.ndim(value) else found
                    distance = float(np.max(np.abs(found - value), initial=0))
                    apart = max(apart, distance)
                    same = distance <= 1e-5
                elif np.ndim(value):
                    found = found[: len(value)].tolist()
                    same = [one.decode() for one in found] == list(value)
                else:
                    same = (found.decode() if isinstance(found, bytes) else found) == value
                compared += 1
                different += not same
        begin += size
    return compared, different, apart


def load(served, texts, seconds, threads):
    """Returns how often threads were answered otherwise than one alone, and how memory grew."""
    lists = [texts[n : n + 1 + n % 8] for n in range(0, min(800, len(texts)), 8)]
    alone = [next(ask(served, "serving_text", {"texts": one})) for one in lists]
    counts, faults, sizes = [0] * threads, [], []
    end = time.monotonic() + seconds

    def client(number):
        order = random.Random(number)
        while time.monotonic() < end:
            n = order.randrange(len(lists))
            answer = next(ask(served, "serving_text", {"texts": lists[n]}))
            near = np.abs(answer["probabilities"] - alone[n]["probabilities"]).max() < 1e-5
            if not near or (answer["label"] != alone[n]["label"]).any():
                faults.append(n)
            counts[number] += 1

    running = [threading.Thread(target=client, args=[n]) for n in range(threads)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        time.sleep(seconds / 12)
        sizes.append(_resident())
    return sum(counts), len(faults), sizes


def _resident():
    """Returns the megabytes of memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main(
    data: Annotated[Path, typer.Argument(help="The folder of all data.")],
    model: Annotated[str, typer.Argument(help="A checkpoint.")],
    count: Annotated[int, typer.Option(help="Texts for the classifier.")] = 10_000,
    others: Annotated[int, typer.Option(help="Texts for each other kind.")] = 500,
    seconds: Annotated[float, typer.Option(help="How long threads ask.")] = 60,
    threads: Annotated[int, typer.Option(help="How many.")] = 8,
):
    """Prints for each kind how many answers differ."""
    import tensorflow as tf

    from keras_bert_ref import export_saved_model

    warnings.simplefilter("ignore")
    texts = mixed_texts(data, count)
    console = Console()
    table = Table("model", "texts", "values compared", "different", "numbers apart by at most")
    with tempfile.TemporaryDirectory() as folder:
        for kind, one, options in track(list(kinds(model)), description="kinds"):
            place = Path(folder, kind, "1")
            export_saved_model(one, place, **options)
            served = tf.saved_model.load(str(place))
            chosen = [text for text in texts if text.split()]
            chosen = chosen if kind == "classifier" else chosen[:others]
            signature, inputs, values = expected(kind, one, chosen)
            found = compare(ask(served, signature, inputs), values)
            size = len(next(iter(inputs.values())))
            table.add_row(kind, f"{size:,}", f"{found[0]:,}", f"{found[1]:,}", f"{found[2]:.1e}")
        console.print(table)
        served = tf.saved_model.load(str(Path(folder, "classifier", "1")))
        requests, faults, sizes = load(served, texts, seconds, threads)
        console.print(
            f"{threads} threads, {seconds:g} s: {requests:,} requests, {faults} answered otherwise "
            f"than alone; memory {', '.join(f'{size:,.0f}' for size in sizes)} MB"
        )


if __name__ == "__main__":
    typer.run(main)
