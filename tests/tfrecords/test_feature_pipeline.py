"""Features from an Apache Beam pipeline: those of one machine, and what a pipeline adds."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_models import make
from command_line import run_command

apache_beam = pytest.importorskip("apache_beam")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from apache_beam.ml.inference.base import RunInference  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.util import assert_that  # noqa: E402

from keras_bert_ref import FeatureExtractor  # noqa: E402
from keras_bert_ref.cli import progress  # noqa: E402
from keras_bert_ref.errors import InputError  # noqa: E402
from keras_bert_ref.features.writing import spellings  # noqa: E402
from tfrecords.beam import BeamRunner  # noqa: E402
from tfrecords.feature_pipeline import FeatureHandler  # noqa: E402

COMMAND = "from keras_bert_ref import cli; import sys; sys.argv.insert(1, 'features'); cli.main()"
TEXTS = [f"ab c{'d' * (n % 5)} word{n % 40}" for n in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    where = tmp_path_factory.mktemp("model") / "model"
    make("encoder").save_pretrained(where)
    return str(where)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `features` in this process; returns its exit code, output and errors."""
    monkeypatch.setattr(progress.console, "_width", 300, raising=False)
    return functools.partial(run_command, monkeypatch, capsys, "features", "--runner", "beam")


def read(folder):
    """Returns what a folder of Parquet files holds, in order of its files and rows."""
    rows = [row for path in folder.iterdir() for row in parquet.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["file"], row["row"]))


