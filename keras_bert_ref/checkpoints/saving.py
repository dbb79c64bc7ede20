"""Writes a model as a folder that appears whole or not at all."""

import shutil
import uuid
from pathlib import Path

from keras_bert_ref.checkpoints import google, hugging_face, own
from keras_bert_ref.checkpoints.tokenizer_files import VOCABULARY_FILES, write_tokenizer
from keras_bert_ref.errors import CheckpointWarning, ConfigError, OutputError
from keras_bert_ref.files import first_line, writing
from keras_bert_ref.pretrained import encoder_of

FORMATS = {
    "own": own.write_own,
    "hf": hugging_face.write_hugging_face,
    "tf1": google.write_google,
}
# Every file that is written here: a folder that holds anything else is never replaced.
_FILES = {
    *(own.DESCRIPTION, own.WEIGHTS, own.CONFIG, hugging_face.CONFIG, *VOCABULARY_FILES),
    *(google.PREFIX + end for end in (".index", ".data-00000-of-00001")),
}


def save(model, folder, format, overwrite):
    """See `Pretrained.save_pretrained`."""
    if format not in FORMATS:
        raise ConfigError(f"format {format!r} is unknown: choose one of {', '.join(FORMATS)}")
    folder = check_free(folder, overwrite)
    # Names of its own: another save to the same folder does not get in the way.
    mark = uuid.uuid4().hex[:8]
    part, old = (folder.with_name(f".{folder.name}.{mark}.{end}") for end in ("part", "old"))
    try:
        with writing(folder):
            part.mkdir(parents=True)
            FORMATS[format](model, part)
            if model.tokenizer is not None:
                length = encoder_of(model).config.max_position_embeddings
                write_tokenizer(model.tokenizer, part, length)
            if folder.exists():
                check_free(folder, overwrite)  # once more: much may have happened meanwhile
                folder.rename(old)
            part.rename(folder)
    except BaseException as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        if isinstance(error, OutputError):
            raise OutputError(str(error).replace(str(part), str(folder))) from None
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    if model.tokenizer is None:
        CheckpointWarning.issue(
            f"{folder} holds no vocabulary: set the model's `tokenizer` before it is saved"
        )


def check_free(folder, overwrite):
    """Returns the place of a folder that may be written.

    Raises:
        OutputError: it is in use, or holds a model and may not be replaced.
    """
    try:
        folder = Path(folder).expanduser().resolve()
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        taken = folder.exists() and not folder.is_dir()
    except (OSError, ValueError) as error:
        raise OutputError(f"{folder!s} cannot be written: {first_line(error)}") from None
    if taken:
        raise OutputError(f"{folder} is a file: choose another place")
    if folder == Path.cwd():
        raise OutputError(f"{folder} is the current folder: name one within it")
    if foreign := [name for name in found if name not in _FILES]:
        raise OutputError(
            f"{folder} is in use and holds {', '.join(foreign[:3])}: choose another folder"
        )
    if found and not overwrite:
        raise OutputError(f"{folder} holds a model: choose another folder, or allow overwriting")
    return folder
