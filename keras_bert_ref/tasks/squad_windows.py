"""Contexts as pieces, and the windows of them that the model reads, as in the original."""

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Context:
    """A context as pieces.

    Attributes:
        ids: a list of N.
        spans: int [N, 2], the characters that each piece comes from, end exclusive. Neither starts
            nor ends go back from one piece to the next.
    """

    ids: list
    spans: np.ndarray

    def pieces_of(self, start, end):
        """Returns the first and the last piece that hold some of these characters, or None."""
        first = int(np.searchsorted(self.spans[:, 1], start, side="right"))
        last = int(np.searchsorted(self.spans[:, 0], end, side="left")) - 1
        return (first, last) if first <= last else None


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The part of a context that a row has.

    Attributes:
        first: where in the row the first of its N pieces stands; the others follow.
        spans: int [N, 2], the characters of each, see `Context`.
        owned: bool [N], the pieces that have more context here than in other windows: an answer may
            start there.
    """

    first: int
    spans: np.ndarray
    owned: np.ndarray


# Questions about a context follow each other, so a few are enough; a text has about 10 kB.
@functools.lru_cache(maxsize=512)
def tokenized(tokenizer, text):
    """Returns the `Context` for a text."""
    encoding = tokenizer.encode(text)
    spans = np.array(encoding.offsets[1:-1], np.int32).reshape(-1, 2)
    # Marks that change places when they are normalised can make a span go back a little.
    starts = np.minimum.accumulate(spans[::-1, 0])[::-1]
    spans = np.stack([starts, np.maximum.accumulate(spans[:, 1])], axis=1)
    spans.flags.writeable = False
    return Context(encoding.input_ids[1:-1], spans)
