"""What sits on top of the encoder: one dense layer and little else, as the paper has it.

Axes in comments: B batch, S sequence, P predictions, N choices, C classes, H hidden, V vocabulary.
"""

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.layers import Dropout, LayerNorm, dense
from keras_bert_ref.ops import activation

# The span logit of a padding position. Its exp is zero in float32, and it is finite, so that a row
# of nothing but padding has a defined loss.
_PADDING_LOGIT = -10000.0


class MaskedLanguageModelHead(keras.layers.Layer):
    """Scores every piece of the vocabulary at the masked positions (paper, section 3.1, task 1).

    A dense layer with the encoder's activation and a layer normalization, then a product with the
    word embeddings themselves plus a bias of its own. Only the positions asked for are projected
    onto the vocabulary.

    Args:
        config: the encoder's `BertConfig`.
        embeddings: the encoder's `Embeddings` layer, whose word table is the decoder.

    Call arguments:
        sequence_output: [B, S, H].
        positions: int [B, P], each in [0, S).

    Returns:
        float32 logits [B, P, V].
    """

    def __init__(self, config, embeddings, *, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.embeddings = embeddings
        self.transform = dense(
            config.hidden_size,
            config,
            activation=activation(config.hidden_act),
            name="transform",
            dtype=dtype,
        )
        self.norm = LayerNorm(config.layer_norm_eps, name="transform_LayerNorm", dtype=dtype)

    def build(self, *_):
        rows = (None, self.config.hidden_size)
        self.transform.build(rows)
        self.norm.build(rows)
        self.bias = self.add_weight(
            shape=(self.config.vocab_size,), initializer="zeros", name="output_bias", autocast=False
        )

    def call(self, sequence_output, positions):
        masked = tf.gather(sequence_output, positions, batch_dims=1)  # [B, P, H]
        x = self.norm(self.transform(tf.reshape(masked, [-1, self.config.hidden_size])))  # [B·P, H]
        table = tf.cast(self.embeddings.word_embeddings, self.compute_dtype)
        logits = tf.cast(tf.matmul(x, table, transpose_b=True), tf.float32) + self.bias
        return tf.reshape(logits, [*tf.unstack(tf.shape(positions)), self.config.vocab_size])


class NextSentenceHead(keras.layers.Layer):
    """Scores whether sentence B follows A (0) or is a random one (1) (section 3.1, task 2).

    Call arguments:
        pooled_output: [B, H].

    Returns:
        float32 logits [B, 2].
    """

    def __init__(self, config, *, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.output_dense = dense(2, config, name="output", dtype=dtype)

    def build(self, *_):
        self.output_dense.build((None, self.config.hidden_size))

    def call(self, pooled_output):
        return tf.cast(self.output_dense(pooled_output), tf.float32)


class ClassificationHead(keras.layers.Layer):
    """Scores classes: dropout, then one dense layer (sections 4.1 and 5.3).

    Args:
        units: C, the number of classes; 1 for a regression.
        config: the encoder's `BertConfig`.
        rate: of dropout.

    Call arguments:
        x: [..., H], one vector a text (the pooled output) or one a piece (the sequence output).

    Returns:
        float32 logits [..., C].
    """

    def __init__(self, units, config, *, rate, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.dropout = Dropout(rate, name="dropout", dtype=dtype)
        self.output_dense = dense(units, config, name="output", dtype=dtype)

    def build(self, *_):
        self.output_dense.build((None, self.config.hidden_size))

    def call(self, x, training=False):
        return tf.cast(self.output_dense(self.dropout(x, training=training)), tf.float32)


class MultipleChoiceHead(ClassificationHead):
    """Scores each choice by its product with one vector (section 4.4).

    Call arguments:
        pooled_output: [B·N, H].
        input_ids: int [B, N, S], which tells B from N.

    Returns:
        float32 logits [B, N].
    """

    def __init__(self, config, *, rate, name, dtype):
        super().__init__(1, config, rate=rate, name=name, dtype=dtype)

    def call(self, pooled_output, input_ids, training=False):
        scores = super().call(pooled_output, training=training)  # [B·N, 1]
        return tf.reshape(scores, tf.shape(input_ids)[:2])


class SpanHead(keras.layers.Layer):
    """Scores each piece as the start and as the end of the answer (section 4.2).

    Call arguments:
        sequence_output: [B, S, H].
        input_mask: int [B, S], 1 for real pieces, 0 for padding.

    Returns:
        Two float32 logits [B, S], of the start and of the end.
    """

    def __init__(self, config, *, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.output_dense = dense(2, config, name="output", dtype=dtype)

    def build(self, *_):
        self.output_dense.build((None, self.config.hidden_size))

    def call(self, sequence_output, input_mask):
        logits = tf.cast(self.output_dense(sequence_output), tf.float32)  # [B, S, 2]
        # The original lets padding compete: all its batches are of one length. Here a batch is as
        # long as its longest row, and neither the loss nor the answer of a row may depend on that.
        real = tf.not_equal(input_mask, 0)[:, :, None]
        return tuple(tf.unstack(tf.where(real, logits, _PADDING_LOGIT), axis=-1))
