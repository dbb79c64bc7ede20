"""The work between matrix products: bias and activation, normalization, softmax, dropout.

Done operation by operation this takes longer on CPU than the products, because each operation reads
and writes all activations. For training, each function below is therefore one compiled pass over
memory forward and one backward, with a gradient written by hand that keeps only what it needs. The
matrix products stay outside: those of XLA on CPU are several times slower than oneDNN's.

`training` decides in every function which of the two runs. The other form, for inference, is stock
TensorFlow and serves as the definition: grappler fuses it into the products, no new shape waits for
a compiler, and a SavedModel holds nothing that a server could lack. Inside a step that is compiled
as a whole (GPU, TPU) the compiled functions are simply part of it.

Statistics and sums are computed in float32 whatever the dtype of the inputs; results have the dtype
of the first input, except where said.
"""

import functools
import math

from keras_bert_ref._tensorflow import tf

# One program for each set of shapes, and one trace for all layers.
compiled = functools.partial(tf.function, jit_compile=True, autograph=False)


def _gelu_slope(x):
    density = tf.exp(-0.5 * tf.square(x)) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + tf.math.erf(x * math.sqrt(0.5))) + x * density


def _gelu_tanh_slope(x):
    scale, cubic = math.sqrt(2 / math.pi), 0.044715 * tf.square(x)
    t = tf.tanh(scale * x * (1 + cubic))
    return 0.5 * (1 + t + x * (1 - tf.square(t)) * scale * (1 + 3 * cubic))


# `BertConfig.hidden_act` → the function and its derivative.
_ACTIVATIONS = {
    "gelu": (lambda x: tf.nn.gelu(x, approximate=False), _gelu_slope),
    "gelu_tanh": (lambda x: tf.nn.gelu(x, approximate=True), _gelu_tanh_slope),
    "relu": (tf.nn.relu, lambda x: tf.cast(x > 0, x.dtype)),
    "tanh": (tf.tanh, lambda x: 1 - tf.square(tf.tanh(x))),
    "linear": (tf.identity, tf.ones_like),
}


def activation(name):
    """Returns the activation function that `BertConfig.hidden_act` names."""
    return _ACTIVATIONS[name][0]


def bias_activation(x, bias, name, *, training):
    """Returns activation(x + bias), the second half of a dense layer.

    Args:
        x: [T, N].
        bias: [N].
        name: an activation that `BertConfig.hidden_act` names.
        training: whether gradients are wanted.
    """
    if not training:
        return activation(name)(tf.nn.bias_add(x, tf.cast(bias, x.dtype)))

    @tf.custom_gradient
    def run(x, bias):
        # Nothing is kept but the product itself: the sum and the slope are cheaper to redo.
        return _bias_activation(x, bias, name), lambda dy: _bias_activation_gradient(
            dy, x, bias, name
        )

    return run(x, bias)


@compiled
def _bias_activation(x, bias, name):
    function, _ = _ACTIVATIONS[name]
    return tf.cast(function(_float(x) + _float(bias)), x.dtype)


@compiled
def _bias_activation_gradient(dy, x, bias, name):
    _, slope = _ACTIVATIONS[name]
    dx = _float(dy) * slope(_float(x) + _float(bias))
    return tf.cast(dx, x.dtype), tf.cast(tf.reduce_sum(dx, axis=0), bias.dtype)


def add_bias(x, bias, *, training):
    """Returns x [T, N] + bias [N]; TensorFlow fuses it into the product that x comes from.

    The gradient of the bias is a sum over rows. As a product it runs at the speed of memory, while
    the stock kernel takes several times as long in bfloat16.

    Args:
        x: [T, N].
        bias: [N].
        training: whether gradients are wanted.
    """
    if not training:
        return tf.nn.bias_add(x, bias)

    @tf.custom_gradient
    def run(x, bias):
        def gradient(dy):
            ones = tf.ones([1, tf.shape(dy)[0]], dy.dtype)
            return dy, tf.reshape(tf.matmul(ones, dy), [-1])

        return tf.nn.bias_add(x, bias), gradient

    return run(x, bias)


