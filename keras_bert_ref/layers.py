"""The layers of the encoder: embeddings, self-attention, transformer block.

Inside the encoder, activations are two-dimensional, one row a token: a dense layer is then one
matrix product that TensorFlow fuses with its bias and activation, and an element-wise operation
runs over one flat block. Only attention looks at sequences.

What goes from block to block, and what the blocks add to it, stays float32 whatever the compute
dtype: only the matrix products and what is between them are done in lower precision. Rounding the
sums of every block to bfloat16 costs two thirds of the accuracy and saves no time.

Axes in comments: B batch, S sequence, T = B·S tokens, H hidden, A heads, d = H/A, V vocabulary.
"""

import contextlib
import contextvars

from keras_bert_ref import ops
from keras_bert_ref._tensorflow import keras, tf

_blank = contextvars.ContextVar("blank", default=False)

# Added to the score of a key that must not be seen. Finite, so that a row without any visible key
# (padding in a batch) gives a defined result, and within float16's range.
_HIDDEN_KEY = -10000.0


def dense(units, config, *, activation=None, name, dtype):
    """Returns a dense layer that starts as the paper's do: truncated normal 0.02, zero bias."""
    return keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=initializer(config),
        name=name,
        dtype=dtype,
    )


def product(x, dense):
    """Returns x [T, M] times the kernel [M, N] of a dense layer, without its bias."""
    return tf.matmul(x, tf.cast(dense.kernel, x.dtype))


def initializer(config):
    """Returns a fresh truncated normal initializer of the configuration's width."""
    if _blank.get():
        return keras.initializers.Zeros()
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


@contextlib.contextmanager
def blank_weights():
    """Lets the weights of layers made within start at zero, for a loader that fills them.

    Drawing 110 million random numbers takes longer than reading as many from a file.
    """
    token = _blank.set(True)
    try:
        yield
    finally:
        _blank.reset(token)


def fresh_value(variable, config):
    """Returns what a weight of a new model starts from."""
    if variable.path.endswith(("beta", "bias")):
        return tf.zeros(variable.shape)
    if variable.path.endswith("gamma"):
        return tf.ones(variable.shape)
    return initializer(config)(variable.shape, "float32")


def lookup(table, ids, *, training):
    """Returns the rows `ids` of `table`, [..., H].

    While training, the gradient is one dense tensor. TensorFlow's own, a list of rows, would turn
    the gradient of the tied decoder (all V rows of the same table) into a list as well before
    adding them up.
    """
    if not training:
        return tf.gather(table, ids)

    @tf.custom_gradient
    def run(table):
        def gradient(dy):
            rows = tf.reshape(dy, [-1, dy.shape[-1]])
            return tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), tf.shape(table)[0])

        return tf.gather(table, ids), gradient

    return run(table)


class Dropout(keras.layers.Layer):
    """Drops elements while training; the kept ones are scaled up by the share that is kept."""

    def __init__(self, rate, *, name, dtype):
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.rate = rate
        self.seeds = keras.random.SeedGenerator(name="seeds")

    def call(self, x, training=False):
        seed = next_seed(self.seeds) if training else None
        return ops.dropout(x, rate=self.rate, seed=seed, training=training)


def next_seed(seeds):
    """Returns the next int32 [2] of a `SeedGenerator`, another one on each replica."""
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group if context is not None else 0
    return tf.cast(seeds.next(), tf.int32) + tf.stack([replica, 0])


class LayerNorm(keras.layers.Layer):
    """Layer normalization over the last axis, computed in float32 whatever the compute dtype."""

    def __init__(self, epsilon, *, name, dtype):
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.epsilon = epsilon

    def build(self, shape):
        size = shape[-1:]
        self.gamma = self.add_weight(shape=size, initializer="ones", name="gamma", autocast=False)
        self.beta = self.add_weight(shape=size, initializer="zeros", name="beta", autocast=False)

    def call(self, x, training=False):
        gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        return ops.layer_norm(x, gamma, beta, self.epsilon, training=training)


