"""What is saved in any format comes back to the bit, heads, labels and tokenizer included."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
from checkpoint_models import KINDS, LABELS, assert_same_weights, make, tokenizer
from numpy_bert import random_weights
from shared_data import shared
from small_bert import CONFIG, encoder_features, set_weights

from keras_bert_ref import BertClassifier, BertEncoder, BertTagger, load_pretrained
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import CheckpointWarning, ConfigError, OutputError

FORMATS = ("own", "hf", "tf1")

pytestmark = pytest.mark.filterwarnings("ignore:this model has no pooler")


@pytest.mark.parametrize(("kind", "format"), list(itertools.product(KINDS, FORMATS)))
def test_every_model_comes_back_from_every_format(kind, format, tmp_path):
    model = make(kind)
    model.save_pretrained(tmp_path / "saved", format=format)
    loaded = load_pretrained(tmp_path / "saved")
    assert type(loaded) is type(model)
    assert_same_weights(loaded, model)
    assert (loaded.load_report.initialized, loaded.load_report.ignored) == ((), ())
    for name in ("labels", "dropout", "next_sentence"):
        if format != "tf1" or name != "dropout":
            assert getattr(loaded, name, None) == getattr(model, name, None), name
    encoder, expected = (getattr(m, "encoder", m) for m in (loaded, model))
    assert encoder.config == expected.config
    assert encoder.attention == expected.attention
    assert loaded.tokenizer.vocabulary == model.tokenizer.vocabulary
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_to_own_and_back_gives_the_same_files(kind, tmp_path):
    make(kind).save_pretrained(tmp_path / "a", format="hf")
    load_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    load_pretrained(tmp_path / "b").save_pretrained(tmp_path / "c", format="hf")
    for file in (tmp_path / "a").iterdir():
        assert (tmp_path / "c" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_published_checkpoint_goes_through_every_format(tmp_path):
    folder = shared("data/checkpoints/hf_tiny_mlm")
    model = load_pretrained(folder)
    for before, after in (("hf", "own"), ("own", "tf1"), ("tf1", "hf")):
        place = folder if before == "hf" else tmp_path / before
        load_pretrained(place).save_pretrained(tmp_path / after, format=after)
    assert_same_weights(load_pretrained(tmp_path / "hf"), model)


@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_a_tf1_export_lists_exactly_the_originals_names(tmp_path):
    folder = shared("data/checkpoints/tf1_tiny")
    load_pretrained(folder).save_pretrained(tmp_path / "x", format="tf1")
    original = {
        name: shape
        for name, shape in tf.train.list_variables(str(folder / "bert_model.ckpt"))
        if "/adam_" not in name and name != "global_step"
    }
    assert dict(tf.train.list_variables(str(tmp_path / "x" / "bert_model.ckpt"))) == original
    before, after = (
        tf.train.load_checkpoint(str(f / "bert_model.ckpt")) for f in (folder, tmp_path / "x")
    )
    for name in original:
        np.testing.assert_array_equal(before.get_tensor(name), after.get_tensor(name))


def test_tf1_names_of_the_originals_heads(tmp_path):
    for kind, names in (
        ("classifier", {"output_weights": [3, 32], "output_bias": [3]}),
        ("span", {"cls/squad/output_weights": [2, 32], "cls/squad/output_bias": [2]}),
    ):
        make(kind).save_pretrained(tmp_path / kind, format="tf1")
        stored = dict(tf.train.list_variables(str(tmp_path / kind / "bert_model.ckpt")))
        assert {n: s for n, s in stored.items() if not n.startswith("bert/")} == names


def test_tf1_without_our_description_still_has_its_head(tmp_path):
    model = make("classifier")
    model.save_pretrained(tmp_path / "x", format="tf1")
    (tmp_path / "x" / "keras_bert_ref.json").unlink()
    loaded = load_pretrained(tmp_path / "x")
    assert loaded.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert_same_weights(loaded, model)
    named = BertClassifier.from_pretrained(tmp_path / "x", labels=LABELS, strict=True)
    assert named.labels == LABELS
    assert_same_weights(named, model)
    tagger = BertTagger.from_pretrained(tmp_path / "x", labels=LABELS)  # the same names in TF1
    np.testing.assert_array_equal(
        tagger.tagger.output_dense.kernel, model.classifier.output_dense.kernel
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "options",
    [
        {"lower_case": False},
        {"lower_case": True, "strip_accents": False},
        {"never_split": ("[MASK]",)},
    ],
)
def test_the_tokenizer_comes_back_as_it_was(format, options, tmp_path):
    model = make("encoder")
    model.tokenizer = tokenizer(**options)
    model.save_pretrained(tmp_path / "x", format=format)
    found = load_pretrained(tmp_path / "x").tokenizer
    for name in ("vocabulary", "lower_case", "strip_accents", "never_split"):
        assert getattr(found, name) == getattr(model.tokenizer, name)


@pytest.mark.parametrize("format", FORMATS)
def test_the_configuration_comes_back_as_it_was(format, tmp_path):
    config = dataclasses.replace(
        CONFIG, hidden_act="gelu_tanh", layer_norm_eps=1e-5, type_vocab_size=3
    )
    model = BertEncoder(config)
    model.tokenizer = tokenizer()
    model.save_pretrained(tmp_path / "x", format=format)
    assert load_pretrained(tmp_path / "x").config == config


def test_mixed_precision_saves_float32_and_loads_into_any_policy(tmp_path):
    model = make("classifier", dtype="mixed_bfloat16")
    model.save_pretrained(tmp_path / "x")
    for dtype in ("float32", "mixed_bfloat16", "mixed_float16"):
        loaded = load_pretrained(tmp_path / "x", dtype=dtype)
        assert loaded.dtype_policy.name == loaded.encoder.dtype_policy.name == dtype
        assert_same_weights(loaded, model)


def test_a_loaded_model_trains_and_is_saved_as_keras_too(tmp_path):
    make("classifier").save_pretrained(tmp_path / "x")
    model = load_pretrained(tmp_path / "x")
    model.compile(optimizer=keras.optimizers.SGD(1e-3))
    features = encoder_features()
    labels = {"label_ids": np.arange(13) % 3}
    model.fit(features, labels, batch_size=13, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_same_weights(again, model)
    model.save_pretrained(tmp_path / "y")
    assert_same_weights(load_pretrained(tmp_path / "y"), model)
    assert not np.array_equal(
        load_pretrained(tmp_path / "x").classifier.output_dense.kernel,
        model.classifier.output_dense.kernel,
    )


def test_frozen_weights_are_saved_as_well(tmp_path):
    model = make("tagger")
    model.encoder.trainable = False
    model.save_pretrained(tmp_path / "x")
    assert_same_weights(load_pretrained(tmp_path / "x"), make("tagger"))


def test_a_subclass_loads_and_is_saved(tmp_path):
    class Mine(BertClassifier):
        pass

    make("classifier").save_pretrained(tmp_path / "x")
    mine = Mine.from_pretrained(tmp_path / "x")
    assert type(mine) is Mine
    assert mine.labels == LABELS
    mine.save_pretrained(tmp_path / "y")
    assert_same_weights(load_pretrained(tmp_path / "y"), mine)


def test_a_folder_in_use_is_not_touched(tmp_path):
    model = make("encoder")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"in use and holds notes\.txt"):
            model.save_pretrained(tmp_path / "notes", overwrite=overwrite)
    model.save_pretrained(tmp_path / "x")
    with pytest.raises(OutputError, match="exists: choose another folder"):
        model.save_pretrained(tmp_path / "x", format="hf")
    with pytest.raises(OutputError, match="is a file"):
        model.save_pretrained(tmp_path / "notes" / "notes.txt")
    with pytest.raises(ConfigError, match="format 'torch' is unknown"):
        model.save_pretrained(tmp_path / "y", format="torch")
    model.save_pretrained(tmp_path / "x", format="tf1", overwrite=True)
    assert not (tmp_path / "x" / "model.safetensors").exists()
    assert_same_weights(load_pretrained(tmp_path / "x"), model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "x"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_failed_save_leaves_the_older_folder(format, tmp_path, monkeypatch):
    model = make("encoder")
    model.save_pretrained(tmp_path / "x", format=format)
    before = {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()}
    other = make("encoder", seed=1)

    def full(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(other.tokenizer), "save_vocabulary", full)
    with pytest.raises(OutputError, match=r"x cannot be written: No space left"):
        other.save_pretrained(tmp_path / "x", format=format, overwrite=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_model_without_a_vocabulary_is_saved_with_a_warning(tmp_path):
    model = make("encoder")
    model.tokenizer = None
    with pytest.warns(CheckpointWarning, match="holds no vocabulary"):
        model.save_pretrained(tmp_path / "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_pretrained(tmp_path / "x").tokenizer is None


def test_weights_that_no_checkpoint_names_are_refused(tmp_path):
    class WithMore(BertClassifier):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.more = keras.layers.Dense(3, name="more")
            self.more.build((None, 2))

    model = WithMore(CONFIG, LABELS)
    set_weights(model, random_weights(model.trainable_variables))
    model.tokenizer = tokenizer()
    with pytest.raises(ConfigError, match=r"has a name for the weight .*kernel"):
        model.save_pretrained(tmp_path / "x")
    assert not list(tmp_path.iterdir())