def layer_norm(x, gamma, beta, epsilon, *, training):
    """Returns (x - mean) / √(variance + ε) · γ + β, the statistics being those of each row.

    Args:
        x: [..., H].
        gamma, beta: float32 [H].
        epsilon: ε.
        training: whether gradients are wanted.
    """
    if not training:
        centered = _float(x) - tf.reduce_mean(_float(x), axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        return tf.cast(centered * tf.math.rsqrt(variance + epsilon) * gamma + beta, x.dtype)

    @tf.custom_gradient
    def run(x, gamma, beta):
        y, normal, scale = _layer_norm(x, gamma, beta, epsilon)
        return y, lambda dy: _layer_norm_gradient(dy, normal, scale, gamma)

    return run(x, gamma, beta)


def _normalize(x, epsilon):
    """Returns x normalized, and the factor 1 / √(variance + ε) [..., 1]."""
    width = tf.cast(tf.shape(x)[-1], tf.float32)
    centered = x - _row_sum(x) / width
    scale = tf.math.rsqrt(_row_sum(tf.square(centered)) / width + epsilon)
    return centered * scale, scale


def _normalize_gradient(dnormal, normal, scale):
    # Shifting or stretching the rows of x leaves `normal` as it is: the gradient has no part in
    # these two directions.
    width = tf.cast(tf.shape(normal)[-1], tf.float32)
    shift = _row_sum(dnormal) / width
    stretch = _row_sum(dnormal * normal) / width
    return scale * (dnormal - shift - normal * stretch)


def _row_sum(x):
    """Returns the sum over the last axis, which stays as 1."""
    return _fold(tf.add, tf.reduce_sum, x)


def _fold(combine, reduce, x):
    # XLA on CPU adds up a row one number after the other, and in a loop of its own. Halves added to
    # each other a few times over use the vector unit, in the loop that computes the numbers (and
    # round less).
    while x.shape[-1] is not None and x.shape[-1] > 32 and x.shape[-1] % 2 == 0:
        left, right = tf.split(x, 2, axis=-1)
        x = combine(left, right)
    return reduce(x, axis=-1, keepdims=True)


@compiled
def _layer_norm(x, gamma, beta, epsilon):
    normal, scale = _normalize(_float(x), epsilon)
    return tf.cast(normal * gamma + beta, x.dtype), tf.cast(normal, x.dtype), scale


@compiled
def _layer_norm_gradient(dy, normal, scale, gamma):
    dy, normal, dtype = _float(dy), _float(normal), dy.dtype
    dx = _normalize_gradient(dy * gamma, normal, scale)
    rows = list(range(dy.shape.rank - 1))
    return tf.cast(dx, dtype), tf.reduce_sum(dy * normal, rows), tf.reduce_sum(dy, rows)


def dropout_add_norm(x, bias, residual, gamma, beta, *, rate, epsilon, seed, training):
    """Returns layer_norm(residual + dropout(x + bias)), in the dtype of the residual.

    Args:
        x: [T, H], the product of the half's last dense layer.
        bias: [H], that layer's.
        residual: [T, H], what the half started from.
        gamma, beta: float32 [H].
        rate: the share of elements that dropout sets to zero.
        epsilon: the ε of the normalization.
        seed: int32 [2], for `keep`; not looked at unless training.
        training: whether gradients are wanted and elements dropped.
    """
    if not training:
        total = residual + tf.cast(x, residual.dtype) + tf.cast(bias, residual.dtype)
        return layer_norm(total, gamma, beta, epsilon, training=False)

    @tf.custom_gradient
    def run(x, bias, residual, gamma, beta):
        y, normal, scale = _dropout_add_norm(x, bias, residual, gamma, beta, seed, rate, epsilon)

        def gradient(dy):
            return _dropout_add_norm_gradient(dy, normal, scale, bias, gamma, seed, rate)

        return y, gradient

    return run(x, bias, residual, gamma, beta)


@compiled
def _dropout_add_norm(x, bias, residual, gamma, beta, seed, rate, epsilon):
    total = _float(residual) + _drop(_float(x) + _float(bias), rate, seed)
    normal, scale = _normalize(total, epsilon)
    return tf.cast(normal * gamma + beta, residual.dtype), tf.cast(normal, x.dtype), scale


@compiled
def _dropout_add_norm_gradient(dy, normal, scale, bias, gamma, seed, rate):
    x_dtype, residual_dtype = normal.dtype, dy.dtype
    dy, normal = _float(dy), _float(normal)
    dresidual = _normalize_gradient(dy * gamma, normal, scale)
    dx = _drop(dresidual, rate, seed)
    return (
        tf.cast(dx, x_dtype),
        tf.cast(tf.reduce_sum(dx, axis=0), bias.dtype),
        tf.cast(dresidual, residual_dtype),
        tf.reduce_sum(dy * normal, axis=0),
        tf.reduce_sum(dy, axis=0),
    )


def softmax_dropout(scores, bias, *, scale, rate, seed, training):
    """Returns softmax(scores · scale + bias) over the last axis after dropout, and before it.

    Args:
        scores: [B, A, S, S].
        bias: [B, 1, 1 or S, S], a constant: it gets no gradient.
        scale: a number.
        rate: the share of elements that dropout sets to zero.
        seed: int32 [2], for `keep`; not looked at unless training.
        training: whether gradients are wanted and elements dropped.
    """
    probabilities = tf.nn.softmax(scores * scale + bias)
    if not training:
        return probabilities, probabilities

    @tf.custom_gradient
    def run(scores):
        dropped, kept = _softmax_dropout(scores, bias, seed, scale, rate)
        return dropped, lambda dy: _softmax_dropout_gradient(dy, kept, seed, scale, rate)

    # While training nobody but distillation reads the second result, and TensorFlow leaves out of a
    # graph what nobody reads.
    return run(scores), probabilities


@compiled
def _softmax_dropout(scores, bias, seed, scale, rate):
    scores, dtype = _float(scores) * scale + _float(bias), scores.dtype
    exponentials = tf.exp(scores - _fold(tf.maximum, tf.reduce_max, scores))
    probabilities = exponentials / _row_sum(exponentials)
    dropped = _drop(probabilities, rate, seed)
    return tf.cast(dropped, dtype), tf.cast(probabilities, dtype)


@compiled
def _softmax_dropout_gradient(dy, probabilities, seed, scale, rate):
    dprobabilities = _drop(_float(dy), rate, seed)
    probabilities = _float(probabilities)
    mean = _row_sum(dprobabilities * probabilities)
    return tf.cast(scale * probabilities * (dprobabilities - mean), dy.dtype)


def dropout(x, *, rate, seed, training):
    """Returns x with a share `rate` of its elements set to zero, and the rest scaled up for it.

    Args:
        x: any shape.
        rate: a number in [0, 1).
        seed: int32 [2], for `keep`; not looked at unless training.
        training: whether elements are dropped at all.
    """
    if not training or rate == 0:
        return x

    @tf.custom_gradient
    def run(x):
        return _dropout(x, seed, rate), lambda dy: _dropout(dy, seed, rate)

    return run(x)


@compiled
def _dropout(x, seed, rate):
    return tf.cast(_drop(_float(x), rate, seed), x.dtype)


def _drop(x, rate, seed):
    if rate == 0:
        return x
    return tf.where(keep(tf.shape(x), rate, seed), x / (1 - rate), 0.0)


def keep(shape, rate, seed):
    """Returns bool of `shape`: True with probability 1 - rate, independently for each element.

    An element's 32 random bits are a hash of its number and the seed. So forward and backward pass
    draw the same mask without keeping it, and drawing is a dozen integer instructions in the loop
    that needs the mask: a fifth of what TensorFlow's generators take, and they leave the bits in
    memory. The hash is a multiply and xor-shift finalizer, with constants found by a search for
    the smallest bias (https://github.com/skeeto/hash-prospector), and half of the seed goes in
    between its two rounds, so that two seeds do not give shifted copies of one stream.

    Args:
        shape: int [rank], below 2³² elements.
        rate: a number in [0, 1), in steps of 2⁻³².
        seed: int32 [2].
    """
    seed = tf.bitcast(seed, tf.uint32)
    first = _hash(seed[0], 0)
    second = _hash(seed[1], first)
    numbers = tf.bitcast(tf.range(tf.reduce_prod(shape)), tf.uint32)
    bits = _hash(tf.bitwise.bitwise_xor(numbers, first), second)
    return tf.reshape(bits, shape) >= tf.constant(round(rate * 2**32), tf.uint32)


def _hash(x, key):
    def fold(x, bits):
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32)))

    x = fold(x, 16) * tf.constant(0x7FEB352D, tf.uint32)
    x = tf.bitwise.bitwise_xor(x, tf.cast(key, tf.uint32))
    x = fold(x, 15) * tf.constant(0x846CA68B, tf.uint32)
    return fold(x, 16)


def _float(x):
    return tf.cast(x, tf.float32)
