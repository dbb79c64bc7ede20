"""A BERT small enough for tests, and batches for it; sizes pairwise different.

No two axes agree by luck: B 13, S 7, P 3, V 99, L 5, A 4, d 8, H 32, I 37, 16 positions.
"""

import numpy as np

from keras_bert_ref import BertConfig

BATCH, LENGTH, PREDICTIONS = 13, 7, 3

CONFIG = BertConfig(
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=5,
    num_attention_heads=4,
    intermediate_size=37,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def encoder_features(seed=0, batch=BATCH, length=LENGTH):
    """Returns int32 features [B, S] with padding of different lengths and two segments."""
    rng = np.random.default_rng(seed)
    real = rng.integers(2, length, (batch, 1), endpoint=True)
    real[0] = length  # one row without padding
    first = rng.integers(1, real)
    place = np.arange(length)
    features = {
        "input_ids": rng.integers(1, CONFIG.vocab_size, (batch, length)) * (place < real),
        "input_mask": place < real,
        "segment_ids": (place >= first) & (place < real),
    }
    return {name: values.astype(np.int32) for name, values in features.items()}


def pretraining_batch(seed=0, batch=BATCH, length=LENGTH, predictions=PREDICTIONS):
    """Returns (features, labels) as the reader yields them; rows use 1 to P of their P slots."""
    rng = np.random.default_rng(seed + 1000)
    features = encoder_features(seed, batch, length)
    used = rng.integers(1, predictions, (batch, 1), endpoint=True)
    slots = np.arange(predictions) < used
    real = features["input_mask"].sum(1, keepdims=True)
    features["masked_lm_positions"] = (rng.integers(0, real, (batch, predictions)) * slots).astype(
        np.int32
    )
    labels = {
        "masked_lm_ids": (rng.integers(1, CONFIG.vocab_size, slots.shape) * slots).astype(np.int32),
        "masked_lm_weights": slots.astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, batch).astype(np.int32),
    }
    return features, labels


def set_weights(model, weights):
    """Gives each trainable variable of `model` its value in path → array."""
    for variable in model.trainable_variables:
        variable.assign(weights[variable.path])
