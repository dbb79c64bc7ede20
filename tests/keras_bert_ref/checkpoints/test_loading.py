"""Published checkpoints in every format: what is computed, what is reported, what is refused."""

import json
import shutil
import warnings

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_models import LABELS, TAGS, assert_same_weights, make, tokenizer, weights_of
from numpy_bert import NumpyBert
from shared_data import FIXTURES, minilm, shared
from small_bert import CONFIG, encoder_features

from keras_bert_ref import (
    BertClassifier,
    BertEncoder,
    BertMultipleChoice,
    BertPretrainer,
    BertSpanLabeler,
    BertTagger,
    fill_mask,
    load_pretrained,
)
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.checkpoints.tokenizer_files import guess_lower_case
from keras_bert_ref.errors import (
    BertError,
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    VocabularyError,
)
from keras_bert_ref.strategies import fast_precision
from keras_bert_ref.vocabulary import read_vocabulary

OTHERS = FIXTURES / "checkpoints"


# What is computed


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_minilm_computes_what_others_recorded(dtype):
    recorded = np.load(shared("expected/activations/minilm_given.npz"))
    encoder = BertEncoder.from_pretrained(
        minilm(), strict=True, hidden_states=True, attentions=True, dtype=dtype
    )
    for text, ids, mask in zip(
        json.loads(str(recorded["texts"])),
        recorded["input_ids"],
        recorded["input_mask"],
        strict=True,
    ):
        pair = text if isinstance(text, list) else [text]
        assert encoder.tokenizer.encode(*pair).input_ids == ids[mask == 1].tolist()

    features = {name: recorded[name] for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = encoder(features)
    real = recorded["input_mask"] == 1
    states = outputs["hidden_states"].numpy().swapaxes(0, 1)[:, real].astype(np.float32)
    # TensorFlow has other kernels where the CPU has no units for bfloat16, and the probabilities of
    # attention are a little less exact there (0.99897 where measured).
    for_attention = 0.999 if fast_precision() == "mixed_bfloat16" else 0.998
    triples = [
        (states, recorded["hidden_states"][:, real], 0.999),
        (outputs["pooled_output"].numpy().astype(np.float32), recorded["pooled_output"], 0.999),
        (*_attention(outputs, recorded), for_attention),
    ]
    for found, expected, cosine in triples:
        if dtype == "float32":
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
        else:
            assert np.abs(found - expected).max() < 5e-2
            norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
            assert ((found * expected).sum(-1) / norms).min() > cosine


def _attention(outputs, recorded):
    """Returns the attention of layer 5 in row 0, ours and the recorded one, from real pieces."""
    length = int(recorded["input_mask"][0].sum())
    found = outputs["attentions"].numpy()[0, 5].astype(np.float32)
    return found[:, :length], recorded["attention_layer5_row0"][:, :length]


def test_tinymlm_logits_are_those_recorded():
    recorded = np.load(shared("expected/activations/tinymlm_given.npz"))
    model = BertPretrainer.from_pretrained(shared("data/checkpoints/hf_tiny_mlm"))
    assert not model.next_sentence
    assert model.load_report.complete
    ids, real = recorded["input_ids"].astype(np.int32), recorded["input_mask"] == 1
    features = {
        "input_ids": ids,
        "input_mask": real.astype(np.int32),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1)),
    }
    logits = model(features)["masked_lm_logits"].numpy()
    for name, found in (
        ("first512", logits[..., :512]),
        ("max", logits.max(-1)),
        ("mean", logits.mean(-1)),
    ):
        expected = recorded[f"logits_{name}"]
        np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(logits.argmax(-1)[real], recorded["logits_argmax"][real])
    tokenizer = type(model.tokenizer)(model.tokenizer.vocabulary, never_split="[MASK]")
    for text, row, mask in zip(json.loads(str(recorded["texts"])), ids, real, strict=True):
        assert tokenizer.encode(text).input_ids == row[mask].tolist()


