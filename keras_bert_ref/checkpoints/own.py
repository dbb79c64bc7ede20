"""This library's own folders: a description, and weights under the names of the variables."""

import dataclasses
import json
from pathlib import Path

import keras_bert_ref
from keras_bert_ref.checkpoints.checkpoint import Checkpoint, Stored, gather
from keras_bert_ref.checkpoints.names import PARTS, variables_by_name
from keras_bert_ref.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from keras_bert_ref.checkpoints.tokenizer_files import find_tokenizer
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.files import read_json, replace_text
from keras_bert_ref.pretrained import TaskDescription, encoder_of

DESCRIPTION = "keras_bert_ref.json"
WEIGHTS = "model.safetensors"
CONFIG = "bert_config.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """What `bert_config.json` and a vocabulary leave open about a model.

    Attributes:
        head: the part of `names.PARTS` that makes it a task model; None for an encoder.
        attention: "bidirectional" or "left_to_right".
        labels: names of the labels; None where there are none, and for a regression.
        dropout: the rate before a classifier's or tagger's dense layer; None for other models.
        vocabulary_sha256: see `WordPieceTokenizer.vocabulary_sha256`; None without a vocabulary.
        library_version: what wrote it.
        task: the `TaskDescription` of what it was fine-tuned for; None for nothing.
    """

    head: str | None
    attention: str
    labels: tuple[str, ...] | None
    dropout: float | None
    vocabulary_sha256: str | None
    library_version: str
    task: TaskDescription | None = None

    @classmethod
    def of(cls, model):
        """Describes an encoder or a task model."""
        labels = getattr(model, "labels", None)
        return cls(
            head=getattr(model, "head", None),
            attention=encoder_of(model).attention,
            labels=labels and tuple(labels),
            dropout=getattr(model, "dropout", None),
            vocabulary_sha256=model.tokenizer and model.tokenizer.vocabulary_sha256,
            library_version=keras_bert_ref.__version__,
            task=model.task,
        )

    @classmethod
    def read(cls, folder):
        """Reads the description in a folder.

        Raises:
            CheckpointError: it is missing, or is not what `write` wrote.
        """
        path = Path(folder) / DESCRIPTION
        content = read_json(path)
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            # A later version may say more; what it says must not be wrong.
            found = cls(**{key: value for key, value in content.items() if key in known})
            if found.head is not None and found.head not in PARTS:
                raise ValueError(f"head {found.head!r} is unknown")
            if found.attention not in ("bidirectional", "left_to_right"):
                raise ValueError(f"attention {found.attention!r} is unknown")
            if found.labels is not None:
                if not isinstance(found.labels, list) or not found.labels:
                    raise ValueError(f"labels is {found.labels!r}, not a list of names")
                found = dataclasses.replace(found, labels=tuple(map(str, found.labels)))
            if found.task is not None:
                found = dataclasses.replace(found, task=TaskDescription(**found.task))
            if found.dropout is not None:
                found = dataclasses.replace(found, dropout=float(found.dropout))
            return found
        except (ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None

    def write(self, folder):
        """Writes it to a folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        replace_text(Path(folder) / DESCRIPTION, text + "\n")

    def options(self, folder):
        """Returns what a `Checkpoint` wants to know, the tokenizer in the folder included.

        Raises:
            CheckpointError: the vocabulary is not the one the model was saved with.
        """
        tokenizer = find_tokenizer(folder)
        found = tokenizer and tokenizer.vocabulary_sha256
        if found != self.vocabulary_sha256:
            raise CheckpointError(
                f"{folder}: vocab.txt is missing or not the one that the model was saved with"
            )
        told = {
            "attention": self.attention,
            "labels": self.labels,
            "tokenizer": tokenizer,
            "task": self.task,
        }
        return told if self.dropout is None else {**told, "dropout": self.dropout}


def open_own(folder):
    """Opens a folder that `save_pretrained` wrote."""
    folder = Path(folder)
    description = Description.read(folder)
    config = BertConfig.from_json(folder / CONFIG)
    tensors = SafetensorsFile(folder / WEIGHTS)
    parts = dict.fromkeys(("encoder", "pooler", "masked_lm", "next_sentence"), 1)
    if description.head is not None:
        parts[description.head] = len(description.labels) if description.labels else 1

    def find(name):
        if name.own not in tensors.shapes:
            return None
        return Stored(tensors, name.own, name.shape, name.shape)

    return Checkpoint(
        where=folder,
        format="keras-bert-ref",
        config=config,
        **gather(folder, config, tensors, parts, find, "own"),
        **description.options(folder),
    )


def write_own(model, folder):
    """Writes configuration and weights of a model to a folder."""
    folder = Path(folder)
    encoder_of(model).config.to_json(folder / CONFIG)
    Description.of(model).write(folder)
    write_safetensors(
        folder / WEIGHTS,
        {name.own: (name.shape, variable.numpy) for name, variable in variables_by_name(model)},
        {"format": "keras-bert-ref"},
    )
