import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import feature_based_ner, feature_tagger, word_features
from experiments.bilstm import BiLSTM
from experiments.feature_tagger import Recipe
from experiments.table7 import ROWS, table, write_report
from keras_bert_ref import BertConfig, BertEncoder, WordPieceTokenizer
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError, InputError, OutputError
from keras_bert_ref.tasks import conll
from keras_bert_ref.tasks.document_context import windows

RECIPE = Recipe(lstm_units=6, dropout=0.1, batch_size=4, epochs=2)

# --- the BiLSTM and its batches


def test_bilstm_equals_keras_in_values_and_gradients():
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(5, 9, 6)), tf.float32)
    lengths = np.array([9, 1, 4, 7, 2], np.int32)
    mask = np.arange(9) < lengths[:, None]
    ours, theirs = (
        BiLSTM(7),
        keras.layers.Bidirectional(keras.layers.LSTM(7, return_sequences=True)),
    )
    ours(x, lengths), theirs(x, mask=mask)
    kinds = zip(ours.kernels, ours.recurrent, ours.biases, strict=True)
    by_direction = [variable for direction in kinds for variable in direction]
    for variable, value in zip(theirs.weights, by_direction, strict=True):
        variable.assign(value)

    def gradients(function, variables):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function() * mask[:, :, None]
            loss = tf.reduce_sum(tf.sin(y * np.arange(1, 15)))
        return y, *tape.gradient(loss, [x, *variables])

    found = gradients(lambda: ours(x, lengths), [v.value for v in by_direction])
    expected = gradients(lambda: theirs(x, mask=mask), [v.value for v in theirs.weights])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_bilstm_starts_as_keras_does():
    layer = BiLSTM(7)
    layer.build((None, None, 5), (None,))
    for bias in layer.biases:
        assert bias.numpy().tolist() == [0.0] * 7 + [1.0] * 7 + [0.0] * 14


# --- end to end

PEOPLE, PLACES = ("anna", "boris", "clara"), ("oslo", "paris")


def corpus(seed, documents=4):
    """Returns a column file in which names tell their type."""
    rng, lines = np.random.default_rng(seed), []
    for _ in range(documents):
        lines += ["-DOCSTART- -X- O O", ""]
        for _ in range(rng.integers(2, 7)):
            lines += [f"{rng.choice(PEOPLE)} NNP O I-PER", "sees VB O O"]
            lines += [f"{rng.choice(PLACES)} NNP O I-LOC"] * rng.integers(0, 2) + [""]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conll")
    for seed, name in enumerate(("eng.train", "eng.testa", "eng.testb")):
        (folder / name).write_text(corpus(seed, documents=8))
    return folder


@pytest.fixture(scope="module")
def encoder():
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = (*special, "an", "##na", *PEOPLE[1:], *PLACES, "sees")
    config = BertConfig.from_name(
        "tiny",
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=5,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
    )
    keras.utils.set_random_seed(0)
    encoder = BertEncoder(config, hidden_states=True)
    encoder.tokenizer = WordPieceTokenizer(vocabulary)
    return encoder


