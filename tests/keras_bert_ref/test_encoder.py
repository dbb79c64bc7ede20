import dataclasses
import functools
import json
import subprocess
import sys

import numpy as np
import pytest
from numpy_bert import ACTIVATIONS, NumpyBert, random_weights
from small_bert import BATCH, CONFIG, LENGTH, encoder_features, pretraining_batch, set_weights
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_bert_ref import BertConfig, BertEncoder, BertPretrainer
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import BertError, ConfigError

SHALLOW = dataclasses.replace(CONFIG, num_hidden_layers=2)
OUTPUTS = ("sequence_output", "pooled_output", "hidden_states", "attentions")
B, S, H, L, A = BATCH, LENGTH, CONFIG.hidden_size, CONFIG.num_hidden_layers, 4


@functools.cache
def build(config=CONFIG, seed=0, width=0.3, **options):
    """Returns an encoder with all outputs, and its random weights by path."""
    encoder = BertEncoder(config, hidden_states=True, attentions=True, **options)
    weights = random_weights(encoder.trainable_variables, seed, width)
    set_weights(encoder, weights)
    return encoder, weights


@pytest.fixture
def encoder():
    return build()[0]


def run(encoder, features):
    return {name: x.numpy() for name, x in encoder(features).items()}


def real_rows(features, sequences):
    """[B, S, …] to the rows of real pieces only."""
    return np.asarray(sequences)[features["input_mask"] == 1]


def assert_outputs_equal(given, expected, tolerance):
    assert set(given) == set(expected)
    for name in expected:
        assert given[name].shape == expected[name].shape, name
        np.testing.assert_allclose(
            np.asarray(given[name], np.float64),
            expected[name],
            rtol=0,
            atol=tolerance,
            err_msg=name,
        )


@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
@pytest.mark.parametrize("width", [0.3, 0.02])
def test_every_output_equals_numpy_float64(attention, width):
    encoder, weights = build(attention=attention, width=width)
    features = encoder_features()
    given = run(encoder, features)
    assert given["sequence_output"].shape == (B, S, H)
    assert given["pooled_output"].shape == (B, H)
    assert given["hidden_states"].shape == (B, L + 1, S, H)
    assert given["attentions"].shape == (B, L, A, S, S)
    expected = NumpyBert(CONFIG, weights, attention == "left_to_right").encode(features)
    assert_outputs_equal(given, expected, 2e-5)
    # Nothing of this would be seen if all positions or rows looked alike.
    assert expected["sequence_output"].std(0).mean() > 0.1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_numpy_float64(name):
    config = dataclasses.replace(CONFIG, hidden_act=name, num_hidden_layers=1)
    encoder, weights = build(config)
    features = encoder_features()
    assert_outputs_equal(run(encoder, features), NumpyBert(config, weights).encode(features), 2e-5)


def test_the_two_forms_of_gelu_differ():
    features = encoder_features()
    exact, tanh = (
        run(build(dataclasses.replace(CONFIG, hidden_act=act))[0], features)["sequence_output"]
        for act in ("gelu", "gelu_tanh")
    )
    assert 1e-5 < np.abs(exact - tanh).max() < 1e-1


