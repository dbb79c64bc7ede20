"""Sums of the hidden states of whole texts, from which any pooling of them is made."""

import numpy as np

from keras_bert_ref.features.batches import batches


def text_statistics(frozen, items, wanted, tokens_per_batch, advance=lambda texts: None):
    """Yields the statistics of each item, in the order of the items.

    Args:
        frozen: a `FrozenEncoder`.
        items: a list of `Item`.
        wanted: some of `frozen.STATISTICS`.
        tokens_per_batch: the most pieces of a batch.
        advance: called with the share of texts that each step has read.

    Yields:
        Name → float32 [k, H] for k layers ([H] of the pooler).
    """
    parts = [[] for _ in items]
    max_length = frozen.encoder.config.max_position_embeddings
    for chosen, arrays in batches(items, tokens_per_batch, max_length):
        results = frozen.statistics(arrays, wanted)
        for row, (index, _) in enumerate(chosen):
            parts[index].append([result[row] for result in results])
            advance(1 / len(items[index].windows))
    for item, windows in zip(items, parts, strict=True):
        columns = zip(*windows, strict=True)
        yield {
            name: _merge(name, column, item) for name, column in zip(wanted, columns, strict=True)
        }


def _merge(name, parts, item):
    """Makes one statistic of an item of those of its windows."""
    if name in ("cls", "pooler"):
        return np.mean(parts, axis=0)
    count = len(item.special) - (item.special.sum() if name.startswith("text") else 0)
    if not count:
        return np.zeros_like(parts[0])  # a text without any piece
    if name.endswith("mean"):
        return np.sum(parts, axis=0) / np.float32(count)
    return np.max(parts, axis=0)
