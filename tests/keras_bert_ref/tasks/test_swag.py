import csv
import io
import json

import checkpoint_models
import numpy as np
import pytest
from shared_data import shared

from keras_bert_ref.errors import InputError
from keras_bert_ref.tasks.registry import make_task
from keras_bert_ref.tasks.swag import ChoiceExample, Codah, Swag

COLUMNS = (
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    *(f"ending{n}" for n in range(4)),
    "label",
)
ROWS = [
    {"sent1": 'She says, "go".', "sent2": "He", "label": 2},
    {"sent1": "Two lines\nof a text.", "sent2": "They", "label": 0},
]


def csv_text(rows, columns=COLUMNS):
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="x", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows):
        writer.writerow({"": number, **{f"ending{n}": f"ends {n}, so" for n in range(4)}, **row})
    return out.getvalue()


def test_csv_with_quotes_and_line_breaks(tmp_path):
    (tmp_path / "train.csv").write_text(csv_text(ROWS))
    first, second = Swag().read(tmp_path / "train.csv", "train")
    assert first == ChoiceExample('She says, "go".', tuple(f"He ends {n}, so" for n in range(4)), 2)
    assert (second.context, second.label) == ("Two lines\nof a text.", 0)


def test_the_test_file_has_no_labels(tmp_path):
    (tmp_path / "test.csv").write_text(csv_text(ROWS, COLUMNS[:-1]))
    examples = Swag().read(tmp_path / "test.csv", "test")
    assert [example.label for example in examples] == [None, None]
    with pytest.raises(InputError, match="2 of 2 examples have no label"):
        Swag().score(examples, [{"choice": 0}] * 2)
    with pytest.raises(InputError, match="line 2: has no label; it has"):
        Swag().read(tmp_path / "test.csv", "train")


HEADER = ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.csv", "", "holds no example"),
        ("a.csv", HEADER, "holds no example"),
        ("a.csv", HEADER + "1,2\n", "line 2: 2 values, but there are 12 columns"),
        ("a.csv", csv_text([{**ROWS[0], "label": 4}]), "line 2: label '4' is none of 0, 1, 2, 3"),
        ("a.csv", csv_text([*ROWS, {"label": ""}]), "line 5: label '' is none of"),
        ("a.csv", csv_text(ROWS, ("sent1", "label")), "line 2: has no ending0, .*, sent2; it has"),
        ("a.csv", HEADER + '"a,b\n', "line 2: unexpected end of data"),
        ("a.jsonl", '{"sent1": 5}\n', "line 1: has no sent1, ending0"),
        ("a.json", "\n[1]\n", "line 2: holds no JSON object"),
        ("a.json", "{\n", "line 1: is no JSON"),
        ("a.csv", b"\xff", "line 1: not UTF-8"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message) as caught:
        Swag().read(path, "train")
    assert str(path) in str(caught.value)


def test_real_rows_of_swag():
    path = shared("data/other_tasks/swag_sample/sample.json")
    examples = Swag().read(path, "train")
    assert [example.label for example in examples] == [
        json.loads(line)["label"] for line in path.read_text().splitlines()
    ]
    assert len(examples) == 10
    assert examples[0].choices[0] == (
        "A drum line passes by walking down the street playing their instruments."
    )


def test_real_codah():
    folder = shared("data/other_tasks/codah_cv/fold_0")
    counts = {}
    for split, name in Codah.files.items():
        examples = Codah().read(folder / name, split)
        counts[split] = len(examples)
        assert {example.label for example in examples} == {0, 1, 2, 3}
    assert counts == {"train": 1665, "dev": 556, "test": 555}
    whole = Codah().read(shared("data/other_tasks/codah.tsv"), "train")
    assert len(whole) == 2776
    assert {example.category for example in whole} == {*"inopqr", None}
    assert whole[0].context == "I am always very hungry before I go to bed. I am"
    assert whole[0].choices[3] == "tempted to snack when I feel this way."
    # Quotes are part of the text.
    assert sum('"' in text for e in whole for text in (e.context, *e.choices)) > 30


def test_a_row_has_a_sequence_for_each_choice_and_all_fit():
    tokenizer = checkpoint_models.tokenizer()
    example = ChoiceExample("a b c d e f", ("g", "h i", "j k l m n o p"), 1)
    (row,) = Swag(max_length=11).features(example, tokenizer, None, True)
    tokens = [" ".join(tokenizer.vocabulary[i] for i in ids) for ids in row.input_ids]
    assert tokens == [
        "[CLS] a b c d e f [SEP] g [SEP]",
        "[CLS] a b c d e f [SEP] h i [SEP]",
        "[CLS] a b c d [SEP] j k l m [SEP]",
    ]
    assert row.segment_ids[2] == [0] * 6 + [1] * 5
    assert row.labels == {"label_ids": 1}
    assert Swag().features(example, tokenizer, None, False)[0].labels == {}


def test_predictions_are_the_best_of_the_models_logits():
    model, task = checkpoint_models.make("choice"), make_task("swag", max_length=12)
    values = [
        {"context": "a b", "choices": ["c d", "e", "f g h"]},
        ("i", ("j k l m n o p", "q", "r")),
    ]
    found = task.predict(model, values)
    for value, prediction in zip(values, found, strict=True):
        example = task.example(value)
        logits = []
        for choice in example.choices:  # each alone, without padding
            ids = model.tokenizer.encode(example.context, choice, max_length=12)
            features = {
                name: np.array([[getattr(ids, name)]], np.int32)
                for name in ("input_ids", "input_mask", "segment_ids")
            }
            logits.append(float(model(features)["logits"][0, 0]))
        odds = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(prediction["probabilities"], odds, atol=1e-5)
        assert prediction["choice"] == int(np.argmax(odds))
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    "value", ["a", ("a", "b"), ("a", ["b"]), ("a", ["b", 3]), {"context": "a"}, 5, (1, ["a", "b"])]
)
def test_values_that_are_no_questions(value):
    with pytest.raises(InputError, match="is no question"):
        Swag().example(value)


def test_score_and_submission(tmp_path):
    examples = [ChoiceExample("a", ("b", "c", "d"), label) for label in (0, 2, 1)]
    predictions = [{"choice": choice} for choice in (0, 2, 0)]
    assert Swag().score(examples, predictions) == {"accuracy": pytest.approx(200 / 3)}
    assert Swag().write(examples, predictions, tmp_path, "dev") == []
    (path,) = Swag().write(examples, predictions, tmp_path, "test")
    assert path.read_text() == ",pred\n0,0\n1,2\n2,0\n"
    assert Codah().write(examples, predictions, tmp_path, "test") == []