@pytest.mark.parametrize(
    ("policy", "rounding"), [("mixed_bfloat16", 2**-8), ("mixed_float16", 2**-11)]
)
@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_reduced_precision_is_close(policy, rounding, attention):
    encoder, weights = build(dtype=policy, width=0.1, attention=attention)
    assert all(v.dtype == "float32" for v in encoder.trainable_variables)
    features = encoder_features()
    expected = NumpyBert(CONFIG, weights, attention == "left_to_right").encode(features)
    given = run(encoder, features)
    for name in OUTPUTS:
        error = np.abs(given[name].astype(np.float64) - expected[name])
        # Eight roundings' worth, of values and of the terms around 1 that they are sums of.
        assert (error / (1 + np.abs(expected[name]))).max() < 8 * rounding, name


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_padding_changes_nothing_at_real_pieces(policy, attention):
    encoder, _ = build(dtype=policy, attention=attention)
    features = encoder_features()
    padding = 1 - features["input_mask"]
    other = {
        **features,
        "input_ids": features["input_ids"] + 7 * padding,
        "segment_ids": features["segment_ids"] + padding,
    }
    longer = {name: np.pad(values, ((0, 0), (0, 5))) for name, values in features.items()}
    given, changed, long = (run(encoder, x) for x in (features, other, longer))
    np.testing.assert_array_equal(given["pooled_output"], changed["pooled_output"])
    np.testing.assert_array_equal(
        real_rows(features, given["sequence_output"]),
        real_rows(features, changed["sequence_output"]),
    )
    tolerance = 1e-5 if policy == "float32" else 2e-1  # sums over S and S+5 round differently
    np.testing.assert_allclose(
        real_rows(features, given["sequence_output"]).astype(np.float32),
        real_rows(longer, long["sequence_output"]).astype(np.float32),
        rtol=0,
        atol=tolerance,
    )
    weight_of_padding = given["attentions"] * padding[:, None, None, None, :]
    assert weight_of_padding.max() == 0


def test_a_row_does_not_depend_on_the_others(encoder):
    features = encoder_features()
    whole = run(encoder, features)
    for row in (0, 5, B - 1):
        alone = run(encoder, {name: x[row : row + 1] for name, x in features.items()})
        for name in OUTPUTS:
            np.testing.assert_allclose(alone[name][0], whole[name][row], rtol=0, atol=1e-5)
    order = np.random.default_rng(3).permutation(B)
    shuffled = run(encoder, {name: x[order] for name, x in features.items()})
    for name in OUTPUTS:
        np.testing.assert_allclose(shuffled[name], whole[name][order], rtol=0, atol=1e-5)


def test_left_to_right_sees_nothing_later():
    encoder, _ = build(attention="left_to_right")
    features = encoder_features()
    features["input_mask"][:] = 1
    before = run(encoder, features)
    for place in (S - 1, 3):
        changed = {**features, "input_ids": features["input_ids"].copy()}
        changed["input_ids"][:, place:] = 42
        after = run(encoder, changed)
        np.testing.assert_array_equal(
            before["sequence_output"][:, :place], after["sequence_output"][:, :place]
        )
        assert (before["sequence_output"][:, place:] != after["sequence_output"][:, place:]).any()
    np.testing.assert_array_equal(before["attentions"], np.tril(before["attentions"]))


def test_bidirectional_sees_later_pieces(encoder):
    features = encoder_features()
    changed = {**features, "input_ids": features["input_ids"].copy()}
    changed["input_ids"][0, -1] = changed["input_ids"][0, -1] % 98 + 1
    before, after = (run(encoder, x)["sequence_output"][0, 0] for x in (features, changed))
    assert np.abs(before - after).max() > 1e-3


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_a_row_of_padding_only_is_finite(policy, attention):
    encoder, _ = build(dtype=policy, attention=attention)
    features = encoder_features()
    features["input_mask"][4] = 0
    for name, values in run(encoder, features).items():
        assert np.isfinite(values.astype(np.float32)).all(), name


def test_a_batch_of_no_rows(encoder):
    given = run(encoder, {name: x[:0] for name, x in encoder_features().items()})
    assert given["sequence_output"].shape == (0, S, H)
    assert given["pooled_output"].shape == (0, H)
    assert given["hidden_states"].shape == (0, L + 1, S, H)


def test_one_piece_alone(encoder):
    features = {name: x[:, :1] for name, x in encoder_features().items()}
    given = run(encoder, features)
    # Not equal to the last bit: some CPUs divide by way of an approximate reciprocal.
    np.testing.assert_allclose(given["attentions"], np.ones((B, L, A, 1, 1)), rtol=2e-7)


