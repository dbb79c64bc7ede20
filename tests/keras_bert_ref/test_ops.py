"""Every operation against its formula in float64, whose gradients TensorFlow derives."""

import numpy as np
import pytest
from small_bert import CONFIG, encoder_features

from keras_bert_ref import BertEncoder, ops
from keras_bert_ref._tensorflow import tf

EPSILON = 1e-12
SEED = tf.constant([3, 141])

# Rows are 96 wide, which the compiled sums fold in halves, or 37, which they do not.
WIDTHS = (96, 37)
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 3e-3}


def normal(*shape, seed=0, dtype="float32", scale=1.0):
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return tf.cast(tf.constant(values, tf.float32), dtype)


def values_and_gradients(function, *inputs):
    """Returns the result of `function`, and the gradients of a weighted sum of its elements."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(*inputs)
        weights = tf.cast(normal(*result.shape, seed=9, dtype="bfloat16"), result.dtype)
        total = tf.reduce_sum(result * weights)
    return [result, *tape.gradient(total, inputs)]


def assert_equals_float64(function, reference, *inputs):
    """Each result may be off by rounding: a few units in the last place of its largest element."""
    wide = [tf.cast(x, tf.float64) for x in inputs]
    found = values_and_gradients(function, *inputs)
    for number, (got, want) in enumerate(
        zip(found, values_and_gradients(reference, *wide), strict=True)
    ):
        assert got.dtype == inputs[max(number - 1, 0)].dtype
        size = float(tf.reduce_max(tf.abs(want)))
        tolerance = TOLERANCE[inputs[0].dtype.name]
        np.testing.assert_allclose(
            tf.cast(got, tf.float64), want, rtol=0, atol=tolerance * size, err_msg=f"{number}"
        )


def layer_norm(x, gamma, beta):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + EPSILON) * gamma + beta


def dropped(x, rate):
    return tf.where(ops.keep(tf.shape(x), rate, SEED), x / (1 - rate), tf.zeros([], x.dtype))


ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + tf.math.erf(x / np.sqrt(2.0))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bias_activation(name, training):
    assert_equals_float64(
        lambda x, bias: ops.bias_activation(x, bias, name, training=training),
        lambda x, bias: ACTIVATIONS[name](x + bias),
        normal(13, 37, scale=2.0),
        normal(37, seed=1),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bias_activation_in_half_precision(dtype):
    assert_equals_float64(
        lambda x, bias: ops.bias_activation(x, bias, "gelu", training=True),
        lambda x, bias: ACTIVATIONS["gelu"](x + bias),
        normal(13, 37, dtype=dtype, scale=2.0),
        normal(37, seed=1, dtype=dtype),
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_add_bias(dtype, training):
    assert_equals_float64(
        lambda x, bias: ops.add_bias(x, bias, training=training),
        tf.add,
        normal(13, 37, dtype=dtype),
        normal(37, seed=1, dtype=dtype),
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(width, dtype, training):
    assert_equals_float64(
        lambda *inputs: ops.layer_norm(*inputs, EPSILON, training=training),
        layer_norm,
        normal(13, width, dtype=dtype) + 1,
        normal(width, seed=1),
        normal(width, seed=2),
    )


@pytest.mark.parametrize("training", [False, True])
def test_layer_norm_of_rows_far_from_zero_and_of_rows_that_are_constant(training):
    rows = normal(5, 96, scale=1e-3) + tf.constant([[100.0], [-100.0], [0.0], [0.0], [0.0]])
    rows *= tf.constant([[1.0], [1.0], [1.0], [1e-3], [0.0]])
    ones, zeros = tf.ones([96]), tf.zeros([96])
    found = ops.layer_norm(rows, ones, zeros, EPSILON, training=training)
    wide = tf.cast(rows, tf.float64)
    want = layer_norm(wide, 1.0, 0.0)
    # The mean may be off by two units in its last place, and 0.001 becomes 1.
    np.testing.assert_allclose(found[:2], want[:2], atol=2 * np.spacing(np.float32(100)) / 1e-3)
    np.testing.assert_allclose(found[2:], want[2:], atol=1e-5)
    np.testing.assert_array_equal(found[4], zeros)


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
def test_dropout_add_norm(width, dtype, rate):
    assert_equals_float64(
        lambda *inputs: ops.dropout_add_norm(
            *inputs, rate=rate, epsilon=EPSILON, seed=SEED, training=True
        ),
        lambda x, bias, residual, gamma, beta: layer_norm(
            residual + dropped(x + bias, rate), gamma, beta
        ),
        normal(13, width, dtype=dtype),
        normal(width, seed=1, dtype=dtype),
        normal(13, width, seed=2, dtype=dtype),
        normal(width, seed=3),
        normal(width, seed=4),
    )


def test_dropout_add_norm_in_inference():
    inputs = [normal(*s, seed=n) for n, s in enumerate([(13, 37), (37,), (13, 37), (37,), (37,)])]
    assert_equals_float64(
        lambda *inputs: ops.dropout_add_norm(
            *inputs, rate=0.25, epsilon=EPSILON, seed=None, training=False
        ),
        lambda x, bias, residual, gamma, beta: layer_norm(residual + x + bias, gamma, beta),
        *inputs,
    )


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", WIDTHS)
def test_softmax_dropout(length, dtype, rate):
    # Some keys are hidden, as padding is. The last sequence sees none and must still be defined;
    # there the scores are lost in the sum with the bias, so let them be zero.
    bias = np.zeros([3, 1, 1, length], np.float32)
    bias[1, ..., length // 2 :] = -10000
    bias[2] = -10000
    scores = normal(3, 4, 5, length, dtype=dtype, scale=8.0)
    scores *= tf.constant([1, 1, 0], dtype)[:, None, None, None]
    mask = tf.constant(bias, dtype)
    options = {"scale": 0.125, "rate": rate, "seed": SEED, "training": True}
    assert_equals_float64(
        lambda scores: ops.softmax_dropout(scores, mask, **options)[0],
        lambda scores: dropped(tf.nn.softmax(scores * 0.125 + bias), rate),
        scores,
    )


@pytest.mark.parametrize("training", [False, True])
def test_probabilities_before_dropout_have_their_gradient(training):
    scores, bias = normal(3, 4, 5, 37), tf.zeros([3, 1, 1, 37])
    options = {"scale": 0.125, "rate": 0.25, "seed": SEED, "training": training}
    assert_equals_float64(
        lambda scores: sum(ops.softmax_dropout(scores, bias, **options)),
        lambda scores: (
            dropped(tf.nn.softmax(scores * 0.125), 0.25 * training) + tf.nn.softmax(scores * 0.125)
        ),
        scores,
    )


def test_dropout_scales_up_what_it_keeps_and_drops_the_same_from_the_gradient():
    x = normal(13, 37) + 10
    y, dx = values_and_gradients(lambda x: ops.dropout(x, rate=0.25, seed=SEED, training=True), x)
    kept = ops.keep([13, 37], 0.25, SEED).numpy()
    np.testing.assert_allclose(y, np.where(kept, x / 0.75, 0), rtol=1e-6)
    np.testing.assert_array_equal(dx.numpy() != 0, kept)
    np.testing.assert_array_equal(ops.dropout(x, rate=0.25, seed=None, training=False), x)
    np.testing.assert_array_equal(ops.dropout(x, rate=0.0, seed=SEED, training=True), x)


@pytest.mark.parametrize("rate", [0.0, 1e-4, 0.1, 0.5, 0.999])
def test_the_share_kept_is_that_asked_for(rate):
    count = 2**22
    kept = ops.keep([count], rate, SEED).numpy()
    assert abs(kept.sum() - count * (1 - rate)) <= 5 * np.sqrt(count * rate * (1 - rate))


def test_masks_look_independent():
    """Correlations are within five standard deviations of none: elements, rows, steps, seeds."""
    rows, width = 512, 768

    def mask(*seed):
        return ops.keep([rows, width], 0.5, tf.constant(seed)).numpy() - 0.5

    def assert_unrelated(one, other):
        assert abs(np.mean(one * other)) * 4 < 5 / np.sqrt(one.size)

    base = mask(17, 0)
    flat = base.ravel()
    for lag in (*range(1, 33), 64, 128, width - 1, width, width + 1, 2 * width):
        assert_unrelated(flat[lag:], flat[:-lag])
    for other in [(17, step) for step in (1, 2, 3, 1000)] + [(18, 0), (-17, 0), (0, 17)]:
        for lag in (0, 1, 2, width):
            assert_unrelated(flat[lag:], mask(*other).ravel()[: flat.size - lag])
    for axis in (0, 1):  # no row and no column is favoured: the sums vary as those of coins do
        sums = base.sum(axis) * 2
        assert 0.8 < np.mean(sums**2) / base.shape[axis] < 1.2


def test_a_seed_gives_the_same_mask_everywhere():
    once = ops.keep([13, 37], 0.5, SEED)
    np.testing.assert_array_equal(once, ops.keep([13, 37], 0.5, SEED))
    compiled = tf.function(lambda seed: ops.keep([13, 37], 0.5, seed), jit_compile=True)
    np.testing.assert_array_equal(once, compiled(SEED))
    assert (once.numpy() != ops.keep([13, 37], 0.5, tf.constant([3, 142])).numpy()).any()


def test_inside_a_step_that_is_compiled_as_a_whole_values_are_the_same():
    inputs = [normal(*s, seed=n) for n, s in enumerate([(13, 96), (96,), (13, 96), (96,), (96,)])]

    def step(*inputs):
        return values_and_gradients(
            lambda *inputs: ops.dropout_add_norm(
                *inputs, rate=0.25, epsilon=EPSILON, seed=SEED, training=True
            ),
            *inputs,
        )

    for got, want in zip(tf.function(step, jit_compile=True)(*inputs), step(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_shapes_may_differ_from_call_to_call():
    @tf.function(input_signature=[tf.TensorSpec([None, 96]), tf.TensorSpec([None, 4, None, None])])
    def step(x, scores):
        bias = tf.zeros([tf.shape(scores)[0], 1, 1, tf.shape(scores)[3]])
        options = {"rate": 0.25, "seed": SEED, "training": True}
        with tf.GradientTape() as tape:
            tape.watch([x, scores])
            y = ops.dropout_add_norm(
                x, tf.ones([96]), x, tf.ones([96]), tf.ones([96]), epsilon=EPSILON, **options
            )
            probabilities, _ = ops.softmax_dropout(scores, bias, scale=1.0, **options)
            loss = tf.reduce_sum(y**2) + tf.reduce_sum(probabilities**2)
        return loss, *tape.gradient(loss, [x, scores])

    for batch, length in ((3, 5), (2, 7), (0, 7)):
        loss, dx, dscores = step(normal(batch * length, 96), normal(batch, 4, length, length))
        assert np.isfinite(loss) and (loss > 0) == (batch > 0)
        assert dx.shape == (batch * length, 96) and dscores.shape == (batch, 4, length, length)


def test_inference_holds_nothing_that_waits_for_a_compiler():
    encoder = BertEncoder(CONFIG)
    features = {name: tf.constant(values) for name, values in encoder_features().items()}

    def compiled_functions(training):
        graph = tf.function(lambda: encoder(features, training=training)).get_concrete_function()
        library = graph.graph.as_graph_def().library.function
        return [f.signature.name for f in library if f.attr["_XlaMustCompile"].b]

    assert compiled_functions(training=False) == []
    assert compiled_functions(training=True) != []
