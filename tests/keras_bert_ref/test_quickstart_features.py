"""The labelled task that the quickstart makes of its own text."""

import gzip

import numpy as np
import pytest
from checkpoint_models import make

from keras_bert_ref.cli import progress
from keras_bert_ref.cli.quickstart_features import compare_with_bag_of_words, labelled_passages

TOPICS = {"first": "abc", "second": "jkl", "third": "xyz"}
LETTERS = "\n\n".join("\n".join(f"{a} {'b ' * n} c" for n in range(20, 99)) for a in "xy")


def lines(topic, count):
    """Returns `count` different lines of words of two letters; each topic has its own letters."""
    rng = np.random.default_rng(len(topic))
    return [" ".join(map("".join, rng.choice([*TOPICS[topic]], (7, 2)))) for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "model"
    make("encoder").save_pretrained(place)
    return place


@pytest.fixture
def console(monkeypatch):
    # The console takes the width of the terminal, and there is none here.
    monkeypatch.setattr(progress.console, "_width", 400, raising=False)


def accuracy(printed, row):
    (line,) = (line for line in printed.splitlines() if row in line)
    return float(line.split()[-2].rstrip("%"))


def test_files_are_labels(tmp_path, model, capsys, console):
    for topic in TOPICS:
        (tmp_path / f"{topic}.txt").write_text("\n".join(lines(topic, 60)))
    files = [str(tmp_path / "*.txt")]
    passages, labels = labelled_passages(files)
    assert len(set(passages)) == len(passages) == 180
    for passage, label in zip(passages, labels, strict=True):
        assert set(passage) <= {*TOPICS[label.removesuffix(".txt")], " "}
    assert labelled_passages(files) == (passages, labels)

    compare_with_bag_of_words(model, files, max_length=16)
    printed = capsys.readouterr().out
    assert "120 passages to learn from and 60 others" in printed
    assert accuracy(printed, "always the commonest source") == 33.3
    # The words tell the topic; they do so through random weights as well.
    assert accuracy(printed, "this BERT's features") > 90
    assert "make_pipeline(BertFeaturizer(layers=-1" in printed
    assert accuracy(printed, "bag of words") > 90
    assert "second.txt (60)" in printed


def test_documents_of_one_file_are_labels(tmp_path):
    documents = [lines(topic, count) for topic, count in zip(TOPICS, (25, 19, 31), strict=True)]
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("\n\n\n".join("\n".join(document) for document in documents))
    passages, labels = labelled_passages([tmp_path / "text.gz"])
    first, third = (f"document {n}: {documents[n - 1][0]}" for n in (1, 3))
    assert labels == [third] * 31 + [first] * 25  # 19 are too few
    assert passages == documents[2] + documents[0]


def test_the_largest_sources_are_drawn_evenly(tmp_path):
    sizes = {"a": 300, "b": 301, "c": 25, "d": 900, "e": 30, "f": 2000}
    for name, size in sizes.items():
        (tmp_path / f"{name}.txt").write_text(
            "".join(f"{n:05} is a line of the file {name}\n" for n in range(size))
        )
    passages, labels = labelled_passages([tmp_path / "*.txt"])
    assert labels == [f"{name}.txt" for name in "fdba" for _ in range(300)]
    numbers = [int(passage[:5]) for passage in passages[:300]]
    assert abs(np.mean(numbers) - 1000) < 4 * 2000 / (12 * 300) ** 0.5  # standard errors


def test_no_passage_has_two_labels(tmp_path):
    same = ["This line is in both of the files."]
    for topic in ("first", "second"):
        text = [*lines(topic, 20), *same * 50, "short", "x" * 300, "x" * 201 + topic]
        (tmp_path / f"{topic}.txt").write_text("\n".join(text))
    passages, labels = labelled_passages([tmp_path / "*.txt"])
    assert sorted(passages) == sorted(lines("first", 20) + lines("second", 20))
    assert labels == ["first.txt"] * 20 + ["second.txt"] * 20


def test_files_of_the_same_name_stay_apart(tmp_path):
    files = [tmp_path / topic / "text.txt" for topic in ("first", "second")]
    for file in files:
        file.parent.mkdir()
        file.write_text("\n".join(lines(file.parent.name, 21)))
    assert set(labelled_passages(files)[1]) == set(map(str, files))


@pytest.mark.parametrize("text", ["", "\n".join(lines("third", 99)), "a\n\n" * 99, LETTERS])
def test_too_little_text_is_said(tmp_path, capsys, console, text):
    (tmp_path / "text.txt").write_text(text)
    compare_with_bag_of_words(tmp_path / "never read", [tmp_path / "text.txt"], max_length=16)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Skipped: ") and "20 different lines" in line
