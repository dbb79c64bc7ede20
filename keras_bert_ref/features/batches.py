"""Windows of all lengths as batches of few shapes, with little padding."""

import numpy as np

_LENGTH_STEP = 8  # lengths are rounded up to a multiple, so that shapes come again


def batches(items, tokens_per_batch, max_length):
    """Yields batches of the windows of items, each of similar lengths, the longest first.

    Args:
        items: a list of `Item`.
        tokens_per_batch: the most pieces of a batch, padding included; a single window may have
            more.
        max_length: the longest row that the encoder reads.

    Yields:
        The windows in a batch, a list of (index of its item, window), and the batch's arrays:
        `input_ids`, `input_mask`, `segment_ids`, `text` (1 for owned pieces of the text) and
        `special` (1 for owned [CLS] and [SEP]), all int32 [B, S]. Rows beyond the windows are zero.
    """
    windows = [(index, window) for index, item in enumerate(items) for window in item.windows]
    windows.sort(key=lambda pair: -len(pair[1].places))
    first = 0
    while first < len(windows):
        longest = len(windows[first][1].places)
        length = min(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, max_length)
        chosen = windows[first : first + max(1, tokens_per_batch // length)]
        first += len(chosen)
        names = ("input_ids", "input_mask", "segment_ids", "text", "special")
        # What is left for the last batch is filled up to a power of two: oneDNN keeps something for
        # every shape it has seen.
        rows = min(max(1, tokens_per_batch // length), 1 << (len(chosen) - 1).bit_length())
        arrays = {name: np.zeros((rows, length), np.int32) for name in names}
        for row, (index, window) in enumerate(chosen):
            item, end = items[index], len(window.places)
            arrays["input_ids"][row, :end] = np.take(item.encoding.input_ids, window.places)
            arrays["segment_ids"][row, :end] = np.take(item.encoding.segment_ids, window.places)
            arrays["input_mask"][row, :end] = 1
            special = item.special[window.places]
            arrays["text"][row, :end] = window.owned & ~special
            arrays["special"][row, :end] = window.owned & special
        yield chosen, arrays
