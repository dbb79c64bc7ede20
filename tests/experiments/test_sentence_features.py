"""Frozen features beside TF-IDF on small made GLUE tasks."""

import json

import numpy as np
import pytest
import typer
from checkpoint_models import make
from encoder_rows import count_encoder_rows
from sklearn.feature_extraction.text import TfidfVectorizer
from typer.testing import CliRunner

from experiments import layer_curve, sentence_features
from keras_bert_ref import BertFeaturizer, FeatureExtractor
from keras_bert_ref.strategies import fast_precision

SIZES = {"train": 40, "dev": 23}
LAYERS = 5  # of the encoder, besides the embeddings


def words(rng, label):
    """Returns three words of two letters, by which the label is known."""
    letters = list("abc" if label else "yz")
    return " ".join(map("".join, rng.choice(letters, (3, 2))))


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """A folder of SST-2 (what a text is of) and STS-B (whether two texts are of the same)."""
    folder = tmp_path_factory.mktemp("glue")
    for seed, (split, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, (size, 2))
        lines = ["sentence\tlabel", *(f"{words(rng, label)}\t{label}" for label, _ in labels)]
        write(folder / "SST-2" / f"{split}.tsv", lines)
        lines = ["index\tsentence1\tsentence2\tscore"]
        for n, (a, b) in enumerate(labels):
            lines.append(f"{n}\t{words(rng, a)}\t{words(rng, b)}\t{4.5 if a == b else 0.25}")
        write(folder / "STS-B" / f"{split}.tsv", lines)
    return folder


def write(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "model"
    make("encoder").save_pretrained(place)
    return place


@pytest.fixture
def encoded(monkeypatch):
    return count_encoder_rows(monkeypatch)


def command(*arguments):
    app = typer.Typer()
    app.command()(sentence_features.main)
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_each_layer_is_scored_and_drawn_in_one_pass(glue, model, tmp_path, encoded, monkeypatch):
    panels, draw = [], layer_curve.draw
    monkeypatch.setattr(layer_curve, "draw", lambda *args: panels.extend(args[0]) or draw(*args))
    report = tmp_path / "runs" / "sst2.json"
    result = command(
        *(glue, model, "--task", "SST-2", "--per-layer", "--report", report),
        *("--precision", "float32"),
    )
    assert result.exit_code == 0, result.output
    assert sum(encoded) == sum(SIZES.values())
    assert report.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    scores = json.loads(report.read_text())
    kinds = ("TF-IDF, tuned", "TF-IDF, defaults", "BERT", *(f"BERT, layer {n}" for n in range(6)))
    assert list(scores) == [f"SST-2, {kind}" for kind in kinds]
    assert scores["SST-2, BERT"]["accuracy"] > 90  # even through random weights

    (panel,) = panels
    by_layer = {n: scores[f"SST-2, BERT, layer {n}"]["accuracy"] for n in range(LAYERS + 1)}
    assert panel.curves == {"BERT": by_layer}
    assert panel.lines == {kind: scores[f"SST-2, {kind}"]["accuracy"] for kind in kinds[:2]}


def test_a_row_of_a_layer_is_that_layer(glue, model):
    features = sentence_features.Features(model, (0, -1), True)
    train, dev = (sentence_features.read_split(glue, "STS-B", split)[0] for split in SIZES)
    rows = dict(features.rows(train, dev))
    u, v = map(FeatureExtractor(model, layers="all", combine="stack").extract, dev)
    for n in range(LAYERS + 1):
        expected = np.hstack([np.abs(u - v)[:, n], (u * v)[:, n]])
        np.testing.assert_allclose(rows[f"BERT, layer {n}"][1], expected, atol=1e-5)
    ends = [rows[f"BERT, layer {n}"][0] for n in (0, LAYERS)]
    np.testing.assert_array_equal(rows["BERT"][0], np.hstack(ends))
    pairs = list(zip(*train, strict=True))
    expected = BertFeaturizer(model, layers=(0, -1)).transform(pairs)
    np.testing.assert_allclose(rows["BERT, joint"][0], expected, atol=1e-5)


def test_without_layers_there_is_no_picture(glue, model, tmp_path):
    report = tmp_path / "sts.json"
    result = command(glue, model, "--task", "STS-B", "--report", report, "--layers", "1,-1")
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["sts.json"]
    scores = json.loads(report.read_text())
    kinds = ("TF-IDF, tuned", "TF-IDF, defaults", "BERT", "BERT, joint")
    assert list(scores) == [f"STS-B, {kind}" for kind in kinds]
    assert all(set(found) == {"Pearson", "Spearman"} for found in scores.values())
    assert f"dev scores, {fast_precision()}" in result.output


def test_some_examples_are_drawn(glue, model, monkeypatch):
    (train, *_), y_train = sentence_features.read_split(glue, "SST-2", "train")
    fitted = []
    monkeypatch.setattr(
        sentence_features, "score", lambda task, x, y: fitted.append((x[0], y[0])) or {}
    )
    result = command(glue, model, "--task", "SST-2", "--examples", 20, "--pooling", "max")
    assert result.exit_code == 0, result.output
    chosen = np.random.default_rng(0).permutation(len(train))[:20]
    features, labels = fitted[-1]
    np.testing.assert_array_equal(labels, y_train[chosen])
    extractor = FeatureExtractor(model, layers="last4", pooling="max", dtype=fast_precision())
    expected = extractor.extract([train[n] for n in chosen])
    np.testing.assert_allclose(features, expected, atol=1e-2)


def test_the_defaults_are_those_of_scikit_learn(glue, model):
    train, dev = (sentence_features.read_split(glue, "SST-2", split)[0] for split in SIZES)
    rows = dict(sentence_features.Features(model, "last4", False).rows(train, dev))
    expected = TfidfVectorizer().fit(train[0]).transform(dev[0]).toarray()
    np.testing.assert_array_equal(rows["TF-IDF, defaults"][1].toarray(), expected)
    assert rows["TF-IDF, tuned"][1].shape != expected.shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-layer"], "name a .json file"),
        (["--per-layer", "--report", "scores.png"], "name a .json file"),
        (["--task", "SST"], "no task 'SST'"),
        (["--layers", "first"], "no list of numbers"),
        (["--layers", "6"], "layer 6 is none"),
        (["--task", "MRPC"], "MRPC"),
    ],
)
def test_bad_input_is_one_line(glue, model, arguments, message):
    result = command(glue, model, *arguments)
    assert result.exit_code == 1
    assert result.output.startswith("error: ") and message in result.output
    assert result.output.count("\n") == 1
