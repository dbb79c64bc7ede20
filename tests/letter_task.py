"""A task that a tiny model learns in seconds: the letters of a text tell its class."""

import dataclasses

import checkpoint_models
import numpy as np
from numpy_bert import random_weights
from small_bert import CONFIG, set_weights

from keras_bert_ref import BertEncoder
from keras_bert_ref.tasks.classification import TextExample


def examples(count, seed, names=("high", "low")):
    """Returns texts of letters, of which the two classes share none."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        label = rng.integers(len(names))
        letters = rng.choice(list("abcd" if label else "wxyz"), rng.integers(1, 12))
        found.append(TextExample(" ".join(letters), label=names[label]))
    return found


TRAIN, DEV = examples(45, 0), examples(23, 1)


def save_encoder(folder, dropout=0.1):
    """Writes a checkpoint of an encoder that reads 40 pieces; returns its place."""
    config = dataclasses.replace(
        CONFIG, num_hidden_layers=2, max_position_embeddings=40, hidden_dropout_prob=dropout
    )
    encoder = BertEncoder(config)
    set_weights(encoder, random_weights(encoder.trainable_variables, seed=3))
    encoder.tokenizer = checkpoint_models.tokenizer()
    encoder.save_pretrained(folder / "encoder")
    return folder / "encoder"
