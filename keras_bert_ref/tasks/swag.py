"""Which of several endings goes on from a text: SWAG (paper, section 4.4) and CODAH."""

import csv
import dataclasses
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import InputError
from keras_bert_ref.files import parse_json, replace_text
from keras_bert_ref.tasks import scores
from keras_bert_ref.tasks.classification import probabilities
from keras_bert_ref.tasks.contract import Row, Task
from keras_bert_ref.tasks.text_files import numbered_lines, tsv_rows


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A text, what may follow it, and what does.

    Attributes:
        context: a string.
        choices: strings, at least two.
        label: the number of the right one, from 0; None where it is not known.
        category: what the data set says of the example's kind; None where it says nothing.
    """

    context: str
    choices: tuple[str, ...]
    label: int | None = None
    category: str | None = None


@dataclasses.dataclass(frozen=True)
class Swag(Task):
    """The sentence that follows another, of which it has the beginning, among four endings.

    Files are SWAG's own, of comma-separated values, or have the same fields as JSON lines if their
    names end in .json or .jsonl.
    """

    name = "swag"
    model = "BertMultipleChoice"
    files = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}
    context = "sent1"
    beginning = "sent2"  # of every ending
    endings = ("ending0", "ending1", "ending2", "ending3")
    category = None

    def read(self, path, split):
        rows = _json_rows if Path(path).suffix in (".json", ".jsonl") else self.rows
        examples = [self._example_of(row, place, split) for place, row in rows(path)]
        if not examples:
            raise InputError(f"{path} holds no example")
        return examples

    def rows(self, path):
        """Yields (place, field → value) for the rows of a file that is not of JSON lines."""
        return _csv_rows(path)

    def _example_of(self, row, place, split):
        wanted = [self.context, *self.endings, *([self.beginning] if self.beginning else [])]
        absent = [name for name in wanted if not isinstance(row.get(name), str)]
        if split == "train" and row.get("label") is None:
            absent.append("label")
        if absent:
            raise InputError(f"{place}: has no {', '.join(absent)}; it has {', '.join(row)}")
        choices = [row[name] for name in self.endings]
        if self.beginning:
            choices = [f"{row[self.beginning]} {ending}" for ending in choices]
        label = self._label_of(row.get("label"), place)
        category = row[self.category] or None if self.category else None
        return ChoiceExample(row[self.context], tuple(choices), label, category)

    def _label_of(self, value, place):
        if value is None:
            return None
        known = {str(n): n for n in range(len(self.endings))}
        if str(value) not in known:
            raise InputError(f"{place}: label {value!r} is none of {', '.join(known)}")
        return known[str(value)]

    def example(self, value):
        if isinstance(value, dict) and set(value) == {"context", "choices"}:
            value = (value["context"], value["choices"])
        if isinstance(value, tuple | list) and len(value) == 2:
            context, choices = value
            if (
                isinstance(choices, tuple | list)
                and len(choices) > 1
                and all(isinstance(text, str) for text in (context, *choices))
            ):
                return ChoiceExample(context, tuple(choices))
        raise InputError(f"{value!r} is no question: give {{context: …, choices: [two or more]}}")

    def features(self, example, tokenizer, labels, training):
        encodings = [
            tokenizer.encode(example.context, choice, max_length=self.max_length)
            for choice in example.choices
        ]
        if training and example.label is None:
            raise InputError("an example has no label: it cannot be trained on")
        return [
            Row(
                [encoding.input_ids for encoding in encodings],
                [encoding.segment_ids for encoding in encodings],
                {"label_ids": example.label} if training else {},
            )
        ]

    def decode(self, example, rows, outputs, labels):
        shares = probabilities(outputs[0]["logits"])
        return {"choice": int(np.argmax(shares)), "probabilities": shares.tolist()}

    def score(self, examples, predictions):
        scores.check_labelled(self, examples)
        true = [example.label for example in examples]
        found = [prediction["choice"] for prediction in predictions]
        return {"accuracy": 100 * float(np.mean(np.equal(true, found)))}

    def write(self, examples, predictions, folder, split):
        """Writes predictions.csv of the test set, as the authors' own program did."""
        if split != "test":
            return []
        path = Path(folder) / "predictions.csv"
        lines = [f"{n},{found['choice']}\n" for n, found in enumerate(predictions)]
        replace_text(path, ",pred\n" + "".join(lines))
        return [path]


@dataclasses.dataclass(frozen=True)
class Codah(Swag):
    """The end of a text among four, written to mislead models (Chen et al. 2019).

    Files have no line of names, and quotes mean nothing in them.
    """

    name = "codah"
    files = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
    context = "prompt"
    beginning = None
    category = "category"

    def rows(self, path):
        for number, row in tsv_rows(path, ("category", "prompt", *self.endings, "label")):
            yield f"{path}, line {number}", row

    def write(self, examples, predictions, folder, split):
        return []


def _csv_rows(path):
    """Yields (place, column → value) for a file of comma-separated values with a line of names."""
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
    columns = None
    try:
        for values in reader:
            place = f"{path}, line {reader.line_num}"
            if columns is None:
                columns = values
            elif values:
                if len(values) != len(columns):
                    raise InputError(
                        f"{place}: {len(values)} values, but there are {len(columns)} columns "
                        f"({', '.join(columns)})"
                    )
                yield place, dict(zip(columns, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _json_rows(path):
    """Yields (place, field → value) for a file of a JSON object a line."""
    for number, line in numbered_lines(path):
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        row = parse_json(line, place)
        if not isinstance(row, dict):
            raise InputError(f"{place}: holds no JSON object")
        yield place, row