def test_frozen_weights_give_the_same_outputs():
    # Narrow weights: the embeddings' variance is then near 1e-3, and a graph optimizer that swaps
    # the epsilon of a normalization for a default of 1e-3 is found out.
    encoder, weights = build(width=0.02)
    features = {name: tf.constant(x) for name, x in encoder_features().items()}
    function = tf.function(lambda x: encoder(x)).get_concrete_function(
        {name: tf.TensorSpec([None, None], tf.int32, name) for name in features}
    )
    frozen = convert_variables_to_constants_v2(function)
    assert not [op for op in frozen.graph.get_operations() if op.type == "ReadVariableOp"]
    names = sorted(function.structured_outputs)
    given = frozen(*(features[t.op.name] for t in frozen.inputs))
    given = {name: x.numpy() for name, x in zip(names, given, strict=True)}
    assert_outputs_equal(given, NumpyBert(CONFIG, weights).encode(encoder_features()), 2e-5)


def test_a_graph_and_a_compiled_graph_give_the_same_outputs():
    encoder, _ = build(SHALLOW)
    features = encoder_features()
    eager = {name: x.astype(np.float64) for name, x in run(encoder, features).items()}
    for compiled in (False, True):
        function = tf.function(lambda x: encoder(x), jit_compile=compiled)
        tensors = {name: tf.constant(x) for name, x in features.items()}
        assert_outputs_equal({k: v.numpy() for k, v in function(tensors).items()}, eager, 2e-5)


def test_variables_of_a_base_encoder_are_those_of_the_checkpoint():
    encoder = BertEncoder(dataclasses.replace(CONFIG, num_hidden_layers=12))
    assert len(encoder.trainable_variables) == 199
    paths = [v.path for v in encoder.trainable_variables]
    assert len(set(paths)) == 199
    table = {v.path: tuple(v.shape) for v in encoder.trainable_variables}
    assert table["embeddings/word_embeddings"] == (99, 32)
    assert table["embeddings/position_embeddings"] == (16, 32)
    assert table["embeddings/token_type_embeddings"] == (2, 32)
    assert table["pooler/kernel"] == (32, 32)
    inside = [path for path in paths if path.startswith("layer_11/")]
    assert {path.removeprefix("layer_11/"): table[path] for path in inside} == {
        **{
            f"self_attention/{name}/{kind}": shape
            for name in ("query", "key", "value")
            for kind, shape in (("kernel", (32, 32)), ("bias", (32,)))
        },
        "attention_output/kernel": (32, 32),
        "attention_output/bias": (32,),
        "attention_LayerNorm/gamma": (32,),
        "attention_LayerNorm/beta": (32,),
        "intermediate/kernel": (32, 37),
        "intermediate/bias": (37,),
        "output/kernel": (37, 32),
        "output/bias": (32,),
        "output_LayerNorm/gamma": (32,),
        "output_LayerNorm/beta": (32,),
    }


@pytest.mark.parametrize(("name", "count"), [("base", 109_482_240), ("large", 335_141_888)])
def test_parameters_of_the_papers_sizes(name, count):
    # One layer and one word piece are built, and counted as often as there are: all of them would
    # fill the memory.
    config = BertConfig.from_name(name)
    encoder = BertEncoder(dataclasses.replace(config, num_hidden_layers=1, vocab_size=1))
    layer = encoder.blocks[0].count_params()
    pieces = (config.vocab_size - 1) * config.hidden_size
    assert encoder.count_params() + (config.num_hidden_layers - 1) * layer + pieces == count


def test_weights_start_as_the_paper_says():
    encoder = BertEncoder(BertConfig.from_name("tiny"))
    for variable in encoder.trainable_variables:
        values = variable.numpy()
        if variable.path.endswith("gamma"):
            np.testing.assert_array_equal(values, 1)
        elif variable.path.endswith(("beta", "bias")):
            np.testing.assert_array_equal(values, 0)
        else:
            assert np.abs(values).max() <= 0.04  # truncated at two standard deviations
            if values.size > 10_000:
                # A normal of 0.02 cut at two standard deviations has 0.88 of its width.
                assert values.std() == pytest.approx(0.02 * 0.8796, rel=0.03)
                assert abs(values.mean()) < 1e-3
    kernels = [v.numpy() for v in encoder.trainable_variables if v.path.endswith("kernel")]
    for one in kernels:
        assert sum(one.shape == other.shape and (one == other).all() for other in kernels) == 1


