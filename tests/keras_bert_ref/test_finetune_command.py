"""`finetune`, `evaluate` and `predict` as their users call them."""

import io
import json

import pytest
from command_line import run_command
from letter_task import DEV, TRAIN, save_encoder

from keras_bert_ref.cli.confusion import draw_confusion

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


def refused(monkeypatch, capsys, *arguments):
    """Returns the message of a command that ends in an error, on one line."""
    code, _, error = run_command(monkeypatch, capsys, *arguments)
    assert code in (1, 2) and error.startswith("error:"), (code, error)
    return " ".join(error.split())


def test_overwrite_deletes_nothing_that_is_needed(out, start, data, monkeypatch, capsys, tmp_path):
    again = ("finetune", "classification", "--out", out, "--overwrite")
    error = refused(monkeypatch, capsys, *again, "--model", out / "model", "--data", data)
    assert f"{out / 'model'}, which is needed, lies in {out}" in error
    refused(monkeypatch, capsys, *again, "--model", "nowhere", "--data", data)
    assert (out / "model" / "keras_bert_ref.json").exists() and (out / "results.json").exists()
    # A run of another kind.
    (tmp_path / "run.json").write_text('{"steps": 3}')
    arguments = ("--model", start, "--data", data, "--out", tmp_path, "--overwrite")
    error = refused(monkeypatch, capsys, "finetune", "classification", *arguments)
    assert "holds no fine-tuning" in error and (tmp_path / "run.json").exists()


def test_a_task_that_is_not_the_models(out, data, monkeypatch, capsys):
    for command in ("evaluate", "predict"):
        options = ("--data", data, "--out", "x") if command == "predict" else ("--data", data)
        arguments = (command, out / "model", *options, "--task")
        error = refused(monkeypatch, capsys, *arguments, "mrpc")
        assert "whose labels are not_equivalent, equivalent: its own are high, low" in error
        assert "it has the labels high, low" in refused(
            monkeypatch, capsys, *arguments, "regression"
        )
    error = refused(
        monkeypatch, capsys, "evaluate", out / "model", "--data", data, "--set", "name=foo"
    )
    assert "no setting 'name'" in error


def test_places_that_cannot_be_written_are_noticed_first(out, data, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "texts.txt").write_text("a b\n")
    monkeypatch.setattr("keras_bert_ref.tasks.prediction.Predictor", None)
    model = out / "model"
    error = refused(
        monkeypatch, capsys, "evaluate", model, "--data", data, "--out", tmp_path / "file"
    )
    assert "cannot be written" in error
    error = refused(
        monkeypatch, capsys, "predict", model, tmp_path / "texts.txt", "--out", tmp_path
    )
    assert f"{tmp_path} is a folder" in error
    monkeypatch.setattr("sys.stdin", None)
    assert "closed" in refused(monkeypatch, capsys, "predict", model)


def test_blank_lines_and_a_mark_in_json_lines(out, monkeypatch, capsys, tmp_path):
    (tmp_path / "texts.jsonl").write_bytes(b'\xef\xbb\xbf"a b"\n\n"x"\n\n')
    code, output, error = run_command(
        monkeypatch, capsys, "predict", out / "model", tmp_path / "texts.jsonl"
    )
    assert code == 0 and len(output.splitlines()) == 2, error


def test_an_empty_label_is_none(start, out, data, monkeypatch, capsys, tmp_path):
    folder = write(tmp_path / "data", dev=DEV)
    (folder / "train.tsv").write_text("text\tlabel\na\thigh\nb\t\n")
    arguments = ("finetune", "classification", "--model", start, "--data", folder)
    error = refused(monkeypatch, capsys, *arguments, "--out", tmp_path / "out")
    assert f"{folder / 'train.tsv'}, line 3: the label is empty" in error
    (folder / "dev.tsv").write_text("text\tlabel\na\thigh\nb\t\n")
    error = refused(monkeypatch, capsys, "evaluate", out / "model", "--data", folder)
    assert "1 of 2 examples have no label" in error


def test_what_ones_own_task_raises_is_a_sentence(start, data, monkeypatch, capsys, tmp_path):
    text = "from __future__ import annotations\nimport dataclasses\n" + MINE.replace(
        "class Mine", "@dataclasses.dataclass(frozen=True)\nclass Mine"
    ).replace('    name = "mine"', '    size: int = 3\n    name = "mine"').replace("[1])", "[9])")
    (tmp_path / "mine.py").write_text(text)
    arguments = ("--model", start, "--data", data, "--out", tmp_path / "out")
    error = refused(monkeypatch, capsys, "finetune", f"{tmp_path / 'mine.py'}:Mine", *arguments)
    assert "cannot be read by Mine: IndexError" in error


def test_a_damaged_record_of_a_run(start, data, monkeypatch, capsys, tmp_path):
    (tmp_path / "run.json").write_text("{")
    arguments = ("--model", start, "--data", data, "--out", tmp_path)
    assert "choose another folder" in refused(
        monkeypatch, capsys, "finetune", "classification", *arguments
    )


def test_a_picture_of_classes_that_training_has_not(tmp_path):
    draw_confusion(["$^$", "b"], ["b", "c"], ("b", "c"), tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
