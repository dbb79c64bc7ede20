"""The script on the README's first screen runs as it stands, on a smaller scale."""

import random
import re
import subprocess
from pathlib import Path

import pytest
from checkpoint_models import make

from keras_bert_ref import load_pretrained

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_script_of_the_readme(tmp_path, monkeypatch):
    from keras_bert_ref.tokenization import WordPieceTokenizer
    from keras_bert_ref.vocabulary import SPECIAL_PIECES
    from tfrecords.create import create_pretraining_data
    from tfrecords.settings import InstanceSettings

    script = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    assert sum(bool(line.strip()) for line in script.splitlines()) <= 15

    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "small", "birds"]
    draw = random.Random(0)
    documents = ["\n".join(" ".join(draw.choices(words, k=6)) for _ in range(5)) for _ in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    create_pretraining_data(
        tmp_path / "text.txt",
        WordPieceTokenizer((*SPECIAL_PIECES, *words)),
        tmp_path / "runs" / "quickstart" / "data",
        InstanceSettings(max_seq_length=16, max_predictions_per_seq=3),
        held_out=0.2,
    )
    monkeypatch.chdir(tmp_path)
    smaller = {"2000": "2", "warmup_steps=200": "warmup_steps=1", "200": "1", "=8000": "=99"}
    for old, new in smaller.items():
        assert old in script
        script = script.replace(old, new)
    names = {}
    exec(script, names)
    assert set(names["encoder"].output) == {"sequence_output", "pooled_output"}


@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_the_checkpoint_script_of_the_readme(tmp_path, monkeypatch, capsys):
    (script,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if "load_report" in block
    )
    make("pretrainer").save_pretrained(tmp_path / "run" / "model")
    monkeypatch.chdir(tmp_path)
    exec(script.replace("The capital of France", "word1"), {})  # a tiny model reads little
    assert "94 weights read from run/model (keras-bert-ref)" in capsys.readouterr().out
    assert load_pretrained("tagger").labels == ("O", "B-PER", "I-PER")


def test_make_hands_a_pattern_on_as_it_is():
    command = ["make", "--dry-run", "--always-make", "quickstart", "TEXT=my books/*.txt"]
    printed = subprocess.run(command, cwd=README.parent, capture_output=True, text=True).stdout
    assert "--text 'my books/*.txt'" in printed
