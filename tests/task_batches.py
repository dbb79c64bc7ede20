"""The fine-tuning models by kind, and small random batches for each."""

import numpy as np
from small_bert import BATCH, LENGTH, encoder_features

from keras_bert_ref import BertClassifier, BertMultipleChoice, BertSpanLabeler, BertTagger

CHOICES = 3
NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")
TAGS = ("O", *(f"{place}-{kind}" for place in "BI" for kind in ("LOC", "MISC", "ORG", "PER")))

# Without dropout unless asked for. A span labeler has none.
MODELS = {
    "classifier": lambda base, dropout=0.0, **options: BertClassifier(
        base, NAMES, dropout=dropout, **options
    ),
    "regression": lambda base, dropout=0.0, **options: BertClassifier(
        base, dropout=dropout, **options
    ),
    "span": lambda base, dropout=0.0, **options: BertSpanLabeler(base, **options),
    "choice": lambda base, dropout=0.0, **options: BertMultipleChoice(
        base, dropout=dropout, **options
    ),
    "tagger": lambda base, dropout=0.0, **options: BertTagger(
        base, TAGS, dropout=dropout, **options
    ),
}
KINDS = tuple(MODELS)


def task_batch(kind, seed=0, batch=BATCH, length=LENGTH):
    """Returns (features, labels); of labels that can be negative, some are."""
    rng = np.random.default_rng(seed + 2000)
    if kind == "choice":
        features = encoder_features(seed, batch * CHOICES, length)
        features = {name: x.reshape(batch, CHOICES, length) for name, x in features.items()}
        return features, {"label_ids": _labels(rng, CHOICES, batch)}
    features = encoder_features(seed, batch, length)
    if kind == "regression":
        return features, {"targets": rng.uniform(0, 5, batch).astype(np.float32)}
    if kind == "span":
        real = features["input_mask"].sum(1)
        start = np.where(rng.random(batch) < 0.2, -1, rng.integers(0, real))
        end = np.where(start < 0, -1, rng.integers(np.maximum(start, 0), real))
        start[1] = end[1] = -1
        labels = {"start_positions": start, "end_positions": end}
        return features, {name: x.astype(np.int32) for name, x in labels.items()}
    if kind == "tagger":
        labels = _labels(rng, len(TAGS), (batch, length))
        labels[features["input_mask"] == 0] = -1
        labels[:, 0] = -1  # [CLS]
        return features, {"label_ids": labels}
    return features, {"label_ids": _labels(rng, len(NAMES), batch)}


def _labels(rng, number, shape):
    labels = np.where(rng.random(shape) < 0.2, -1, rng.integers(0, number, shape))
    labels[1] = -1
    return labels.astype(np.int32)
