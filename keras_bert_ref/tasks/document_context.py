"""Windows that show an encoder each sentence in the midst of its document (paper, section 5.3).

The paper includes "the maximal document context provided by the data" and does not say how. Here
every window is filled with whole sentences of one document until no neighbour fits. A document that
fits is one window, and most of CoNLL-2003's do. In a longer one, neighbouring sentences of up to a
quarter of a window together share the window around them: they keep at least some three eighths of
it as context on either side, where the document has that much, and the encoder reads each piece
about four times instead of once for every sentence of a window.
"""

import dataclasses

_SHARED = 4  # neighbours that make up at most 1/_SHARED of a window share one


@dataclasses.dataclass(frozen=True)
class Window:
    """Words `start` to `stop` of a document; features are for `own_start` to `own_stop`."""

    start: int
    stop: int
    own_start: int
    own_stop: int


def windows(sentences, room):
    """Divides a document into windows; each word is owned by one of them.

    Args:
        sentences: for each sentence, the number of pieces of each of its words.
        room: the most pieces of a window, without [CLS] and [SEP]. A sentence that is longer is cut
            between words; a word that is longer has a window of its own.

    Returns:
        A list of `Window`, in the order of the words.
    """
    parts = [part for sentence in sentences for part in _parts(sentence, room)]
    # Where each part begins, in words.
    places = [0]
    for words, _ in parts:
        places.append(places[-1] + words)
    pieces = [size for _, size in parts]

    found, first = [], 0
    while first < len(parts):
        last = first + 1
        while last < len(parts) and sum(pieces[first : last + 1]) <= room // _SHARED:
            last += 1
        low, high = _grow(pieces, first, last, room)
        window = Window(places[low], places[high], places[first], places[last])
        if found and (found[-1].start, found[-1].stop) == (window.start, window.stop):
            window = dataclasses.replace(window, own_start=found.pop().own_start)
        found.append(window)
        first = last
    return found


def _parts(sentence, room):
    """Yields the number of words and of pieces of a sentence, or of parts of one too long."""
    words = pieces = 0
    for size in sentence:
        size = min(size, room)
        if pieces + size > room:
            yield words, pieces
            words = pieces = 0
        words, pieces = words + 1, pieces + size
    if words:
        yield words, pieces


def _grow(pieces, low, high, room):
    """Extends parts low to high by neighbours, the side with less context first, until full."""
    left, right = 0, 0
    free = room - sum(pieces[low:high])
    while True:
        to_left = low > 0 and pieces[low - 1] <= free
        to_right = high < len(pieces) and pieces[high] <= free
        if to_left and (left <= right or not to_right):
            low -= 1
            left += pieces[low]
            free -= pieces[low]
        elif to_right:
            right += pieces[high]
            free -= pieces[high]
            high += 1
        else:
            return low, high
