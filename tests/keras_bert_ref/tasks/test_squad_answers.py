"""From logits to answers: equal to a plain account of the original's rules."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert_ref.sliding import sliding
from keras_bert_ref.tasks.contract import Row
from keras_bert_ref.tasks.squad import Question, Squad, Squad2
from keras_bert_ref.tasks.squad_answers import decode
from keras_bert_ref.tasks.squad_windows import Window

QUESTION = 3  # pieces, [CLS] and [SEP] included, before the context


def words_of(text):
    """Returns the (start, end) of the words of a text: here each is a piece."""
    spans, place = [], 0
    for word in text.split(" "):
        spans.append((place, place + len(word)))
        place += len(word) + 1
    return np.array(spans).reshape(-1, 2) if text else np.zeros((0, 2), int)


def windows_of(text, room=100, stride=100):
    spans = words_of(text)
    return [
        Window(QUESTION, spans[start:stop], owned)
        for start, stop, owned in sliding(len(spans), room, stride)
    ]


def random_outputs(windows, seed, levels):
    """Returns logits for windows, of few levels so that there are ties."""
    rng = np.random.default_rng(seed)
    sizes = [QUESTION + len(window.spans) + 1 for window in windows]
    return [
        {
            f"{side}_logits": rng.integers(-levels, levels + 1, size).astype(np.float32) / 4
            for side in ("start", "end")
        }
        for size in sizes
    ]


def original(context, windows, outputs, n_best, longest, null):
    """The original's rules, one candidate at a time; returns (text, start logit, end logit)s."""
    found, lowest = [], None
    for window, output in zip(windows, outputs, strict=True):
        start, end = (output[f"{side}_logits"].tolist() for side in ("start", "end"))
        starts, ends = (
            sorted(range(len(one)), key=lambda n, one=one: -one[n])[:n_best] for one in (start, end)
        )
        if lowest is None or start[0] + end[0] < sum(lowest):
            lowest = start[0], end[0]
        inside = range(QUESTION, QUESTION + len(window.spans))
        for s in starts:
            for e in ends:
                if s not in inside or e not in inside or not window.owned[s - QUESTION]:
                    continue
                if e < s or e - s + 1 > longest:
                    continue
                first, last = window.spans[s - QUESTION][0], window.spans[e - QUESTION][1]
                found.append((context[first:last], start[s], end[e]))
    odds = None
    if null:
        best = max((s + e for _, s, e in found), default=None)
        odds = None if best is None else sum(lowest) - best
        found.append(("", *lowest))
    found.sort(key=lambda one: -(one[1] + one[2]))
    nbest = []
    for one in found:
        if len(nbest) < n_best and one[0] not in {text for text, _, _ in nbest}:
            nbest.append(one)
    if null and "" not in {text for text, _, _ in nbest}:
        nbest.append(("", *lowest))
    return nbest, odds


@settings(deadline=None)
@given(
    words=st.lists(st.sampled_from(["cat", "mat", "sat", "x"]), min_size=1, max_size=40),
    room=st.integers(5, 23),
    stride=st.integers(2, 5),
    n_best=st.integers(2, 7),
    longest=st.integers(1, 11),
    null=st.booleans(),
    seed=st.integers(0, 99),
    levels=st.sampled_from([1, 50]),
)
def test_answers_are_the_original_s(words, room, stride, n_best, longest, null, seed, levels):
    context = " ".join(words)
    windows = windows_of(context, room, stride)
    outputs = random_outputs(windows, seed, levels)
    nbest, odds = original(context, windows, outputs, n_best, longest, null)
    found = decode(context, windows, outputs, n_best=n_best, max_answer_length=longest, null=null)
    if not any(text for text, _, _ in nbest):  # here the original fails, or says "empty"
        assert any(one["text"] for one in found.nbest)
        return
    mine = [(one["text"], one["start_logit"], one["end_logit"]) for one in found.nbest]
    assert mine == nbest
    assert found.null_odds == (None if odds is None else pytest.approx(odds))
    weights = [math.exp(start + end) for _, start, end in nbest]
    shares = [one["probability"] for one in found.nbest]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights])
    for (text, _, _), span in zip(nbest, found.spans, strict=True):
        assert (span is None) if text == "" else (context[slice(*span)] == text)


