"""Dynamic masking (Liu et al. 2019): the rule of tfrecords/masking.py, inside the tf.data graph."""

from keras_bert_ref._tensorflow import tf
from tfrecords.settings import InstanceSettings


def mask_batch(input_ids, input_mask, settings: InstanceSettings, vocabulary, seed):
    """Masks a batch; the draws depend on `seed` alone.

    Args:
        input_ids: int32 [B, S], padded.
        input_mask: int32 [B, S], n for the pieces of a row's nth sequence, 0 for padding.
        settings: See there.
        vocabulary: A tokenizer; its `vocab_size`, `cls_id`, `sep_id`, `mask_id` and
            `continues_word` are used.
        seed: int64 [2].

    Returns:
        `input_ids` [B, S] as shown, `masked_lm_positions` [B, P], `masked_lm_ids` [B, P], all
        int32 (zeros in unused slots), and `masked_lm_weights` float32 [B, P].
    """
    s, p, n = settings.max_seq_length, settings.predictions_per_row, settings.sequences_per_row
    draws = tf.random.stateless_uniform([tf.shape(input_ids)[0], s + 2 * p], seed)
    keys, action, replacement = tf.split(draws, [s, p, p], axis=1)

    candidate = (input_mask > 0) & (input_ids != vocabulary.cls_id)
    candidate &= input_ids != vocabulary.sep_id
    # Sorted by sequence, then by key, so that each sequence is masked by itself.
    sequence = tf.maximum(input_mask - 1, 0)  # [B, S]
    lengths = _sizes(input_mask, n)  # [B, N]
    predictions = tf.gather(tf.constant(settings.predictions_by_length, tf.int32), lengths)
    predictions = tf.gather(predictions, sequence, batch_dims=1)  # [B, S], of each one's sequence
    before = tf.cumsum(_sizes(tf.where(candidate, input_mask, 0), n), axis=1, exclusive=True)
    before = tf.gather(before, sequence, batch_dims=1)  # [B, S], candidates of earlier sequences
    if settings.whole_word_masking:
        word, starts = _words(input_ids, candidate, before, vocabulary)
        keys = tf.gather(keys, tf.maximum(word - 1, 0), batch_dims=1)
    keys = tf.where(candidate, keys + tf.cast(sequence, tf.float32), n + 1.0)
    order = tf.argsort(keys, stable=True)
    rank = tf.range(s) - tf.gather(before, order, batch_dims=1)  # in its sequence
    room = tf.gather(predictions, order, batch_dims=1)
    inside = tf.gather(candidate, order, batch_dims=1)
    if settings.whole_word_masking:
        opens = tf.gather(starts, order, batch_dims=1)
        size = tf.gather(_sizes(word, s), tf.maximum(word - 1, 0), batch_dims=1)
        size = tf.gather(size, order, batch_dims=1)
        accepted = inside & _fitting_words(opens, size, rank == 0, room)
    else:
        accepted = inside & (rank < room)

    positions = tf.sort(tf.where(accepted, order, s))[:, :p]  # unused slots come last
    used = positions < s
    positions = tf.where(used, positions, 0)
    labels = tf.gather(input_ids, positions, batch_dims=1)
    pieces = tf.cast(replacement * vocabulary.vocab_size, tf.int32)
    shown = tf.where(
        action < settings.mask_share,
        vocabulary.mask_id,
        tf.where(action < settings.mask_share + settings.same_share, labels, pieces),
    )
    # Unused slots write the [CLS] at position 0 back.
    shown = tf.where(used, shown, labels)
    rows = tf.broadcast_to(tf.range(tf.shape(positions)[0])[:, None], tf.shape(positions))
    masked = tf.tensor_scatter_nd_update(input_ids, tf.stack([rows, positions], axis=-1), shown)
    return masked, positions, tf.where(used, labels, 0), tf.cast(used, tf.float32)


def _sizes(numbers, most):
    """Returns how often each of 1 … most is in a row of `numbers`: int32 [B, most]."""
    return tf.math.bincount(numbers, minlength=most + 1, maxlength=most + 1, axis=-1)[:, 1:]


def _words(input_ids, candidate, before, vocabulary):
    """Returns the number of the word of each candidate, from 1 and 0 for others, and which begin.

    Args:
        input_ids: int32 [B, S].
        candidate: bool [B, S].
        before: int32 [B, S], how many candidates the earlier sequences of a row have.
        vocabulary: See `mask_batch`.
    """
    first = tf.cumsum(tf.cast(candidate, tf.int32), axis=1) - before == 1  # of its sequence
    starts = first | ~tf.gather(tf.constant(vocabulary.continues_word), input_ids)
    starts &= candidate
    return tf.where(candidate, tf.cumsum(tf.cast(starts, tf.int32), axis=1), 0), starts


def _fitting_words(opens, size, begins, room):
    """Takes words in the order given, each if it fits in what is left of its sequence's room.

    Args:
        opens: bool [B, S], whether a token is the first of its word.
        size: int32 [B, S], tokens of its word.
        begins: bool [B, S], whether it is the first of its sequence.
        room: int32 [B, S], tokens to predict in its sequence.

    Returns:
        bool [B, S].
    """

    def take(state, token):
        left, fits = state
        opens, size, begins, room = tf.unstack(token)
        left = tf.where(begins > 0, room, left)
        fits = tf.where(opens > 0, tf.cast(size <= left, tf.float32), fits)
        return left - opens * fits * size, fits

    # As floats, because a transposition of others makes oneDNN write a line to the user's screen.
    tokens = tf.stack([tf.cast(x, tf.float32) for x in (opens, size, begins, room)])  # [4, B, S]
    nothing = tf.zeros_like(tokens[0, :, 0])
    _, fitting = tf.scan(take, tf.transpose(tokens, [2, 0, 1]), (nothing, nothing))
    return tf.transpose(fitting) > 0