class ResidualNorm(LayerNorm):
    """Dropout, addition and layer normalization: how each half of a block ends.

    Call arguments:
        x: [T, H], what the half computed, still without the bias of its last dense layer.
        bias: [H], that bias.
        residual: float32 [T, H], what the half started from.

    Returns:
        float32 [T, H].
    """

    def __init__(self, rate, epsilon, *, name, dtype):
        super().__init__(epsilon, name=name, dtype=dtype)
        self.rate = rate
        self.seeds = keras.random.SeedGenerator(name="seeds")

    def call(self, x, bias, residual, training=False):
        return ops.dropout_add_norm(
            x,
            tf.convert_to_tensor(bias),
            residual,
            tf.convert_to_tensor(self.gamma),
            tf.convert_to_tensor(self.beta),
            rate=self.rate,
            epsilon=self.epsilon,
            seed=next_seed(self.seeds) if training else None,
            training=training,
        )


class Embeddings(keras.layers.Layer):
    """Word + position + segment embeddings, normalized, then dropout (paper, section 3, figure 2).

    Call arguments:
        input_ids: int [B, S], ids of word pieces.
        segment_ids: int [B, S], 0 for sentence A, 1 for sentence B.
        positions: int [B, S], the place of each piece in its sequence; None where that is its
            place in the row.

    Returns:
        float32 [T, H], rows in the order of the flattened input.
    """

    def __init__(self, config, *, name, dtype):
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.config = config
        self.norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)
        self.dropout = Dropout(config.hidden_dropout_prob, name="dropout", dtype=dtype)

    def build(self, *_):
        config = self.config

        def table(rows, name):
            # Looked up and summed in float32: casting a whole table to look up a few rows of it
            # would cost more than the lookup.
            return self.add_weight(
                shape=(rows, config.hidden_size),
                initializer=initializer(config),
                name=name,
                autocast=False,
            )

        self.word_embeddings = table(config.vocab_size, "word_embeddings")
        self.position_embeddings = table(config.max_position_embeddings, "position_embeddings")
        self.token_type_embeddings = table(config.type_vocab_size, "token_type_embeddings")
        self.norm.build((None, config.hidden_size))

    def call(self, input_ids, segment_ids, positions=None, training=False):
        config = self.config
        table = tf.convert_to_tensor(self.word_embeddings)
        words = lookup(table, input_ids, training=training)  # [B, S, H]
        table = tf.convert_to_tensor(self.position_embeddings)
        if positions is None:
            places = table[: tf.shape(input_ids)[1]]  # [S, H]
        else:
            places = lookup(table, positions, training=training)  # [B, S, H]
        # A product with one-hot rows: its gradient is a product too, not a scatter into two rows.
        # One-hot rows of zeros are what a segment out of range would silently become.
        tf.debugging.Assert(
            tf.reduce_all((segment_ids >= 0) & (segment_ids < config.type_vocab_size)),
            [f"segment_ids must be at least 0 and below type_vocab_size {config.type_vocab_size}"],
        )
        segments = tf.matmul(
            tf.one_hot(tf.reshape(segment_ids, [-1]), config.type_vocab_size),
            self.token_type_embeddings,
        )  # [T, H]
        x = tf.reshape(words + places, [-1, config.hidden_size]) + segments
        return self.dropout(self.norm(x), training=training)


