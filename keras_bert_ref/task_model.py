"""What all task models share: an encoder, losses, one training step."""

import numpy as np

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.config import BertConfig
from keras_bert_ref.encoder import BertEncoder
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.losses import (
    denominators,
    global_sum,
    scored,
    scored_cross_entropy,
    share_of_loss,
)
from keras_bert_ref.metrics import correct
from keras_bert_ref.pretrained import Pretrained


def encoder_and_policy(encoder_or_config, dtype, *, pooler, packed=False):
    """Returns the encoder that a task model is to sit on, and the dtype policy of the heads.

    Args:
        encoder_or_config: a `BertEncoder`, or the `BertConfig` to build one from.
        dtype: a Keras dtype policy; None takes an encoder's own, or Keras's global policy.
        pooler: whether the model reads `pooled_output`.
        packed: whether the model knows what to do with several sequences to a row.

    Raises:
        ConfigError: the first argument is neither of the two, or lacks the pooler, or is for
            several sequences to a row where the model is not.
    """
    if isinstance(encoder_or_config, BertConfig):
        encoder = BertEncoder(encoder_or_config, pooler=pooler, dtype=dtype)
    elif isinstance(encoder_or_config, BertEncoder):
        encoder = encoder_or_config
    else:
        raise ConfigError(
            "the first argument must be a BertEncoder or a BertConfig, "
            f"not {type(encoder_or_config).__name__}"
        )
    if pooler and encoder.pooler is None:
        raise ConfigError(
            "this model reads pooled_output, which the encoder has not: build the encoder with "
            "pooler=True (of a BertPretrainer, next_sentence=False does without)"
        )
    if encoder.sequences_per_row > 1 and not packed:
        raise ConfigError(
            f"the encoder takes {encoder.sequences_per_row} sequences to a row, which is for "
            "pretraining: this model needs one with sequences_per_row=1"
        )
    return encoder, keras.dtype_policies.get(dtype or encoder.dtype_policy)


def stored_encoder(checkpoint, dtype, *, pooler, **options):
    """Builds the encoder of an open `Checkpoint` for a model that needs a pooler, or does not."""
    pooler = pooler or checkpoint.has("pooler")
    return BertEncoder.from_checkpoint(checkpoint, pooler=pooler, dtype=dtype, **options)


def stored_labels(checkpoint, head):
    """Returns the labels that a checkpoint's head has.

    Raises:
        ConfigError: it has no such head.
    """
    if not checkpoint.has(head):
        fault = (
            f" that can be read ({checkpoint.faults[head]})" if head in checkpoint.faults else ""
        )
        raise ConfigError(
            f"{checkpoint.where} has no {head}{fault}: name the labels of a new one with labels=[…]"
        )
    return checkpoint.labels


def encoder_inputs(encoder, axes=1):
    """Returns a fresh int32 input of [B, …] for each of the encoder's, with `axes` axes after B."""
    return {key: keras.Input((None,) * axes, dtype="int32", name=key) for key in encoder.input}


