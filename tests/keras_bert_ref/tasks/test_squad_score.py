"""Scores equal to those that the official scripts give."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared

from keras_bert_ref.errors import InputError, InputWarning
from keras_bert_ref.tasks.squad import score
from keras_bert_ref.tasks.squad_score import normalize, score_answers, score_with_null

TEXTS = st.lists(st.sampled_from(["The", "cat", "sat.", "Mat", "a"]), max_size=4).map(" ".join)


def data_set(gold, version="1.1", **fields):
    """Returns official JSON of questions, id → right answers."""
    questions = [
        {"id": key, "answers": [{"text": text} for text in texts], **fields}
        for key, texts in gold.items()
    ]
    return {"version": version, "data": [{"paragraphs": [{"qas": questions}]}]}


@pytest.mark.parametrize(
    "name, exact, f1",
    [
        ("v1.1_bert_ensemble", 86.2062, 92.1956),
        ("v1.1_logistic_regression", 40.1419, 50.9815),
        ("v1.1_bert_tiny", 37.7767, 50.6268),
        ("v2.0_bert_single", 78.7417, 81.7753),
    ],
)
@pytest.mark.filterwarnings("ignore:.*have no prediction")
def test_published_predictions_score_as_recorded(name, exact, f1):
    found = score(shared(f"data/squad/dev-{name[:4]}.json"), shared(f"expected/squad/{name}.json"))
    assert (round(found["exact"], 4), round(found["f1"], 4)) == (exact, f1)
    if name[:4] == "v1.1":
        assert set(found) == {"exact", "f1", "total"} and found["total"] == 10_570
        return
    groups = [found[f"{group}_total"] for group in ("HasAns", "NoAns")]
    assert groups == [5_928, 5_945] and found["total"] == sum(groups)
    for key in ("exact", "f1"):
        parts = [found[f"HasAns_{key}"], found[f"NoAns_{key}"]]
        mean = sum(n * part for n, part in zip(groups, parts, strict=True)) / found["total"]
        assert found[key] == pytest.approx(mean)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The  Cat's\ta-Mat!", "cats amat"),
        ("an answer, a THE theatre", "answer theatre"),
        ("“quoted” – 5€", "“quoted” – 5€"),  # only ASCII's punctuation goes
        ("a.m.", "am"),
        ("the", ""),
        ("U.S.A. a", "usa"),
    ],
)
def test_normalize(text, expected):
    assert normalize(text) == expected


def test_the_best_of_the_right_answers_counts():
    gold = [["the cat", "cat sat mat"], ["Mat"], ["x y"]]
    assert score_answers(gold, ["Cat sat", "dog", "x  Y."]) == {
        "exact": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (4 / 5 + 0 + 1) / 3),
        "total": 3,
    }
    # Words count as often as they come.
    assert score_answers([["x x y"]], ["x z z"])["f1"] == pytest.approx(100 / 3)


def test_answers_of_which_nothing_is_left():
    # The two scripts differ: in 1.1 F1 is 0 without a common word, in 2.0 empty equals empty.
    assert score_answers([["The"]], ["a"]) == {"exact": 100, "f1": 0, "total": 1}
    found = score_with_null([["The"], []], ["a", "an"])
    assert (found["exact"], found["f1"]) == (100, 100)
    assert (found["HasAns_total"], found["NoAns_total"]) == (1, 1)
    assert score_with_null([["The", "cat"]], [""])["f1"] == 0  # "The" is no right answer


def test_questions_without_prediction():
    gold = {"p": ["cat"], "q": ["mat"]}
    with pytest.warns(InputWarning, match=r"1 of 2 questions have no prediction \(q\): they score"):
        found = score(data_set(gold), {"p": "cat", "other": "x"})
    assert found == {"exact": 50, "f1": 50, "total": 2}
    with pytest.raises(InputError, match=r"1 of 2 questions have no prediction \(q\): they cannot"):
        score(data_set(gold, is_impossible=False), {"p": "cat"})
    with pytest.raises(InputError, match="1 of 2 questions have no null odds"):
        score(data_set(gold, "v2.0"), {"p": "cat", "q": "mat"}, {"q": 0.5})


def test_null_odds_by_hand(tmp_path):
    gold = {"p": ["cat"], "q": [], "r": ["sat on mat"], "s": []}
    answers = {"p": "cat", "q": "x", "r": "mat", "s": ""}
    odds = {"p": -3, "q": 0.5, "r": 0.25, "s": -4.0, "t": -9.0}
    paths = []
    for name, content in (("gold", data_set(gold, "v2.0")), ("answers", answers), ("odds", odds)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(content), encoding="utf-8")
    expected = {
        "exact": 50,
        "f1": pytest.approx(100 * (1 + 0 + 0.5 + 1) / 4),
        "total": 4,
        "HasAns_exact": 50,
        "HasAns_f1": pytest.approx(75),
        "HasAns_total": 2,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
        # With answers up to the odds of p, q and s are right as well.
        "best_exact": 75,
        "best_exact_thresh": -3,
        "best_f1": pytest.approx(100 * 3.5 / 4),
        "best_f1_thresh": 0.25,
    }
    assert score(*paths[:2]) == {k: v for k, v in expected.items() if "best" not in k}
    assert score(*map(str, paths)) == expected
    assert score(*paths[:2], null_odds=paths[2]) == expected
    # As the official script has it, odds above 1 are "no answer" whatever was predicted.
    found = score(data_set(gold, "v2.0"), answers, {**odds, "q": 1.5, "p": 1.01})
    assert (found["NoAns_exact"], found["HasAns_exact"]) == (100, 0)


# Here, a text of which nothing is left is "", and odds are distinct and not 0: otherwise the script
# has answers of its own. So it has where no answer at all is best.
RIGHT = st.lists(TEXTS.filter(normalize), max_size=2)
ANSWER = TEXTS.map(lambda text: text if normalize(text) else "")


@given(st.lists(st.tuples(RIGHT, ANSWER, st.integers(-9, 9)), min_size=1, max_size=9))
def test_no_threshold_is_better_than_the_best(questions):
    questions = [
        (right, one, n / 100 + odds + 0.5) for n, (right, one, odds) in enumerate(questions)
    ]
    gold, answers, odds = zip(*questions, strict=True)
    found = score_with_null(gold, answers, odds)
    for name in ("exact", "f1"):
        by_threshold = {
            threshold: score_with_null(gold, answers, odds, threshold)[name]
            for threshold in (min(odds) - 1, *odds)
        }
        assert found[f"best_{name}"] == pytest.approx(max(by_threshold.values()))
        threshold = found[f"best_{name}_thresh"]
        if threshold in odds:
            assert by_threshold[threshold] == pytest.approx(found[f"best_{name}"])
        else:  # no answer to any question
            assert threshold == 0
            assert by_threshold[min(odds) - 1] == pytest.approx(found[f"best_{name}"])


@pytest.mark.parametrize(
    "dataset, predictions, odds, message",
    [
        ({}, {}, None, "the data set has no 'data'"),
        ([], {}, None, "the data set: list where an object with 'data' should be"),
        ({"data": []}, {}, None, "holds no question"),
        (data_set({"p": []}), {"p": "x"}, None, r"qas\[0\] \(id p\) has no answer to compare"),
        (data_set({"p": ["x"]}), [], None, "the predictions: list where an object"),
        (data_set({"p": ["x"]}), {"p": 5}, None, "the predictions: 'p' has 5, which is not a text"),
        (data_set({"p": ["x"]}), {"p": "x"}, {"p": 5}, "is not of SQuAD 2.0"),
        (data_set({"p": []}, "v2.0"), {"p": "x"}, {"p": True}, "'p' has True, which is not a num"),
        (data_set({"p": []}, "v2.0"), {"p": "x"}, {"p": float("nan")}, "'p' has nan, which is"),
    ],
)
def test_what_cannot_be_scored(dataset, predictions, odds, message):
    with pytest.raises(InputError, match=message):
        score(dataset, predictions, odds)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"absent\.json cannot be read: No such file"):
        score(tmp_path / "absent.json", {})
    (tmp_path / "bad.json").write_bytes(b'{"p": "\xff"}')
    with pytest.raises(InputError, match=r"bad\.json is no JSON"):
        score(data_set({"p": ["x"]}), str(tmp_path / "bad.json"))
