"""Dynamic masking (Liu et al. 2019): the rule of tfrecords/masking.py, inside the tf.data graph."""

from keras_bert_ref._tensorflow import tf
from tfrecords.settings import InstanceSettings


def mask_batch(input_ids, input_mask, settings: InstanceSettings, vocabulary, seed):
    """Masks a batch; the draws depend on `seed` alone.

    Args:
        input_ids: int32 [B, S], padded.
        input_mask: int32 [B, S].
        settings: See there.
        vocabulary: A tokenizer; its `vocab_size`, `cls_id`, `sep_id`, `mask_id` and
            `continues_word` are used.
        seed: int64 [2].

    Returns:
        `input_ids` [B, S] as shown, `masked_lm_positions` [B, P], `masked_lm_ids` [B, P], all
        int32 (zeros in unused slots), and `masked_lm_weights` float32 [B, P].
    """
    s, p = settings.max_seq_length, settings.max_predictions_per_seq
    draws = tf.random.stateless_uniform([tf.shape(input_ids)[0], s + 2 * p], seed)
    keys, action, replacement = tf.split(draws, [s, p, p], axis=1)

    candidate = (input_mask > 0) & (input_ids != vocabulary.cls_id)
    candidate &= input_ids != vocabulary.sep_id
    lengths = tf.reduce_sum(input_mask, axis=1)
    predictions = tf.gather(tf.constant(settings.predictions_by_length, tf.int32), lengths)
    if settings.whole_word_masking:
        order, accepted = _whole_words(input_ids, candidate, predictions, keys, vocabulary)
    else:
        order = tf.argsort(tf.where(candidate, keys, 2.0))
        count = tf.minimum(predictions, _count(candidate))
        accepted = tf.range(s) < count[:, None]

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


def _count(flags):
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=-1)


def _whole_words(input_ids, candidate, predictions, keys, vocabulary):
    """Takes words in random order, each if it fits in the room left.

    Returns:
        order: int32 [B, S], positions, word by word.
        accepted: bool [B, S], which of them to predict.
    """
    s = input_ids.shape[1]
    position = tf.range(s)
    starts = candidate & ~tf.gather(tf.constant(vocabulary.continues_word), input_ids)
    first = tf.argmax(tf.cast(candidate, tf.int32), axis=1, output_type=tf.int32)
    starts |= candidate & (position == first[:, None])
    # Number of the word each token belongs to, from 1; 0 for what is no candidate.
    word = tf.where(candidate, tf.cumsum(tf.cast(starts, tf.int32), axis=1), 0)
    sizes = tf.math.bincount(word, minlength=s + 1, maxlength=s + 1, axis=-1)

    # Every token of a word sorts by the word's key; the sort is stable and keeps it together.
    order = tf.argsort(
        tf.where(candidate, tf.gather(keys, tf.maximum(word - 1, 0), batch_dims=1), 2.0),
        stable=True,
    )
    opens = tf.gather(starts, order, batch_dims=1)
    inside = tf.gather(candidate, order, batch_dims=1)
    size = tf.gather(sizes, tf.gather(word, order, batch_dims=1), batch_dims=1)

    def take(state, token):
        room, fits = state
        opens, inside, size = token
        fits = tf.where(opens, size <= room, fits & inside)
        return room - tf.where(opens & fits, size, 0), fits

    columns = [tf.transpose(x) for x in (opens, inside, size)]  # each [S, B]
    _, accepted = tf.scan(take, columns, (predictions, tf.zeros_like(predictions, tf.bool)))
    return order, tf.transpose(accepted)
