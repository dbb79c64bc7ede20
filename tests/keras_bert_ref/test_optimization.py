import numpy as np
import pytest
from numpy_bert import NumpyAdamW, warmup_linear

from keras_bert_ref import BertAdamW, Lamb, WarmupLinear
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError

SHAPES = {
    "dense/kernel": (5, 7),
    "dense/bias": (7,),
    "output_LayerNorm/gamma": (7,),
    "output_LayerNorm/beta": (7,),
    "embeddings/word_embeddings": (11, 3),
}
DECAYED = {"dense/kernel", "embeddings/word_embeddings"}


def variables_and_weights(seed=0):
    rng = np.random.default_rng(seed)
    weights = {
        path: rng.standard_normal(shape).astype(np.float32) for path, shape in SHAPES.items()
    }
    variables = []
    for path, values in weights.items():
        scope, name = path.split("/")
        with keras.name_scope(scope):
            variables.append(keras.Variable(values, name=name))
    assert [v.path for v in variables] == list(SHAPES)
    return variables, {path: values.astype(np.float64) for path, values in weights.items()}


def gradients_of(step):
    """Gradients whose global norm is now far above 1, now far below."""
    rng = np.random.default_rng(100 + step)
    size = 10.0 ** rng.uniform(-3, 1)
    return {
        path: (size * rng.standard_normal(shape)).astype(np.float32)
        for path, shape in SHAPES.items()
    }


@pytest.mark.parametrize("clip_norm", [1.0, None])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("kind", [BertAdamW, Lamb])
def test_fifty_steps_equal_numpy_float64(kind, clip_norm, bias_correction, continuous):
    variables, weights = variables_and_weights()
    schedule = WarmupLinear(0.05, 40, 10, continuous=continuous)
    options = {"clip_norm": clip_norm, "bias_correction": bias_correction}
    optimizer = kind(schedule, **options)
    reference = NumpyAdamW(weights, DECAYED, **options, lamb=kind is Lamb)
    norms = []
    for step in range(50):
        gradients = gradients_of(step)
        optimizer.apply([tf.constant(g) for g in gradients.values()], variables)
        norms.append(
            reference.update(
                {path: g.astype(np.float64) for path, g in gradients.items()},
                warmup_linear(step, 0.05, 40, 10, continuous),
            )
        )
        for variable, (path, values) in zip(variables, reference.weights.items(), strict=True):
            np.testing.assert_allclose(
                variable.numpy(), values, rtol=1e-5, atol=2e-6, err_msg=f"{path}, step {step}"
            )
    assert min(norms) < 0.5 and max(norms) > 5  # some clipped, some not
    assert int(optimizer.iterations) == 50


def test_decay_alone_shrinks_what_is_not_excluded():
    variables, weights = variables_and_weights()
    optimizer = BertAdamW(0.1, weight_decay_rate=0.2)
    optimizer.apply([tf.zeros_like(v) for v in variables], variables)
    for variable in variables:
        factor = 1 - 0.1 * 0.2 if variable.path in DECAYED else 1
        np.testing.assert_allclose(variable.numpy(), factor * weights[variable.path], rtol=1e-6)


def test_lamb_moves_by_the_rate_whatever_the_gradient():
    variables, weights = variables_and_weights()
    gradients = [tf.constant(1e-9 * g) for g in gradients_of(0).values()]
    Lamb(0.1, clip_norm=None, epsilon=0).apply(gradients, variables)
    for variable in variables:
        if variable.path in DECAYED:
            moved = np.linalg.norm(variable.numpy() - weights[variable.path])
            np.testing.assert_allclose(moved, 0.1 * np.linalg.norm(weights[variable.path]), 1e-5)


def test_lamb_starts_a_variable_of_zeros():
    variable = keras.Variable(np.zeros((2, 3), np.float32), name="kernel")
    Lamb(0.1).apply([tf.ones((2, 3))], [variable])  # nothing to scale to
    np.testing.assert_allclose(variable.numpy(), -0.1, rtol=1e-5)
    Lamb(0.1).apply([tf.zeros((2, 3))], [variable])
    assert np.isfinite(variable.numpy()).all()