def test_dropout_acts_in_training_only_and_keeps_the_mean():
    config = dataclasses.replace(
        CONFIG, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.25
    )
    encoder, _ = build(config)
    features = encoder_features()
    plain = encoder(features)
    np.testing.assert_array_equal(
        plain["sequence_output"], encoder(features, training=False)["sequence_output"]
    )
    one, two = (encoder(features, training=True) for _ in range(2))
    assert np.abs(one["sequence_output"] - two["sequence_output"]).max() > 1e-2
    # State 0 is the embeddings after dropout: a quarter is zero, the rest scaled by 4/3.
    embedded, kept = plain["hidden_states"][:, 0].numpy(), one["hidden_states"][:, 0].numpy()
    dropped = kept == 0
    assert 0.22 < dropped.mean() < 0.28
    np.testing.assert_allclose(kept[~dropped], embedded[~dropped] * 4 / 3, rtol=1e-5, atol=1e-6)
    # The attention reported is that before dropout: rows sum to one.
    np.testing.assert_allclose(one["attentions"].numpy().sum(-1), 1, atol=1e-5)


def test_only_the_outputs_asked_for():
    assert set(BertEncoder(CONFIG).output) == {"sequence_output", "pooled_output"}
    assert set(BertEncoder(CONFIG, hidden_states=True).output) == set(OUTPUTS) - {"attentions"}
    assert set(BertEncoder(CONFIG, attentions=True).output) == set(OUTPUTS) - {"hidden_states"}


def test_without_a_pooler_nothing_else_changes():
    whole, weights = build(SHALLOW)
    encoder = BertEncoder(SHALLOW, pooler=False, hidden_states=True, attentions=True)
    paths = [v.path for v in whole.variables if not v.path.startswith("pooler")]
    assert [v.path for v in encoder.variables] == paths
    set_weights(encoder, weights)
    features = encoder_features()
    expected = run(whole, features)
    del expected["pooled_output"]
    assert_outputs_equal(run(encoder, features), expected, 0)
    again = BertEncoder.from_config(json.loads(json.dumps(encoder.get_config())))
    assert again.pooler is None
    assert set(again.output) == set(expected)
    # What was saved before there was a choice has a pooler.
    config = whole.get_config()
    del config["pooler"]
    assert "pooled_output" in BertEncoder.from_config(config).output


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_saved_and_reloaded_is_equal_bit_for_bit(tmp_path, policy):
    encoder, _ = build(SHALLOW, dtype=policy, attention="left_to_right", name="my_bert")
    path = tmp_path / "encoder.keras"
    encoder.save(path)
    again = keras.saving.load_model(path)
    assert isinstance(again, BertEncoder)
    assert again.config == encoder.config
    assert (again.attention, again.name) == ("left_to_right", "my_bert")
    assert again.dtype_policy.name == policy
    assert [v.path for v in again.variables] == [v.path for v in encoder.variables]
    features = encoder_features()
    before, after = run(encoder, features), run(again, features)
    for name in OUTPUTS:
        np.testing.assert_array_equal(before[name], after[name])


