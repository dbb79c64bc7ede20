"""What the benchmarks make of their measurements; not the measurements themselves."""

import json

import pytest
from rich.console import Console
from small_data import make_data

from experiments.benchmarks import data_creation, packing, summary
from experiments.benchmarks.contenders import ratio


def test_a_ratio_is_of_the_same_turn():
    assert ratio([10, 1, 8], [5, 1, 2]) == 2  # a machine that is busy in one turn slows both


def test_the_fastest_precision_of_each_side_counts():
    rates = {
        ("float32", "this library"): [4.0, 4.0],
        ("bfloat16", "this library"): [6.0, 8.0],
        ("float32", "transformers"): [2.0, 4.0],
        ("bfloat16", "transformers"): [1.0, 1.0],
    }
    assert summary._best_by_best(rates) == 2.5
    alone = {key: value for key, value in rates.items() if key[1] == "this library"}
    assert summary._best_by_best(alone) is None
    assert summary._by_fastest([6.0], {"a": [3.0], "b": [4.0]}) == 1.5


def test_the_table_says_what_is_below(tmp_path):
    for one, values in (("tokenization", [3.5]), ("serving", [None]), ("packing", [1.2, 2.5])):
        (tmp_path / f"{one}.json").write_text(json.dumps({"values": values, "found": {}}))
    console = Console(width=140, record=True)
    console.print(summary.table(tmp_path))
    lines = console.export_text().splitlines()

    def row(text):
        return next(line for line in lines if text in line)

    assert "below 3.50 ×" in row("tokenization, one core")
    assert "below 1.20 ×" in row("novels") and "below" not in row("paragraphs of Wikipedia")
    assert "–" in row("serving") and "35%" in row("share of the machine's peak")


def test_a_corpus_grows_by_links(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 1000)
    (tmp_path / "b.txt").write_text("b" * 500)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    assert data_creation.grow(files, 0.0026, corpus) == pytest.approx(0.003)
    assert sum(file.stat().st_size for file in corpus.iterdir()) == 3000


@pytest.mark.slow
def test_packed_and_unpacked_rows_are_pretrained_on(tmp_path):
    data = make_data(tmp_path)
    found = packing.pretrain(
        str(data), str(data), rows=4, size="tiny", precision="float32", steps=4, learning_rate=1e-4
    )
    assert found["rate"] > 0 and 0 < found["tokens"] <= 4 * 16
    assert found["scores"]["masked_lm_loss"] > 0
