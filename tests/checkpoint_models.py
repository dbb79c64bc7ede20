"""Models of every kind with weights and a vocabulary that differ from anything fresh."""

import string

import numpy as np
from numpy_bert import random_weights
from small_bert import CONFIG, set_weights

from keras_bert_ref import (
    BertClassifier,
    BertEncoder,
    BertMultipleChoice,
    BertPretrainer,
    BertSpanLabeler,
    BertTagger,
    WordPieceTokenizer,
)

LABELS = ("contradiction", "entailment", "neutral")
TAGS = ("O", "B-PER", "I-PER", "B-LOC")

# What each is made by: the class, its arguments after the encoder or configuration.
KINDS = {
    "encoder": (BertEncoder, {}),
    "encoder without pooler": (BertEncoder, {"pooler": False}),
    "left to right": (BertEncoder, {"attention": "left_to_right"}),
    "pretrainer": (BertPretrainer, {}),
    "masked_lm": (BertPretrainer, {"next_sentence": False}),
    "classifier": (BertClassifier, {"labels": LABELS, "dropout": 0.25}),
    "regression": (BertClassifier, {}),
    "span": (BertSpanLabeler, {}),
    "choice": (BertMultipleChoice, {}),
    "tagger": (BertTagger, {"labels": TAGS}),
}


def tokenizer(**options):
    """Returns a tokenizer with as many pieces as CONFIG has."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    pieces += [f"##{letter}" for letter in string.ascii_lowercase]
    pieces += [f"word{n}" for n in range(CONFIG.vocab_size - len(pieces))]
    return WordPieceTokenizer(pieces, **options)


def make(kind, seed=0, **options):
    """Returns a model of one of KINDS with random weights and a tokenizer."""
    model_class, arguments = KINDS[kind]
    model = model_class(CONFIG, **{**arguments, **options})
    set_weights(model, random_weights(model.trainable_variables, seed=seed))
    model.tokenizer = tokenizer()
    return model


def weights_of(model):
    """Returns path → array."""
    return {variable.path: variable.numpy() for variable in model.weights}


def assert_same_weights(found, expected):
    """Asserts that two models have the same weights, to the bit."""
    found, expected = weights_of(found), weights_of(expected)
    assert list(found) == list(expected)
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
