"""Static masking (paper, section 3.1 and appendix A.1): which tokens to predict, what to show.

`mask_one` makes the original's draws in the original's order, so that its recorded instances can be
reproduced. `mask_rows` follows the same rule for many rows at once, some ten times faster; with it
the shards are written. tfrecords/dynamic_masking.py states the rule a third time, inside the
tf.data graph. The tests hold the three to one another.
"""

import random

import numpy as np

from tfrecords.settings import InstanceSettings

_NO_CANDIDATE = np.uint64(2**64 - 1)  # a key behind all others


def mask_one(
    ids: list[int], settings: InstanceSettings, vocabulary, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Masks one instance with the draws of the original `create_masked_lm_predictions`.

    Args:
        ids: Token ids, with [CLS] and [SEP] and without padding.
        settings: See there.
        vocabulary: A tokenizer; its `vocab_size`, `cls_id`, `sep_id`, `mask_id` and
            `continues_word` are used.
        rng: Where the draws come from.

    Returns:
        The ids to show, and the positions to predict in ascending order. No position at all is
        possible when whole words are masked and each is longer than the number of predictions.
    """
    words = []
    for position, token in enumerate(ids):
        if token in (vocabulary.cls_id, vocabulary.sep_id):
            continue
        # As in the original, a piece "##x" that opens segment B joins the last word of segment A.
        if settings.whole_word_masking and words and vocabulary.continues_word[token]:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)

    predictions = settings.predictions_by_length[len(ids)]
    same = settings.same_share / ((settings.same_share + settings.random_share) or 1)
    shown, positions = list(ids), []
    for word in words:
        if len(positions) + len(word) > predictions:
            continue
        positions += word
        for position in word:
            if rng.random() < settings.mask_share:
                shown[position] = vocabulary.mask_id
            elif rng.random() >= same:
                shown[position] = rng.randint(0, vocabulary.vocab_size - 1)
    return shown, sorted(positions)


def mask_rows(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    settings: InstanceSettings,
    vocabulary,
    rng: random.Random,
) -> dict[str, np.ndarray]:
    """Masks many instances at once.

    Args:
        input_ids: Token ids [N, S], padded.
        lengths: Number of tokens in each row, [N].
        settings: See there.
        vocabulary: As in `mask_one`.
        rng: Where the draws come from.

    Returns:
        `input_ids` [N, S] as shown, `masked_lm_positions` and `masked_lm_ids` [N, P] (zeros in
        unused slots) and `masked_lm_weights` [N, P].
    """
    chosen = _choose(input_ids, lengths, settings, vocabulary, rng)
    rows, columns = np.nonzero(chosen)  # row by row, positions ascending
    first = np.cumsum(chosen.sum(axis=1)) - chosen.sum(axis=1)
    slots = np.arange(len(rows)) - first[rows]
    labels = input_ids[rows, columns]

    draw = _uint32(rng, len(rows)) / 2**32
    replacement = (_uint32(rng, len(rows)) * np.uint64(vocabulary.vocab_size)) >> np.uint64(32)
    shown = input_ids.copy()
    shown[rows, columns] = np.where(
        draw < settings.mask_share,
        vocabulary.mask_id,
        np.where(draw < settings.mask_share + settings.same_share, labels, replacement),
    )

    size = (len(input_ids), settings.max_predictions_per_seq)
    positions, masked_ids = np.zeros(size, np.int32), np.zeros(size, np.int32)
    weights = np.zeros(size, np.float32)
    positions[rows, slots] = columns
    masked_ids[rows, slots] = labels
    weights[rows, slots] = 1
    return {
        "input_ids": shown,
        "masked_lm_positions": positions,
        "masked_lm_ids": masked_ids,
        "masked_lm_weights": weights,
    }


def _choose(input_ids, lengths, settings, vocabulary, rng):
    """Returns which tokens to predict, bool [N, S]: words in random order, as many as fit."""
    n, s = input_ids.shape
    position = np.arange(s)
    candidate = position < lengths[:, None]
    candidate &= (input_ids != vocabulary.cls_id) & (input_ids != vocabulary.sep_id)
    predictions = settings.predictions_by_length[lengths]
    keys = _uint32(rng, n * s).reshape(n, s) << np.uint64(32)
    if settings.whole_word_masking:
        opens = candidate & ~vocabulary.continues_word[input_ids]
        opens[np.arange(n), candidate.argmax(axis=1)] = True
        first = np.maximum.accumulate(np.where(opens, position, 0), axis=1)  # of a token's word
        keys = np.take_along_axis(keys, first, axis=1)  # the word's: it stays together and in order

    # The position rides in the low bits of the key: one plain sort instead of an argsort.
    keys = np.where(candidate, keys | position.astype(np.uint64), _NO_CANDIDATE)
    keys.sort(axis=1)
    order = np.where(keys < _NO_CANDIDATE, keys & np.uint64(0xFFFF), s).astype(np.int64)
    if settings.whole_word_masking:
        cells = (np.arange(n)[:, None] * s + first)[candidate]
        sizes = np.bincount(cells, minlength=n * s).reshape(n, s)  # of a word, where it opens
        accepted = _fitting_words(order, np.where(opens, sizes, 0), predictions)
    else:
        order = order[:, : settings.max_predictions_per_seq]
        accepted = np.arange(order.shape[1]) < predictions[:, None]
    chosen = np.zeros((n, s + 1), bool)  # column S takes what is not accepted
    np.put_along_axis(chosen, np.where(accepted, order, s), True, axis=1)
    return chosen[:, :s]


def _fitting_words(order, sizes, room):
    """Returns which tokens of `order` belong to words that fit in the room left, bool [N, S].

    `sizes` [N, S] has the size of a word at the position that opens it, 0 elsewhere.
    """
    n, s = order.shape
    sizes = np.take_along_axis(np.pad(sizes, ((0, 0), (0, 1))), order, axis=1).T.copy()
    inside = (order < s).T.copy()
    accepted = np.zeros((s, n), bool)
    fits = np.zeros(n, bool)
    for rank in range(s):
        opens = sizes[rank] > 0
        fits = np.where(opens, sizes[rank] <= room, fits & inside[rank])
        room = room - sizes[rank] * fits
        accepted[rank] = fits
        if not room.any() and not fits.any():
            break
    return accepted.T


def _uint32(rng, count):
    """Returns `count` draws from 0 … 2³²-1, as uint64 to leave room for arithmetic."""
    return np.frombuffer(rng.randbytes(4 * count), "<u4").astype(np.uint64)