class TaskModel(Pretrained, keras.Model):
    """A Keras model that knows its losses, so that `compile` needs an optimizer and nothing else.

    One training step serves `fit` and this library's own loop. Subclasses say what the losses are:

    - `label_names`: the labels they need;
    - `loss_weights(labels)`: name → weights;
    - `loss_values(labels, outputs)`: name → losses, of the same shapes;
    - `update_metrics(labels, outputs, values, weights)`.

    A subclass of several losses has a metric for each, named `…_loss`, and `loss` is their sum; a
    subclass of one loss names its metric `loss`.

    Args:
        encoder: the `BertEncoder` underneath.
        inputs: name → `keras.Input`.
        outputs: name → what the heads return.
        dtype: the `keras.DTypePolicy` of the heads.
        name: the model's name.
    """

    def __init__(self, encoder, *, inputs, outputs, dtype, name):
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        # The policy decides whether `compile` adds loss scaling (mixed_float16).
        self.dtype_policy = dtype
        self.encoder = encoder

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("encoder")), **config)

    def fit(self, x=None, y=None, **options):
        """See `keras.Model.fit`."""
        if isinstance(x, tf.data.Dataset):
            options.setdefault("shuffle", False)  # Keras warns of its own default, True
        return super().fit(x, y, **options)

    def train_step(self, data):
        """Updates the variables by one batch of (features, labels); returns the metrics so far."""
        return self.train_on_micro_batches([data])

    def train_on_micro_batches(self, micro_batches):
        """Updates the variables once by several (features, labels), together the replica's batch.

        The loss is normalized over all of them and all replicas, so that k micro-batches give the
        update that one batch of their sum would.

        Raises:
            ConfigError: a label is missing.
        """
        micro_batches = [self._features_and_labels(data) for data in micro_batches]
        variables = self.trainable_variables
        weights = [self.loss_weights(labels) for _, labels in micro_batches]
        totals = denominators(
            {name: tf.add_n([tf.reduce_sum(w[name]) for w in weights]) for name in weights[0]}
        )
        gradients = None
        for (features, labels), w in zip(micro_batches, weights, strict=True):
            if gradients is not None:  # one after the other: side by side they would save no memory
                with tf.control_dependencies([g for g in gradients if g is not None]):
                    features = tf.nest.map_structure(tf.identity, features)
            with tf.GradientTape() as tape:
                outputs = self(features, training=True)
                values = self.loss_values(labels, outputs)
                loss = self.optimizer.scale_loss(share_of_loss(values, w, totals))
            found = tape.gradient(loss, variables)
            gradients = found if gradients is None else list(map(_sum, gradients, found))
            self.update_metrics(labels, outputs, values, w)
        # A pooler that no loss reads has no gradient, and is left as it is.
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        if not self.optimizer.built:
            self.optimizer.build(variables)
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            pairs = _finite_on_all_replicas(pairs)
        self.optimizer.apply(*zip(*pairs, strict=True))
        return self.get_metrics_result()

    def test_step(self, data):
        """Scores one batch of (features, labels); returns the metrics so far."""
        features, labels = self._features_and_labels(data)
        outputs = self(features, training=False)
        values = self.loss_values(labels, outputs)
        self.update_metrics(labels, outputs, values, self.loss_weights(labels))
        return self.get_metrics_result()

    def _features_and_labels(self, data):
        features, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None:
            raise ConfigError(
                "sample weights are not used: the labels say what counts, by masked_lm_weights or "
                "by a negative label"
            )
        missing = [name for name in self.label_names if labels is None or name not in labels]
        if missing:
            raise ConfigError(
                f"the labels lack {', '.join(missing)}: data must be (features, labels), two dicts"
            )
        return features, labels

    @property
    def metrics(self):
        # Not Keras's own loss tracker, a mean of batch means: the losses below are exact.
        return self._metrics

    def get_metrics_result(self):
        results = {metric.name: metric.result() for metric in self.metrics}
        losses = [value for name, value in results.items() if name.endswith("_loss")]
        return {"loss": tf.add_n(losses), **results} if losses else results


def _sum(gradient, other):
    return None if gradient is None else tf.add_n([gradient, other])


def _finite_on_all_replicas(pairs):
    """Returns (gradient, variable) with a gradient that is not finite, if any replica has one.

    Whether an update is passed over, Keras decides by the gradients of one replica alone.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return pairs
    fine = [tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g))) for g, _ in pairs]
    faults = global_sum(tf.cast(tf.logical_not(tf.reduce_all(fine)), tf.float32))
    (first, variable), *others = pairs
    spoiling = tf.where(faults > 0, np.float32("nan"), 0.0)
    return [(first + tf.cast(spoiling, first.dtype), variable), *others]


class OneLossModel(TaskModel):
    """A task model of one loss, by default the cross entropy of `label_ids` given `logits`.

    A negative label is not scored: it counts neither in the loss nor in the accuracy.
    """

    label_names = ("label_ids",)

    def __init__(self, encoder, *, accuracy=True, **options):
        super().__init__(encoder, **options)
        self.mean_loss = keras.metrics.Mean("loss")
        self.accuracy = keras.metrics.Mean("accuracy") if accuracy else None

    def loss_weights(self, labels):
        return {"loss": scored(labels["label_ids"])}

    def loss_values(self, labels, outputs):
        return {"loss": scored_cross_entropy(labels["label_ids"], outputs["logits"])}

    def right(self, labels, outputs):
        """Returns 1.0 where the model is right, in the shape of the losses."""
        return correct(labels["label_ids"], outputs["logits"])

    def update_metrics(self, labels, outputs, values, weights):
        # Flat, because Keras averages over all axes but the first before it weights.
        weight = tf.reshape(weights["loss"], [-1])
        self.mean_loss.update_state(tf.reshape(values["loss"], [-1]), weight)
        if self.accuracy is not None:
            right = tf.reshape(self.right(labels, outputs), [-1])
            self.accuracy.update_state(right, weight)
