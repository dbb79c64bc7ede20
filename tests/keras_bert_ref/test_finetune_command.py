"""`finetune`, `evaluate` and `predict` as their users call them."""

import io
import json

import pytest
from command_line import run_command
from letter_task import DEV, TRAIN, save_encoder

OPTIONS = ("--batch-size", 7, "--learning-rate", 3e-3, "--epochs", 2, "--set", "max_length=24")


def write(folder, **splits):
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        lines = [f"{one.text}\t{one.label}\n" for one in examples]
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "".join(lines))
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("data"), train=TRAIN, dev=DEV)
    (folder / "test.tsv").write_text("text\n" + "".join(f"{one.text}\n" for one in DEV))
    return folder


@pytest.fixture(scope="module")
def out(start, data, tmp_path_factory):
    """Returns the folder of a run."""
    folder = tmp_path_factory.mktemp("run") / "out"
    options = ("--model", start, "--data", data, "--out", folder, "--restarts", 2, *OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        code, _, _ = run_command(patch, None, "finetune", "classification", *options)
    assert code == 0
    return folder


def test_a_run_leaves_a_model_results_and_a_picture(out):
    names = {path.name for path in out.iterdir()}
    assert {"model", "results.json", "trials", "run.json", "dev_predictions.jsonl"} <= names
    assert (out / "confusion.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert results["best"] == results["trials"][0]["trial"] and len(results["trials"]) == 2
    description = json.loads((out / "model" / "keras_bert_ref.json").read_text())
    assert description["task"] == {"name": "classification", "settings": {"max_length": 24}}
    assert description["labels"] == ["high", "low"]


def test_evaluate_says_what_training_said(out, data, monkeypatch, capsys, tmp_path):
    code, output, _ = run_command(
        monkeypatch, capsys, "evaluate", out / "model", "--data", data, "--out", tmp_path
    )
    assert code == 0
    best = json.loads((out / "results.json").read_text())["trials"][0]["dev"]
    assert json.loads((tmp_path / "scores.json").read_text()) == best
    assert f"{best['accuracy']:.2f}" in output


def test_predict_reads_the_standard_input(out, monkeypatch, capsys):
    text = "a b c\nx y z\n\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, output, _ = run_command(monkeypatch, capsys, "predict", out / "model")
    assert code == 0
    found = [json.loads(line)["label"] for line in output.splitlines()]
    assert found[:2] == ["low", "high"] and len(found) == 3


def test_predict_reads_json_lines_and_a_bad_one_loses_none_before_it(
    out, monkeypatch, capsys, tmp_path
):
    path = tmp_path / "texts.jsonl"
    path.write_text('"a b"\n["x", "y z"]\n{"text": 3}\n"c"\n')
    code, output, error = run_command(monkeypatch, capsys, "predict", out / "model", path)
    assert code == 1 and f"{path}, line 3: {{'text': 3}} is neither" in error.replace("\n", " ")
    assert len(output.splitlines()) == 2


def test_predict_writes_a_split_that_has_no_labels(out, data, monkeypatch, capsys, tmp_path):
    arguments = ("--data", data, "--split", "test", "--out", tmp_path / "test")
    code, _, _ = run_command(monkeypatch, capsys, "predict", out / "model", *arguments)
    assert code == 0
    found = (tmp_path / "test" / "predictions.jsonl").read_text()
    assert found == (out / "dev_predictions.jsonl").read_text()  # to the bit
    code, _, error = run_command(
        monkeypatch, capsys, "evaluate", out / "model", "--data", data, "--split", "test"
    )
    assert code == 1 and "23 of 23 examples have no label" in error.replace("\n", " ")


def test_a_model_that_is_not_fine_tuned_is_refused(start, data, monkeypatch, capsys):
    code, _, error = run_command(monkeypatch, capsys, "evaluate", start, "--data", data)
    assert code == 2 and "does not say what it was fine-tuned for" in error
    arguments = ("evaluate", start, "--data", data, "--task", "mrpc")
    code, _, error = run_command(monkeypatch, capsys, *arguments)
    assert code != 0 and "classifier" in error


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("text\tlabel\na b\thigh\tmore\n", "line 2: 3 values, but there are 2 columns"),
        ("sentence\tlabel\na b\thigh\n", "has no column 'text'"),
        ("text\nno label\n", "has no column 'label'"),
        ("text\tlabel\n", "holds no example"),
        ("", "holds no example"),
    ],
)
def test_bad_training_files(start, data, monkeypatch, capsys, tmp_path, lines, message):
    folder = write(tmp_path / "data", dev=DEV)
    (folder / "train.tsv").write_text(lines)
    code, _, error = run_command(
        monkeypatch, capsys, "finetune", "classification", "--model", start, "--data", folder,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 1 and message in error.replace("\n", " ") and str(folder / "train.tsv") in error
    assert not (tmp_path / "out").exists()


MINE = """
from keras_bert_ref.tasks.classification import TextClassification, TextExample

class Mine(TextClassification):
    name = "mine"
    files = {"train": "train.tsv", "dev": "dev.tsv"}

    def read(self, path, split):
        lines = path.read_text().splitlines()[1:]
        return [TextExample(*line.split("\\t")[:1], label=line.split("\\t")[1]) for line in lines]
"""


def test_a_task_of_ones_own(start, data, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    name, out = f"{tmp_path / 'mine.py'}:Mine", tmp_path / "out"
    options = ("--model", start, "--data", data, "--out", out, *OPTIONS)
    code, _, error = run_command(monkeypatch, capsys, "finetune", name, *options)
    assert code == 0, error
    # What a checkpoint names is not run unless it is asked for.
    code, _, error = run_command(monkeypatch, capsys, "evaluate", out / "model", "--data", data)
    assert code == 2 and "name that task's file" in error.replace("\n", " ")
    arguments = ("evaluate", out / "model", "--data", data, "--task", name)
    code, output, error = run_command(monkeypatch, capsys, *arguments)
    assert code == 0 and "accuracy" in output, error