def test_tf1_tiny_is_read_whole_and_computes_what_numpy_does():
    folder = shared("data/checkpoints/tf1_tiny")
    with pytest.warns(CheckpointWarning, match="does not say how its text was cased"):
        model = load_pretrained(folder, strict=True)
    assert isinstance(model, BertPretrainer)
    assert len(model.load_report.loaded) == 46
    # Straight from TensorFlow's own reader, and named here once more.
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    weights = {}
    for path, value in weights_of(model).items():
        name = _tf1_name(path)
        stored = reader.get_tensor(name)
        weights[path] = (stored.T if path == "next_sentence/output/kernel" else stored).astype(
            np.float64
        )
        np.testing.assert_array_equal(value, weights[path])
    assert len(weights) == 46
    rng = np.random.default_rng(0)
    features = {
        "input_ids": rng.integers(0, 15, (3, 11)).astype(np.int32),
        "input_mask": np.int32([[1] * 11, [1] * 7 + [0] * 4, [1] * 3 + [0] * 8]),
        "segment_ids": np.int32([[0] * 5 + [1] * 6, [0] * 11, [0] * 11]),
        "masked_lm_positions": np.int32([[1, 4], [2, 6], [0, 2]]),
    }
    masked_lm, next_sentence = NumpyBert(model.encoder.config, weights).pretraining_logits(features)
    outputs = model(features)
    np.testing.assert_allclose(outputs["masked_lm_logits"], masked_lm, rtol=0, atol=2e-5)
    np.testing.assert_allclose(outputs["next_sentence_logits"], next_sentence, rtol=0, atol=2e-5)


def _tf1_name(path):
    """Returns Google's name of one of our variables, said otherwise than by the table."""
    name = path
    for ours, theirs in (
        ("self_attention/", "attention/self/"),
        ("attention_output/", "attention/output/dense/"),
        ("attention_LayerNorm/", "attention/output/LayerNorm/"),
        ("intermediate/", "intermediate/dense/"),
        ("output_LayerNorm/", "output/LayerNorm/"),
    ):
        if name.startswith("layer_"):
            name = name.replace(f"/{ours}", f"/{theirs}")
    if name.startswith("layer_"):
        number, rest = name.split("/", 1)
        if rest in ("output/kernel", "output/bias"):
            rest = rest.replace("output/", "output/dense/")
        return f"bert/encoder/{number}/{rest}"
    if name.startswith("pooler/"):
        return f"bert/{name.replace('pooler', 'pooler/dense')}"
    if name.startswith("embeddings/"):
        return f"bert/{name}"
    return {
        "masked_lm/transform/kernel": "cls/predictions/transform/dense/kernel",
        "masked_lm/transform/bias": "cls/predictions/transform/dense/bias",
        "masked_lm/transform_LayerNorm/gamma": "cls/predictions/transform/LayerNorm/gamma",
        "masked_lm/transform_LayerNorm/beta": "cls/predictions/transform/LayerNorm/beta",
        "masked_lm/output_bias": "cls/predictions/output_bias",
        "next_sentence/output/kernel": "cls/seq_relationship/output_weights",
        "next_sentence/output/bias": "cls/seq_relationship/output_bias",
    }[name]


@pytest.mark.parametrize("name", ["model_garden", "model_garden_2020", "model_garden_v2"])
@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_model_garden_checkpoints(name):
    expected = np.load(OTHERS / name / "expected.npz")
    model = load_pretrained(OTHERS / name)
    assert model.load_report.format == "Model Garden TF2"
    assert model.load_report.initialized == ()
    _assert_equal(model, expected)
    assert isinstance(model, BertPretrainer) == (name == "model_garden_v2")
    assert model.tokenizer.vocab_size == getattr(model, "encoder", model).config.vocab_size


def test_keras_hub_presets():
    expected = np.load(OTHERS / "keras_hub" / "expected.npz")
    model = load_pretrained(OTHERS / "keras_hub")
    assert isinstance(model, BertEncoder)
    assert model.load_report.format == "keras-hub"
    assert model.load_report.ignored == ("task.weights.h5",)
    assert (model.tokenizer.lower_case, model.tokenizer.strip_accents) == (True, False)
    _assert_equal(model, expected)
    with pytest.raises(CheckpointError, match="no head for masked language modeling"):
        BertPretrainer.from_pretrained(OTHERS / "keras_hub")


def _assert_equal(model, expected):
    features = {name: expected[name] for name in ("input_ids", "input_mask", "segment_ids")}
    real = expected["input_mask"] == 1
    encoded = getattr(model, "encoder", model)(features)
    for name in ("sequence_output", "pooled_output"):
        chosen = real if name == "sequence_output" else slice(None)
        np.testing.assert_allclose(
            encoded[name].numpy()[chosen], expected[name][chosen], rtol=0, atol=1e-5
        )
    if isinstance(model, BertPretrainer):
        outputs = model(features | {"masked_lm_positions": expected["masked_lm_positions"]})
        for name in ("masked_lm_logits", "next_sentence_logits"):
            np.testing.assert_allclose(outputs[name], expected[name], rtol=0, atol=1e-5)


