import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bert_ref.errors import InputError
from keras_bert_ref.tasks.batching import (
    LENGTHS,
    TrainingBatches,
    batch_arrays,
    padded_length,
    prediction_batches,
    shuffled_batches,
)
from keras_bert_ref.tasks.contract import Row


def row(*ids, **labels):
    return Row(list(ids), [0] * len(ids), labels)


def numbered(lengths):
    """Returns rows whose first id says which they are."""
    return [row(n, *[7] * (size - 1), label_ids=n % 3) for n, size in enumerate(lengths)]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=150), st.integers(1, 9))
def test_an_epoch_has_each_row_once(lengths, size):
    batches = list(shuffled_batches(lengths, size, np.random.default_rng(0), pool=3))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert max(map(len, batches)) <= size and len(batches) == -(-len(lengths) // size)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 7), st.integers(0, 20))
def test_batches_come_again_from_any_number_on(lengths, size, start):
    batches = TrainingBatches(numbered(lengths), size, 64, seed=3)
    whole = list(itertools.islice(batches.starting_at(0), start + 3))
    for found, expected in zip(batches.starting_at(start), whole[start:], strict=False):
        for a, b in zip(found, expected, strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in b)
    epoch = [
        labels["label_ids"]
        for _, labels in itertools.islice(batches.starting_at(0), batches.per_epoch)
    ]
    # Blank rows fill the last batch and are not scored.
    assert {len(labels) for labels in epoch} == {size}
    assert (np.concatenate(epoch) >= 0).sum() == len(lengths)


def test_epochs_have_orders_of_their_own():
    batches = TrainingBatches(numbered([5] * 50), 50, 64, seed=0)
    first, second = (
        features["input_ids"][:, 0].tolist()
        for features, _ in itertools.islice(batches.starting_at(0), 2)
    )
    assert first != second and sorted(first) == sorted(second)


def test_rows_of_a_pool_are_padded_little():
    lengths = np.random.default_rng(1).integers(4, 120, 3000)
    batches = TrainingBatches(numbered(lengths), 16, 128, seed=0)
    cells = sum(
        features["input_ids"].size
        for features, _ in itertools.islice(batches.starting_at(0), batches.per_epoch)
    )
    assert cells < 1.25 * lengths.sum() < 0.8 * 3000 * 128


@given(st.integers(1, 600), st.integers(1, 600))
def test_padded_lengths_are_few_and_never_too_short(length, longest):
    found = padded_length(min(length, longest), longest)
    assert min(length, longest) <= found <= longest
    assert found == longest or found in LENGTHS


def test_labels_of_every_kind():
    rows = [row(1, 2, 3, a=1, b=0.5, c=[0, 1, 2]), row(4, a=2, b=1.5, c=[3])]
    features, labels = batch_arrays(rows, 3, 5)
    assert features["input_ids"].tolist() == [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [0] * 5]
    assert features["input_mask"].sum(1).tolist() == [3, 1, 0]
    assert labels["a"].tolist() == [1, 2, -1]
    assert labels["b"][:2].tolist() == [0.5, 1.5] and np.isnan(labels["b"][2])
    assert labels["c"].tolist() == [[0, 1, 2, -1, -1], [3, -1, -1, -1, -1], [-1] * 5]


def test_choices_get_an_axis():
    rows = [Row([[1, 2], [3]], [[0, 1], [0]], {"label_ids": 1})]
    features, labels = batch_arrays(rows, 2, 3)
    assert features["input_ids"].tolist() == [[[1, 2, 0], [3, 0, 0]], [[0] * 3] * 2]
    assert features["segment_ids"][0].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert labels["label_ids"].tolist() == [1, -1]
    with pytest.raises(InputError, match=r"same number of choices, not 2 and 1"):
        batch_arrays([*rows, Row([[1]], [[0]])], 2, 3)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 7))
def test_each_row_is_predicted_once(lengths, size):
    chosen = []
    for numbers, features in prediction_batches(numbered(lengths), size, 64):
        assert features["input_ids"][: len(numbers), 0].tolist() == list(numbers)
        chosen += list(numbers)
    assert sorted(chosen) == list(range(len(lengths)))


def test_nothing_to_train_on():
    with pytest.raises(InputError, match="nothing to train on"):
        TrainingBatches([], 3, 5, 0)
