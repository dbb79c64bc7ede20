"""Checkpoints that other libraries wrote, read by nothing but the name tables.

`tests/fixtures/checkpoints` says how they were made; `expected.npz` is what those libraries
computed with them.
"""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_bert_ref import BertConfig, BertPretrainer
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.checkpoints import keras_hub, model_garden
from keras_bert_ref.errors import CheckpointError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
MODEL_GARDEN = ("model_garden", "model_garden_2020", "model_garden_v2")
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def read_model_garden(name):
    """Returns the configuration and name → array of a Model Garden fixture."""
    reader = tf.train.load_checkpoint(str(FIXTURES / name / "bert_model.ckpt-1"))
    tensors = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    config = BertConfig.from_json(FIXTURES / name / "bert_config.json")
    return model_garden.as_computed(config), tensors


def read_keras_hub():
    """Returns the configuration and path → array of the preset."""
    tensors = {}

    def visit(path, item):
        if isinstance(item, h5py.Dataset):
            tensors[path] = item[()]

    with h5py.File(FIXTURES / "keras_hub" / "model.weights.h5") as weights:
        weights.visititems(visit)
    settings = keras_hub.read_settings(preset_json("config.json"))
    return BertConfig(**settings), tensors


def preset_json(file):
    return json.loads((FIXTURES / "keras_hub" / file).read_text(encoding="utf-8"))


def shapes(tensors):
    return {name: np.shape(value) for name, value in tensors.items()}


def values(located, tensors):
    """Returns path → array in our shapes, having checked the stored ones."""
    for name, stored_shape, _ in located.values():
        assert tensors[name].shape == stored_shape, name
    return {path: tensors[name].reshape(shape) for path, (name, _, shape) in located.items()}


def outputs(config, weights, expected):
    """Returns what this library computes from `weights`, and the paths it has no values for."""
    model = BertPretrainer(config)
    missing = {v.path for v in model.trainable_variables} - set(weights)
    for variable in model.trainable_variables:
        if variable.path in weights:
            assert variable.shape == weights[variable.path].shape, variable.path
            variable.assign(weights[variable.path])
    features = {key: expected[key] for key in ("input_ids", "input_mask", "segment_ids")}
    given = dict(model.encoder(features))
    if "masked_lm_positions" in expected:
        given |= model(features | {"masked_lm_positions": expected["masked_lm_positions"]})
    return {key: np.asarray(value) for key, value in given.items()}, missing


def assert_equal(given, expected, keys):
    for key in keys:
        one, other = given[key], expected[key]
        if key == "sequence_output":
            real = expected["input_mask"] == 1
            one, other = one[real], other[real]
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", MODEL_GARDEN)
def test_model_garden_outputs_are_its_own(name):
    config, tensors = read_model_garden(name)
    assert model_garden.recognise(shapes(tensors))
    located = model_garden.locate(shapes(tensors), config)
    expected = np.load(FIXTURES / name / "expected.npz")
    given, missing = outputs(config, values(located, tensors), expected)

    heads = {path for path in missing if path.startswith(("masked_lm/", "next_sentence/"))}
    assert missing == heads
    assert len(heads) == (0 if name == "model_garden_v2" else 7)
    compared = set(expected) - {"input_ids", "input_mask", "segment_ids", "masked_lm_positions"}
    assert compared >= {"sequence_output", "pooled_output"}
    assert_equal(given, expected, compared)


@pytest.mark.parametrize("name", MODEL_GARDEN)
def test_every_model_garden_tensor_is_accounted_for(name):
    config, tensors = read_model_garden(name)
    used = [tensor for tensor, _, _ in model_garden.locate(shapes(tensors), config).values()]
    assert len(used) == len(set(used))
    left = {key for key in tensors if key not in used and not model_garden.bookkeeping(key)}
    # Beside the pooler of next sentence prediction lies the encoder's, which nothing trained.
    unused = {f"encoder/_pooler_layer/{leaf}{SUFFIX}" for leaf in ("kernel", "bias")}
    assert left == (unused if name == "model_garden_v2" else set())


