"""`info`, `convert` and `fill-mask` as a person uses them."""

import functools
import subprocess
import sys

import pytest
from checkpoint_models import TAGS, assert_same_weights, make
from command_line import run_command
from shared_data import shared

from keras_bert_ref import load_pretrained
from keras_bert_ref.cli import progress


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command line in this process; returns its exit code, output and errors."""
    monkeypatch.setattr(progress.console, "_width", 300, raising=False)

    return functools.partial(run_command, monkeypatch, capsys)


def test_info_tells_what_a_checkpoint_holds(command, tmp_path):
    model = make("tagger")
    model.save_pretrained(tmp_path / "x", format="hf")
    code, printed, _ = command("info", tmp_path / "x")
    assert code == 0
    rows = dict(line.split(None, 1) for line in printed.splitlines())
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows["format"] == "Hugging Face"
    assert rows["model"] == "BertTagger"
    assert rows["size"] == ("5 layers, hidden 32, 4 heads, feed-forward 37, 16 positions, gelu")
    assert rows["parameters"] == f"{model.count_params():,} in 87 weights"
    assert rows["dtype"] == "float32"
    assert rows["heads"] == "tagger"
    assert rows["pooler"] == "none"
    assert rows["labels"] == ", ".join(TAGS)
    assert rows["vocabulary"] == "99 pieces, uncased"


def test_info_needs_no_tensorflow(tmp_path):
    make("pretrainer").save_pretrained(tmp_path / "x", format="tf1")
    program = (
        "import sys; from keras_bert_ref import cli\n"
        f"sys.argv = ['keras-bert-ref', 'info', {str(tmp_path / 'x')!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'tensorflow' not in sys.modules and 'h5py' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "masked_lm, next_sentence" in done.stdout


def test_convert_keeps_every_weight(command, tmp_path):
    model = make("classifier")
    model.save_pretrained(tmp_path / "a")
    for source, target, format in (("a", "b", "hf"), ("b", "c", "tf1"), ("c", "d", "own")):
        code, printed, errors = command(
            "convert", tmp_path / source, tmp_path / target, "--format", format
        )
        assert (code, errors) == (0, "")
        assert "89 weights read from" in printed
        assert f"BertClassifier in {tmp_path / target}" in printed
    assert_same_weights(load_pretrained(tmp_path / "d"), model)
    assert load_pretrained(tmp_path / "d").labels == model.labels


def test_convert_refuses_what_it_should(command, tmp_path):
    make("classifier").save_pretrained(tmp_path / "a", format="tf1")

    def error(*arguments):
        code, _, errors = command("convert", *arguments)
        assert code == 1
        assert "Traceback" not in errors
        return errors

    a, b = tmp_path / "a", tmp_path / "b"
    for source in (a, a / "bert_model.ckpt"):
        assert "holds what is to be converted" in error(source, a, "--format", "hf", "--overwrite")
    assert "exists: choose" in error(a, a, "--format", "hf")
    assert "neither a folder nor the prefix" in error(tmp_path / "c", b, "--format", "hf")
    (a / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"")
    assert "cut off within the tensor" in error(a, b, "--format", "hf")
    assert not b.exists()
    assert command("convert", a, b, "--format", "torch")[0] == 2


@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_convert_makes_no_weights_up(command, tmp_path):
    make("tagger").save_pretrained(tmp_path / "a", format="hf")
    config = tmp_path / "a" / "config.json"
    named = config.read_text().replace(
        "BertForTokenClassification", "BertForSequenceClassification"
    )
    config.write_text(named)
    code, _, errors = command("convert", tmp_path / "a", tmp_path / "b", "--format", "own")
    assert code == 1
    assert "has no values for pooler/kernel, pooler/bias" in errors
    assert not (tmp_path / "b").exists()


def test_fill_mask_prints_a_table(command):
    folder = shared("data/checkpoints/hf_tiny_mlm")
    code, printed, _ = command("fill-mask", folder, "the capital of [MASK] is [MASK].", "--top", 3)
    assert code == 0
    assert "[MASK] 1" in printed and "[MASK] 2" in printed
    assert printed.count("%") == 6
    code, _, errors = command("fill-mask", folder, "nothing")
    assert code == 2
    assert "has no [MASK] to fill" in errors


def test_fill_mask_needs_the_head(command, tmp_path):
    make("encoder").save_pretrained(tmp_path / "x")
    code, _, errors = command("fill-mask", tmp_path / "x", "a [MASK].")
    assert code == 1
    assert "has no head for masked language modeling" in errors


@pytest.mark.filterwarnings("default::keras_bert_ref.errors.CheckpointWarning")
def test_warnings_are_lines_of_their_own(command):
    code, printed, errors = command("info", shared("data/checkpoints/tf1_tiny"))
    assert code == 0
    assert "warning" not in printed
    assert errors.startswith("warning: ")
    assert "does not say how its text was cased" in errors
    assert ".py:" not in errors
