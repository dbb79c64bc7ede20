"""How many texts a second become vectors: this library beside its peers.

    python -m experiments.benchmarks.feature_extraction SQUAD MODEL

SQUAD is a file of SQuAD, of which questions and paragraphs are read in random order; MODEL is a
checkpoint that sentence-transformers can read as well: the last layer's mean over pieces, at most
256 of them. Each contender runs in a fresh process, in turn, so that a busy machine slows all
alike: one pass to warm up, which is shown too, and one that counts. This library and
sentence-transformers sort by length; keras-hub has rows of one length, and other values in the
fourth digit. With --size, random weights of that shape are read in the place of MODEL's.
"""

import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks import contenders

LENGTH = 256

_OURS = """
from keras_bert_ref import FeatureExtractor
extractor = FeatureExtractor(
    model, layers=(-1,), max_length={length},
    dtype="mixed_bfloat16" if precision == "bfloat16" else "float32",
)
def encode(texts):
    return extractor.extract(texts)
"""
_THEIRS = """
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
kinds = {{"float32": torch.float32, "bfloat16": torch.bfloat16}}
transformer = Transformer(model, max_seq_length={length}, model_args={{"dtype": kinds[precision]}})
model = SentenceTransformer(
    modules=[transformer, Pooling(transformer.get_word_embedding_dimension())], device="cpu"
)
def encode(texts):
    return model.encode(texts, batch_size=32, show_progress_bar=False).astype("float32")
"""
_KERAS_HUB = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
import keras_hub
import tensorflow as tf
tokenizer = keras_hub.tokenizers.BertTokenizer.from_preset(model)
packer = keras_hub.layers.MultiSegmentPacker(
    sequence_length={length}, start_value=tokenizer.cls_token_id, end_value=tokenizer.sep_token_id
)
backbone = keras_hub.models.BertBackbone.from_preset(
    model, dtype="mixed_bfloat16" if precision == "bfloat16" else "float32"
)
def encode(texts):
    ids, segments = packer((tokenizer(texts),))
    mask = tf.cast(ids != 0, "int32")
    inputs = {{"token_ids": ids, "segment_ids": segments, "padding_mask": mask}}
    states = backbone.predict(inputs, batch_size=32, verbose=0)["sequence_output"]
    chosen = mask.numpy()[:, :, None].astype("float32")
    return (states.astype("float32") * chosen).sum(1) / chosen.sum(1)
"""
_RUN = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
model, precision, source, vectors = sys.argv[1:]
texts = json.load(open(source))
{contender}
seconds = []
for _ in range(2):
    began = time.perf_counter()
    found = encode(texts)
    seconds.append(time.perf_counter() - began)
np.save(vectors, found)
print(json.dumps(seconds))
"""


def read_texts(path, questions, paragraphs):
    """Returns questions and paragraphs of a file of SQuAD, shuffled."""
    found = _paragraphs(path)
    asked = [qa["question"] for paragraph in found for qa in paragraph["qas"]]
    order = random.Random(0)
    texts = order.sample(asked, questions)
    texts += order.sample([paragraph["context"] for paragraph in found], paragraphs)
    order.shuffle(texts)
    return texts


def read_paragraphs(path):
    """Returns all paragraphs of a file of SQuAD, as they come."""
    return [paragraph["context"] for paragraph in _paragraphs(path)]


def _paragraphs(path):
    articles = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]]


def measure(contender, model, precision, source, vectors):
    """Returns the seconds of the first and of the second pass."""
    program = _RUN.format(contender=contender.format(length=LENGTH))
    return contenders.run(program, model, precision, source, vectors)


def random_model(size, model, folder):
    """Writes a checkpoint of random weights with the vocabulary of another; returns its place."""
    from keras_bert_ref import BertConfig, BertEncoder
    from keras_bert_ref.checkpoints.opening import open_checkpoint

    tokenizer = open_checkpoint(model).tokenizer
    encoder = BertEncoder(BertConfig.from_name(size, vocab_size=tokenizer.vocab_size))
    encoder.tokenizer = tokenizer
    place = Path(folder, size)
    encoder.save_pretrained(place, format="hf")
    return str(place)


def compare(squad, model, size, questions, paragraphs, precisions, rounds):
    """Returns (precision, contender) → texts a second in each turn.

    Args:
        squad, model, size, questions, paragraphs, rounds: see `main`.
        precisions: "float32", "bfloat16".

    Returns:
        The rates of the second pass, those of the first, and the vectors.
    """
    programs = contenders.installed(
        _OURS,
        {
            "sentence-transformers": ("sentence_transformers", _THEIRS),
            "keras-hub": ("keras_hub", _KERAS_HUB),
        },
    )
    texts = read_texts(squad, questions, paragraphs)
    rates, first, vectors = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        source, place = Path(folder, "texts.json"), Path(folder, "vectors.npy")
        source.write_text(json.dumps(texts))
        if size:
            model = random_model(size, model, folder)
        for _ in track(range(rounds), description="turns"):
            for precision in precisions:
                for name, contender in programs.items():
                    key = precision, name
                    seconds = measure(contender, model, precision, str(source), str(place))
                    first.setdefault(key, []).append(len(texts) / seconds[0])
                    rates.setdefault(key, []).append(len(texts) / seconds[1])
                    vectors[key] = np.load(place)
    return rates, first, vectors


def main(
    squad: Annotated[Path, typer.Argument(help="dev-v1.1.json or the like.")],
    model: Annotated[str, typer.Argument(help="A checkpoint in the format of transformers.")],
    size: Annotated[str, typer.Option(help="A name BertConfig.from_name takes.")] = "",
    questions: Annotated[int, typer.Option(help="How many questions are read.")] = 1500,
    paragraphs: Annotated[int, typer.Option(help="How many paragraphs are read.")] = 300,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 5,
):
    """Prints medians of texts a second, and how near the vectors are to each other."""
    kinds = "float32", "bfloat16"
    rates, first, vectors = compare(squad, model, size, questions, paragraphs, kinds, rounds)
    count = questions + paragraphs
    table = Table(
        title=f"{count:,} texts, {size or Path(model).name}, {rounds} turns: texts a second"
    )
    for column in ("", "", "median", "(range)", "first pass", "ratio, median of turns", "cosine"):
        table.add_column(column, justify="right" if column else "left")
    for (precision, name), found in rates.items():
        own, exact = rates[precision, "this library"], vectors["float32", "this library"]
        near = np.sum(vectors[precision, name] * exact, axis=1)
        near /= np.linalg.norm(vectors[precision, name], axis=1) * np.linalg.norm(exact, axis=1)
        table.add_row(
            precision,
            name,
            f"{statistics.median(found):.0f}",
            f"{min(found):.0f} – {max(found):.0f}",
            f"{statistics.median(first[precision, name]):.0f}",
            f"{contenders.ratio(own, found):.2f}",
            f"≥ {near.min():.4f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
