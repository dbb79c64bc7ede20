"""Rows for the model from pieces of many texts that lie one after the other."""

from typing import NamedTuple

from keras_bert_ref._tensorflow import tf


class Pieces(NamedTuple):
    """Pieces of all texts together.

    Attributes:
        ids: int32 [P].
        splits: int64 [B + 1], where the pieces of each text begin.
    """

    ids: tf.Tensor
    splits: tf.Tensor

    @property
    def counts(self):
        return self.splits[1:] - self.splits[:-1]


class Block(NamedTuple):
    """A part of each row, closed by a [SEP].

    Attributes:
        ids: int32 [P], pieces.
        begins: int64 [W], where the pieces of each row begin.
        sizes: int64 [W], how many they are.
    """

    ids: tf.Tensor
    begins: tf.Tensor
    sizes: tf.Tensor


def rows_of(blocks, tokenizer):
    """Returns rows: [CLS], and the blocks one after the other, each in a segment of its own.

    Args:
        blocks: a list of `Block`.
        tokenizer: a WordPieceTokenizer.

    Returns:
        The features, int32 [W, S] each, where S is the length of the longest row; and for each
        block the place in it of each column, int64 [W, S], and whether it is one of its pieces,
        bool [W, S].
    """
    lengths = tf.add_n([block.sizes + 1 for block in blocks]) + 1
    # The 1: where there are no rows, there is a column nevertheless.
    columns = tf.range(tf.reduce_max(tf.concat([lengths, [1]], 0)))[tf.newaxis]
    mask = columns < lengths[:, tf.newaxis]
    # Where no piece comes, it is [SEP] or padding.
    ids = tf.where(mask, tokenizer.sep_id, tokenizer.pad_id)
    ids = tf.where(columns == 0, tokenizer.cls_id, ids)
    segments, places = tf.zeros_like(ids), []
    first = tf.ones_like(lengths)
    for number, block in enumerate(blocks):
        place = columns - first[:, tf.newaxis]
        inside = (place >= 0) & (place < block.sizes[:, tf.newaxis])
        at = tf.where(inside, block.begins[:, tf.newaxis] + place, 0)
        # The 0: there may be no pieces at all.
        ids = tf.where(inside, tf.gather(tf.concat([block.ids, [0]], 0), at), ids)
        if number:
            segments += tf.cast(mask & (place >= 0), tf.int32)
        first += block.sizes + 1
        places.append((place, inside))
    features = {"input_ids": ids, "input_mask": tf.cast(mask, tf.int32), "segment_ids": segments}
    return features, places


def starts_of(counts):
    """Returns where each of some runs of these lengths begins, int64 [N + 1], the end included."""
    return tf.concat([[0], tf.cumsum(tf.cast(counts, tf.int64))], 0)


def numbered(counts):
    """Returns for each of sum(counts) items the number of its run and its place therein; int64."""
    counts = tf.cast(counts, tf.int64)
    runs = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
    return runs, tf.range(tf.size(runs, tf.int64)) - tf.gather(starts_of(counts), runs)


def valid_text(texts):
    """Returns texts with a U+FFFD for what is not UTF-8, so that characters can be counted."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
