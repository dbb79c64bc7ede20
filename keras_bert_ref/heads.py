"""What sits on top of the encoder, one class per task.

Axes in comments: B batch, S sequence, P predictions, H hidden, V vocabulary.
"""

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.layers import LayerNorm, dense
from keras_bert_ref.ops import activation


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