@pytest.mark.parametrize(
    ("pooling", "layers"), [("mean", "last4"), ("mean_max", "0,-1"), ("mean_piece", "-1")]
)
def test_the_features_are_those_of_one_machine(command, model, tmp_path, pooling, layers):
    for name, texts in (("a", TEXTS[:25]), ("b", ["", *TEXTS[25:], ""])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    out = tmp_path / "out"
    options = ("--pooling", pooling, "--layers", layers, "--out", out)
    code, said, _ = command(tmp_path / "*.txt", model, *options)
    assert (code, said) == (0, f"42 rows: vectors in {out}\n")
    rows = read(out)
    places = [("a.txt", n) for n in range(25)] + [("b.txt", n) for n in range(17)]
    assert [(row["file"], row["row"]) for row in rows] == [
        (str(tmp_path / name), n) for name, n in places
    ]
    extractor = FeatureExtractor(
        model,
        layers=layers if layers == "last4" else [int(n) for n in layers.split(",")],
        pooling=pooling,
    )
    of_words = pooling == "mean_piece"
    found = extractor.extract([*TEXTS[:25], "", *TEXTS[25:], ""], return_tokens=of_words)
    for row, one in zip(rows, found, strict=True):
        values = one.values if of_words else one
        np.testing.assert_allclose(
            np.reshape(row["features"], values.shape), values, rtol=0, atol=1e-5
        )
        assert not of_words or row["tokens"] == spellings(one)


def test_texts_that_were_cut_are_counted(command, model, tmp_path):
    (tmp_path / "a.txt").write_text("word1 word2\n" + "word1 " * 50 + "\n")
    out = tmp_path / "out"
    assert command(tmp_path / "a.txt", model, "--out", out, "--max-length", "16") == (
        0,
        f"2 rows, 1 of them cut: vectors in {out}\n",
        "",
    )


def test_no_texts_are_a_folder_of_none(command, model, tmp_path):
    (tmp_path / "a.txt").write_text("")
    code, _, _ = command(tmp_path / "a.txt", model, "--out", tmp_path / "out")
    assert code == 0
    assert read(tmp_path / "out") == []
    # A folder of features is replaced if that is asked for, and nothing else ever.
    code, _, error = command(tmp_path / "a.txt", model, "--out", tmp_path / "out")
    assert (code, "exists: choose another" in error) == (1, True)
    again = ("--out", tmp_path / "out", "--overwrite")
    assert command(tmp_path / "a.txt", model, *again)[0] == 0
    (tmp_path / "out" / "mine.txt").write_text("")
    code, _, error = command(tmp_path / "a.txt", model, *again)
    assert (code, "holds mine.txt" in error) == (1, True)


def test_a_bad_row_is_named_and_nothing_is_left(command, model, tmp_path):
    lines = [json.dumps({"text": text}) for text in TEXTS] + ['{"text": 5}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    code, _, error = command(
        tmp_path / "a.jsonl", model, "--columns", "text", "--out", tmp_path / "out"
    )
    place = tmp_path / "a.jsonl"
    assert (code, error) == (1, f"error: {place}, line 41: text should be text and has 5\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_text_that_windows_cannot_hold_is_named(command, model, tmp_path):
    (tmp_path / "a.txt").write_text("ab\nab\n" + "ab " * 30 + "||| word1 word2\nab\n")
    options = ("--overflow", "slide", "--max-length", "16", "--out", tmp_path / "out")
    code, _, error = command(tmp_path / "a.txt", model, *options)
    assert code == 2
    assert error.startswith(f"error: {tmp_path / 'a.txt'}, row 2 (from 0): ")
    assert "put the longer text second" in error


class Pipeline(BeamRunner):
    """What runs elsewhere, and may not do all that is asked of it."""

    def __init__(self, after, monkeypatch):
        super().__init__()
        self.after = after
        monkeypatch.setattr("keras_bert_ref.cli.features.make_runner", lambda *_: self)

    def run(self, build):
        result = super().run(build)
        self.after()
        return result


def test_an_element_that_is_no_text_is_named(model):
    runner = BeamRunner()
    with pytest.raises(InputError, match=r"^None: None: give a string, a pair"):
        runner.run(
            lambda pipeline: (
                pipeline | apache_beam.Create(["a", None]) | RunInference(FeatureHandler(model))
            )
        )


def test_what_the_runner_does_not_tell_is_not_said(command, model, tmp_path, monkeypatch):
    monkeypatch.setattr("tfrecords.feature_pipeline._truncated", lambda result: None)
    (tmp_path / "a.txt").write_text("ab\nab\n")
    code, said, _ = command(tmp_path / "a.txt", model, "--out", tmp_path / "out")
    assert (code, "2 rows, how many of them cut the runner does not tell:" in said) == (0, True)


@pytest.mark.parametrize("missing", ["*", "features-*", "rows"])
def test_what_workers_wrote_elsewhere_is_not_taken_for_nothing(
    command, model, tmp_path, monkeypatch, missing
):
    def lose():
        for path in tmp_path.glob(f".out.*/{missing}"):
            path.unlink()

    Pipeline(lose, monkeypatch)
    (tmp_path / "a.txt").write_text("ab\nab\n")
    code, _, error = command(tmp_path / "a.txt", model, "--out", tmp_path / "out")
    assert code == 1
    assert f"error: {tmp_path / 'out'} " in error
    assert "file system" in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_pipeline_left_does_not_appear(command, model, tmp_path, monkeypatch):
    def leave():
        (folder,) = tmp_path.glob(".out.*")
        (folder / "beam-temp-features-1234").mkdir()

    Pipeline(leave, monkeypatch)
    (tmp_path / "a.txt").write_text("ab\nab\n")
    assert command(tmp_path / "a.txt", model, "--out", tmp_path / "out")[0] == 0
    assert all(path.match("features-*.parquet") for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("keyed", [lambda text: text, lambda text: (1, text), lambda t: ("k", t)])
def test_batches_are_of_so_many_characters(model, keyed):
    pair = ("p" * 5_000, "q" * 5_000)
    texts = ["a" * 10_000, "b" * 50_000, pair, *(str(n) for n in range(100))]

    def check(batches):
        assert sum(map(len, batches)) == len(texts)
        assert 3 <= len(batches) <= 5
        for batch in batches:
            long = [element for element in batch if len(str(element)) > 9_000]
            assert len(long) <= 1

    options = FeatureHandler(model, pooling="pieces").batch_elements_kwargs()
    with apache_beam.Pipeline(FnApiRunner()) as pipeline:
        elements = pipeline | apache_beam.Create([list(map(keyed, texts))])
        found = elements | apache_beam.FlatMap(list) | apache_beam.BatchElements(**options)
        assert_that(found, check)


def test_a_place_is_the_same_for_workers_elsewhere(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("folder").mkdir()
    Path("prefix.ckpt.index").touch()
    for given, place in (
        ("folder", tmp_path / "folder"),
        ("~/folder", tmp_path / "folder"),
        ("prefix.ckpt", tmp_path / "prefix.ckpt"),
        ("hf://owner/name", "hf://owner/name"),
        ("owner/name", "owner/name"),  # which is nothing, but its message says what may be meant
    ):
        assert FeatureHandler(given).where == str(place)


def test_what_is_to_be_read_is_not_replaced(command, model, tmp_path):
    (tmp_path / "out").mkdir()
    place = tmp_path / "out" / "features-00000-of-00001.parquet"
    parquet.write_table(pyarrow.table({"text": ["ab"]}), place)
    code, _, error = command(
        place, model, "--columns", "text", "--out", tmp_path / "out", "--overwrite"
    )
    assert (code, "is to be read" in error) == (1, True)
    assert place.exists()


@pytest.mark.slow
def test_two_processes_and_paths_of_the_current_folder(model, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    shutil.copytree(model, tmp_path / "model")
    of_beam = "--direct_num_workers=2 --direct_running_mode=multi_processing"
    options = ("--runner", "beam", "--beam-options", of_beam)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "a.txt", "model", "--out", "out", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "out")
    assert [row["row"] for row in rows] == list(range(len(TEXTS)))
    assert {row["file"] for row in rows} == {str(tmp_path / "a.txt")}
    found = np.stack([row["features"] for row in rows])
    expected = FeatureExtractor(model).extract(TEXTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "x.npz"), "--out is a folder, not x.npz"),
        (("--out", "x", "--pooling", "middle"), "pooling"),
        (("--out", "x", "--columns", "2"), "columns"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(
    command, model, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("ab\n")
    code, _, error = command("a.txt", model, *options)
    assert code != 0
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_data_sets_are_not_read(command, model, tmp_path):
    code, _, error = command("tfds:glue/mrpc", model, "--out", tmp_path / "out")
    assert (code, error) == (
        2,
        "error: tfds:glue/mrpc: features are of files, not of tensorflow-datasets\n",
    )


def test_a_pipeline_of_ones_own(model):
    expected = FeatureExtractor(model, pooling="cls").extract(TEXTS[:3])

    def check(results):
        for result in results:
            own = expected[TEXTS.index(result.example)]
            np.testing.assert_allclose(result.inference, own, rtol=0, atol=1e-5)
        assert len(results) == 3

    with apache_beam.Pipeline(FnApiRunner()) as pipeline:
        texts = pipeline | apache_beam.Create(TEXTS[:3])
        assert_that(texts | RunInference(FeatureHandler(model, pooling="cls")), check)
