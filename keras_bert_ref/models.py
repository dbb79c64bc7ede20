"""The task models: an encoder and heads, ready for `compile` and `fit`.

Axes in comments: B batch, S sequence, P predictions, V vocabulary.
"""

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.config import BertConfig
from keras_bert_ref.encoder import BertEncoder
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.heads import MaskedLanguageModelHead, NextSentenceHead
from keras_bert_ref.losses import cross_entropy, denominators, share_of_loss
from keras_bert_ref.metrics import Perplexity, correct


class TaskModel(keras.Model):
    """A Keras model that knows its losses, so that `compile` needs an optimizer and nothing else.

    One training step serves `fit` and this library's own loop. Subclasses say what the losses are:

    - `label_names`: the labels they need;
    - `loss_weights(labels)`: name → weights;
    - `loss_values(labels, outputs)`: name → losses, of the same shapes;
    - `update_metrics(labels, outputs, values, weights)`.
    """

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
        gradients = []
        for (features, labels), w in zip(micro_batches, weights, strict=True):
            with tf.GradientTape() as tape:
                outputs = self(features, training=True)
                values = self.loss_values(labels, outputs)
                loss = self.optimizer.scale_loss(share_of_loss(values, w, totals))
            gradients.append(tape.gradient(loss, variables))
            self.update_metrics(labels, outputs, values, w)
        # Without next sentence prediction the pooler has no gradient, and is left as it is.
        sums = [
            (tf.add_n(parts), variable)
            for *parts, variable in zip(*gradients, variables, strict=True)
            if parts[0] is not None
        ]
        if not self.optimizer.built:
            self.optimizer.build(variables)
        self.optimizer.apply(*zip(*sums, strict=True))
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
                "sample weights are not used: the labels hold the weights there are, such as "
                "masked_lm_weights"
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
        return {"loss": tf.add_n(losses), **results}


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertPretrainer(TaskModel):
    """Masked language model and next sentence prediction over one encoder (paper, section 3.1).

    ```python
    model = BertPretrainer(BertConfig.from_name("tiny"))
    model.compile(optimizer=BertAdamW(1e-4))
    model.fit(pretraining_dataset("data", batch_size=32), steps_per_epoch=1000)
    ```

    Features are the encoder's inputs and `masked_lm_positions` int32 [B, P]; labels are
    `masked_lm_ids` int32 [B, P], `masked_lm_weights` float32 [B, P] (0 in unused slots) and
    `next_sentence_labels` int32 [B] (1 = random). Outputs are `masked_lm_logits` float32 [B, P, V]
    and `next_sentence_logits` float32 [B, 2].

    Metrics: `loss`, the sum of `masked_lm_loss` and `next_sentence_loss` (nats), `perplexity` (of
    the masked pieces), `masked_lm_accuracy` and `next_sentence_accuracy`.

    Args:
        encoder_or_config: a `BertEncoder`, or the `BertConfig` to build one from.
        next_sentence: whether next sentence prediction is part of the task.
        dtype: a Keras dtype policy for what is built here; None takes an encoder's own, or Keras's
            global policy.
        name: the model's name.

    Raises:
        ConfigError: the first argument is neither of the two.
    """

    def __init__(
        self, encoder_or_config, *, next_sentence=True, dtype=None, name="bert_pretrainer"
    ):
        encoder = _encoder(encoder_or_config, dtype)
        config, dtype = encoder.config, keras.dtype_policies.get(dtype or encoder.dtype_policy)
        inputs = {
            **{key: keras.Input((None,), dtype="int32", name=key) for key in encoder.input},
            "masked_lm_positions": keras.Input((None,), dtype="int32", name="masked_lm_positions"),
        }
        encoded = encoder({key: inputs[key] for key in encoder.input})
        masked_lm = MaskedLanguageModelHead(
            config, encoder.embeddings, name="masked_lm", dtype=dtype
        )
        outputs = {
            "masked_lm_logits": masked_lm(encoded["sequence_output"], inputs["masked_lm_positions"])
        }
        if next_sentence:
            head = NextSentenceHead(config, name="next_sentence", dtype=dtype)
            outputs["next_sentence_logits"] = head(encoded["pooled_output"])
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # The policy decides whether `compile` adds loss scaling (mixed_float16).
        self.dtype_policy = dtype
        self.encoder = encoder
        self.masked_lm = masked_lm
        self.next_sentence = next_sentence
        self.masked_lm_loss = keras.metrics.Mean("masked_lm_loss")
        self.perplexity = Perplexity("perplexity")
        self.masked_lm_accuracy = keras.metrics.Mean("masked_lm_accuracy")
        if next_sentence:
            self.next_sentence_loss = keras.metrics.Mean("next_sentence_loss")
            self.next_sentence_accuracy = keras.metrics.Mean("next_sentence_accuracy")

    @property
    def label_names(self):
        names = ("masked_lm_ids", "masked_lm_weights")
        return (*names, "next_sentence_labels") if self.next_sentence else names

    def loss_weights(self, labels):
        weights = {"masked_lm": labels["masked_lm_weights"]}
        if self.next_sentence:
            # Ones, but made from the data: to a replica that has run out of it tf.distribute feeds
            # a batch of no rows, and ones of the static shape would count rows that do not exist.
            weights["next_sentence"] = tf.cast(labels["next_sentence_labels"] >= 0, tf.float32)
        return weights

    def loss_values(self, labels, outputs):
        values = {"masked_lm": cross_entropy(labels["masked_lm_ids"], outputs["masked_lm_logits"])}
        if self.next_sentence:
            values["next_sentence"] = cross_entropy(
                labels["next_sentence_labels"], outputs["next_sentence_logits"]
            )
        return values

    def update_metrics(self, labels, outputs, values, weights):
        right = correct(labels["masked_lm_ids"], outputs["masked_lm_logits"])
        # Flat, because Keras averages over all axes but the first before it weights.
        right, loss, weight = (
            tf.reshape(x, [-1]) for x in (right, values["masked_lm"], weights["masked_lm"])
        )
        self.masked_lm_loss.update_state(loss, weight)
        self.perplexity.update_state(loss, weight)
        self.masked_lm_accuracy.update_state(right, weight)
        if self.next_sentence:
            right = correct(labels["next_sentence_labels"], outputs["next_sentence_logits"])
            self.next_sentence_loss.update_state(values["next_sentence"], weights["next_sentence"])
            self.next_sentence_accuracy.update_state(right, weights["next_sentence"])

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "next_sentence": self.next_sentence,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("encoder")), **config)


def _encoder(encoder_or_config, dtype):
    if isinstance(encoder_or_config, BertConfig):
        return BertEncoder(encoder_or_config, dtype=dtype)
    if isinstance(encoder_or_config, BertEncoder):
        return encoder_or_config
    raise ConfigError(
        "the first argument must be a BertEncoder or a BertConfig, "
        f"not {type(encoder_or_config).__name__}"
    )
