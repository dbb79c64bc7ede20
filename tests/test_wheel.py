"""The wheel built from the tree works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(tmp_path):
    def run(*command, **environment):
        result = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if name.endswith(".py")} == {
        "keras_bert_ref",
        "tfrecords",
    }
    site = tmp_path / "site"
    run(*pip, "install", "--no-deps", "--target", str(site), str(wheel))

    script = """
import keras_bert_ref, tfrecords, sys
assert keras_bert_ref.__file__.startswith(sys.argv[1]), keras_bert_ref.__file__
assert tfrecords.__file__.startswith(sys.argv[1]), tfrecords.__file__
from keras_bert_ref import BertConfig, BertPretrainer
from tfrecords.reader import pretraining_dataset
BertPretrainer(BertConfig.from_name("tiny", vocab_size=99))
"""
    run(sys.executable, "-c", script, str(site), PYTHONPATH=str(site))
    help_text = run(str(site / "bin" / "keras-bert-ref"), "--help", PYTHONPATH=str(site))
    for command in ("learn-vocab", "create-data", "pretrain", "quickstart"):
        assert command in help_text
