"""What once went wrong, or could: places, neighbours, odd files, odd models."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest
from checkpoint_models import LABELS, assert_same_weights, make, tokenizer, weights_of
from shared_data import FIXTURES
from small_bert import CONFIG, encoder_features

from keras_bert_ref import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTagger,
    fill_mask,
    load_pretrained,
)
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.checkpoints import saving, tensor_bundle
from keras_bert_ref.checkpoints.tensor_bundle import TensorBundle
from keras_bert_ref.errors import CheckpointError, CheckpointWarning, ConfigError, OutputError


def edit(path, **changes):
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | changes))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


# Places to save to


def test_a_folder_with_other_files_is_never_replaced(tmp_path):
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "config.json").write_text('{"port": 80}')
    model = make("encoder")
    with pytest.raises(OutputError, match="in use and holds data"):
        model.save_pretrained(project, overwrite=True)
    model.save_pretrained(tmp_path / "outer" / "inner")
    with pytest.raises(OutputError, match="in use and holds inner"):
        model.save_pretrained(tmp_path / "outer", overwrite=True)
    assert names_in(project) == ["config.json", "data"]


def test_neighbours_of_a_folder_are_not_touched(tmp_path):
    for name in ("m.old", "m.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    for overwrite in (False, True):
        make("encoder").save_pretrained(tmp_path / "m", overwrite=overwrite)
    assert names_in(tmp_path) == ["m", "m.old", "m.part"]
    assert (tmp_path / "m.old" / "mine").exists() and (tmp_path / "m.part" / "mine").exists()


def test_two_saves_to_one_folder_do_not_mix(tmp_path, monkeypatch):
    ours, theirs = make("classifier"), make("encoder")
    write = saving.FORMATS["own"]

    def write_and_be_overtaken(model, folder):
        write(model, folder)
        monkeypatch.setitem(saving.FORMATS, "own", write)
        theirs.save_pretrained(tmp_path / "x", overwrite=True)

    monkeypatch.setitem(saving.FORMATS, "own", write_and_be_overtaken)
    ours.save_pretrained(tmp_path / "x", overwrite=True)
    assert_same_weights(load_pretrained(tmp_path / "x"), ours)
    assert names_in(tmp_path) == ["x"]
    # And without leave to overwrite, the one that comes first stays.
    monkeypatch.setitem(saving.FORMATS, "own", write_and_be_overtaken)
    with pytest.raises(OutputError, match="exists: choose"):
        ours.save_pretrained(tmp_path / "y" / ".." / "x")
    assert_same_weights(load_pretrained(tmp_path / "x"), ours)


def test_a_rename_that_fails_gives_the_older_folder_back(tmp_path, monkeypatch):
    make("encoder").save_pretrained(tmp_path / "x")
    rename = type(tmp_path).rename

    def fails(self, target):
        if str(self).endswith(".part"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(type(tmp_path), "rename", fails)
    with pytest.raises(OutputError, match="x cannot be written: Input/output error"):
        make("classifier").save_pretrained(tmp_path / "x", overwrite=True)
    assert_same_weights(load_pretrained(tmp_path / "x"), make("encoder"))
    assert names_in(tmp_path) == ["x"]


def test_links_and_odd_places(tmp_path, monkeypatch):
    model = make("encoder")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for overwrite in (False, True):
        model.save_pretrained(tmp_path / "link", overwrite=overwrite)
        assert (tmp_path / "link").is_symlink()
        assert_same_weights(load_pretrained(tmp_path / "real"), model)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(OutputError, match="is the current folder"):
        model.save_pretrained(".")
    with pytest.raises(OutputError, match="cannot be written"):
        model.save_pretrained("x\0y")
    monkeypatch.setenv("HOME", str(tmp_path))
    model.save_pretrained("~/home model")
    assert_same_weights(load_pretrained("~/home model"), model)


def test_a_full_disk_is_an_output_error_in_tf1_as_well(tmp_path, monkeypatch):
    def full(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full)
    with pytest.raises(OutputError, match=r"/x cannot be written: No space left"):
        make("encoder").save_pretrained(tmp_path / "x", format="tf1")
    assert not names_in(tmp_path)


def test_what_an_interrupted_save_left_is_pointed_out(tmp_path):
    make("encoder").save_pretrained(tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / ".x.0123abcd.old")
    with pytest.raises(CheckpointError, match=r"left the model in \S+/\.x\.0123abcd\.old"):
        load_pretrained(tmp_path / "x")


def test_a_name_of_the_hub_is_recognized(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="of the Hub it would be hf://google-bert/bert-base"):
        load_pretrained("google-bert/bert-base-uncased")


# Odd models


def test_loading_within_another_layer(tmp_path):
    make("encoder").save_pretrained(tmp_path / "x")

    class Layer(keras.layers.Layer):
        def build(self, shape):
            self.encoder = BertEncoder.from_pretrained(tmp_path / "x", strict=True)

        def call(self, x):
            return x

    layer = Layer()
    layer(tf.zeros([1, 2]))
    assert layer.encoder.weights[0].path != "embeddings/word_embeddings"
    expected = list(weights_of(make("encoder")).values())
    for variable, value in zip(layer.encoder.weights, expected, strict=True):
        np.testing.assert_array_equal(variable, value)
    layer.encoder.save_pretrained(tmp_path / "y")
    assert_same_weights(load_pretrained(tmp_path / "y"), make("encoder"))


def test_a_subclass_keeps_what_is_its_own(tmp_path):
    class Mine(BertClassifier):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.more = keras.layers.BatchNormalization(name="more")
            self.more.build((None, 3))

    make("classifier").save_pretrained(tmp_path / "x")
    mine = Mine.from_pretrained(tmp_path / "x")
    assert mine.load_report.complete
    np.testing.assert_array_equal(mine.more.moving_variance, np.ones(3))
    np.testing.assert_array_equal(mine.more.moving_mean, np.zeros(3))


def test_what_starts_afresh_starts_as_in_a_new_model(tmp_path, monkeypatch):
    from keras_bert_ref import layers

    new = BertPretrainer(CONFIG)
    for variable in new.weights:
        value = np.asarray(layers.fresh_value(variable, CONFIG))
        if variable.numpy().std() == 0:
            np.testing.assert_array_equal(value, variable)
        else:
            assert abs(value.std() / variable.numpy().std() - 1) < 0.3


def test_models_that_keep_a_pooler_they_do_not_use(tmp_path):
    for kind, options in (
        (BertSpanLabeler, {}),
        (BertTagger, {"labels": LABELS}),
        (BertPretrainer, {"next_sentence": False}),
    ):
        model = kind(BertEncoder(CONFIG), **options)
        model.tokenizer = tokenizer()
        for format in ("own", "tf1"):
            model.save_pretrained(tmp_path / "x", format=format, overwrite=True)
            assert_same_weights(kind.from_pretrained(tmp_path / "x", strict=True), model)
        with pytest.warns(CheckpointWarning, match=r"BertFor\w+ has no pooler"):
            model.save_pretrained(tmp_path / "x", format="hf", overwrite=True)
        loaded = kind.from_pretrained(tmp_path / "x", strict=True)
        assert loaded.encoder.pooler is None
        for path, value in weights_of(loaded).items():
            np.testing.assert_array_equal(value, weights_of(model)[path])


def test_strict_holds_for_what_was_just_saved(tmp_path):
    for kind in ("tagger", "span", "masked_lm", "choice", "regression"):
        for format in ("own", "hf", "tf1"):
            model = make(kind)
            model.save_pretrained(tmp_path / "x", format=format, overwrite=True)
            type(model).from_pretrained(tmp_path / "x", strict=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_stay_float32(dtype):
    with pytest.raises(ConfigError, match=f"dtype '{dtype}' would keep the weights"):
        BertEncoder(CONFIG, dtype=dtype)


def test_labels_that_no_file_can_hold():
    with pytest.raises(ConfigError, match="cannot be written as UTF-8"):
        BertClassifier(CONFIG, ["a", "b\ud800"])


def test_only_pieces_of_the_vocabulary_fill_a_mask(tmp_path):
    model = make("masked_lm")
    model.tokenizer = type(model.tokenizer)(model.tokenizer.vocabulary[:40])
    model.masked_lm.bias.assign(np.where(np.arange(99) < 40, 0, 1e3))
    (((best, _), *_),) = fill_mask(model, "a [MASK]", top=2)
    assert best in model.tokenizer.vocabulary


# Odd files


def test_two_names_for_one_tensor(tmp_path):
    import safetensors.numpy

    make("encoder").save_pretrained(tmp_path / "x", format="hf")
    path = tmp_path / "x" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = "encoder.layer.0.output.dense.bias"
    safetensors.numpy.save_file(tensors | {f"bert.{name}": tensors[name] + 1}, path)
    with pytest.raises(CheckpointError, match=f"holds both bert.{name} and {name}"):
        load_pretrained(tmp_path / "x")


def test_constants_of_old_files_are_no_weights(tmp_path):
    import safetensors.numpy

    make("encoder").save_pretrained(tmp_path / "x", format="hf")
    path = tmp_path / "x" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    for name in ("position_ids", "token_type_ids"):
        tensors[f"embeddings.{name}"] = np.zeros((1, 16), np.int64)
    safetensors.numpy.save_file(tensors, path)
    load_pretrained(tmp_path / "x", strict=True)


@pytest.mark.parametrize("head", ["bert.", "cls.predictions.transform.dense.bias"])
def test_a_part_of_a_head_is_no_head(head, tmp_path):
    import safetensors.numpy

    make("pretrainer").save_pretrained(tmp_path / "x", format="hf")
    path = tmp_path / "x" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    gone = next(name for name in tensors if name.startswith(head) and "pooler" not in name)
    del tensors[gone]
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"lacks the tensor {gone}"):
        load_pretrained(tmp_path / "x")
    if head != "bert.":
        encoder = BertEncoder.from_pretrained(tmp_path / "x")
        assert len([n for n in encoder.load_report.ignored if n.startswith("cls.predic")]) == 4


@pytest.mark.parametrize("slot", ["adam_m", "adam_v", "Adam", "Adam_1", "Momentum", "lamb_m"])
def test_slots_of_every_optimizer_are_skipped(slot, tmp_path):
    tensors = {}
    make("encoder").save_pretrained(tmp_path / "x", format="tf1")
    bundle = TensorBundle(tmp_path / "x" / "bert_model.ckpt")
    for name in bundle.shapes:
        tensors |= {name: bundle.read(name), f"{name}/{slot}": bundle.read(name)}
    tensors |= {"global_step": np.int64(7), "beta1_power": np.float32(0.5)}
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "x" / "bert_model.ckpt"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    load_pretrained(tmp_path / "x", strict=True)


def test_partitioned_and_big_endian_tensors_are_refused(tmp_path, monkeypatch):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "x"),
        tensor_names=["v"],
        shape_and_slices=["4 0,2"],
        tensors=[tf.constant([1.0, 2.0])],
    )
    bundle = TensorBundle(tmp_path / "x")
    with pytest.raises(CheckpointError, match="tensor v is partitioned"):
        bundle.read("v")
    fields = tensor_bundle._fields
    monkeypatch.setattr(tensor_bundle, "_fields", lambda message: {**fields(message), 2: 1})
    with pytest.raises(CheckpointError, match="big-endian"):
        TensorBundle(tmp_path / "x")


def test_an_entry_that_points_far_beyond_the_data(tmp_path):
    make("encoder").save_pretrained(tmp_path / "x", format="tf1")
    bundle = TensorBundle(tmp_path / "x" / "bert_model.ckpt")
    name, entry = next(iter(bundle._entries.items()))
    for offset, size in ((2**63, entry.size), (0, 2**46)):
        rows = size // 4
        bundle._entries[name] = type(entry)(
            entry.dtype, (rows,), entry.shard, offset, size, entry.crc, False
        )
        with pytest.raises(CheckpointError, match="is cut off within"):
            bundle.read(name)


@pytest.mark.parametrize(
    ("format", "file"),
    [
        ("own", "bert_config.json"),
        ("own", "keras_bert_ref.json"),
        ("own", "model.safetensors"),
        ("own", "vocab.txt"),
        ("hf", "config.json"),
        ("tf1", "bert_model.ckpt.index"),
        ("tf1", "bert_model.ckpt.data-00000-of-00001"),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_pipes_and_folders_are_no_files(format, file, kind, tmp_path):
    make("encoder").save_pretrained(tmp_path / "x", format=format)
    (tmp_path / "x" / file).unlink()
    (os.mkfifo if kind == "pipe" else os.mkdir)(tmp_path / "x" / file)
    with pytest.raises((CheckpointError, ConfigError, ValueError)) as caught:
        load_pretrained(tmp_path / "x")
    assert type(caught.value).__module__ == "keras_bert_ref.errors"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"problem_type": "regression"}, BertEncoder),
        ({"problem_type": "multi_label_classification"}, BertEncoder),
        ({"problem_type": None}, BertClassifier),
        ({"classifier_dropout": None, "hidden_dropout_prob": 0.3}, BertClassifier),
        ({"position_embedding_type": None, "is_decoder": None}, BertClassifier),
        ({"hidden_act": "gelu_python"}, BertClassifier),
    ],
)
def test_settings_of_published_configurations(changes, kind, tmp_path):
    make("classifier").save_pretrained(tmp_path / "x", format="hf")
    edit(tmp_path / "x" / "config.json", **changes)
    model = load_pretrained(tmp_path / "x")
    assert type(model) is kind
    if "hidden_dropout_prob" in changes:
        assert model.dropout == 0.3
    assert json.loads((tmp_path / "x" / "config.json").read_text())["pad_token_id"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"is_encoder_decoder": True},
        {"is_decoder": "no"},
        {"classifier_dropout": "x"},
        {"classifier_dropout": 10**400},
        {"layer_norm_eps": 10**400},
    ],
)
def test_settings_that_are_refused(changes, tmp_path):
    make("classifier").save_pretrained(tmp_path / "x", format="hf")
    edit(tmp_path / "x" / "config.json", **changes)
    with pytest.raises((CheckpointError, ConfigError), match=next(iter(changes))):
        load_pretrained(tmp_path / "x")


@pytest.mark.parametrize("kind", ["model_garden", "keras_hub"])
def test_a_trillion_layers_are_not_looked_for(kind, tmp_path):
    shutil.copytree(FIXTURES / "checkpoints" / kind, tmp_path / "x")
    if kind == "keras_hub":
        settings = json.loads((tmp_path / "x" / "config.json").read_text())
        settings["config"]["num_layers"] = 10**12
        edit(tmp_path / "x" / "config.json", **settings)
    else:
        edit(tmp_path / "x" / "bert_config.json", num_hidden_layers=10**12)
    with pytest.raises(CheckpointError, match="asks for 1000000000000 layers"):
        load_pretrained(tmp_path / "x")


def test_two_labels_of_one_name(tmp_path):
    make("classifier").save_pretrained(tmp_path / "x", format="hf")
    edit(tmp_path / "x" / "config.json", id2label={"0": "a", "1": "a", "2": "b"})
    with pytest.warns(CheckpointWarning, match="gives two labels one name"):
        model = BertClassifier.from_pretrained(tmp_path / "x", labels=LABELS)
    assert_same_weights(model, make("classifier"))


def test_a_later_version_may_say_more(tmp_path):
    make("classifier").save_pretrained(tmp_path / "x")
    edit(tmp_path / "x" / "keras_bert_ref.json", library_version="9.0", colour="blue")
    assert load_pretrained(tmp_path / "x").labels == LABELS


# Odd tokenizers


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars off"),
        ("tokenizer_config.json", {"do_basic_tokenize": False}, "do_basic_tokenize off"),
        ("tokenizer_config.json", {"mask_token": "<mask>"}, "mask_token '<mask>'"),
        ("tokenizer.json", {"normalizer": {"handle_chinese_chars": False}}, "chinese_chars off"),
    ],
)
def test_another_way_to_tokenize_is_warned_of(file, changes, message, tmp_path):
    make("encoder").save_pretrained(tmp_path / "x", format="hf")
    if file == "tokenizer.json":
        options = json.loads((tmp_path / "x" / "tokenizer_config.json").read_text())
        del options["tokenize_chinese_chars"]
        (tmp_path / "x" / "tokenizer_config.json").write_text(json.dumps(options))
    edit(tmp_path / "x" / file, **changes)
    with pytest.warns(CheckpointWarning, match=message):
        assert load_pretrained(tmp_path / "x").tokenizer is not None


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}}}),
    ],
)
def test_another_kind_of_tokenizer_does_not_come_along(file, changes, tmp_path):
    make("encoder").save_pretrained(tmp_path / "x", format="hf")
    edit(tmp_path / "x" / file, **changes)
    with pytest.warns(CheckpointWarning, match="a tokenizer of another kind than BERT's"):
        assert load_pretrained(tmp_path / "x").tokenizer is None


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_pieces_added_later_are_kept_whole(file, tmp_path):
    model = make("encoder")
    model.tokenizer = type(model.tokenizer)(model.tokenizer.vocabulary[:97])
    model.save_pretrained(tmp_path / "x", format="hf")
    tokens = {"[E2]": 98, "[E1]": 97}
    edit(
        tmp_path / "x" / file,
        **{
            "added_tokens.json": tokens,
            "tokenizer_config.json": {
                "added_tokens_decoder": {str(n): {"content": t} for t, n in tokens.items()}
            },
            "tokenizer.json": {
                "added_tokens": [{"content": t, "id": n} for t, n in tokens.items()]
            },
        }[file],
    )
    found = load_pretrained(tmp_path / "x").tokenizer
    assert found.vocabulary[97:] == ("[E1]", "[E2]")
    assert found.tokenize("a [E1]b") == ["a", "[E1]", "b"]
    edit(tmp_path / "x" / "added_tokens.json", **{"[E9]": 107})
    with pytest.raises(ValueError, match=r"do not follow it: .*\[E9\]"):
        load_pretrained(tmp_path / "x")


def test_values_beyond_float32_are_reported_once(tmp_path):
    import safetensors.numpy

    make("encoder").save_pretrained(tmp_path / "x", format="hf")
    path = tmp_path / "x" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = "pooler.dense.bias"
    tensors[name] = np.full(32, 1e300)
    safetensors.numpy.save_file(tensors, path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_pretrained(tmp_path / "x")
    assert [w.category for w in caught] == [CheckpointWarning]
    assert name in str(caught[0].message)


# Training


def test_the_residual_stays_float32_while_training():
    encoder = make("encoder", dtype="mixed_bfloat16", hidden_states=True)
    states = {}
    for training in (False, True):
        states[training] = encoder(encoder_features(), training=training)["hidden_states"].numpy()
    real = encoder_features()["input_mask"] == 1
    for state in states.values():
        assert state.dtype == np.float32
        # bfloat16 numbers have 16 bits of nothing.
        assert (state.swapaxes(1, 2)[real].view(np.uint32) & 0xFFFF).astype(bool).mean() > 0.9
    np.testing.assert_allclose(states[True], states[False], atol=0.2)


def test_a_reader_keeps_to_the_file_it_has_opened(tmp_path):
    from keras_bert_ref.checkpoints.opening import open_checkpoint

    make("encoder").save_pretrained(tmp_path / "x", format="hf")
    before = open_checkpoint(tmp_path / "x")
    make("encoder", seed=1).save_pretrained(tmp_path / "x", format="hf", overwrite=True)
    expected = weights_of(make("encoder"))
    for path, stored in before.weights.items():
        np.testing.assert_array_equal(stored.read(), expected[path])
    shutil.rmtree(tmp_path / "x")
