"""What a checkpoint holds, whichever format it came in."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_ref.checkpoints.names import names
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.pretrained import TaskDescription
from keras_bert_ref.tokenization import WordPieceTokenizer

# The task model of each head that a checkpoint may hold. The first one found is what it is.
MODELS = {
    "masked_lm": "BertPretrainer",
    "span": "BertSpanLabeler",
    "classifier": "BertClassifier",
    "choice": "BertMultipleChoice",
    "tagger": "BertTagger",
}
_FLOATS = {"float16", "bfloat16", "float32", "float64"}


@dataclasses.dataclass(frozen=True)
class Stored:
    """Where the value of one variable lies.

    Attributes:
        tensors: the open file, with `path`, `shapes`, `dtypes` and `read`.
        name: the tensor's name in it.
        shape: the variable's shape.
        stored_shape: the shape the tensor must have.
        transposed: whether it is the variable transposed; otherwise the two shapes differ at most
            in how they are divided into axes.
    """

    tensors: Any
    name: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    transposed: bool = False

    def __post_init__(self):
        found = self.tensors.shapes[self.name]
        if found != self.stored_shape:
            raise CheckpointError(
                f"{self.tensors.path}: the tensor {self.name} has the shape {list(found)}, the "
                f"configuration asks for {list(self.stored_shape)}"
            )
        if self.dtype not in _FLOATS:
            raise CheckpointError(
                f"{self.tensors.path}: the tensor {self.name} holds {self.dtype}; weights are "
                "floating-point numbers"
            )

    @property
    def dtype(self):
        """Name of the dtype it is stored in."""
        return self.tensors.dtypes[self.name]

    def read(self):
        """Returns the value, float32, in the variable's shape."""
        value = self.tensors.read(self.name)
        value = value.T if self.transposed else value.reshape(self.shape)
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, and is told
            return value.astype(np.float32, copy=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An open checkpoint: its description read, its weights still on disk.

    Attributes:
        where: the folder, or the prefix of a TensorFlow checkpoint.
        format: what people call its format.
        config: the encoder's configuration.
        weights: variable path → `Stored`.
        ignored: names of tensors that no variable of ours answers to.
        faults: head → what is wrong with it; its tensors are ignored.
        tokenizer: what its text was tokenized with; None where no vocabulary came along.
        attention: "bidirectional" or "left_to_right".
        labels: names of the labels of a classifier or tagger; None for a regression.
        dropout: the rate before a classifier's or tagger's dense layer.
        task: the `TaskDescription` of what it was fine-tuned for, where that is told.
    """

    where: Path
    format: str
    config: BertConfig
    weights: Mapping[str, Stored]
    ignored: tuple[str, ...] = ()
    faults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokenizer: WordPieceTokenizer | None = None
    attention: str = "bidirectional"
    labels: tuple[str, ...] | None = None
    dropout: float = 0.1
    task: TaskDescription | None = None

    def __post_init__(self):
        if self.tokenizer is not None and self.tokenizer.vocab_size > self.config.vocab_size:
            raise CheckpointError(
                f"{self.where}: the vocabulary has {self.tokenizer.vocab_size} pieces, the word "
                f"embeddings have {self.config.vocab_size} rows: they do not belong together"
            )

    def has(self, part):
        """Returns whether it holds a part of `names.PARTS`."""
        return any(path.startswith(f"{part}/") for path in self.weights)

    @property
    def heads(self):
        """Its heads, as `names.PARTS` calls them."""
        return [part for part in (*MODELS, "next_sentence") if self.has(part)]

    @property
    def model(self):
        """The name of the class that has all its parts."""
        found = [MODELS[part] for part in self.heads if part in MODELS]
        return found[0] if found else "BertEncoder"

    @property
    def named_labels(self):
        """Whether the labels have names of their own, not LABEL_0, LABEL_1, …"""
        return self.labels is not None and self.labels != placeholder_labels(len(self.labels))


def placeholder_labels(count):
    """Returns the names that labels have where a checkpoint names none; None for a regression."""
    return tuple(f"LABEL_{n}" for n in range(count)) if count > 1 else None


def check_layers(config, tensors):
    """Raises CheckpointError if a file has fewer tensors than its configuration has layers."""
    if config.num_hidden_layers > len(tensors.shapes):
        raise CheckpointError(
            f"{tensors.path} holds {len(tensors.shapes)} tensors, the configuration asks for "
            f"{config.num_hidden_layers} layers: they do not belong together"
        )


def finder(config, tensors, locate):
    """Returns what `gather` finds variables by, where a format has a table of its own.

    Args:
        config: the encoder's `BertConfig`.
        tensors: the open file.
        locate: (shapes, config) → variable path → (tensor, the shape it must have, the variable's).
    """
    check_layers(config, tensors)  # before a table is made of them
    located = locate(tensors.shapes, config)

    def find(name):
        if name.own not in located:
            return None
        tensor, stored_shape, shape = located[name.own]
        return Stored(tensors, tensor, shape, stored_shape)

    return find


def gather(where, config, tensors, parts, find, spelling, bookkeeping=lambda name: False):
    """Finds the variables of a checkpoint's parts among its tensors.

    A head with a fault is left out, so that the encoder can still be used.

    Args:
        where: the checkpoint.
        config: its `BertConfig`.
        tensors: its open file.
        parts: part of `names.PARTS` → its number of labels.
        find: `Name` → `Stored`, or None where the variable has no tensor.
        spelling: the attribute of `Name` that tensors are called by.
        bookkeeping: tells by its name whether a tensor is no weight.

    Returns:
        The fields `weights`, `ignored` and `faults` of a `Checkpoint`, as a dict.

    Raises:
        CheckpointError: the encoder is not whole.
    """
    check_layers(config, tensors)
    weights, faults = {}, {}
    for part, labels in parts.items():
        wanted = names(config, part, labels)
        try:
            found = {name.own: stored for name in wanted if (stored := find(name)) is not None}
            missing = [getattr(name, spelling) for name in wanted if name.own not in found]
            if missing and (found or part == "encoder"):
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise CheckpointError(
                    f"{where} lacks the tensor {missing[0]}{more}: it is not the BERT that its "
                    "configuration describes"
                )
        except CheckpointError as error:
            if part == "encoder":
                raise
            faults[part] = str(error)
        else:
            weights |= found
    used = {stored.name for stored in weights.values()}
    ignored = (name for name in tensors.shapes if name not in used and not bookkeeping(name))
    return {"weights": weights, "ignored": tuple(ignored), "faults": faults}
