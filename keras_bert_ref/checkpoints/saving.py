"""Writes a model as a folder that appears whole or not at all."""

from keras_bert_ref import files
from keras_bert_ref.checkpoints import google, hugging_face, own
from keras_bert_ref.checkpoints.tokenizer_files import VOCABULARY_FILES, write_tokenizer
from keras_bert_ref.errors import CheckpointWarning, ConfigError
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
    with files.replacing_folder(folder, _FILES, overwrite) as part, files.writing(folder):
        FORMATS[format](model, part)
        if model.tokenizer is not None:
            length = encoder_of(model).config.max_position_embeddings
            write_tokenizer(model.tokenizer, part, length)
    if model.tokenizer is None:
        CheckpointWarning.issue(
            f"{folder} holds no vocabulary: set the model's `tokenizer` before it is saved"
        )


def check_free(folder, overwrite):
    """Returns the place of a folder that a model may be saved to; see `files.check_free`."""
    return files.check_free(folder, _FILES, overwrite)
