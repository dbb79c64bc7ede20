"""Rows of all lengths as batches of few shapes with little padding."""

import numpy as np

from keras_bert_ref.errors import InputError

# Lengths that batches are padded to. Each is a shape that TensorFlow compiles for once, so they are
# few; and each at most a third above the one before, so that little of a batch is padding.
LENGTHS = (16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)

_POOL = 32  # batches are sorted by length among so many


def padded_length(length, longest):
    """Returns the number of pieces that rows of up to `length` are padded to.

    Args:
        length: pieces of the longest row of a batch.
        longest: the most that the model reads.
    """
    return min(next((n for n in LENGTHS if n >= length), longest), longest)


def shuffled_batches(lengths, size, rng, pool=_POOL):
    """Yields batches of similar lengths in random order, each index once.

    The batches are drawn at random from the whole; only what shares a pool is sorted.

    Args:
        lengths: int [N].
        size: indices of a batch.
        rng: a NumPy `Generator`.
        pool: how many batches are made of indices drawn at random and sorted by length.
    """
    lengths = np.asarray(lengths)
    order = rng.permutation(len(lengths))
    # What does not fill a batch is a batch of random ones, not of the longest.
    whole = len(order) // size * size
    batches = [order[whole:]] if whole < len(order) else []
    for first in range(0, whole, pool * size):
        chosen = order[first : min(whole, first + pool * size)]
        chosen = chosen[np.argsort(lengths[chosen], kind="stable")]
        batches += np.split(chosen, len(chosen) // size)
    for n in rng.permutation(len(batches)):
        yield batches[n]


def number_of_choices(row):
    """Returns the number of choices of a row; 0 of one that is not a multiple choice."""
    ids = row.input_ids
    return len(ids) if len(ids) and not np.isscalar(ids[0]) else 0


def row_length(row):
    """Returns the number of pieces of a row; of several choices, of the longest."""
    return max(map(len, row.input_ids)) if number_of_choices(row) else len(row.input_ids)


def batch_arrays(rows, size, length):
    """Returns features and labels of rows, padded.

    Args:
        rows: a list of `Row`, all of one kind.
        size: B, how many rows the batch has; those beyond `rows` are blank and not scored.
        length: S, to which each is padded.

    Returns:
        `input_ids`, `input_mask` and `segment_ids`, int32 [B, S] ([B, N, S] of choices); and the
        labels that the rows have: int32 [B] or [B, S], -1 where there is none, or float32 [B], NaN
        where there is none.

    Raises:
        InputError: the rows differ in the number of choices.
    """
    choices = number_of_choices(rows[0])
    if numbers := sorted({number_of_choices(row) for row in rows} - {choices}):
        raise InputError(
            f"all questions must have the same number of choices, not {choices} and {numbers[0]}"
        )
    shape = (size, choices, length) if choices else (size, length)
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: np.zeros(shape, np.int32) for name in names}
    for n, row in enumerate(rows):
        places = [(n, c) for c in range(shape[1])] if choices else [(n,)]
        ids, segments = row.input_ids, row.segment_ids
        if not choices:
            ids, segments = [ids], [segments]
        for place, one, segment in zip(places, ids, segments, strict=True):
            features["input_ids"][place][: len(one)] = one
            features["input_mask"][place][: len(one)] = 1
            features["segment_ids"][place][: len(one)] = segment
    labels = {}
    for name, first in rows[0].labels.items():
        if isinstance(first, float):
            values = np.full(size, np.nan, np.float32)
        else:
            values = np.full((size, length) if np.ndim(first) else size, -1, np.int32)
        for n, row in enumerate(rows):
            if np.ndim(first):
                values[n, : len(row.labels[name])] = row.labels[name]
            else:
                values[n] = row.labels[name]
        labels[name] = values
    return features, labels


class TrainingBatches:
    """The batches of a training set, epoch after epoch, each with an order of its own.

    Batch number n is always the same for the same rows, size and seed, so that a run can go on
    where it stopped.

    Args:
        rows: a list of `Row` with labels.
        size: rows of a batch. The last of an epoch is filled up with blank rows.
        longest: the most pieces that the model reads.
        seed: of the order.
    """

    def __init__(self, rows, size, longest, seed):
        if not rows:
            raise InputError("there is nothing to train on: no example gives a row")
        self.rows, self.size, self.longest, self.seed = rows, size, longest, seed
        self.lengths = np.array([row_length(row) for row in rows])
        self.per_epoch = -(-len(rows) // size)

    def starting_at(self, batch):
        """Yields (features, labels) of batch number `batch` and all that follow, without end."""
        epoch, skip = divmod(batch, self.per_epoch)
        while True:
            rng = np.random.default_rng([self.seed, epoch])
            for number, chosen in enumerate(shuffled_batches(self.lengths, self.size, rng)):
                if number >= skip:
                    length = padded_length(self.lengths[chosen].max(), self.longest)
                    yield batch_arrays([self.rows[n] for n in chosen], self.size, length)
            epoch, skip = epoch + 1, 0


def prediction_batches(rows, size, longest):
    """Yields all rows once, those of similar length together.

    Yields:
        The indices of the rows in a batch, and its features, see `batch_arrays`.
    """
    lengths = np.array([row_length(row) for row in rows])
    choices = np.array([number_of_choices(row) for row in rows])
    for number in np.unique(choices):  # questions that differ in it share no batch
        order = np.flatnonzero(choices == number)
        order = order[np.argsort(-lengths[order], kind="stable")]
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            length = padded_length(lengths[chosen].max(), longest)
            # A blank row or two cost less than another shape.
            count = _power_of_two(len(chosen))
            yield chosen, batch_arrays([rows[n] for n in chosen], count, length)[0]


def _power_of_two(number):
    return 1 << (number - 1).bit_length()