@pytest.mark.parametrize("name", ["model_garden", "model_garden_v2"])
@pytest.mark.parametrize(
    "prefix", ["", "model/", "model/encoder_network/", "model/layer_with_weights-0/"]
)
def test_the_encoder_is_found_whatever_it_was_saved_as(name, prefix):
    config, tensors = read_model_garden(name)
    known = shapes(tensors)
    renamed = {key.replace("encoder/", prefix, 1): shape for key, shape in known.items()}
    before = model_garden.locate(known, config)
    after = model_garden.locate(renamed, config)
    assert {
        path: (key.replace("encoder/", prefix, 1), *rest) for path, (key, *rest) in before.items()
    } == after


def test_optimizer_slots_are_bookkeeping():
    config, tensors = read_model_garden("model_garden")
    known = shapes(tensors)
    slots = {
        key.replace(SUFFIX, f"/.OPTIMIZER_SLOT/optimizer/{slot}{SUFFIX}"): shape
        for key, shape in known.items()
        for slot in ("m", "v")
        if key.startswith("encoder/")
    }
    counters = dict.fromkeys((f"optimizer/iter{SUFFIX}", f"global_step{SUFFIX}"), ())
    assert all(map(model_garden.bookkeeping, slots | counters))
    assert model_garden.locate(known | slots | counters, config) == model_garden.locate(
        known, config
    )
    assert not any(map(model_garden.bookkeeping, (key for key in known if "encoder/" in key)))


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("bert/encoder/layer_0/attention/self/query/kernel",),
        (f"model/layer-0/kernel{SUFFIX}", f"save_counter{SUFFIX}"),
    ],
)
def test_other_checkpoints_are_not_the_model_gardens(names):
    assert not model_garden.recognise(dict.fromkeys(names, (3, 4)))


def test_a_shape_at_odds_with_the_configuration_shows():
    config, tensors = read_model_garden("model_garden")
    known = shapes(tensors)
    name, stored_shape, own_shape = model_garden.locate(known, config)[
        "layer_1/self_attention/query/kernel"
    ]
    assert (stored_shape, own_shape) == ((12, 3, 4), (12, 12))
    known[name] = (12, 4, 3)  # four heads of three would reshape just as well
    assert model_garden.locate(known, config)["layer_1/self_attention/query/kernel"][1] == (
        12,
        3,
        4,
    )


def test_keras_hub_outputs_are_its_own():
    config, tensors = read_keras_hub()
    located = keras_hub.locate(shapes(tensors), config)
    assert sorted(name for name, _, _ in located.values()) == sorted(tensors)
    expected = np.load(FIXTURES / "keras_hub" / "expected.npz")
    given, missing = outputs(config, values(located, tensors), expected)
    assert all(path.startswith(("masked_lm/", "next_sentence/")) for path in missing)
    assert_equal(given, expected, ("sequence_output", "pooled_output"))


def test_keras_hub_descriptions():
    settings = keras_hub.read_settings(preset_json("config.json"))
    made = json.loads((FIXTURES / "model_garden" / "bert_config.json").read_text())
    assert settings == {
        **{key: value for key, value in made.items() if key != "initializer_range"},
        "hidden_act": "gelu_tanh",
        "layer_norm_eps": 1e-12,
    }
    assert keras_hub.read_casing(preset_json("tokenizer.json")) == (True, False)
    vocabulary = (FIXTURES / "keras_hub" / keras_hub.VOCABULARY).read_text().split()
    assert len(vocabulary) == settings["vocab_size"]


@pytest.mark.parametrize(
    ("read", "file"),
    [(keras_hub.read_settings, "config.json"), (keras_hub.read_casing, "tokenizer.json")],
)
def test_another_models_description_is_refused(read, file):
    with pytest.raises(CheckpointError, match=rf"{file}.*Roberta.*keras-hub's Bert"):
        read(preset_json(file) | {"class_name": "Roberta"})


def test_a_preset_that_lacks_a_size_is_refused():
    description = preset_json("config.json")
    del description["config"]["num_heads"]
    with pytest.raises(CheckpointError, match="num_heads"):
        keras_hub.read_settings(description)
