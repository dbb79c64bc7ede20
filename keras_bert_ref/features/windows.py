"""Inputs of every kind as pieces, and pieces as the windows that an encoder reads."""

import dataclasses

import numpy as np

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.sliding import sliding
from keras_bert_ref.tokenization import Encoding


@dataclasses.dataclass(frozen=True)
class Window:
    """A part of an input that fits into the encoder.

    Attributes:
        places: int [S], where each of its pieces stands in the whole input.
        owned: bool [S], the pieces whose features are taken from this window: each piece of the
            input is owned by one of its windows.
    """

    places: np.ndarray
    owned: np.ndarray


@dataclasses.dataclass(frozen=True)
class Item:
    """An input, ready to be read.

    Attributes:
        encoding: all its pieces.
        windows: one, or several that overlap.
        special: bool, true for [CLS] and [SEP].
        truncated: whether pieces at its end were cut off.
    """

    encoding: Encoding
    windows: list[Window]
    special: np.ndarray
    truncated: bool


def check_input(row, value):
    """Raises InputError unless `value` is a string, a pair of strings, or a list of words."""
    if isinstance(value, str):
        return
    kind = type(value).__name__
    if isinstance(value, tuple | list | np.ndarray):
        if all(isinstance(part, str) for part in value):
            if not isinstance(value, tuple) or len(value) == 2:
                return
            kind = f"tuple of {len(value)} strings"
        else:
            odd = next(part for part in value if not isinstance(part, str))
            kind = f"{kind} that holds {odd!r}"
    elif value is None or isinstance(value, float):  # NaN, mostly
        kind = repr(value)
    raise InputError(
        f"row {row} is a {kind}: give a string, a pair (a tuple of two strings), or a list of words"
    )


def prepare(value, tokenizer, max_length, stride):
    """Turns an input into an `Item`.

    Args:
        value: a string, a tuple of two, or a list of words.
        tokenizer: a `WordPieceTokenizer`.
        max_length: the most pieces of a window, [CLS] and [SEP] included.
        stride: how far each window begins after the one before; None for one window, which the
            input is cut to.
    """
    limit = None if stride else max_length + 1  # one too many tells that something was cut
    if isinstance(value, str):
        encode = tokenizer.encode
        arguments = (value, None)
    elif isinstance(value, tuple):
        encode = tokenizer.encode
        arguments = value
    else:
        encode = tokenizer.encode_words
        arguments = (value,)
    encoding = encode(*arguments, max_length=limit)
    truncated = len(encoding.input_ids) > max_length and not stride
    if truncated:
        encoding = encode(*arguments, max_length=max_length)
    special = np.array([span is None for span in encoding.offsets])
    length = len(encoding.input_ids)
    if length <= max_length:
        windows = [Window(np.arange(length), np.ones(length, bool))]
    else:
        windows = _sliding(encoding, max_length, stride)
    return Item(encoding, windows, special, truncated)


def _sliding(encoding, max_length, stride):
    """Returns windows over the last text of an encoding, each after all of what comes before it."""
    last = encoding.segment_ids[-1]
    begin = 1 if last == 0 else encoding.segment_ids.index(last)
    end = len(encoding.input_ids) - 1  # the last [SEP]
    room = max_length - begin - 1
    if begin > 1 and room < min(stride, 16):
        raise ConfigError(
            f"the first text of a pair has {begin - 2} pieces, which leaves the second no room in "
            f"windows of {max_length}: put the longer text second, or cut with overflow='truncate'"
        )
    parts = sliding(end - begin, room, min(stride, room))  # no piece may fall between two windows
    windows = []
    for number, (start, stop, owned) in enumerate(parts):
        places = [np.arange(begin), np.arange(begin + start, begin + stop), [end]]
        # What all windows have is owned by the first, and the end by the last.
        owned = [np.full(begin, number == 0), owned, [number == len(parts) - 1]]
        windows.append(Window(np.concatenate(places), np.concatenate(owned)))
    return windows
