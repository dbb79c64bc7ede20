"""GLUE's files with their quirks, its scores and its submissions."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from shared_data import shared

from keras_bert_ref.errors import ConfigError, InputError, InputWarning
from keras_bert_ref.tasks import scores
from keras_bert_ref.tasks.classification import (
    TextClassification,
    TextExample,
    TextRegression,
    probabilities,
)
from keras_bert_ref.tasks.glue import GLUE
from keras_bert_ref.tasks.registry import TASKS, make_task, read_split
from keras_bert_ref.tasks.text_files import tsv_rows

# --- files: examples of train, dev and test, as published

COUNTS = {
    "cola": ("CoLA", 8_551, 1_043, 1_063),
    "sst-2": ("SST-2", 67_349, 872, 1_821),
    "mrpc": ("MRPC", 3_668, 408, 1_725),
    "sts-b": ("STS-B", 5_749, 1_500, 1_379),
    "qnli": ("QNLI", None, 5_463, 5_463),
    "rte": ("RTE", 2_490, 277, 3_000),
    "wnli": ("WNLI", 635, 71, 146),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_files_have_as_many_examples_as_published(name):
    folder, *counts = COUNTS[name]
    folder, task = shared("data/glue") / folder, make_task(name)
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        if count is None:
            continue
        examples = read_split(task, folder, split)
        assert len(examples) == count
        known = {example.label for example in examples}
        if split == "test":
            assert known == {None}
        elif name == "sts-b":
            assert min(known) == 0 and max(known) == 5
        else:
            assert known == set(task.labels(examples))
        assert all(example.text for example in examples)
        assert all((example.pair is None) == (name in ("cola", "sst-2")) for example in examples)


@pytest.mark.parametrize(
    "name, split, number, expected",
    [
        (
            "cola",
            "train",
            18,
            TextExample("They drank the pub.", None, "unacceptable"),
        ),
        ("cola", "test", 0, TextExample("Bill whistled past the house.")),
        (
            "mrpc",
            "train",
            0,
            TextExample(
                'Amrozi accused his brother , whom he called " the witness " , of deliberately '
                "distorting his evidence .",
                'Referring to him as only " the witness " , Amrozi accused his brother of '
                "deliberately distorting his evidence .",
                "equivalent",
            ),
        ),
        (
            "mrpc",
            "dev",
            0,
            TextExample(
                "He said the foodservice pie business doesn 't fit the company 's long-term growth "
                "strategy .",
                '" The foodservice pie business does not fit our long-term growth strategy .',
                "equivalent",
            ),
        ),
        (
            "sts-b",
            "dev",
            0,
            TextExample(
                "A man with a hard hat is dancing.", "A man wearing a hard hat is dancing.", 5.0
            ),
        ),
        (
            "rte",
            "train",
            0,
            TextExample(
                "No Weapons of Mass Destruction Found in Iraq Yet.",
                "Weapons of Mass Destruction Found in Iraq.",
                "not_entailment",
            ),
        ),
    ],
)
def test_real_examples(name, split, number, expected):
    assert read_split(make_task(name), shared("data/glue") / COUNTS[name][0], split)[number] == (
        expected
    )


def write(path, *lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_a_byte_order_mark_quotes_blank_lines_and_windows_line_ends(tmp_path):
    path = tmp_path / "dev.tsv"
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    path.write_bytes(f'\ufeff{header}\r\n1\t2\t3\t"a\tb "c\r\n\r\n0\t2\t3\td\u2028e\t\r\n'.encode())
    assert make_task("mrpc").read(path, "dev") == [
        TextExample('"a', 'b "c', "equivalent"),
        TextExample("d\u2028e", "", "not_equivalent"),
    ]


@pytest.mark.parametrize(
    "name, split, lines, message",
    [
        ("sst-2", "train", ("text\tlabel", "a\t1"), "has no column 'sentence'; it has text, label"),
        ("sst-2", "train", ("index\tsentence", "0\ta"), "has no column 'label'; it has index"),
        ("sst-2", "dev", ("sentence\tlabel", "a\t1", "b"), "line 3: 1 values, but there are 2"),
        ("sst-2", "dev", ("sentence\tlabel", "a\t1\t"), "line 2: 3 values, but .*sentence, label"),
        ("sst-2", "dev", ("sentence\tlabel", "a\tyes"), "line 2: label 'yes' is unknown; .* 0, 1"),
        ("cola", "train", ("x\t1\t\ta", "x\t2\t*\tb"), "line 2: label '2' is unknown"),
        ("cola", "train", ("sentence\tlabel", "a\t1"), "line 1: 2 values, but there are 4"),
        ("mnli", "dev", ("sentence1\tsentence2\tgold_label", "a\tb\t-"), "line 2: label '-' is"),
        ("sts-b", "dev", ("sentence1\tsentence2\tscore", "a\tb\tx"), "line 2: 'x' is no number"),
        ("sts-b", "dev", ("sentence1\tsentence2\tscore", "a\tb\tnan"), "line 2: 'nan' is no numb"),
        ("rte", "dev", (), "holds no example"),
        ("rte", "dev", ("index\tsentence1\tsentence2\tlabel",), "holds no example"),
    ],
)
def test_bad_files_are_named(tmp_path, name, split, lines, message):
    path = write(tmp_path / "some.tsv", *lines)
    with pytest.raises(InputError, match=message) as caught:
        make_task(name).read(path, split)
    assert str(path) in str(caught.value)


def test_what_is_no_text_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_bytes(b"sentence\tlabel\na\xff\t1\n")
    with pytest.raises(InputError, match=re.escape(f"{path}, line 2: not UTF-8")):
        make_task("sst-2").read(path, "dev")
    with pytest.raises(InputError, match=r"train\.tsv cannot be read: No such file"):
        read_split(make_task("sst-2"), tmp_path, "train")
    with pytest.raises(InputError, match=r"absent is no folder: it should hold dev\.tsv"):
        read_split(make_task("sst-2"), tmp_path / "absent", "dev")
    with pytest.raises(InputError, match="sst-2 has no split 'dev-mm'; it has train, dev, test"):
        read_split(make_task("sst-2"), tmp_path, "dev-mm")


def test_broken_lines_of_qqp_are_passed_over_with_a_warning(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    lines = ("1\t2\t3\ta\tb\t1", "1\t2\t3\ta", "7\t2\t3\tc\td\t0", "4\t5")
    path = write(tmp_path / "train.tsv", header, *lines)
    with pytest.warns(InputWarning, match="broken lines passed over: 2"):
        examples = make_task("qqp").read(path, "train")
    assert examples == [TextExample("a", "b", "duplicate"), TextExample("c", "d", "not_duplicate")]


def test_rows_of_a_file_with_given_columns(tmp_path):
    path = write(tmp_path / "some", "a\tb", "", "c\td\te")
    assert list(tsv_rows(path, ("x", "y"), strict=False)) == [(1, {"x": "a", "y": "b"}), (3, None)]


def test_mnli_has_genres_it_was_not_trained_on_and_the_diagnostic_set(tmp_path):
    task = make_task("mnli")
    write(tmp_path / "dev_mismatched.tsv", "sentence1\tsentence2\tgold_label", "a\tb\tneutral")
    write(tmp_path / "diagnostic.tsv", "index\tsentence1\tsentence2", "0\tc\td")
    assert read_split(task, tmp_path, "dev-mm") == [TextExample("a", "b", "neutral")]
    assert read_split(task, tmp_path, "ax") == [TextExample("c", "d")]


# --- labels and predictions


def test_names_of_tasks_are_those_they_are_made_by():
    assert {kind.name for kind in GLUE} == {
        n for n, (module, _) in TASKS.items() if module == "glue"
    }
    for kind in GLUE:
        assert make_task(kind.name) == kind()


def test_labels_of_own_files_are_those_of_the_training_file(tmp_path):
    path = write(tmp_path / "train.tsv", "label\ttext", "spam\ta", "ham\tb", "spam\tc")
    task = TextClassification()
    examples = task.read(path, "train")
    assert examples[0] == TextExample("a", None, "spam")
    assert task.labels(examples) == ("ham", "spam")
    assert task.target(examples[0], ("ham", "spam")) == {"label_ids": 1}
    with pytest.raises(InputError, match="two classes are needed, but all have the label 'spam'"):
        task.labels(examples[:1])
    with pytest.raises(InputError, match="label 'spam' is unknown; the model's are a, b"):
        task.target(examples[0], ("a", "b"))


def test_probabilities_are_stable():
    np.testing.assert_allclose(probabilities([1000.0, 1000 + math.log(3)]), [0.25, 0.75])
    prediction = TextClassification().decode(None, [], [{"logits": [0, math.log(4)]}], ("a", "b"))
    assert prediction == {"label": "b", "probabilities": {"a": 0.2, "b": pytest.approx(0.8)}}


# --- scores


def score(name, true, found):
    examples = [TextExample("x", "y", label) for label in true]
    key = "score" if isinstance(make_task(name), TextRegression) else "label"
    return make_task(name).score(examples, [{key: value} for value in found])


def test_scores_by_hand():
    a, b = "acceptable", "unacceptable"
    # 3 true positives, 1 false negative, 2 false positives, 1 true negative.
    found = score("cola", [a, a, a, a, b, b, b], [a, a, a, b, a, a, b])
    assert found["accuracy"] == pytest.approx(400 / 7)
    assert found["matthews"] == pytest.approx(100 * (3 * 1 - 2 * 1) / math.sqrt(5 * 4 * 3 * 2))
    assert "f1" not in found
    e, n = "equivalent", "not_equivalent"
    found = score("mrpc", [e, e, e, e, n, n, n], [e, e, e, n, e, e, n])
    assert found["f1"] == pytest.approx(100 * 2 * 3 / (2 * 3 + 1 + 2))
    found = score("sts-b", [1.0, 2.0, 4.0], [10.0, 30.0, 20.0])
    assert found["spearman"] == pytest.approx(50.0)
    assert found["pearson"] == pytest.approx(100 * 10 / math.sqrt(14 / 3 * 200))


def test_scores_where_nothing_can_be_told_apart_are_0():
    a, b = "acceptable", "unacceptable"
    assert score("cola", [a, b, a], [a, a, a])["matthews"] == 0
    assert score("cola", [a, a], [a, a]) == {"accuracy": 100, "matthews": 0}
    e, n = "equivalent", "not_equivalent"
    assert score("mrpc", [n, n], [n, n])["f1"] == 0
    assert score("mrpc", [e, n], [n, n])["f1"] == 0
    for true, found in (([1.0, 2.0], [3.0, 3.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0], [2.0])):
        assert score("sts-b", true, found) == {"pearson": 0, "spearman": 0}


def test_spearman_shares_ranks_among_equals():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    expected = 100 * 4.5 / math.sqrt(4.5 * 5)
    assert scores.of_numbers([1, 2, 2, 3], [5, 6, 7, 8])["spearman"] == pytest.approx(expected)


def test_examples_without_labels_are_not_scored():
    with pytest.raises(InputError, match="1 of 2 examples have no label"):
        score("cola", ["acceptable", None], ["acceptable"] * 2)
    with pytest.raises(InputError, match="nothing to score"):
        score("sts-b", [], [])


# --- submissions


@pytest.mark.parametrize(
    "name, split, file, found, lines",
    [
        ("cola", "test", "CoLA.tsv", ["acceptable", "unacceptable"], ["1", "0"]),
        ("sst-2", "test", "SST-2.tsv", ["negative", "positive"], ["0", "1"]),
        ("mrpc", "test", "MRPC.tsv", ["equivalent", "not_equivalent"], ["1", "0"]),
        ("qqp", "test", "QQP.tsv", ["duplicate", "not_duplicate"], ["1", "0"]),
        ("mnli", "test", "MNLI-m.tsv", ["neutral", "contradiction"], ["neutral", "contradiction"]),
        ("mnli", "test-mm", "MNLI-mm.tsv", ["entailment"], ["entailment"]),
        ("mnli", "ax", "AX.tsv", ["entailment"], ["entailment"]),
        ("qnli", "test", "QNLI.tsv", ["not_entailment"], ["not_entailment"]),
        ("rte", "test", "RTE.tsv", ["entailment"], ["entailment"]),
        ("wnli", "test", "WNLI.tsv", ["entailment", "not_entailment"], ["1", "0"]),
    ],
)
def test_submissions(tmp_path, name, split, file, found, lines):
    predictions = [{"label": label} for label in found]
    (path,) = make_task(name).write([], predictions, tmp_path, split)
    assert path == tmp_path / file
    rows = "".join(f"{n}\t{line}\n" for n, line in enumerate(lines))
    assert path.read_text() == "index\tprediction\n" + rows
    assert make_task(name).write([], predictions, tmp_path, "dev") == []


def test_a_submission_of_sts_b_is_within_0_and_5(tmp_path):
    predictions = [{"score": value} for value in (-0.3, 2.71828, 5.2)]
    (path,) = make_task("sts-b").write([], predictions, tmp_path, "test")
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t2.718\n2\t5.000\n"


def test_rows_of_tensorflow_datasets_are_put_in_the_order_of_the_files():
    info = SimpleNamespace(
        features={"label": SimpleNamespace(names=["not_duplicate", "duplicate"])}
    )
    rows = [
        {"idx": n, "question1": f"a{n}", "question2": f"b{n}", "label": n % 2} for n in (2, 0, 1)
    ]
    assert make_task("qqp").from_tfds(rows, info, "dev") == [
        TextExample("a0", "b0", "not_duplicate"),
        TextExample("a1", "b1", "duplicate"),
        TextExample("a2", "b2", "not_duplicate"),
    ]
    hidden = make_task("qqp").from_tfds([{**row, "label": -1} for row in rows], info, "test")
    assert {example.label for example in hidden} == {None}


def test_settings_that_are_impossible():
    with pytest.raises(ConfigError, match="max_length must be a whole number above 7, not 7"):
        make_task("mrpc", max_length=7)
    with pytest.raises(ConfigError, match="mrpc has no setting 'length'; it has max_length"):
        make_task("mrpc", length=9)