# How Hugging Face files differ among themselves


def hugging_face(folder, kind="pretrainer"):
    """Returns the model, and what its export holds: name → array."""
    model = make(kind)
    model.save_pretrained(folder, format="hf")
    return model, safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder, tensors):
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def edit(path, **changes):
    """Sets keys of a JSON file; those set to None go."""
    settings = json.loads(path.read_text())
    settings = {k: v for k, v in {**settings, **changes}.items() if v is not None}
    path.write_text(json.dumps(settings))


def old_names(name):
    if "LayerNorm" not in name:
        return name
    return name.replace(".weight", ".gamma").replace(".bias", ".beta")


def test_old_names_prefixes_copies_and_shards_are_all_read(tmp_path):
    model, tensors = hugging_face(tmp_path)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    copies = {
        "cls.predictions.decoder.weight": words,
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        "bert.embeddings.position_ids": np.arange(16)[None],
    }
    only_copy = {k: v for k, v in tensors.items() if k != "cls.predictions.bias"}
    for variant in (
        {old_names(name): value for name, value in tensors.items()},
        {name.removeprefix("bert."): value for name, value in tensors.items()},
        tensors | copies,
        only_copy | copies,
    ):
        rewrite(tmp_path, variant)
        assert_same_weights(load_pretrained(tmp_path, strict=True), model)

    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {}
    for number in range(3):
        file = f"model-0000{number + 1}-of-00003.safetensors"
        part = {name: np.ascontiguousarray(tensors[name]) for name in names[number::3]}
        safetensors.numpy.save_file(part, tmp_path / file)
        files |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": files}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same_weights(load_pretrained(tmp_path, strict=True), model)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors cannot be read"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_are_read(dtype, tmp_path):
    model, tensors = hugging_face(tmp_path, "classifier")
    rewrite(tmp_path, {name: value.astype(dtype) for name, value in tensors.items()})
    loaded = weights_of(load_pretrained(tmp_path))
    for path, value in weights_of(model).items():
        np.testing.assert_array_equal(loaded[path], value.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("encoder", "BertModel"),
        ("encoder without pooler", "BertModel"),
        ("pretrainer", "BertForPreTraining"),
        ("masked_lm", "BertForMaskedLM"),
        ("classifier", "BertForSequenceClassification"),
        ("regression", "BertForSequenceClassification"),
        ("tagger", "BertForTokenClassification"),
        ("span", "BertForQuestionAnswering"),
        ("choice", "BertForMultipleChoice"),
    ],
)
@pytest.mark.filterwarnings("ignore:this model has no pooler")
def test_every_architecture_lands_in_its_model(kind, architecture, tmp_path):
    model, _ = hugging_face(tmp_path, kind)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["architectures"] == [architecture]
    loaded = load_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert getattr(loaded, "labels", None) == getattr(model, "labels", None)
    features = encoder_features()
    if kind == "choice":
        features = {name: values[None] for name, values in features.items()}
    if isinstance(model, BertPretrainer):
        features["masked_lm_positions"] = np.zeros((13, 1), np.int32)
    for name, value in model(features).items():
        np.testing.assert_array_equal(loaded(features)[name], value)


@pytest.mark.parametrize("architectures", [None, "BertFor", 3, [["x"]], []])
def test_a_head_without_an_architecture_is_what_one_asks_for(architectures, tmp_path):
    choice, _ = hugging_face(tmp_path / "choice", "choice")
    tagger, _ = hugging_face(tmp_path / "tagger", "tagger")
    for folder in ("choice", "tagger"):
        edit(tmp_path / folder / "config.json", architectures=architectures)
    assert isinstance(load_pretrained(tmp_path / "choice"), BertClassifier)  # it has a pooler
    assert_same_weights(BertMultipleChoice.from_pretrained(tmp_path / "choice"), choice)
    assert_same_weights(load_pretrained(tmp_path / "tagger"), tagger)


def test_independent_labels_are_no_head_of_ours(tmp_path):
    hugging_face(tmp_path, "classifier")
    edit(tmp_path / "config.json", problem_type="multi_label_classification")
    encoder = load_pretrained(tmp_path)
    assert isinstance(encoder, BertEncoder)
    assert set(encoder.load_report.ignored) == {"classifier.weight", "classifier.bias"}