def test_lamb_is_exact_for_large_variables():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((30522, 256)).astype(np.float32) * 0.02
    variable = keras.Variable(values, name="kernel")
    gradient = rng.standard_normal(values.shape).astype(np.float32)
    optimizer = Lamb(0.01, weight_decay_rate=0, clip_norm=None, epsilon=0)
    optimizer.apply([tf.constant(gradient)], [variable])
    values = values.astype(np.float64)
    update = np.sign(gradient)  # of the first step
    wanted = values - 0.01 * np.linalg.norm(values) / np.linalg.norm(update) * update
    np.testing.assert_allclose(variable.numpy(), wanted, rtol=0, atol=2e-8)


def test_what_is_not_decayed_can_be_chosen():
    variables, weights = variables_and_weights()
    optimizer = BertAdamW(0.1, weight_decay_rate=0.2, no_decay=("embeddings$", "gamma"))
    optimizer.apply([tf.zeros_like(v) for v in variables], variables)
    kept = {v.path for v in variables if (v.numpy() == weights[v.path].astype(np.float32)).all()}
    assert kept == {"output_LayerNorm/gamma", "embeddings/word_embeddings"}


def test_the_first_update_is_not_bias_corrected():
    # m/√v of the first step is 0.1·g/√(0.001·g²) = √10 (without ε), and 1 when corrected.
    for corrected, size in ((False, 10**0.5), (True, 1.0)):
        variable = keras.Variable(np.zeros(3, np.float32), name="kernel")
        optimizer = BertAdamW(0.01, epsilon=1e-12, clip_norm=None, bias_correction=corrected)
        optimizer.apply([tf.constant([3.0, -2.0, 0.5])], [variable])
        np.testing.assert_allclose(variable.numpy(), -0.01 * size * np.array([1, -1, 1]), rtol=1e-5)


def test_gradients_as_rows_equal_dense_ones():
    rows = tf.IndexedSlices(
        values=tf.constant([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]),
        indices=tf.constant([4, 0, 4]),  # row 4 twice: to be added up before it is squared
        dense_shape=(11, 3),
    )
    dense = np.zeros((11, 3), np.float32)
    dense[0], dense[4] = [4, 5, 6], [8, 10, 12]
    results = []
    for gradient in (rows, tf.constant(dense)):
        variables, _ = variables_and_weights()
        optimizer = BertAdamW(0.01)
        for _ in range(3):
            optimizer.apply([tf.zeros_like(v) for v in variables[:-1]] + [gradient], variables)
        results.append(variables[-1].numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-7)


def test_clipping_sees_all_gradients_together():
    variables, _ = variables_and_weights()
    gradients = gradients_of(3)
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
    optimizer = BertAdamW(0.1, clip_norm=norm / 4)
    optimizer.apply([tf.constant(g) for g in gradients.values()], variables)
    for path, gradient in gradients.items():
        [m] = [v for v in optimizer.variables if v.path.endswith(path.replace("/", "_") + "_m")]
        np.testing.assert_allclose(m.numpy(), 0.1 * gradient / 4, rtol=1e-5, err_msg=path)


def test_in_a_graph_and_compiled_it_is_the_same():
    def after_five_steps(wrap):
        variables, _ = variables_and_weights()
        optimizer = BertAdamW(WarmupLinear(0.05, 5, 2))
        optimizer.build(variables)
        step = wrap(lambda gradients: optimizer.apply(gradients, variables))
        for number in range(5):
            step([tf.constant(g) for g in gradients_of(number).values()])
        assert int(optimizer.iterations) == 5
        return np.concatenate([v.numpy().ravel() for v in variables])

    eager = after_five_steps(lambda step: step)
    for compiled in (False, True):
        given = after_five_steps(lambda step, c=compiled: tf.function(step, jit_compile=c))
        np.testing.assert_allclose(given, eager, rtol=0, atol=1e-6)


W, T = 10, 50


@pytest.mark.parametrize(
    ("continuous", "expected"),
    [
        (False, {0: 0, 9: 0.9, 10: 0.8, 11: 0.78, 49: 0.02, 50: 0, 55: 0}),
        (True, {0: 0, 9: 0.9, 10: 1, 11: 0.975, 49: 0.025, 50: 0, 55: 0}),
    ],
)
def test_warmup_linear(continuous, expected):
    schedule = WarmupLinear(2e-3, T, W, continuous=continuous)
    for step, share in expected.items():
        for given in (step, tf.constant(step, tf.int64), tf.constant(step, tf.float32)):
            assert float(schedule(given)) == pytest.approx(2e-3 * share, rel=1e-5, abs=1e-10)
            assert warmup_linear(step, 2e-3, T, W, continuous) == pytest.approx(2e-3 * share)
    steps = np.arange(60)
    together = schedule(tf.constant(steps)).numpy()
    one_by_one = [warmup_linear(step, 2e-3, T, W, continuous) for step in steps]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("continuous", [False, True])