def test_reloads_in_a_fresh_process_without_custom_objects(tmp_path, encoder):
    features = encoder_features()
    encoder.save(tmp_path / "encoder.keras")
    np.savez(tmp_path / "features.npz", **features)
    program = """
import sys
import numpy as np
import keras_bert_ref.encoder
from keras_bert_ref._tensorflow import keras
folder = sys.argv[1]
encoder = keras.saving.load_model(f"{folder}/encoder.keras")
outputs = encoder(dict(np.load(f"{folder}/features.npz")))
np.savez(f"{folder}/outputs.npz", **{name: x.numpy() for name, x in outputs.items()})
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    after, before = np.load(tmp_path / "outputs.npz"), run(encoder, features)
    for name in OUTPUTS:
        np.testing.assert_array_equal(before[name], after[name])


def test_weights_alone_are_saved_and_loaded(tmp_path, encoder):
    path = tmp_path / "encoder.weights.h5"
    encoder.save_weights(path)
    other = BertEncoder(CONFIG, hidden_states=True, attentions=True)
    features = encoder_features()
    assert (
        np.abs(
            run(other, features)["pooled_output"] - run(encoder, features)["pooled_output"]
        ).max()
        > 0.1
    )
    other.load_weights(path)
    for name, values in run(encoder, features).items():
        np.testing.assert_array_equal(values, run(other, features)[name])


def test_the_configuration_is_plain_json(encoder):
    config = json.loads(json.dumps(encoder.get_config()))
    again = BertEncoder.from_config(config)
    assert again.config == CONFIG
    assert set(again.output) == set(OUTPUTS)


def test_is_a_layer_of_a_users_own_model(tmp_path, encoder):
    outputs = encoder(encoder.input)
    logits = keras.layers.Dense(3, name="head")(outputs["pooled_output"])
    model = keras.Model(encoder.input, {"logits": logits})
    features = encoder_features()
    before = model(features)["logits"].numpy()
    model.save(tmp_path / "own.keras")
    again = keras.saving.load_model(tmp_path / "own.keras")
    np.testing.assert_array_equal(again(features)["logits"].numpy(), before)
    assert isinstance(again.get_layer("bert"), BertEncoder)


def test_a_frozen_encoder_has_nothing_to_train():
    encoder = BertEncoder(CONFIG)
    encoder.trainable = False
    assert encoder.trainable_variables == []
    encoder.trainable = True
    encoder.blocks[0].trainable = False
    assert len(encoder.trainable_variables) == 5 + 16 * (L - 1) + 2


@pytest.mark.parametrize("kind", ["causal", None, ""])
def test_an_unknown_kind_of_attention_is_refused(kind):
    with pytest.raises(ConfigError, match=r"attention.*bidirectional or left_to_right"):
        BertEncoder(CONFIG, attention=kind)


def test_predict_reads_batches_of_two_sizes(encoder):
    rows = [encoder_features(seed, batch) for seed, batch in enumerate((B, 5))]
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in rows[0]}
    dataset = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec)
    given = encoder.predict(dataset, verbose=0)
    expected = [run(encoder, x) for x in rows]
    for name in OUTPUTS:
        np.testing.assert_allclose(
            given[name], np.concatenate([x[name] for x in expected]), rtol=0, atol=1e-5
        )


def test_a_sequence_longer_than_the_position_table_is_refused():
    with pytest.raises(ConfigError, match=r"19.*max_position_embeddings.*16"):
        BertEncoder(SHALLOW)(encoder_features(length=19))


@pytest.mark.parametrize("config", ["tiny", SHALLOW.to_dict(), None])
def test_something_else_than_a_configuration_is_refused(config):
    with pytest.raises(ConfigError, match="BertConfig"):
        BertEncoder(config)


@pytest.mark.parametrize("name", ["segment_ids", "input_mask"])
def test_values_that_would_be_misread_in_silence(name):
    features = encoder_features()
    features[name] = features[name] * 5
    plain = BertEncoder(SHALLOW)
    try:
        outputs = plain(features)
    except (BertError, tf.errors.InvalidArgumentError):
        return
    if name == "input_mask":  # or any value but 0 counts as a real piece
        features[name] = np.minimum(features[name], 1)
        np.testing.assert_allclose(
            outputs["sequence_output"], plain(features)["sequence_output"], atol=1e-6
        )
    else:
        pytest.fail("segment 5 was read as no segment at all")


def test_a_position_beyond_the_row_does_not_read_the_next_row():
    features, _ = pretraining_batch()
    features["masked_lm_positions"][0, 0] = LENGTH
    with pytest.raises((BertError, tf.errors.InvalidArgumentError)):
        BertPretrainer(SHALLOW)(features)


def test_a_dropout_rate_next_to_1():
    config = dataclasses.replace(SHALLOW, hidden_dropout_prob=1 - 1e-6)
    outputs = BertEncoder(config)(encoder_features(), training=True)
    assert np.isfinite(outputs["sequence_output"]).all()