# Heads, labels and the report


def test_the_report_says_what_was_read_initialized_and_ignored(tmp_path):
    make("masked_lm").save_pretrained(tmp_path / "x", format="hf")
    with pytest.warns(CheckpointWarning, match="has no values for pooler/kernel, pooler/bias, cla"):
        model = BertClassifier.from_pretrained(tmp_path / "x", labels=LABELS)
    report = model.load_report
    assert report.initialized == (
        "pooler/kernel",
        "pooler/bias",
        "classifier/output/kernel",
        "classifier/output/bias",
    )
    assert report.ignored == (
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.bias",
    )
    assert len(report.loaded) == 5 + 16 * CONFIG.num_hidden_layers
    assert str(report).splitlines()[1].startswith("initialized afresh: pooler/kernel, pooler/bias")
    for name in ("initialized afresh", "ignored"):
        with pytest.raises(CheckpointError, match=rf"which strict asks for.*(\n.*)*{name}"):
            BertClassifier.from_pretrained(tmp_path / "x", labels=LABELS, strict=True)
    encoder = BertEncoder.from_pretrained(tmp_path / "x")
    assert encoder.load_report.absent == ("pooler",)
    assert encoder.load_report.initialized == ()
    with pytest.raises(CheckpointError, match="absent: pooler"):
        BertEncoder.from_pretrained(tmp_path / "x", strict=True)
    # What starts afresh starts as in a new model, not at zero.
    assert 0.01 < weights_of(model)["pooler/kernel"].std() < 0.03
    assert not weights_of(model)["pooler/bias"].any()


def test_a_head_that_is_not_there_is_an_error_where_it_cannot_start_afresh(tmp_path):
    make("classifier").save_pretrained(tmp_path / "x")
    with pytest.raises(CheckpointError, match="no head for masked language modeling"):
        BertPretrainer.from_pretrained(tmp_path / "x")
    with pytest.raises(ConfigError, match="predicts no masked pieces"):
        fill_mask(load_pretrained(tmp_path / "x"), "a [MASK] b")
    make("encoder").save_pretrained(tmp_path / "y")
    for model_class in (BertClassifier, BertTagger):
        with pytest.raises(ConfigError, match="labels=") as caught:
            model_class.from_pretrained(tmp_path / "y")
        assert str(tmp_path / "y") in str(caught.value)


def test_other_labels_start_afresh(tmp_path):
    model = make("classifier")
    model.save_pretrained(tmp_path / "x")
    assert_same_weights(BertClassifier.from_pretrained(tmp_path / "x", labels=LABELS), model)
    for labels in (("a", "b", "c"), ("a", "b"), LABELS[::-1], None):
        with pytest.warns(CheckpointWarning, match="classifier/output/kernel"):
            other = BertClassifier.from_pretrained(tmp_path / "x", labels=labels)
        assert other.labels == labels
        assert "classifier/output/kernel" in other.load_report.ignored
        assert other.load_report.initialized == (
            "classifier/output/kernel",
            "classifier/output/bias",
        )
    with pytest.warns(CheckpointWarning, match="tagger/output/kernel"):
        tagger = BertTagger.from_pretrained(tmp_path / "x", labels=TAGS)
    assert tagger.labels == TAGS


@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_a_checkpoint_is_the_start_of_any_task(tmp_path):
    model = make("pretrainer")
    model.save_pretrained(tmp_path / "x", format="tf1")
    expected = weights_of(model.encoder)
    for model_class, options in (
        (BertEncoder, {}),
        (BertPretrainer, {"next_sentence": False}),
        (BertClassifier, {"labels": LABELS, "dropout": 0.5}),
        (BertClassifier, {"labels": None}),
        (BertSpanLabeler, {}),
        (BertMultipleChoice, {}),
        (BertTagger, {"labels": TAGS}),
    ):
        loaded = model_class.from_pretrained(tmp_path / "x", **options)
        found = weights_of(loaded)
        for path, value in expected.items():
            np.testing.assert_array_equal(found[path], value)
        if "dropout" in options:
            assert loaded.dropout == 0.5


def test_options_go_before_what_the_checkpoint_says(tmp_path):
    make("encoder").save_pretrained(tmp_path / "x")
    encoder = BertEncoder.from_pretrained(
        tmp_path / "x", hidden_states=True, pooler=False, attention="left_to_right"
    )
    assert encoder.attention == "left_to_right"
    assert set(encoder(encoder_features())) == {"sequence_output", "hidden_states"}
    assert encoder.load_report.ignored == ("pooler/kernel", "pooler/bias")
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        BertEncoder.from_pretrained(tmp_path / "x", depth=3)


