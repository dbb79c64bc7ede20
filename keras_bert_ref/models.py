"""The task models: an encoder and heads, ready for `compile` and `fit`.

Axes in comments: B batch, S sequence, P predictions, N choices, C classes, V vocabulary.
"""

from collections.abc import Sequence

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import CheckpointError, ConfigError
from keras_bert_ref.heads import (
    ClassificationHead,
    MaskedLanguageModelHead,
    MultipleChoiceHead,
    NextSentenceHead,
    SpanHead,
)
from keras_bert_ref.losses import cross_entropy, scored, scored_cross_entropy
from keras_bert_ref.metrics import Perplexity, correct
from keras_bert_ref.task_model import (
    OneLossModel,
    TaskModel,
    encoder_and_policy,
    encoder_inputs,
    stored_encoder,
    stored_labels,
)


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
    and `next_sentence_logits` float32 [B, 2]. Where an encoder takes N sequences to a row, the
    labels of the next sentence are [B, N], negative in unused places, and the logits [B, N, 2].

    Metrics: `loss`, the sum of `masked_lm_loss` and `next_sentence_loss` (nats), `perplexity` (of
    the masked pieces), `masked_lm_accuracy` and `next_sentence_accuracy`.

    Args:
        encoder_or_config: a `BertEncoder`, or the `BertConfig` to build one from.
        next_sentence: whether next sentence prediction is part of the task.
        dtype: a Keras dtype policy for what is built here; None takes an encoder's own, or Keras's
            global policy.
        name: the model's name.

    Raises:
        ConfigError: the first argument is neither of the two, or next sentence prediction is asked
            of an encoder without a pooler.
    """

    head = "masked_lm"

    def __init__(
        self, encoder_or_config, *, next_sentence=True, dtype=None, name="bert_pretrainer"
    ):
        encoder, dtype = encoder_and_policy(
            encoder_or_config, dtype, pooler=next_sentence, packed=True
        )
        config, inputs = encoder.config, encoder_inputs(encoder)
        encoded = encoder(inputs)
        positions = keras.Input((None,), dtype="int32", name="masked_lm_positions")
        masked_lm = MaskedLanguageModelHead(
            config, encoder.embeddings, name="masked_lm", dtype=dtype
        )
        outputs = {"masked_lm_logits": masked_lm(encoded["sequence_output"], positions)}
        if next_sentence:
            head = NextSentenceHead(config, name="next_sentence", dtype=dtype)
            outputs["next_sentence_logits"] = head(encoded["pooled_output"])
        super().__init__(
            encoder,
            inputs={**inputs, "masked_lm_positions": positions},
            outputs=outputs,
            dtype=dtype,
            name=name,
        )
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
        self._check_places(labels)
        weights = {"masked_lm": labels["masked_lm_weights"]}
        if self.next_sentence:
            weights["next_sentence"] = scored(labels["next_sentence_labels"])
        return weights

    def loss_values(self, labels, outputs):
        values = {"masked_lm": cross_entropy(labels["masked_lm_ids"], outputs["masked_lm_logits"])}
        if self.next_sentence:
            values["next_sentence"] = scored_cross_entropy(
                labels["next_sentence_labels"], outputs["next_sentence_logits"]
            )
        return values

    def _check_places(self, labels):
        # Without next sentence prediction too: an encoder for rows of one would take a packed row
        # for a single sequence, and nothing else would show it.
        if "next_sentence_labels" not in labels:
            return
        sequences = self.encoder.sequences_per_row
        wanted = [None] if sequences == 1 else [None, sequences]
        shape = tf.TensorShape(labels["next_sentence_labels"].shape)
        if not shape.is_compatible_with(wanted):
            raise ConfigError(
                f"next_sentence_labels have shape {shape}, the model's encoder takes {sequences} "
                "to a row: its sequences_per_row must be that of pretraining_dataset"
            )

    def update_metrics(self, labels, outputs, values, weights):
        right = correct(labels["masked_lm_ids"], outputs["masked_lm_logits"])
        right, loss, weight = _flat(right, values["masked_lm"], weights["masked_lm"])
        self.masked_lm_loss.update_state(loss, weight)
        self.perplexity.update_state(loss, weight)
        self.masked_lm_accuracy.update_state(right, weight)
        if self.next_sentence:
            right = correct(labels["next_sentence_labels"], outputs["next_sentence_logits"])
            right, loss, weight = _flat(right, values["next_sentence"], weights["next_sentence"])
            self.next_sentence_loss.update_state(loss, weight)
            self.next_sentence_accuracy.update_state(right, weight)

    def get_config(self):
        return {**super().get_config(), "next_sentence": self.next_sentence}

    @classmethod
    def from_checkpoint(
        cls, checkpoint, *, next_sentence=None, sequences_per_row=1, dtype=None, **options
    ):
        """Builds the model of an open `Checkpoint`, still without its weights.

        Raises:
            CheckpointError: it has no head for masked language modeling.
        """
        if not checkpoint.has("masked_lm"):
            fault = checkpoint.faults.get("masked_lm")
            raise CheckpointError(
                fault
                or f"{checkpoint.where} has no head for masked language modeling: "
                "BertEncoder.from_pretrained reads its encoder, and BertPretrainer(encoder) puts a "
                "new head on it"
            )
        if next_sentence is None:
            next_sentence = checkpoint.has("next_sentence")
        encoder = stored_encoder(
            checkpoint, dtype, pooler=next_sentence, sequences_per_row=sequences_per_row
        )
        return cls(encoder, next_sentence=next_sentence, **options)


def _flat(*tensors):
    """Flattens, because Keras averages over all axes but the first before it weights."""
    return [tf.reshape(x, [-1]) for x in tensors]


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertClassifier(OneLossModel):
    """Classes of a text or of a pair, or a number for it (paper, section 4.1).

    ```python
    model = BertClassifier(encoder, ["negative", "positive"])
    model.compile(optimizer=BertAdamW(2e-5))
    model.fit(dataset, epochs=3)  # batches of (features, {"label_ids": int32 [B]})
    ```

    Features are the encoder's inputs. With `labels`, the output is `logits` float32 [B, C] and the
    label `label_ids` int32 [B], negative where it is not to be scored; metrics are `loss` (nats)
    and `accuracy`. Without, the output is `scores` float32 [B] and the label `targets` float32 [B],
    NaN where it is not to be scored; the only metric is `loss`, the mean squared error.

    Args:
        encoder_or_config: a `BertEncoder` with a pooler, or the `BertConfig` to build one from.
        labels: the names of the C classes in the order of their ids; None for a regression.
        dropout: rate of dropout on the pooled output.
        dtype: a Keras dtype policy for what is built here; None takes an encoder's own, or Keras's
            global policy.
        name: the model's name.

    Raises:
        ConfigError: an argument is of the wrong kind, the labels are fewer than two or not
            distinct, or the encoder has no pooler.
    """

    head = "classifier"

    def __init__(
        self, encoder_or_config, labels=None, *, dropout=0.1, dtype=None, name="bert_classifier"
    ):
        labels = None if labels is None else _class_names(labels)
        encoder, dtype = encoder_and_policy(encoder_or_config, dtype, pooler=True)
        head = ClassificationHead(
            len(labels) if labels else 1,
            encoder.config,
            rate=_dropout_rate(dropout),
            name="classifier",
            dtype=dtype,
        )
        inputs = encoder_inputs(encoder)
        logits = head(encoder(inputs)["pooled_output"])
        super().__init__(
            encoder,
            inputs=inputs,
            outputs={"logits": logits} if labels else {"scores": keras.ops.squeeze(logits, -1)},
            accuracy=labels is not None,
            dtype=dtype,
            name=name,
        )
        self.classifier = head
        self.labels = labels
        self.dropout = dropout

    @property
    def label_names(self):
        return ("label_ids",) if self.labels else ("targets",)

    def loss_weights(self, labels):
        if self.labels:
            return super().loss_weights(labels)
        return {"loss": 1.0 - tf.cast(tf.math.is_nan(self._targets(labels)), tf.float32)}

    def loss_values(self, labels, outputs):
        if self.labels:
            return super().loss_values(labels, outputs)
        targets = self._targets(labels)
        # A NaN would survive its weight of 0.
        targets = tf.where(tf.math.is_nan(targets), 0.0, targets)
        return {"loss": tf.square(outputs["scores"] - targets)}

    def _targets(self, labels):
        targets = tf.cast(labels["targets"], tf.float32)
        if targets.shape.rank != 1:  # else [B, 1] would broadcast against the scores to [B, B]
            raise ConfigError(f"targets must be of shape [B], not {targets.shape}")
        return targets

    def get_config(self):
        labels = list(self.labels) if self.labels else None
        return {**super().get_config(), "labels": labels, "dropout": self.dropout}

    @classmethod
    def from_checkpoint(cls, checkpoint, *, dtype=None, **options):
        """Builds the model of an open `Checkpoint`, still without its weights."""
        if "labels" not in options:
            options["labels"] = stored_labels(checkpoint, cls.head)
        encoder = stored_encoder(checkpoint, dtype, pooler=True)
        return cls(encoder, **{"dropout": checkpoint.dropout, **options})


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertSpanLabeler(OneLossModel):
    """The answer to a question as a span of the passage (paper, sections 4.2 and 4.3).

    Features are the encoder's inputs. Outputs are `start_logits` and `end_logits` float32 [B, S],
    in which padding is far below all else. Labels are `start_positions` and `end_positions`
    int32 [B], inclusive and 0 for [CLS] where there is no answer; a row with a negative one is not
    scored.

    Metrics: `loss`, the mean of the two cross entropies (nats), and `accuracy`, the share of rows
    whose start and end are both right.

    Args:
        encoder_or_config: a `BertEncoder`, or the `BertConfig` to build one (without a pooler)
            from.
        dtype: a Keras dtype policy for what is built here; None takes an encoder's own, or Keras's
            global policy.
        name: the model's name.

    Raises:
        ConfigError: the first argument is neither of the two.
    """

    head = "span"
    label_names = ("start_positions", "end_positions")

    def __init__(self, encoder_or_config, *, dtype=None, name="bert_span_labeler"):
        encoder, dtype = encoder_and_policy(encoder_or_config, dtype, pooler=False)
        head = SpanHead(encoder.config, name="span", dtype=dtype)
        inputs = encoder_inputs(encoder)
        start, end = head(encoder(inputs)["sequence_output"], inputs["input_mask"])
        super().__init__(
            encoder,
            inputs=inputs,
            outputs={"start_logits": start, "end_logits": end},
            dtype=dtype,
            name=name,
        )
        self.span = head

    def loss_weights(self, labels):
        return {"loss": scored(labels["start_positions"]) * scored(labels["end_positions"])}

    def loss_values(self, labels, outputs):
        start = scored_cross_entropy(labels["start_positions"], outputs["start_logits"])
        end = scored_cross_entropy(labels["end_positions"], outputs["end_logits"])
        return {"loss": (start + end) / 2}

    def right(self, labels, outputs):
        start = correct(labels["start_positions"], outputs["start_logits"])
        return start * correct(labels["end_positions"], outputs["end_logits"])

    @classmethod
    def from_checkpoint(cls, checkpoint, *, dtype=None, **options):
        """Builds the model of an open `Checkpoint`, still without its weights."""
        return cls(stored_encoder(checkpoint, dtype, pooler=False), **options)


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertMultipleChoice(OneLossModel):
    """The best of N choices, such as continuations of a sentence (paper, section 4.4).

    Features are the encoder's inputs with an axis more, int32 [B, N, S]: each row holds the N
    choices, all with the text they are choices for. The output is `logits` float32 [B, N], the
    label `label_ids` int32 [B], negative where it is not to be scored. Metrics are `loss` (nats)
    and `accuracy`.

    Args:
        encoder_or_config: a `BertEncoder` with a pooler, or the `BertConfig` to build one from.
        dropout: rate of dropout on the pooled output.
        dtype: a Keras dtype policy for what is built here; None takes an encoder's own, or Keras's
            global policy.
        name: the model's name.

    Raises:
        ConfigError: an argument is of the wrong kind, or the encoder has no pooler.
    """

    head = "choice"

    def __init__(self, encoder_or_config, *, dropout=0.1, dtype=None, name="bert_multiple_choice"):
        encoder, dtype = encoder_and_policy(encoder_or_config, dtype, pooler=True)
        head = MultipleChoiceHead(
            encoder.config, rate=_dropout_rate(dropout), name="choice", dtype=dtype
        )
        inputs, rows = encoder_inputs(encoder, axes=2), _Rows(name="rows", dtype=dtype)
        encoded = encoder({key: rows(x) for key, x in inputs.items()})
        super().__init__(
            encoder,
            inputs=inputs,
            outputs={"logits": head(encoded["pooled_output"], inputs["input_ids"])},
            dtype=dtype,
            name=name,
        )
        self.choice = head
        self.dropout = dropout

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}

    @classmethod
    def from_checkpoint(cls, checkpoint, *, dtype=None, **options):
        """Builds the model of an open `Checkpoint`, still without its weights."""
        encoder = stored_encoder(checkpoint, dtype, pooler=True)
        return cls(encoder, **{"dropout": checkpoint.dropout, **options})


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertTagger(OneLossModel):
    """A tag for each piece, such as the kind of entity it belongs to (paper, section 5.3).

    Features are the encoder's inputs. The output is `logits` float32 [B, S, C], the label
    `label_ids` int32 [B, S], negative at pieces that are not scored: padding, [CLS], [SEP] and, in
    the paper, all but the first piece of a word. Metrics are `loss` (nats) and `accuracy`, both
    over the scored pieces.

    Args:
        encoder_or_config: a `BertEncoder`, or the `BertConfig` to build one (without a pooler)
            from.
        labels: the names of the C tags in the order of their ids.
        dropout: rate of dropout on the last hidden state.
        dtype: a Keras dtype policy for what is built here; None takes an encoder's own, or Keras's
            global policy.
        name: the model's name.

    Raises:
        ConfigError: an argument is of the wrong kind, or the labels are fewer than two or not
            distinct.
    """

    head = "tagger"

    def __init__(self, encoder_or_config, labels, *, dropout=0.1, dtype=None, name="bert_tagger"):
        labels = _class_names(labels)
        encoder, dtype = encoder_and_policy(encoder_or_config, dtype, pooler=False)
        head = ClassificationHead(
            len(labels), encoder.config, rate=_dropout_rate(dropout), name="tagger", dtype=dtype
        )
        inputs = encoder_inputs(encoder)
        super().__init__(
            encoder,
            inputs=inputs,
            outputs={"logits": head(encoder(inputs)["sequence_output"])},
            dtype=dtype,
            name=name,
        )
        self.tagger = head
        self.labels = labels
        self.dropout = dropout

    def get_config(self):
        return {**super().get_config(), "labels": list(self.labels), "dropout": self.dropout}

    @classmethod
    def from_checkpoint(cls, checkpoint, *, dtype=None, **options):
        """Builds the model of an open `Checkpoint`, still without its weights."""
        if "labels" not in options:
            options["labels"] = stored_labels(checkpoint, cls.head)
        encoder = stored_encoder(checkpoint, dtype, pooler=False)
        return cls(encoder, **{"dropout": checkpoint.dropout, **options})


class _Rows(keras.layers.Layer):
    """The choices as rows of their own: [B, N, S] to [B·N, S]."""

    def call(self, x):
        length = tf.shape(x)[-1] if x.shape[-1] is None else x.shape[-1]
        return tf.reshape(x, [-1, length])


def _class_names(labels):
    listed = isinstance(labels, Sequence) and not isinstance(labels, str)  # a set has no order
    names = tuple(labels) if listed else ()
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"labels must be a list of at least two names, not {labels!r}")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise ConfigError(f"labels cannot be written as UTF-8: {labels!r}") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"labels must differ from each other, but {twice!r} comes twice")
    return names


def _dropout_rate(rate):
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ConfigError(f"dropout must be in [0, 1), not {rate!r}")
    return rate
