"""The quickstart's encoder in a scikit-learn pipeline: from which source does a passage come?

The task is made of the text that the encoder was pretrained on. With several files the sources are
files, with one they are its documents.
"""

import collections
import dataclasses
import itertools
import random
import re
from pathlib import Path

from rich.table import Table

from keras_bert_ref.cli.progress import console

_SOURCES = 4  # at most, the largest
_FEWEST, _MOST = 20, 300  # passages of a source
_SHORTEST, _LONGEST = 20, 200  # characters of a passage
_WORD = re.compile(r"\w\w")  # what scikit-learn takes for a word has two characters or more
_SEED = 0


@dataclasses.dataclass(frozen=True)
class _Source:
    name: str
    passages: list[str]  # distinct
    lines: int


def compare_with_bag_of_words(model, texts, max_length):
    """Prints the accuracy of a linear classifier on BERT's features and on TF-IDF.

    Where the text does not have two sources with enough passages, it prints why there is no table.

    Args:
        model: the folder of the encoder.
        texts: files or globs, as in `tfrecords.corpus.corpus_files`.
        max_length: how many pieces the encoder was trained on at once.
    """
    passages, labels = labelled_passages(texts)
    names = sorted(set(labels))
    if len(names) < 2:
        console.print(
            "Skipped: to tell sources apart takes two files or, in a single file, two documents "
            f"(a blank line between them), each with {_FEWEST} different lines of words, of "
            f"{_SHORTEST} characters or more.",
            markup=False,
        )
        return
    pipelines = _pipelines(model, max_length)
    with console.status("computing features"):
        accuracies, tried = _accuracies(pipelines.values(), passages, labels)
    table = Table(title=f"from which of {len(names)} sources a passage comes")
    table.add_column("")
    table.add_column("accuracy", justify="right")
    for name, accuracy in zip(pipelines, accuracies, strict=True):
        table.add_row(name, f"{accuracy:.1%}")
    console.print(table)
    console.print(
        f"{len(passages) - tried:,} passages to learn from and {tried:,} others to be tried on, "
        f"cut to {_LONGEST} characters. The encoder was pretrained on the same text, but without "
        "the names of the sources:"
    )
    for name in names:
        console.print(f"  {name} ({labels.count(name)})", markup=False, highlight=False)
    steps = next(iter(pipelines.values())).named_steps.values()
    code = ", ".join(" ".join(repr(step).split()) for step in steps)
    console.print(f"make_pipeline({code})", soft_wrap=True, highlight=False, markup=False)


def labelled_passages(texts):
    """Returns distinct passages of the largest sources, and the name of each one's source.

    Lines are passages, long ones cut; those that stand in two sources are left out. Which ones are
    taken is the same in every call.

    Args:
        texts: files or globs, as in `tfrecords.corpus.corpus_files`.
    """
    largest = []
    for name, lines in _sources(texts):
        source = _sample(name, lines)
        if len(source.passages) >= _FEWEST:
            largest = sorted([*largest, source], key=lambda one: -one.lines)[:_SOURCES]
    found_in = collections.Counter(itertools.chain(*(source.passages for source in largest)))
    passages, labels = [], []
    for source in largest:
        unique = [passage for passage in source.passages if found_in[passage] == 1]
        if len(unique) >= _FEWEST:
            passages += unique
            labels += [source.name] * len(unique)
    return passages, labels


def _sources(texts):
    """Yields the name of each source and an iterator over its lines, to be used up first."""
    from tfrecords.corpus import corpus_files, read_sentences

    files = corpus_files(texts)
    if len(files) > 1:
        names = [Path(file).name for file in files]
        for file, name in zip(files, names, strict=True):
            lines = filter(None, read_sentences(file, errors="replace"))
            yield name if names.count(name) == 1 else file, lines
        return
    documents = itertools.groupby(read_sentences(files, errors="replace"), key=bool)
    for number, (_, lines) in enumerate((found for found in documents if found[0]), start=1):
        first = next(lines)
        start = first if len(first) <= 50 else f"{first[:50]}…"
        yield f"document {number}: {start}", itertools.chain([first], lines)


def _sample(name, lines):
    """Draws the passages of a source, evenly and without holding more of it (reservoir)."""
    choose, drawn, count = random.Random(_SEED), [], 0
    for line in lines:
        if len(line) < _SHORTEST or not _WORD.search(line[:_LONGEST]):
            continue
        count += 1
        place = count - 1 if count <= _MOST else choose.randrange(count)
        if place < _MOST:
            drawn[place : place + 1] = [line[:_LONGEST]]
    return _Source(name, list(dict.fromkeys(drawn)), count)


def _pipelines(model, max_length):
    """Returns name → classifier of texts; the one on BERT's features is first."""
    from sklearn.dummy import DummyClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from keras_bert_ref.features.featurizer import BertFeaturizer

    return {
        "this BERT's features, logistic regression": make_pipeline(
            BertFeaturizer(str(model), layers=-1, max_length=max_length, overflow="slide"),
            StandardScaler(),
            LogisticRegression(max_iter=1000),
        ),
        "bag of words (TF-IDF), logistic regression": make_pipeline(
            TfidfVectorizer(), LogisticRegression(max_iter=1000)
        ),
        "always the commonest source": DummyClassifier(),
    }


def _accuracies(models, passages, labels):
    """Returns the accuracy of each on a third of the passages, and how many those are."""
    from sklearn.model_selection import train_test_split

    x, x_tried, y, y_tried = train_test_split(
        passages, labels, test_size=1 / 3, stratify=labels, random_state=_SEED
    )
    return [model.fit(x, y).score(x_tried, y_tried) for model in models], len(x_tried)
