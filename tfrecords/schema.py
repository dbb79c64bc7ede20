"""The one description of a pretraining record, for whoever writes, reads or exports it.

The names, shapes and types are those of the records Google published with BERT. A dynamically
masked shard holds the same record without the three `masked_lm_*` features: they are drawn while
reading. Where several sequences are packed into a row (tfrecords/packing.py), `input_mask` numbers
them and `next_sentence_labels` has a place for each.
"""

from typing import NamedTuple

DYNAMIC = None  # in place of max_predictions_per_seq: a record without masked_lm_* features


class Feature(NamedTuple):
    """Shape and NumPy type name of one feature of a record."""

    shape: tuple[int, ...]
    dtype: str


def record_features(
    max_seq_length: int,
    max_predictions_per_seq: int | None = DYNAMIC,
    sequences_per_row: int = 1,
) -> dict[str, Feature]:
    """Returns the features of one record, by name.

    Args:
        max_seq_length: S, the length of `input_ids`.
        max_predictions_per_seq: P, the number of slots for masked positions; None for records
            which are masked while reading.
        sequences_per_row: N, places for sequences in a row.
    """
    features = {
        "input_ids": Feature((max_seq_length,), "int64"),  # [CLS] A [SEP] B [SEP], then zeros
        # 1 for tokens, n for those of the nth sequence where there are several; 0 for padding
        "input_mask": Feature((max_seq_length,), "int64"),
        "segment_ids": Feature((max_seq_length,), "int64"),  # 0 for [CLS] A [SEP], 1 for B [SEP]
        # 1: B was drawn from another document; 0 in unused places
        "next_sentence_labels": Feature((sequences_per_row,), "int64"),
    }
    if max_predictions_per_seq is not DYNAMIC:
        features |= {
            "masked_lm_positions": Feature((max_predictions_per_seq,), "int64"),  # ascending
            "masked_lm_ids": Feature((max_predictions_per_seq,), "int64"),  # what stood there
            "masked_lm_weights": Feature((max_predictions_per_seq,), "float32"),  # 0: unused slot
        }
    return features


def value_limits(
    max_seq_length: int, vocab_size: int | None, sequences_per_row: int = 1
) -> dict[str, int]:
    """Returns, by name of the integer features, what their values must be less than.

    Args:
        max_seq_length: As in `record_features`.
        vocab_size: Number of pieces; None where it is unknown, which leaves the range of int32.
        sequences_per_row: As in `record_features`.
    """
    pieces = vocab_size or 1 << 31
    return {
        "input_ids": pieces,
        "input_mask": sequences_per_row + 1,
        "segment_ids": 2,
        "next_sentence_labels": 2,
        "masked_lm_positions": max_seq_length,
        "masked_lm_ids": pieces,
    }


def record_bytes(max_seq_length: int, max_predictions_per_seq: int | None = DYNAMIC) -> float:
    """Estimates the size of a record, before compression, as measured on English novels."""
    size = 150 + 3.8 * max_seq_length
    return size if max_predictions_per_seq is DYNAMIC else size + 90 + 6 * max_predictions_per_seq
