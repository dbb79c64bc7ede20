"""Windows of a document: each word is owned once, and sees as much around it as fits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_bert_ref.tasks.document_context import windows

DOCUMENTS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=12), min_size=1, max_size=12)
ROOMS = st.integers(3, 60)


@given(DOCUMENTS, ROOMS)
def test_every_word_is_owned_once_and_no_window_is_too_long(document, room):
    pieces = [min(size, room) for sentence in document for size in sentence]
    owned = []
    for window in windows(document, room):
        assert window.start <= window.own_start < window.own_stop <= window.stop
        assert sum(pieces[window.start : window.stop]) <= room
        owned += range(window.own_start, window.own_stop)
    assert owned == list(range(len(pieces)))


@given(DOCUMENTS, st.integers(60, 80))
def test_windows_hold_whole_sentences_and_as_many_as_fit(document, room):
    edges = np.cumsum([0, *map(len, document)])
    sizes = [sum(sentence) for sentence in document]
    for window in windows(document, room):
        first, last = (int(np.searchsorted(edges, n)) for n in (window.start, window.stop))
        assert (edges[first], edges[last]) == (window.start, window.stop)
        free = room - sum(sizes[first:last])
        assert first == 0 or sizes[first - 1] > free
        assert last == len(sizes) or sizes[last] > free


@given(st.integers(1, 200), st.integers(40, 80))
def test_context_is_the_same_on_both_sides_where_the_document_has_it(words, room):
    for window in windows([[1]] * words, room):
        left, right = window.own_start - window.start, window.stop - window.own_stop
        assert (
            min(left, right) >= (room - room // 4) // 2
            or words <= room
            or (window.start == 0 or window.stop == words)
        )
        if window.start > 0 and window.stop < words:
            assert abs(left - right) <= 1 and left + right >= room - room // 4


def test_a_document_that_fits_is_one_window():
    assert len(windows([[1, 2], [3], [4, 5]], 15)) == 1
    assert windows([], 15) == []
