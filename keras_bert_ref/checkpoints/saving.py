"""Writes a model as a folder that appears whole or not at all."""

import shutil
from pathlib import Path

from keras_bert_ref.checkpoints import google, hugging_face, own
from keras_bert_ref.checkpoints.tokenizer_files import write_tokenizer
from keras_bert_ref.errors import CheckpointWarning, ConfigError, OutputError
from keras_bert_ref.files import writing

FORMATS = {
    "own": own.write_own,
    "hf": hugging_face.write_hugging_face,
    "tf1": google.write_google,
}
# One of these is in every folder that is written here, so that nothing else is ever replaced.
_MARKS = (own.DESCRIPTION, hugging_face.CONFIG)


def save(model, folder, format, overwrite):
    """See `Pretrained.save_pretrained`."""
    if format not in FORMATS:
        raise ConfigError(f"format {format!r} is unknown: choose one of {', '.join(FORMATS)}")
    folder = Path(folder)
    check_free(folder, overwrite)
    config = getattr(model, "encoder", model).config
    if model.tokenizer is None:
        CheckpointWarning.issue(
            f"{folder} will hold no vocabulary: set the model's `tokenizer` before it is saved"
        )
    part, old = (folder.with_name(folder.name + suffix) for suffix in (".part", ".old"))
    with writing(folder):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            FORMATS[format](model, part)
            if model.tokenizer is not None:
                write_tokenizer(model.tokenizer, part, config.max_position_embeddings)
            if folder.exists():
                folder.rename(old)
            part.rename(folder)
        except BaseException:
            if old.exists() and not folder.exists():
                old.rename(folder)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def check_free(folder, overwrite):
    """Raises OutputError unless a folder is free, or holds a model that may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise OutputError(f"{folder} is a file: choose another place")
    if not any((folder / mark).is_file() for mark in _MARKS):
        raise OutputError(f"{folder} is in use and holds no model: choose another folder")
    if not overwrite:
        raise OutputError(f"{folder} holds a model: choose another folder, or allow overwriting")
