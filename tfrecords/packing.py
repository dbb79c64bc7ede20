"""Sequence packing (Krell et al. 2021): several short sequences in a row, and little padding.

The pieces of a row's n-th sequence have n in `input_mask`, counted from 1, and padding has 0: a row
of one sequence is what it always was. Each sequence keeps its own [CLS], its own masks and its own
next sentence label; the encoder (`BertEncoder(sequences_per_row=N)`) lets none see another. What is
learned from a sequence is therefore the same, wherever it lies.
"""

import numpy as np


def pack(lengths: np.ndarray, room: int, most: int) -> np.ndarray:
    """Spreads sequences over rows: one after the other, each into the row it fills best.

    The longest first would leave the short ones to the end, with more room than `most` of them
    take: an eighth more rows where eight fill a row on average and are allowed. In random order
    they come within 1 % of what is possible as soon as `most` is half as many again.

    Args:
        lengths: Pieces of each sequence, int [N], at most `room`, in random order.
        room: Pieces of a row, S.
        most: Sequences of a row.

    Returns:
        int64 [R, most], the sequences of each row; -1 in unused places, which come last.
    """
    rows = []
    open_rows = [[] for _ in range(room + 1)]  # by the room left in them
    rooms = 0  # bit r is set where there are rows with room r left
    for index, length in enumerate(lengths.tolist()):
        fitting = rooms >> length << length
        if fitting:
            left = (fitting & -fitting).bit_length() - 1  # the least that is enough
            row = open_rows[left].pop()
            if not open_rows[left]:
                rooms ^= 1 << left
            row.append(index)
        else:
            left, row = room, [index]
            rows.append(row)
        left -= length
        if left and len(row) < most:
            open_rows[left].append(row)
            rooms |= 1 << left
    packed = np.full((len(rows), most), -1, np.int64)
    for number, row in enumerate(rows):
        packed[number, : len(row)] = row
    return packed


def merge(columns: dict, lengths: np.ndarray, packed: np.ndarray, settings, pad_id: int) -> dict:
    """Lays the records of single sequences out as records of rows.

    Args:
        columns: The features of N sequences, see `record_features`: all of them, or all but
            `masked_lm_*`.
        lengths: Pieces of each sequence, int [N].
        packed: int [R, most], 0 or more in the places of the N, which fill them in this order, and
            -1 in unused places, which come last.
        settings: `InstanceSettings`.
        pad_id: Id of [PAD].

    Returns:
        The features of R rows.
    """
    count, room = len(packed), settings.max_seq_length
    row, place = np.nonzero(packed >= 0)  # of each sequence
    ends = np.zeros(packed.shape, np.int64)
    ends[row, place] = lengths
    start = (np.cumsum(ends, axis=1) - ends)[row, place]  # where it begins in its row

    sequence, position = np.nonzero(np.arange(room) < lengths[:, None])
    target = row[sequence], start[sequence] + position

    def laid_out(values, fill=0):
        result = np.full((count, room), fill, values.dtype)
        result[target] = values[sequence, position]
        return result

    labels = np.zeros(packed.shape, columns["next_sentence_labels"].dtype)
    labels[row, place] = columns["next_sentence_labels"][:, 0]
    merged = {
        "input_ids": laid_out(columns["input_ids"], pad_id),
        "input_mask": laid_out(columns["input_mask"] * (place + 1)[:, None]),
        "segment_ids": laid_out(columns["segment_ids"]),
        "next_sentence_labels": labels,
    }
    if "masked_lm_positions" in columns:
        sequence, slot = np.nonzero(columns["masked_lm_weights"])
        used = np.bincount(row[sequence], minlength=count)
        target = row[sequence], np.arange(len(slot)) - (np.cumsum(used) - used)[row[sequence]]
        for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
            values = columns[name]
            merged[name] = np.zeros((count, settings.predictions_per_row), values.dtype)
            moved = start[sequence] if name == "masked_lm_positions" else 0
            merged[name][target] = values[sequence, slot] + moved
    return merged