def test_without_warmup_the_first_rate_is_the_peak(continuous):
    schedule = WarmupLinear(1e-3, 4, continuous=continuous)
    rates = [float(schedule(step)) for step in range(6)]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0, 0])


def test_a_long_run_keeps_its_precision():
    schedule = WarmupLinear(1e-4, 100_000_000, 10_000)
    assert float(schedule(99_999_000)) == pytest.approx(1e-9, rel=1e-2)


OPTIONS = {
    "weight_decay_rate": 0.02,
    "beta_1": 0.8,
    "beta_2": 0.99,
    "epsilon": 1e-7,
    "clip_norm": 0.5,
    "no_decay": ("gamma$", "beta$"),
    "bias_correction": True,
    "name": "mine",
}


@pytest.mark.parametrize("rate", [3e-4, WarmupLinear(3e-4, 50, 10, continuous=True)])
def test_configuration_round_trip(rate):
    optimizer = BertAdamW(rate, **OPTIONS)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, BertAdamW)
    assert again.get_config() == optimizer.get_config()
    for name, value in OPTIONS.items():
        assert getattr(again, name) == value
    results = []
    for one in (optimizer, again):
        variables, _ = variables_and_weights()
        for step in range(3):
            one.apply([tf.constant(g) for g in gradients_of(step).values()], variables)
        results.append(np.concatenate([v.numpy().ravel() for v in variables]))
    np.testing.assert_array_equal(*results)


def test_the_rate_of_a_running_optimizer_is_the_schedules():
    variables, _ = variables_and_weights()
    optimizer = BertAdamW(WarmupLinear(1e-3, 10, 4))
    for step in range(6):
        assert float(optimizer.learning_rate) == pytest.approx(warmup_linear(step, 1e-3, 10, 4))
        optimizer.apply([tf.zeros_like(v) for v in variables], variables)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"learning_rate": 0, "steps": 10}, "learning_rate"),
        ({"learning_rate": -1e-3, "steps": 10}, "learning_rate"),
        ({"learning_rate": float("nan"), "steps": 10}, "learning_rate"),
        ({"learning_rate": float("inf"), "steps": 10}, "learning_rate"),
        ({"learning_rate": 1e-3, "steps": 0}, "steps"),
        ({"learning_rate": 1e-3, "steps": -5}, "steps"),
        ({"learning_rate": 1e-3, "steps": 10, "warmup_steps": 10}, "warmup_steps"),
        ({"learning_rate": 1e-3, "steps": 10, "warmup_steps": -1}, "warmup_steps"),
    ],
)
def test_a_schedule_out_of_range_is_refused(arguments, name):
    with pytest.raises(ConfigError, match=name):
        WarmupLinear(**arguments)


@pytest.mark.parametrize("value", [0, -1.0])
def test_a_clip_norm_out_of_range_is_refused(value):
    with pytest.raises(ConfigError, match="clip_norm"):
        BertAdamW(clip_norm=value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"learning_rate": "1e-3", "steps": 10}, "learning_rate"),
        ({"learning_rate": None, "steps": 10}, "learning_rate"),
        ({"learning_rate": 1e-3, "steps": "10"}, "steps"),
    ],
)
def test_a_schedule_of_the_wrong_type_is_refused(arguments, name):
    with pytest.raises(ConfigError, match=name):
        WarmupLinear(**arguments)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("learning_rate", -1.0),
        ("learning_rate", float("nan")),
        ("clip_norm", float("nan")),
        ("weight_decay_rate", -0.1),
        ("beta_1", 1.0),
        ("beta_2", -0.1),
        ("beta_2", 1.0),
        ("epsilon", -1e-6),
        ("no_decay", "bias"),  # taken apart into b, i, a, s: next to nothing is decayed
        ("no_decay", ("(",)),
    ],
)
def test_an_option_out_of_range_is_refused(option, value):
    with pytest.raises(ConfigError, match=option):
        BertAdamW(**{option: value})