class AttentionBias(keras.layers.Layer):
    """Turns the mask of real pieces into what is added to the attention scores.

    In a row of one sequence only keys are masked: a padding position attends to the real ones like
    any other, and nobody reads what it becomes.

    Args:
        attention: "bidirectional", or "left_to_right" where a position sees itself and those before
            it (the LTR model of the paper's table 5).
        packed: whether a row may hold several sequences, which must not see each other.

    Call arguments:
        input_mask: int [B, S], 1 for real pieces, n for those of the nth sequence if packed; 0 for
            padding.

    Returns:
        [B, 1, 1, S]; if packed or left to right [B, 1, S, S].
    """

    def __init__(self, attention, packed=False, *, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.attention = attention
        self.packed = packed

    def call(self, input_mask):
        keys = input_mask[:, None, None, :]
        visible = keys == input_mask[:, None, :, None] if self.packed else tf.not_equal(keys, 0)
        visible = tf.cast(visible, self.compute_dtype)
        if self.attention == "left_to_right":
            length = tf.shape(input_mask)[1]
            visible *= tf.linalg.band_part(tf.ones([length, length], self.compute_dtype), -1, 0)
        return (1 - visible) * _HIDDEN_KEY


class SelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention of a sequence with itself.

    Call arguments:
        x: [T, H].
        attention_bias: [B, 1, 1 or S, S], added to the scores.

    Returns:
        context [T, H], and the attention probabilities [B, A, S, S] before dropout.
    """

    def __init__(self, config, *, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.query = dense(config.hidden_size, config, name="query", dtype=dtype)
        self.key = dense(config.hidden_size, config, name="key", dtype=dtype)
        self.value = dense(config.hidden_size, config, name="value", dtype=dtype)
        self.rate = config.attention_probs_dropout_prob
        self.seeds = keras.random.SeedGenerator(name="seeds")

    def build(self, *_):
        for projection in (self.query, self.key, self.value):
            projection.build((None, self.config.hidden_size))

    def call(self, x, attention_bias, training=False):
        config, scale = self.config, self.config.head_size**-0.5
        batch, length = tf.shape(attention_bias)[0], tf.shape(attention_bias)[3]

        # Three variables as in every published checkpoint, but one product: joining the kernels
        # costs little, while three gradients of x to add up would cost as much as a product.
        parts = (self.query, self.key, self.value)
        kernel = tf.concat([part.kernel for part in parts], axis=1)  # [H, 3H]
        bias = tf.concat([part.bias for part in parts], axis=0)
        rows = ops.add_bias(tf.matmul(x, kernel), bias, training=training)  # [T, 3H]
        rows = tf.reshape(rows, [batch, length, 3, config.num_attention_heads, config.head_size])
        query, key, value = tf.unstack(tf.transpose(rows, [2, 0, 3, 1, 4]))  # [B, A, S, d]
        scores = tf.matmul(query, key, transpose_b=True)  # [B, A, S, S]
        dropped, probabilities = ops.softmax_dropout(
            scores,
            attention_bias,
            scale=scale,
            rate=self.rate,
            seed=next_seed(self.seeds) if training else None,
            training=training,
        )
        context = tf.transpose(tf.matmul(dropped, value), [0, 2, 1, 3])  # [B, S, A, d]
        return tf.reshape(context, [-1, config.hidden_size]), probabilities


class TransformerBlock(keras.layers.Layer):
    """One layer of the encoder: attention, then a feed-forward network, each added and normalized.

    Normalization comes after the addition, as in Vaswani et al. (2017) and the original BERT.

    Call arguments:
        x: float32 [T, H].
        attention_bias: [B, 1, 1 or S, S].

    Returns:
        float32 [T, H], and the attention probabilities [B, A, S, S].
    """

    def __init__(self, config, *, name, dtype):
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.config = config
        hidden, inner = config.hidden_size, config.intermediate_size
        rate, epsilon = config.hidden_dropout_prob, config.layer_norm_eps
        self.attention = SelfAttention(config, name="self_attention", dtype=dtype)
        self.attention_output = dense(hidden, config, name="attention_output", dtype=dtype)
        self.attention_norm = ResidualNorm(rate, epsilon, name="attention_LayerNorm", dtype=dtype)
        self.intermediate = dense(inner, config, name="intermediate", dtype=dtype)
        self.feed_forward_output = dense(hidden, config, name="output", dtype=dtype)
        self.output_norm = ResidualNorm(rate, epsilon, name="output_LayerNorm", dtype=dtype)

    def build(self, *_):
        rows = (None, self.config.hidden_size)
        self.attention.build()
        self.attention_output.build(rows)
        self.attention_norm.build(rows)
        self.intermediate.build(rows)
        self.feed_forward_output.build((None, self.config.intermediate_size))
        self.output_norm.build(rows)

    def call(self, x, attention_bias, training=False):
        # The biases of these dense layers are added by what follows the product, in the same pass.
        context, probabilities = self.attention(x, attention_bias, training=training)
        y = product(context, self.attention_output)
        x = self.attention_norm(y, self.attention_output.bias, x, training=training)  # [T, H]
        y = ops.bias_activation(
            product(tf.cast(x, self.compute_dtype), self.intermediate),
            tf.convert_to_tensor(self.intermediate.bias),
            self.config.hidden_act,
            training=training,
        )  # [T, 4H]
        y = product(y, self.feed_forward_output)
        return self.output_norm(
            y, self.feed_forward_output.bias, x, training=training
        ), probabilities
