"""GLUE (Wang et al. 2019; paper, section 4.1): its files with their quirks, and its submissions.

Files are those that GLUE's own download script leaves in a task's folder. Classes have the names
that tensorflow-datasets gives them; submissions have the leaderboard's words for them.
"""

import dataclasses
from pathlib import Path

import numpy as np

from keras_bert_ref.files import replace_text
from keras_bert_ref.tasks.classification import TextClassification, TextExample, TextRegression

_ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}


class _Glue:
    """What GLUE's tasks share.

    Attributes:
        tfds_texts: what tensorflow-datasets calls the texts, where that differs.
        submissions: split → name of the file that the leaderboard takes.
    """

    tfds_texts = None
    _optional = ()

    def from_tfds(self, rows, info, split):
        names = self.tfds_texts or self.texts
        # Stored in another order than that of the files, in which submissions are.
        rows = sorted(rows, key=lambda row: row["idx"])
        classes = getattr(info.features["label"], "names", None)
        examples = []
        for row in rows:
            label = row["label"]
            if split == "test" or label == -1:
                label = None
            elif classes:
                label = classes[label]
            examples.append(TextExample(*(row[name] for name in names), label=label))
        return examples

    def word(self, prediction):
        """Returns what a submission says for a prediction."""
        found = prediction["label"]
        return next(word for word, name in self.words.items() if name == found)

    def write(self, examples, predictions, folder, split):
        if split not in self.submissions:
            return []
        path = Path(folder) / self.submissions[split]
        lines = [f"{n}\t{self.word(found)}\n" for n, found in enumerate(predictions)]
        replace_text(path, "index\tprediction\n" + "".join(lines))
        return [path]


@dataclasses.dataclass(frozen=True)
class Cola(_Glue, TextClassification):
    """Whether a sentence is acceptable English."""

    name, metric = "cola", "matthews"
    texts = ("sentence",)
    words = {"0": "unacceptable", "1": "acceptable"}
    submissions = {"test": "CoLA.tsv"}

    def columns(self, split):
        # Only the test file names its columns.
        return None if split == "test" else ("source", "label", "mark", "sentence")


@dataclasses.dataclass(frozen=True)
class Sst2(_Glue, TextClassification):
    """Whether a sentence of a film review is positive."""

    name = "sst-2"
    texts = ("sentence",)
    words = {"0": "negative", "1": "positive"}
    submissions = {"test": "SST-2.tsv"}


@dataclasses.dataclass(frozen=True)
class Mrpc(_Glue, TextClassification):
    """Whether two sentences of the news say the same."""

    name, metric = "mrpc", "f1"
    texts, label = ("#1 String", "#2 String"), "Quality"
    words, positive = {"0": "not_equivalent", "1": "equivalent"}, "equivalent"
    tfds_texts = ("sentence1", "sentence2")
    submissions = {"test": "MRPC.tsv"}


@dataclasses.dataclass(frozen=True)
class Qqp(_Glue, TextClassification):
    """Whether two questions ask the same."""

    name, metric = "qqp", "f1"
    texts, label = ("question1", "question2"), "is_duplicate"
    words, positive = {"0": "not_duplicate", "1": "duplicate"}, "duplicate"
    submissions = {"test": "QQP.tsv"}
    skips_broken_lines = True  # the official training file has a few


@dataclasses.dataclass(frozen=True)
class StsB(_Glue, TextRegression):
    """How similar two sentences are, from 0 to 5."""

    name = "sts-b"
    texts, label = ("sentence1", "sentence2"), "score"
    submissions = {"test": "STS-B.tsv"}

    def word(self, prediction):
        return f"{np.clip(prediction['score'], 0, 5):.3f}"


@dataclasses.dataclass(frozen=True)
class Mnli(_Glue, TextClassification):
    """Whether a sentence follows from another, contradicts it, or neither.

    `dev` and `test` are of the genres of the training set, `dev-mm` and `test-mm` of others, and
    `ax` is GLUE's diagnostic set.
    """

    name = "mnli"
    files = {
        "train": "train.tsv",
        "dev": "dev_matched.tsv",
        "dev-mm": "dev_mismatched.tsv",
        "test": "test_matched.tsv",
        "test-mm": "test_mismatched.tsv",
        "ax": "diagnostic.tsv",
    }
    tfds_splits = {
        "train": "train",
        "dev": "validation_matched",
        "dev-mm": "validation_mismatched",
        "test": "test_matched",
        "test-mm": "test_mismatched",
    }
    texts, label = ("sentence1", "sentence2"), "gold_label"
    words = {name: name for name in ("entailment", "neutral", "contradiction")}
    tfds_texts = ("premise", "hypothesis")
    submissions = {"test": "MNLI-m.tsv", "test-mm": "MNLI-mm.tsv", "ax": "AX.tsv"}


@dataclasses.dataclass(frozen=True)
class Qnli(_Glue, TextClassification):
    """Whether a sentence answers a question."""

    name = "qnli"
    texts, words = ("question", "sentence"), _ENTAILMENT
    submissions = {"test": "QNLI.tsv"}


@dataclasses.dataclass(frozen=True)
class Rte(_Glue, TextClassification):
    """Whether a sentence follows from another."""

    name = "rte"
    texts, words = ("sentence1", "sentence2"), _ENTAILMENT
    submissions = {"test": "RTE.tsv"}


@dataclasses.dataclass(frozen=True)
class Wnli(_Glue, TextClassification):
    """Whether a sentence in which a pronoun is replaced by a name follows from the original."""

    name = "wnli"
    texts = ("sentence1", "sentence2")
    words = {"0": "not_entailment", "1": "entailment"}
    submissions = {"test": "WNLI.tsv"}


GLUE = (Cola, Sst2, Mrpc, Qqp, StsB, Mnli, Qnli, Rte, Wnli)