def logits(size, **peaks):
    """Returns outputs of a row that are 0 but for some places."""
    found = {f"{side}_logits": np.zeros(size, np.float32) for side in ("start", "end")}
    for side, values in peaks.items():
        for place, value in values.items():
            found[f"{side}_logits"][place] = value
    return found


def test_an_answer_is_found_where_all_the_best_are_none():
    # The best start is [CLS] and the best end the [SEP].
    windows = windows_of("cat sat mat")
    outputs = [logits(7, start={0: 9, 4: 1.5, 5: 2}, end={6: 9, 4: 1})]
    for null in (False, True):
        found = decode("cat sat mat", windows, outputs, n_best=1, max_answer_length=2, null=null)
        index = found.best(null=False)
        assert (found.nbest[index]["text"], found.spans[index]) == ("sat", (4, 7))
    assert found.null_odds == 9 - 2.5
    assert found.nbest[found.best(null=True)]["text"] == ""


def test_the_null_score_is_the_lowest_over_the_windows():
    windows = windows_of("cat sat mat", room=2, stride=1)
    outputs = [
        logits(6, start={0: 5, 3: 7}, end={0: 2, 3: 4}),
        logits(6, start={0: -1}, end={0: 3, 4: 1}),
    ]
    found = decode("cat sat mat", windows, outputs, n_best=5, max_answer_length=3, null=True)
    assert found.null_odds == (3 - 1) - (7 + 4)
    one = found.nbest[found.best(null=True)]
    assert (one["start_logit"], one["end_logit"]) == (-1, 3)


@pytest.mark.parametrize("null", [False, True])
def test_a_context_without_pieces_has_no_answer(null):
    windows = windows_of("")
    found = decode("\u200b", windows, [logits(4)], n_best=3, max_answer_length=5, null=null)
    assert [one["text"] for one in found.nbest] == [""]
    assert found.nbest[0]["probability"] == 1
    assert found.spans == [None]
    assert (found.null_odds or 0) > 1000 * null - 1
    assert found.best(null=True) == found.best(null=False) == 0


def test_predictions():
    question = Question("q7", "what sat?", "the cat sat")
    windows = windows_of(question.context)
    rows = [Row([], [], {}, window) for window in windows]
    outputs = [logits(7, start={0: 2, 3: 3}, end={0: 2.5, 3: 1, 4: 2})]
    share = 1 / (1 + math.exp(4 - 5))
    nbest = [
        {"text": "the cat", "probability": share, "start_logit": 3.0, "end_logit": 2.0},
        {"text": "the", "probability": 1 - share, "start_logit": 3.0, "end_logit": 1.0},
    ]
    assert Squad(n_best=3).decode(question, rows, outputs, None) == {
        "id": "q7",
        "answer": "the cat",
        "start": 0,
        "end": 7,
        "probability": pytest.approx(share),
        "nbest": [{**one, "probability": pytest.approx(one["probability"])} for one in nbest],
    }
    found = Squad2(n_best=3, null_threshold=-1.0).decode(question, rows, outputs, None)
    assert found["null_odds"] == 4.5 - 5
    assert [one["text"] for one in found["nbest"]] == ["the cat", "", "the"]
    assert (found["answer"], found["start"], found["end"]) == ("", None, None)
    share = math.exp(4.5) / (math.exp(5) + math.exp(4.5) + math.exp(4))
    assert found["probability"] == found["nbest"][1]["probability"] == pytest.approx(share)
    json.dumps(found, allow_nan=False)
    task = Squad2(n_best=3, null_threshold=-0.5)  # not above
    assert task.decode(question, rows, outputs, None)["answer"] == "the cat"
