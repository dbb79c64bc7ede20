"""Finds out what kind of checkpoint lies somewhere, and opens it."""

from pathlib import Path

from keras_bert_ref.checkpoints import google, hub, hugging_face, keras_hub, own
from keras_bert_ref.errors import BertError, CheckpointError
from keras_bert_ref.files import first_line

# What Python raises over content that is not what it should be.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError)
_DAMAGE += (TypeError, ValueError)


def open_checkpoint(where, head=None):
    """Opens a checkpoint: reads what it describes, and leaves its weights on disk.

    Args:
        where: a folder of this library's, Hugging Face's, keras-hub's, Google's (TF1) or the Model
            Garden's (TF2); the prefix of a TensorFlow checkpoint; or `hf://owner/name[@revision]`.
        head: what a head is where a file leaves it open, a part of `names.PARTS`: Hugging Face and
            TF1 names are the same for a classifier, a tagger and a multiple-choice head.

    Returns:
        A `Checkpoint`.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged or not a BERT.
        ConfigError: its configuration has an impossible value.
        VocabularyError: its vocabulary cannot be used.
    """
    if hub.is_address(where):
        where = hub.fetch(where)
    place = Path(where).expanduser()
    try:
        return _open(place, head)
    except BertError:
        raise
    except _DAMAGE as error:  # of a kind that nobody thought of
        raise CheckpointError(f"{place} is damaged: {first_line(error)}") from error


def _open(place, head):
    if place.suffix == ".index" and place.is_file():
        place = place.with_suffix("")
    if not place.is_dir():
        if place.with_name(place.name + ".index").is_file():
            return google.open_google(place, head)
        left = sorted(place.parent.glob(f".{place.name}.*.old"))
        raise CheckpointError(
            f"{place} is neither a folder nor the prefix of a TensorFlow checkpoint"
            + (f"; a save that was interrupted has left the model in {left[0]}" if left else "")
            + (f"; of the Hub it would be hf://{place}" if _like_a_repository(place) else "")
        )
    if (place / own.DESCRIPTION).is_file() and (place / own.WEIGHTS).is_file():
        return own.open_own(place)
    if (place / hugging_face.CONFIG).is_file():
        if keras_hub.recognise(place):
            return keras_hub.open_keras_hub(place)
        if hugging_face.weights_file(place):
            return hugging_face.open_hugging_face(place, head)
    if prefix := google.find_prefix(place):
        return google.open_google(prefix, head)
    hugging_face.refuse_pickle(place)
    raise CheckpointError(
        f"{place} holds no checkpoint that is known: no {own.WEIGHTS} with {own.DESCRIPTION} or "
        f"{hugging_face.CONFIG}, no keras-hub preset, no TensorFlow checkpoint (*.index)"
    )


def _like_a_repository(place):
    return not place.is_absolute() and len(place.parts) == 2 and not place.parent.is_dir()