# The tokenizer


@pytest.mark.parametrize(
    ("options", "fast", "expected"),
    [
        ({"do_lower_case": False}, {"lowercase": True}, (False, False)),
        ({"do_lower_case": True, "strip_accents": False}, {}, (True, False)),
        ({}, {"lowercase": False, "strip_accents": True}, (False, True)),
        ({}, {"lowercase": True, "strip_accents": None}, (True, True)),
    ],
)
def test_casing_is_what_the_files_say(options, fast, expected, tmp_path):
    make("encoder").save_pretrained(tmp_path, format="hf")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    if fast:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"normalizer": fast}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load_pretrained(tmp_path).tokenizer
    assert (found.lower_case, found.strip_accents) == expected


@pytest.mark.parametrize(
    ("folder", "capital", "lower_case", "doubt"),
    [
        ("uncased_L-12_H-768_A-12", False, True, False),
        ("cased_L-12_H-768_A-12", True, False, False),
        ("multi_cased_L-12", True, False, False),
        ("bert-base-uncased", True, False, True),
        ("bert_cased", False, True, True),
        ("anything", False, True, False),
    ],
)
def test_casing_is_guessed_with_a_warning(folder, capital, lower_case, doubt, tmp_path):
    model = make("encoder")
    if capital:
        model.tokenizer = type(model.tokenizer)([*model.tokenizer.vocabulary[:-1], "Word"])
    model.save_pretrained(tmp_path / folder, format="tf1")
    for name in ("tokenizer_config.json", "keras_bert_ref.json"):
        (tmp_path / folder / name).unlink()
    with pytest.warns(CheckpointWarning, match="does not say how its text was cased") as caught:
        assert load_pretrained(tmp_path / folder).tokenizer.lower_case == lower_case
    assert ("but the folder is named" in str(caught[0].message)) == doubt


@pytest.mark.parametrize("name", ["uncased", "cased", "multilingual-cased", "chinese"])
def test_the_guess_is_right_for_the_released_vocabularies(name):
    path = shared(f"data/vocab/bert-base-{name}-vocab.txt")
    with pytest.warns(CheckpointWarning):
        guess = guess_lower_case(read_vocabulary(path), path.parent)
    assert guess == (name in ("uncased", "chinese"))


def test_a_vocabulary_is_found_in_tokenizer_json():
    model = load_pretrained(shared("data/checkpoints/hf_tiny_mlm"))
    vocabulary = shared("data/vocab/bert-base-uncased-vocab.txt").read_text(encoding="utf-8")
    assert model.tokenizer.vocabulary == tuple(vocabulary.rstrip("\n").split("\n"))
    assert model.tokenizer.lower_case
    (best,) = fill_mask(model, "paris is the capital of [MASK].")
    assert len(best) == 5


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("vocab.txt", None, CheckpointError, "missing or not the one"),
        ("vocab.txt", "[PAD]\n[UNK]\n", VocabularyError, r"lacks \[CLS\]"),
        ("tokenizer_config.json", "{", CheckpointError, "is damaged"),
        ("tokenizer_config.json", '{"do_lower_case": "yes"}', CheckpointError, "'yes', not true"),
        (
            "tokenizer_config.json",
            '{"do_lower_case": true, "never_split": 3}',
            CheckpointError,
            "not a list of pieces",
        ),
        ("keras_bert_ref.json", "[]", CheckpointError, "holds no JSON object"),
        ("keras_bert_ref.json", "{}", CheckpointError, "is damaged"),
        ("bert_config.json", "{}", ConfigError, "no vocab_size"),
        ("bert_config.json", None, ConfigError, "cannot be read"),
        ("model.safetensors", "", CheckpointError, "fetch it again"),
    ],
)
def test_a_damaged_file_is_named(file, content, error, message, tmp_path):
    make("encoder").save_pretrained(tmp_path / "x")
    if content is None:
        (tmp_path / "x" / file).unlink()
    else:
        (tmp_path / "x" / file).write_text(content)
    with pytest.raises(error, match=message) as caught:
        load_pretrained(tmp_path / "x")
    assert file in str(caught.value)


# What is refused


