"""Windows over a text that is longer than what is read at once, as in the original's SQuAD."""

import numpy as np

# How much the length of a window counts beside the context of a piece in it.
LENGTH_COUNTS = 0.01


def sliding(length, room, stride):
    """Returns the windows over a text: a list of (start, stop, bool [stop - start] of those owned).

    Of the windows that have a piece, the first of those with most context on its poorer side owns
    it. Each piece is owned by one window.

    Args:
        length: N, pieces of the text.
        room: the most pieces of a window.
        stride: how far each window begins after the one before; at most `room`.
    """
    starts = [0]
    while starts[-1] + room < length:
        starts.append(starts[-1] + stride)
    windows, best, owner = [], np.full(length, -1.0), np.zeros(length, int)
    for number, start in enumerate(starts):
        stop = min(start + room, length)
        places = np.arange(stop - start)
        context = np.minimum(places, places[::-1]) + LENGTH_COUNTS * len(places)
        better = start + np.flatnonzero(context > best[start:stop])
        best[better], owner[better] = context[better - start], number
        windows.append((start, stop))
    return [(start, stop, owner[start:stop] == n) for n, (start, stop) in enumerate(windows)]
