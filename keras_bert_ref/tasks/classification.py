"""Tasks that give a text, or a pair of texts, a class or a number (paper, section 4.1)."""

import dataclasses
import math

import numpy as np

from keras_bert_ref.errors import InputError, InputWarning
from keras_bert_ref.tasks import scores
from keras_bert_ref.tasks.contract import Row, Task
from keras_bert_ref.tasks.text_files import tsv_rows


@dataclasses.dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair, and what it is.

    Attributes:
        text: a string.
        pair: the second text, or None.
        label: the name of its class, or a float; None where it is not known.
    """

    text: str
    pair: str | None = None
    label: str | float | None = None


@dataclasses.dataclass(frozen=True)
class TextClassification(Task):
    """A class for a text or a pair, from files of tab-separated values.

    As it stands, files name their columns in the first line: `text`, `label` and, of pairs, `pair`;
    the classes are the labels of the training file. A subclass says what differs.

    Attributes:
        texts: the columns of the text and of the pair.
        label: the column of the label.
        words: label in the files → name of the class, in the order of the ids; None to take the
            labels as they are found.
        positive: the class that F1 is of; None for no F1.
        skips_broken_lines: whether lines of too few or too many values are passed over.
    """

    name = "classification"
    texts = ("text", "pair")
    label = "label"
    words = None
    positive = None
    skips_broken_lines = False
    _optional = ("pair",)

    def columns(self, split):
        """Returns the names of the columns of a file that does not name them; else None."""
        return None

    def read(self, path, split):
        examples, broken = [], 0
        # Of a test set none may be lost: predictions are counted by their lines.
        strict = not self.skips_broken_lines or split != "train"
        for number, row in tsv_rows(path, self.columns(split), strict):
            if row is None:
                broken += 1
                continue
            wanted = [*self.texts, *([self.label] if split == "train" else [])]
            absent = [name for name in wanted if name not in row and name not in self._optional]
            if absent:
                raise InputError(
                    f"{path} has no column {', '.join(map(repr, absent))}; it has {', '.join(row)}"
                )
            place = f"{path}, line {number}"
            label = self.label_of(row.get(self.label) or None, place)
            if label is None and split == "train":
                raise InputError(f"{place}: the label is empty, which cannot be learned from")
            examples.append(TextExample(*self._texts_of(row), label))
        if broken:
            InputWarning.issue(f"{path}: broken lines passed over: {broken:,}")
        if not examples:
            raise InputError(f"{path} holds no example")
        return examples

    def _texts_of(self, row):
        return row[self.texts[0]], row.get(self.texts[1]) if len(self.texts) > 1 else None

    def label_of(self, word, place):
        """Returns the label that a word in a file stands for.

        Raises:
            InputError: it stands for none.
        """
        if word is None or self.words is None:
            return word
        if word not in self.words:
            raise InputError(
                f"{place}: label {word!r} is unknown; labels are {', '.join(self.words)}"
            )
        return self.words[word]

    def example(self, value):
        if isinstance(value, str):
            return TextExample(value)
        parts = value if isinstance(value, tuple | list) else ()
        if len(parts) == 2 and all(isinstance(part, str) for part in parts):
            return TextExample(*parts)
        raise InputError(f"{value!r} is neither a text nor a pair of texts")

    def labels(self, train):
        if self.words:
            return tuple(self.words.values())
        names = {example.label for example in train}
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(f"labels of training examples must be strings, not {wrong[0]!r}")
        if len(names) < 2:
            found = f"all have the label {names.pop()!r}" if names else "there are none"
            raise InputError(f"training examples of two classes are needed, but {found}")
        return tuple(sorted(names))

    def check_labels(self, labels):
        if labels is None or (self.words and set(labels) != set(self.words.values())):
            wanted = ", ".join(self.words.values()) if self.words else "two or more"
            raise InputError(
                f"the model is not for {self.name}, whose labels are {wanted}: its own are "
                f"{', '.join(labels or ['none, but a number'])}"
            )

    def features(self, example, tokenizer, labels, training):
        encoding = tokenizer.encode(example.text, example.pair, max_length=self.max_length)
        known = self.target(example, labels) if training else {}
        return [Row(encoding.input_ids, encoding.segment_ids, known)]

    def target(self, example, labels):
        """Returns what the model is to learn of an example, under the model's name for it."""
        if example.label not in labels:
            raise InputError(
                f"label {example.label!r} is unknown; the model's are {', '.join(labels)}"
            )
        return {"label_ids": labels.index(example.label)}

    def decode(self, example, rows, outputs, labels):
        shares = probabilities(outputs[0]["logits"])
        return {
            "label": labels[int(np.argmax(shares))],
            "probabilities": dict(zip(labels, shares.tolist(), strict=True)),
        }

    def score(self, examples, predictions):
        scores.check_labelled(self, examples)
        true = [example.label for example in examples]
        found = [prediction["label"] for prediction in predictions]
        return scores.of_classes(true, found, self.positive)


@dataclasses.dataclass(frozen=True)
class TextRegression(TextClassification):
    """A number for a text or a pair, such as how similar the two are. The label is the number."""

    name = "regression"
    metric = "spearman"

    def label_of(self, word, place):
        if word is None:
            return None
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{place}: {word!r} is no number")
        return value

    def labels(self, train):
        return None

    def check_labels(self, labels):
        if labels is not None:
            raise InputError(
                f"the model is not for {self.name}, a number: it has the labels {', '.join(labels)}"
            )

    def target(self, example, labels):
        return {"targets": float(example.label)}

    def decode(self, example, rows, outputs, labels):
        return {"score": float(outputs[0]["scores"])}

    def score(self, examples, predictions):
        scores.check_labelled(self, examples)
        true = [example.label for example in examples]
        return scores.of_numbers(true, [prediction["score"] for prediction in predictions])


def probabilities(logits):
    """Returns softmax(logits) in float64, over the last axis."""
    logits = np.asarray(logits, np.float64)
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)
