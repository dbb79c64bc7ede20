"""SavedModels for tests, and texts to give them."""

import dataclasses
import random

import checkpoint_models
import numpy as np
from numpy_bert import random_weights
from small_bert import CONFIG, set_weights

from keras_bert_ref import export, export_saved_model
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.serving.computation import Computation
from keras_bert_ref.serving.signatures import served_for, signatures

SIGNS = [*"abcdefgh", " ", " ", ".", "'", "é", "中", "\u0301", "\u0323", "\u200b", "\xa0", "ABC"]


LENGTH = 24


def model_of(kind):
    """Returns a model of one of `checkpoint_models.KINDS` that reads LENGTH pieces."""
    model_class, arguments = checkpoint_models.KINDS[kind]
    config = dataclasses.replace(CONFIG, max_position_embeddings=LENGTH, num_hidden_layers=2)
    model = model_class(config, **arguments)
    set_weights(model, random_weights(model.trainable_variables, seed=5))
    model.tokenizer = checkpoint_models.tokenizer()
    return model


def texts(count, seed, longest=60):
    """Returns random texts, the first of them empty."""
    choices = random.Random(seed)
    return ["".join(choices.choices(SIGNS, k=n * longest // count)) for n in range(count)]


class Answering:
    """What an export of a model would answer, without one: quicker."""

    def __init__(self, model, *, max_length=None, task=None, top=None):
        one = served_for(model, max_length, task, top)
        found = signatures(one, Computation(one.compute, one.inputs, freeze=False))
        self.signatures = {
            name: lambda respond=respond, specs=specs, **inputs: respond(
                *(inputs[n] for n in specs)
            )
            for name, (specs, respond) in found.items()
        }


def exported(model, folder, **options):
    """Exports a model with the check in this process, which is quicker; returns it loaded."""
    with in_this_process():
        export_saved_model(model, folder, **options)
    return tf.saved_model.load(folder)


class in_this_process:  # noqa: N801
    """Lets an export be checked in this process."""

    def __enter__(self):
        self._usual = export.answers_in_a_fresh_process
        export.answers_in_a_fresh_process = answers_in_this_process

    def __exit__(self, *error):
        export.answers_in_a_fresh_process = self._usual


def answers_in_this_process(folder, requests):
    """Returns what `export.answers_in_a_fresh_process` does."""
    model = tf.saved_model.load(folder)
    found = {}
    for name, inputs in requests.items():
        for key, value in ask(model, name, **inputs).items():
            found[f"{name}/{key}"] = value.astype("S") if value.dtype == object else value
    return found


def ask(model, signature, **inputs):
    """Returns what a signature of a loaded SavedModel answers: name → array."""
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: x.numpy() for name, x in model.signatures[signature](**inputs).items()}


def decoded(strings):
    """Returns an array of bytes as nested lists of strings."""
    return np.char.decode(strings.astype("S"), "utf-8").tolist() if strings.size else []