def test_a_vocabulary_longer_than_the_embeddings_is_refused(tmp_path):
    make("encoder").save_pretrained(tmp_path, format="hf")
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("one more\n")
    with pytest.raises(CheckpointError, match="vocabulary has 100 pieces, the word embeddings hav"):
        load_pretrained(tmp_path)


def test_shapes_at_odds_with_the_configuration_are_named(tmp_path):
    hugging_face(tmp_path / "hf")
    for change, message in (
        (
            {"hidden_size": 36},
            r"word_embeddings\.weight has the shape \[99, 32\], the configuration asks for \[99, 3",
        ),
        ({"intermediate_size": 38}, r"layer\.0\.intermediate\.dense\.weight has the shape \[37, 3"),
        ({"num_hidden_layers": 6}, r"lacks the tensor bert\.encoder\.layer\.5\.\S+ and 15 more"),
    ):
        folder = tmp_path / next(iter(change))
        shutil.copytree(tmp_path / "hf", folder)
        edit(folder / "config.json", **change)
        with pytest.raises(CheckpointError, match=message):
            load_pretrained(folder)
    edit(tmp_path / "hf" / "config.json", num_hidden_layers=4)
    report = load_pretrained(tmp_path / "hf").load_report
    assert len(report.ignored) == 16
    assert all(".layer.4." in name for name in report.ignored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "model of the type 'roberta', not a BERT"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type to 'relative_key'"),
        ({"add_cross_attention": True}, "add_cross_attention to True"),
        ({"vocab_size": None}, "no vocab_size"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is unknown"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label is"),
        ({"id2label": ["a"]}, "id2label is"),
    ],
)
def test_a_configuration_that_is_no_bert_is_refused(change, message, tmp_path):
    hugging_face(tmp_path, "classifier")
    edit(tmp_path / "config.json", **change)
    with pytest.raises(BertError, match=message):
        load_pretrained(tmp_path)


def test_an_untied_decoder_is_refused(tmp_path):
    _, tensors = hugging_face(tmp_path)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    rewrite(tmp_path, tensors | {"cls.predictions.decoder.weight": words + 1})
    for model_class in (load_pretrained, BertPretrainer.from_pretrained):
        with pytest.raises(CheckpointError, match="differs from the word embeddings"):
            model_class(tmp_path)
    bias = tensors["cls.predictions.bias"]
    rewrite(tmp_path, tensors | {"cls.predictions.decoder.bias": bias + 1})
    with pytest.raises(CheckpointError, match=r"decoder\.bias differs from cls\.predictions\.bias"):
        load_pretrained(tmp_path)
    assert "cls.predictions.bias" in BertEncoder.from_pretrained(tmp_path).load_report.ignored


def test_a_pickle_is_refused_with_what_to_do(tmp_path):
    hugging_face(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="is a pickle") as caught:
        load_pretrained(tmp_path)
    assert len([line for line in str(caught.value).splitlines() if line.startswith("  ")]) == 2


def test_values_that_are_not_finite_are_reported(tmp_path):
    for value in (np.nan, np.inf):
        model = make("encoder")
        model.pooler.bias.assign(np.full(32, value))
        model.save_pretrained(tmp_path / str(value), format="tf1")
        with pytest.warns(CheckpointWarning, match="bert/pooler/dense/bias holds values that are"):
            load_pretrained(tmp_path / str(value))


def test_places_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="neither a folder nor the prefix"):
        load_pretrained(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="holds no checkpoint that is known"):
        load_pretrained(tmp_path)
    make("encoder").save_pretrained(tmp_path / "x", format="tf1")
    for place in ("bert_model.ckpt", "bert_model.ckpt.index"):
        load_pretrained(tmp_path / "x" / place)
    for end in (".index", ".data-00000-of-00001"):
        shutil.copy(tmp_path / "x" / f"bert_model.ckpt{end}", tmp_path / "x" / f"model.ckpt-9{end}")
    with pytest.raises(CheckpointError, match="holds 2 checkpoints: name one"):
        load_pretrained(tmp_path / "x")
    (tmp_path / "x" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')
    assert load_pretrained(tmp_path / "x").load_report.where.endswith("model.ckpt-9")
    (tmp_path / "x" / "bert_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no bert_config\.json"):
        load_pretrained(tmp_path / "x")


def test_a_tokenizer_says_what_it_is_for(tmp_path):
    model = make("encoder")
    model.tokenizer = tokenizer(lower_case=False)
    model.save_pretrained(tmp_path / "x")
    assert not load_pretrained(tmp_path / "x").tokenizer.lower_case
