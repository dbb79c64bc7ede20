"""What can be had without a model: the yardstick that a pretrained one must beat."""

import numpy as np

from tfrecords.reader import open_shards, pretraining_dataset


def constant_baseline(where, vocab_size):
    """Scores predictions that never look at their input, learned on "train", on "heldout".

    Args:
        where: a folder made by `create_pretraining_data`, with a held-out split.
        vocab_size: pieces in the vocabulary.

    Returns:
        `commonest_piece`, an id; `masked_lm_accuracy` of always predicting it; `masked_lm_loss` (in
        nats) of predicting each piece by its frequency, each counted once more than it occurs; and
        `next_sentence_accuracy` of always predicting the commoner label.

    Raises:
        RecordError: see `open_shards`.
    """
    pieces, labels = _counts(where, "train", vocab_size)
    held_out_pieces, held_out_labels = _counts(where, "heldout", vocab_size)
    shares = (pieces + 1) / (pieces + 1).sum()
    return {
        "commonest_piece": int(pieces.argmax()),
        "masked_lm_accuracy": float(held_out_pieces[pieces.argmax()] / held_out_pieces.sum()),
        "masked_lm_loss": float(-(held_out_pieces @ np.log(shares)) / held_out_pieces.sum()),
        "next_sentence_accuracy": float(held_out_labels[labels.argmax()] / held_out_labels.sum()),
    }


def _counts(where, split, vocab_size):
    """Returns how often each piece is to be predicted [V], and each next-sentence label [2]."""
    pieces, labels = np.zeros(vocab_size), np.zeros(2)
    shards = open_shards(where, split)
    rows = pretraining_dataset(
        shards,
        256,
        shuffle=False,
        epochs=1,
        drop_remainder=False,
        sequences_per_row=shards.sequences_per_row,
    )
    for _, targets in rows:
        used = targets["masked_lm_weights"].numpy() > 0
        pieces += np.bincount(targets["masked_lm_ids"].numpy()[used], minlength=vocab_size)
        next_sentences = targets["next_sentence_labels"].numpy().ravel()
        labels += np.bincount(next_sentences[next_sentences >= 0], minlength=2)
    return pieces, labels
