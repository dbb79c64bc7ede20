"""The tagger on top of frozen features: a BiLSTM, the tag layer, and their training."""

import dataclasses
import time

import numpy as np

from experiments.bilstm import BiLSTM
from keras_bert_ref import BertAdamW, ScalarMix, WarmupLinear
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.losses import denominators, scored, scored_cross_entropy, share_of_loss
from keras_bert_ref.tasks import conll
from keras_bert_ref.tasks.batching import shuffled_batches


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a tagger is built and trained. Sizes are the paper's, the rest it does not say."""

    lstm_layers: int = 2
    lstm_units: int = 768  # of each direction
    dropout: float = 0.5  # on the features and after each layer
    learning_rate: float = 1e-3  # at its peak
    warmup: float = 0.1  # of all steps, then linearly down to 0
    batch_size: int = 64  # sentences
    epochs: int = 8
    patience: int = 3  # epochs without a better F1 on dev
    dtype: str = "float32"  # of matrix products: mixed_bfloat16 takes half where there are units


@dataclasses.dataclass(frozen=True)
class Split:
    """Sentences and their features.

    Attributes:
        features: [layers, words, H], such as a memory map.
        tags: for each sentence its tags.
        starts: int [sentences + 1], where the words of each sentence begin.
    """

    features: np.ndarray
    tags: list[tuple[str, ...]]
    starts: np.ndarray

    @classmethod
    def of(cls, documents, features):
        """Joins documents, see `conll.read`, with the features of their words."""
        tags = [sentence.tags for document in documents for sentence in document]
        return cls(features, tags, np.concatenate([[0], np.cumsum([len(t) for t in tags])]))

    def batch(self, sentences, tag_ids):
        """Returns features [B, S, layers, H], lengths [B] and tag ids [B, S], -1 at padding."""
        lengths = np.array([len(self.tags[n]) for n in sentences], np.int32)
        layers, _, size = self.features.shape
        features = np.zeros((len(sentences), lengths.max(), layers, size), self.features.dtype)
        labels = np.full(features.shape[:2], -1, np.int32)
        for row, n in enumerate(sentences):
            words = self.features[:, self.starts[n] : self.starts[n + 1]]
            features[row, : lengths[row]] = words.transpose(1, 0, 2)
            labels[row, : lengths[row]] = [tag_ids.get(tag, -1) for tag in self.tags[n]]
        return features, lengths, labels


def train(splits, mixed, recipe, seed, on_epoch=lambda epoch, f1, seconds: None):
    """Trains a tagger and scores its best epoch on dev.

    Args:
        splits: "train", "dev" and "test" → `Split`.
        mixed: whether the layers are summed by learned weights, else concatenated.
        recipe: a `Recipe`.
        seed: of initial weights, dropout and order.
        on_epoch: called after each epoch with its number, from 1, F1 on dev, and seconds so far.

    Returns:
        A dict of `dev` and `test`, see `conll.score`; `epoch`, the best one; `dev_f1` of all
        epochs; `seconds`; and `mix`, the shares of the layers, of a weighted sum.
    """
    began = time.perf_counter()
    keras.utils.set_random_seed(seed)
    names = sorted({tag for tags in splits["train"].tags for tag in tags})
    tag_ids = {name: n for n, name in enumerate(names)}
    model = build(splits["train"].features.shape, mixed, len(names), recipe)
    rng = np.random.default_rng(seed)
    lengths = np.diff(splits["train"].starts)
    sentences = len(splits["train"].tags)
    steps = recipe.epochs * -(-sentences // recipe.batch_size)
    warmup = int(recipe.warmup * steps)
    rate = WarmupLinear(recipe.learning_rate, steps, warmup, continuous=True)
    # Adam: this library's updates all variables in one compiled pass.
    optimizer = BertAdamW(rate, weight_decay_rate=0.0, bias_correction=True)
    step, forward = _functions(model, optimizer)

    scores, best = [], None
    for epoch in range(1, recipe.epochs + 1):
        for chosen in shuffled_batches(lengths, recipe.batch_size, rng):
            step(*map(tf.constant, splits["train"].batch(chosen, tag_ids)))
        dev = evaluate(forward, splits["dev"], names)
        scores.append(dev["f1"])
        on_epoch(epoch, dev["f1"], time.perf_counter() - began)
        if best is None or dev["f1"] > best["dev"]["f1"]:
            best = {"epoch": epoch, "dev": dev, "weights": model.get_weights()}
        elif epoch - best["epoch"] >= recipe.patience:
            break
    model.set_weights(best.pop("weights"))
    result = {**best, "test": evaluate(forward, splits["test"], names), "dev_f1": scores}
    if mixed:
        weights = model.get_layer("mix").layer_weights
        result["mix"] = [round(float(share), 4) for share in tf.nn.softmax(weights)]
    return {**result, "seconds": round(time.perf_counter() - began, 1)}


def build(shape, mixed, tags, recipe):
    """Builds the tagger: features [B, S, layers, H] and lengths [B] to logits [B, S, tags]."""
    layers, _, size = shape
    policy = keras.DTypePolicy(recipe.dtype)
    features = keras.Input((None, layers, size), dtype="float16", name="features")
    lengths = keras.Input((), dtype="int32", name="lengths")
    if mixed:
        x = ScalarMix(name="mix", dtype="float32")(features)
    else:
        x = keras.layers.Reshape((-1, layers * size), dtype=policy)(features)
    x = keras.layers.Dropout(recipe.dropout, dtype=policy)(x)
    for _ in range(recipe.lstm_layers):
        x = BiLSTM(recipe.lstm_units, dtype=policy)(x, lengths)
        x = keras.layers.Dropout(recipe.dropout, dtype=policy)(x)
    logits = keras.layers.Dense(tags, dtype="float32", name="tags")(x)
    return keras.Model([features, lengths], logits)


def evaluate(forward, split, names, size=64):
    """Scores a tagger on a split.

    Args:
        forward: a function of features and lengths, see `Split.batch`, that returns logits.
        split: a `Split`.
        names: the tags in the order of their ids.
        size: sentences of a batch.
    """
    order = np.argsort(np.diff(split.starts), kind="stable")
    predicted = [None] * len(order)
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        features, lengths, _ = split.batch(chosen, {})
        best = np.argmax(forward(tf.constant(features), tf.constant(lengths)), axis=-1)
        for n, ids, length in zip(chosen, best, lengths, strict=True):
            predicted[n] = [names[i] for i in ids[:length]]
    return conll.score(split.tags, predicted)


def _functions(model, optimizer):
    """Returns the training step and the forward pass, one program each for all shapes."""
    features, lengths = (tf.TensorSpec(x.shape, x.dtype) for x in model.inputs)
    labels = tf.TensorSpec([None, None], tf.int32)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(input_signature=[features, lengths, labels], autograph=False)
    def step(features, lengths, labels):
        weights = {"loss": scored(labels)}
        with tf.GradientTape() as tape:
            logits = model([features, lengths], training=True)
            values = {"loss": scored_cross_entropy(labels, logits)}
            loss = share_of_loss(values, weights, denominators(weights))
        optimizer.apply(tape.gradient(loss, variables), variables)

    @tf.function(input_signature=[features, lengths], autograph=False)
    def forward(features, lengths):
        return model([features, lengths], training=False)

    return step, forward