@pytest.fixture(scope="module")
def finished(data, encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("ner")
    options = {"seeds": 2, "finalists": 1, "per_layer": True, "recipe": RECIPE}
    return out, feature_based_ner.run(data, encoder, out, **options), options


def test_features_are_those_of_each_word_in_its_window(data, encoder, finished):
    out, *_ = finished
    documents = conll.read(data / "eng.testa")
    found = np.load(out / "features" / "dev.npy")
    begin = 0
    for document in documents:
        words = [word for sentence in document for word in sentence.words]
        pieces = [[2 if word == "anna" else 1 for word in s.words] for s in document]
        for window in windows(pieces, 22):
            encoding = encoder.tokenizer.encode_words(words[window.start : window.stop])
            inputs = {
                name: np.array([getattr(encoding, name)], np.int32)
                for name in ("input_ids", "input_mask", "segment_ids")
            }
            states = encoder(inputs)["hidden_states"][0].numpy()  # [L + 1, S, H]
            first = [encoding.word_ids.index(n) for n in range(window.stop - window.start)]
            for word in range(window.own_start, window.own_stop):
                expected = states[:, first[word - window.start]]
                np.testing.assert_allclose(found[:, begin + word], expected, atol=2e-3, rtol=1e-3)
        begin += len(words)
    assert begin == found.shape[1]


def test_every_row_and_layer_has_its_taggers(finished):
    out, content, _ = finished
    best = max(ROWS, key=lambda name: content["results"][f"{name}/0"]["dev"]["f1"])
    expected = {f"{name}/0" for name in ROWS} | {f"layer {n}/0" for n in range(6)} | {f"{best}/1"}
    assert set(content["results"]) == expected
    assert json.loads((out / "results.json").read_text()) == content
    for key, result in content["results"].items():
        assert result["dev"]["gold"] and result["dev_f1"][result["epoch"] - 1] == max(
            result["dev_f1"]
        )
        assert ("mix" in result) == key.startswith("sum-")
    assert len(content["results"]["sum-last-4/0"]["mix"]) == 4
    assert len(content["results"]["sum-all/0"]["mix"]) == 5


def test_a_tagger_learns(data, encoder, finished, tmp_path):
    out, *_ = finished
    documents = {n: conll.read(data / f) for n, f in feature_based_ner._FILES.items()}
    splits = {
        n: feature_tagger.Split.of(d, np.load(out / "features" / f"{n}.npy"))
        for n, d in documents.items()
    }
    recipe = Recipe(
        lstm_units=8,
        dropout=0.0,
        learning_rate=0.02,
        batch_size=4,
        epochs=6,
        dtype="mixed_bfloat16",
    )
    result = feature_tagger.train(splits, mixed=True, recipe=recipe, seed=0)
    assert result["test"]["f1"] > 95, result


def test_a_finished_run_computes_nothing_again(data, encoder, finished, monkeypatch):
    out, content, options = finished

    def never(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(word_features, "_extract", never)
    monkeypatch.setattr(feature_based_ner, "train", never)
    assert feature_based_ner.run(data, encoder, out, **options) == content


def test_a_run_goes_on_where_it_stopped(data, encoder, tmp_path, monkeypatch):
    real, calls = feature_based_ner.train, []

    def stops(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    options = {"rows": ("embeddings", "last"), "seeds": 1, "recipe": RECIPE}
    monkeypatch.setattr(feature_based_ner, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        feature_based_ner.run(data, encoder, tmp_path, **options)
    part = feature_based_ner.run(data, encoder, tmp_path, **options)
    assert len(calls) == 3 and set(part["results"]) == {"embeddings/0", "last/0"}


def test_an_interrupted_extraction_is_begun_again(data, encoder, tmp_path, monkeypatch):
    documents = {"dev": conll.read(data / "eng.testa")}
    real = np.abs

    def stops(x):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "abs", stops)
    with pytest.raises(KeyboardInterrupt):
        word_features.word_features(encoder, documents, tmp_path)
    assert not (tmp_path / "dev.npy").exists()
    monkeypatch.setattr(np, "abs", real)
    features, _ = word_features.word_features(encoder, documents, tmp_path)
    assert np.isfinite(features["dev"]).all() and sorted(p.name for p in tmp_path.iterdir()) == [
        "dev.npy",
        "source.json",
    ]


def test_the_folder_of_another_run_is_left_alone(data, encoder, finished, tmp_path):
    out, content, options = finished
    other = {**options, "recipe": Recipe(lstm_units=5)}
    with pytest.raises(OutputError, match=r"results of another run \(recipe differ\)"):
        feature_based_ner.run(data, encoder, out, **other)
    with pytest.raises(OutputError, match=r"features of another source \(max_length differ\)"):
        feature_based_ner.run(data, encoder, out, max_length=16, **options)
    (data_too := tmp_path / "data").mkdir()
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (data_too / name).write_text(corpus(7))
    with pytest.raises(OutputError, match=r"features of another source \(texts differ\)"):
        feature_based_ner.run(data_too, encoder, out, **options)
    assert json.loads((out / "results.json").read_text()) == content


def test_report(finished, tmp_path):
    _, content, _ = finished
    write_report(content, tmp_path / "ner.md")
    text = (tmp_path / "ner.md").read_text()
    assert table(content) in text and "vocabulary here is uncased" in text
    assert (tmp_path / "ner.png").read_bytes().startswith(b"\x89PNG")
    for row in ROWS.values():
        assert re.search(rf"\| {row.title} \| {row.published} \|  \| \d", text)
    assert table(content).count(" ± ") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ner.md", "ner.png"]


def test_bad_input_is_one_line(tmp_path, data, encoder):
    import typer

    app = typer.Typer()
    app.command()(feature_based_ner.main)
    result = CliRunner().invoke(app, [str(tmp_path), "absent", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1 and "eng.train cannot be read" in result.output
    with pytest.raises(InputError, match=r"eng\.train"):
        feature_based_ner.run(tmp_path, encoder, tmp_path / "out")
    with pytest.raises(ConfigError, match="no row 'first'"):
        feature_based_ner.run(data, encoder, tmp_path / "out", rows=("first",))
    assert not (tmp_path / "out").exists()
