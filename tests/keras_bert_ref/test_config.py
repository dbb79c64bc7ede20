import json
import os

import pytest
from shared_data import shared

from keras_bert_ref import BertConfig
from keras_bert_ref.errors import BertError, ConfigError

RELEASED = {  # name: layers, hidden size, heads, feed-forward width
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}


@pytest.mark.parametrize("name", RELEASED)
def test_named_sizes_are_the_released_ones(name):
    config = BertConfig.from_name(name)
    assert RELEASED[name] == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
    )
    assert config.head_size == 64
    rest = config.to_dict()
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"):
        del rest[key]
    assert rest == {
        "vocab_size": 30522,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
    }


def test_a_named_size_takes_changes():
    config = BertConfig.from_name("tiny", vocab_size=8000, hidden_size=256)
    assert (config.vocab_size, config.hidden_size, config.num_attention_heads) == (8000, 256, 2)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'huge'.*tiny, mini, small, medium, base, large"):
        BertConfig.from_name("huge")


def test_json_round_trip(tmp_path):
    config = BertConfig.from_name("mini", vocab_size=99, hidden_act="gelu_new", layer_norm_eps=1e-7)
    path = tmp_path / "bert_config.json"
    config.to_json(path)
    assert BertConfig.from_json(path) == config
    assert BertConfig.from_json(str(path)) == config
    assert BertConfig.from_dict(config.to_dict()) == config
    assert hash(BertConfig.from_json(path)) == hash(config)
    assert os.listdir(tmp_path) == [path.name]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "bert_config.json"
    BertConfig.from_name("mini").to_json(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        BertConfig.from_name("tiny").to_json(path)
    assert path.read_bytes() == before


CHINESE = {  # bert_config.json of chinese_L-12_H-768_A-12 as released
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 21128,
}


def test_the_released_chinese_configuration_is_accepted(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(CHINESE))
    assert BertConfig.from_json(path) == BertConfig.from_name("base", vocab_size=21128)


def test_the_configuration_of_the_real_tf1_checkpoint_is_accepted():
    config = BertConfig.from_json(shared("data/checkpoints/tf1_tiny/bert_config.json"))
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (4, 16, 15)


@pytest.mark.parametrize(
    ("key", "hint"), [("hiden_size", "'hidden_size'"), ("num_layers", "'num_hidden_layers'")]
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(key, hint):
    with pytest.raises(ConfigError, match=f"{key}.*did you mean {hint}"):
        BertConfig.from_dict({"vocab_size": 99, key: 768})


def test_an_unknown_setting_like_no_other_is_refused_without_a_hint():
    with pytest.raises(ConfigError, match=r"unknown setting 'zzz'$"):
        BertConfig.from_name("tiny", zzz=1)


SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
]
RATES = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
POSITIVE = ["initializer_range", "layer_norm_eps"]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [True, "12", -1, 0, 12.0, None, float("nan"), [12]])
def test_a_size_must_be_a_whole_number_above_0(name, value):
    with pytest.raises(ConfigError, match=name):
        BertConfig.from_dict({name: value})


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("value", [False, "0.1", -0.1, 1, 1.0, 2, None, float("nan"), float("inf")])
def test_a_rate_must_be_below_1(name, value):
    with pytest.raises(ConfigError, match=name):
        BertConfig(**{name: value})


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [True, "1e-12", -1e-12, 0, None, float("nan"), float("inf")])
def test_a_width_must_be_above_0(name, value):
    with pytest.raises(ConfigError, match=name):
        BertConfig(**{name: value})


def test_a_rate_of_0_is_allowed():
    assert BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0.0) is not None


def test_heads_must_divide_the_hidden_size():
    with pytest.raises(ConfigError, match="768 is not a multiple of num_attention_heads 5"):
        BertConfig(num_attention_heads=5)


@pytest.mark.parametrize("value", ["swish", "", None, 1])
def test_an_unknown_activation_is_refused_with_the_known_ones(value):
    with pytest.raises(ConfigError, match=r"hidden_act.*gelu_tanh"):
        BertConfig(hidden_act=value)


@pytest.mark.parametrize("spelling", ["gelu_new", "gelu_pytorch_tanh", "gelu_tanh"])
def test_the_spellings_of_the_tanh_approximation_are_one(spelling):
    assert BertConfig(hidden_act=spelling).hidden_act == "gelu_tanh"


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"3", b'"tiny"', b"{}", b'{"hidden_size": 768}', b"\xff\xfe\x00{"],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text):
    path = tmp_path / "bert_config.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"bert_config\.json"):
        BertConfig.from_json(path)


@pytest.mark.parametrize("text", ['{"vocab_size": -3}', '{"vocab_size": 9, "hidden_sise": 4}'])
def test_a_bad_setting_in_a_file_names_the_file(tmp_path, text):
    path = tmp_path / "bert_config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bert_config\.json"):
        BertConfig.from_json(path)


def test_a_missing_file_or_a_folder_is_named(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ConfigError, match=path.name):
            BertConfig.from_json(path)


def test_errors_are_caught_as_value_errors_too():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, BertError)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(AttributeError):
        BertConfig().hidden_size = 1


@pytest.mark.parametrize("value", [["gelu"], {}])
def test_an_unhashable_activation(value):
    with pytest.raises(ConfigError, match=r"hidden_act.*gelu_tanh"):
        BertConfig(hidden_act=value)
