"""SQuAD's files, rows and labels: equal to a plain account of the original's."""

import functools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import FIXTURES, shared

from keras_bert_ref.errors import ConfigError, InputError, InputWarning, OutputError
from keras_bert_ref.sliding import sliding
from keras_bert_ref.tasks.registry import make_task
from keras_bert_ref.tasks.squad import Question, Squad, Squad2, score
from keras_bert_ref.tasks.squad_windows import tokenized
from keras_bert_ref.tokenization import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer.from_vocab(FIXTURES / "tokenization" / "vocab.txt")
SMALL = {"max_length": 23, "doc_stride": 5, "max_query_length": 7}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.from_vocab(shared("data/vocab/bert-base-uncased-vocab.txt"))


def one_hot(rows, size=9.0):
    """Returns outputs that say what the labels say."""
    return [
        {
            f"{side}_logits": size * np.eye(len(row.input_ids))[row.labels[f"{side}_positions"]]
            for side in ("start", "end")
        }
        for row in rows
    ]


# --- windows and labels, as the original makes them: position by position


def original_spans(length, room, stride):
    spans, start = [], 0
    while start < length:
        size = min(length - start, room)
        spans.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    return spans


def original_owner(spans, place):
    best = best_span = None
    for number, (start, size) in enumerate(spans):
        if start <= place < start + size:
            context = min(place - start, start + size - 1 - place) + 0.01 * size
            if best is None or context > best:
                best, best_span = context, number
    return best_span


@given(st.integers(1, 200), st.integers(1, 60), st.data())
def test_windows_are_the_original_s(length, room, data):
    stride = data.draw(st.integers(1, room))
    spans = original_spans(length, room, stride)
    owners = [original_owner(spans, place) for place in range(length)]
    found = sliding(length, room, stride)
    assert [(start, stop - start) for start, stop, _ in found] == spans
    for number, (start, stop, owned) in enumerate(found):
        assert owned.tolist() == [owner == number for owner in owners[start:stop]]


def words(text):
    """Returns the words that the original divides a text into, and the word of each character."""
    found, index, before = [], [], True
    for char in text:
        space = char in " \t\r\n\u202f"
        if not space and before:
            found.append("")
        if not space:
            found[-1] += char
        before = space
        index.append(len(found) - 1)
    return found, index


@functools.cache
def ids_by_piece(tokenizer):
    return {piece: n for n, piece in enumerate(tokenizer.vocabulary)}


def original_rows(question, tokenizer, task):
    """Returns (ids, segments, start, end, max context) of the windows of an answered question."""
    ids_of = ids_by_piece(tokenizer)
    document, index = words(question.context)
    text, offset = question.answers[0]
    query = tokenizer.tokenize(question.question)[: task.max_query_length]
    pieces, first_of = [], []
    for word in document:
        first_of.append(len(pieces))
        pieces += tokenizer.tokenize(word)
    first = first_of[index[offset]]
    last = index[offset + len(text) - 1]
    last = first_of[last + 1] - 1 if last + 1 < len(document) else len(pieces) - 1
    wanted = tokenizer.tokenize(text)
    inside = [
        (start, end)
        for start in range(first, last + 1)
        for end in range(last, start - 1, -1)
        if pieces[start : end + 1] == wanted
    ]
    first, last = inside[0] if inside else (first, last)
    spans = original_spans(len(pieces), task.max_length - len(query) - 3, task.doc_stride)
    rows = []
    for number, (start, size) in enumerate(spans):
        tokens = ["[CLS]", *query, "[SEP]", *pieces[start : start + size], "[SEP]"]
        ids = [ids_of[token] for token in tokens]
        labels = (0, 0)
        if start <= first and last < start + size:
            labels = (first - start + len(query) + 2, last - start + len(query) + 2)
        owned = [original_owner(spans, start + n) == number for n in range(size)]
        rows.append((ids, [0] * (len(query) + 2) + [1] * (size + 1), *labels, owned))
    return rows, bool(inside)


def plain(row):
    labels = row.labels["start_positions"], row.labels["end_positions"]
    return row.input_ids, row.segment_ids, *labels, row.window.owned.tolist()


WORDS = st.sampled_from(
    ["know", "Knowing", "able,", "(ed)", "n't", "É", "x\u200by", "9.5", "ab cd"]
)


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=40), st.lists(WORDS, max_size=9), st.data())
def test_rows_are_the_original_s(context, question, data):
    first = data.draw(st.integers(0, len(context) - 1))
    last = data.draw(st.integers(first, min(first + 3, len(context) - 1)))
    before = "".join(word + " " for word in context[:first])
    answer = " ".join(context[first : last + 1])
    example = Question(
        "q", " ".join(question), " ".join(context), ((answer, len(before)),), impossible=False
    )
    task = Squad2(**SMALL)
    expected, _ = original_rows(example, TOKENIZER, task)
    rows = task.features(example, TOKENIZER, None, True)
    assert [plain(row) for row in rows] == expected
    unlabelled = task.features(example, TOKENIZER, None, False)
    assert [row.input_ids for row in unlabelled] == [row.input_ids for row in rows]
    assert all(not row.labels for row in unlabelled)
    # An impossible question: every window says so.
    none = Question("q", example.question, example.context, impossible=True)
    labels = [plain(row)[2:4] for row in task.features(none, TOKENIZER, None, True)]
    assert labels == [(0, 0)] * len(rows)
    # Windows without the answer are left out if wanted, but not those of impossible questions.
    task = Squad2(**SMALL, out_of_window="drop")
    kept = [plain(row) for row in task.features(example, TOKENIZER, None, True)]
    assert kept == [row for row in expected if row[2]]
    assert len(task.features(none, TOKENIZER, None, True)) == len(rows)


def test_rows_have_the_pieces_that_the_tokenizer_gives_a_pair():
    question, context = "Know-how?", "unaffable\u00a0 9,\t(know)ing"
    encoding = TOKENIZER.encode(question, context)
    (row,) = Squad().features(Squad().example((question, context)), TOKENIZER, None, False)
    assert row.input_ids == encoding.input_ids and row.segment_ids == encoding.segment_ids
    first = row.window.first
    assert row.window.spans.tolist() == [list(span) for span in encoding.offsets[first:-1]]
    assert not row.labels and row.window.owned.all()


@pytest.mark.parametrize(
    "answer, decoded",
    [
        ("unaffable", "unaffable"),
        ("aff", "aff"),
        ("na", "unaff"),  # parts of pieces are the pieces
        ("ffa", "affable"),
        (" \u200b unaff", "unaff"),  # no piece at its ends
        ("9", "9"),
    ],
)
def test_answers_within_words(answer, decoded):
    context = "9.5, \u200b unaffable"
    assert TOKENIZER.tokenize(context) == ["9", ".", "5", ",", "un", "##aff", "##able"]
    example = Question("q", "9?", context, ((answer, context.index(answer)),))
    rows = Squad().features(example, TOKENIZER, None, True)
    assert Squad().decode(example, rows, one_hot(rows), None)["answer"] == decoded


TEXT = st.text(st.sampled_from("ab cÉ.\u0301\u200b-ßᄒ\n9漢"), min_size=1, max_size=60)


@settings(deadline=None)
@given(TEXT, st.data())
def test_what_is_labelled_is_decoded(context, data):
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    answer = context[start:end]
    task = Squad(max_answer_length=60)
    example = Question("q", "9?", context, ((answer, start),))
    rows = task.features(example, TOKENIZER, None, True)
    spans = tokenized(TOKENIZER, context).spans.tolist()
    touched = [span for span in spans if span[0] < end and span[1] > start]
    if not answer.strip() or not touched:
        assert rows == []  # nothing that a model could point at
        return
    found = task.decode(example, rows, one_hot(rows), None)
    assert found["answer"] == context[found["start"] : found["end"]] != ""
    # All of the answer that the model sees is there, and no piece beyond.
    assert (found["start"], found["end"]) == (touched[0][0], touched[-1][1])
    if start in {span[0] for span in spans} and end in {span[1] for span in spans}:
        assert found["answer"] == answer


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_labels_of_the_real_data(version, tokenizer):
    task = make_task(f"squad-{version}", max_answer_length=60)
    questions = task.read(shared(f"data/squad/dev-v{version}.json"), "train")
    blocks = range(0, len(questions), 250)  # those of a context stay together
    questions = [one for n in blocks for one in questions[n : n + 50] if one.answers]
    assert len(questions) > 1_100
    exact = same = comparable = 0
    predictions = []
    for n, question in enumerate(questions):
        rows = task.features(question, tokenizer, None, True)
        predictions.append(task.decode(question, rows, one_hot(rows), None))
        exact += predictions[-1]["answer"] == question.answers[0][0]
        if n % 3 == 0:
            expected, inside = original_rows(question, tokenizer, task)
            comparable += inside
            same += inside and [plain(row) for row in rows] == expected
    print(f"{exact / len(questions):.4f} exact; {same} of {comparable} as the original's")
    assert exact / len(questions) > 0.99
    assert same / comparable > 0.99  # the original takes the first of several in a word
    found = task.score(questions, predictions)
    assert found["exact"] > 99 and found["f1"] > 99


# --- files


def official(version="1.1", context="The cat sat\ton the mat, the cat did.", **fields):
    """Returns official JSON of one question; fields of it that are None are left out."""
    question = {
        "id": "q1",
        "question": "What sat?",
        "answers": [{"text": "cat", "answer_start": 4}],
        **fields,
    }
    question = {key: value for key, value in question.items() if value is not None}
    return {
        "version": version,
        "data": [{"title": "Cats", "paragraphs": [{"context": context, "qas": [question]}]}],
    }


def written(folder, content, name="some.json"):
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_read(tmp_path):
    path = written(tmp_path, official())
    context = "The cat sat\ton the mat, the cat did."
    expected = Question("q1", "What sat?", context, (("cat", 4),), None, "Cats")
    for split in ("train", "dev", "test"):
        assert Squad().read(path, split) == [expected]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Squad().read(path, "dev") == [expected]
    # A test file does not say the answers.
    for answers in (None, []):
        path = written(tmp_path, official(answers=answers))
        assert Squad().read(path, "test") == [
            Question("q1", "What sat?", context, (), None, "Cats")
        ]
    path = written(tmp_path, official("v2.0", answers=[], is_impossible=True))
    (question,) = Squad2().read(path, "train")
    assert question.impossible is True and question.answers == ()


@pytest.mark.parametrize(
    "answer, start, span",
    [
        ("cat", 4, (4, 7)),
        ("cat", 5, (4, 7)),  # a little beside
        ("cat", 25, (28, 31)),  # the nearest
        ("sat on  the", 8, (8, 18)),  # white space differs
        (" the mat", 0, (15, 22)),
        (" cat", 3, (3, 7)),
        ("dog", 4, None),
        ("Cat", 4, None),
        ("", 4, None),
        (" ", 3, None),
    ],
)
def test_places_of_answers(tmp_path, answer, start, span):
    content = official(answers=[{"text": answer, "answer_start": start}])
    path = written(tmp_path, content)
    (question,) = Squad().read(path, "dev")
    assert question.answer_span() == span
    if span:
        assert Squad().read(path, "train") == [question]
        return
    content["data"] += official(id="q2")["data"]
    path = written(tmp_path, content)
    with pytest.warns(InputWarning, match=r"some\.json: 1 questions passed over, as their answers"):
        assert [question.id for question in Squad().read(path, "train")] == ["q2"]
    assert Squad().features(question, TOKENIZER, None, True) == []


@pytest.mark.parametrize(
    "content, message",
    [
        ([], "list where an object with 'data' should be"),
        ({"data": {}}, "'data' must be a list, not dict"),
        ({"data": [5]}, r"data\[0\]: int where an object with 'paragraphs'"),
        ({"data": [{"paragraphs": [{}]}]}, r"data\[0\]\.paragraphs\[0\] has no 'qas'"),
        ({"data": [{"paragraphs": [{"qas": [{}]}]}]}, r"paragraphs\[0\]\.qas\[0\] has no 'id'"),
        ({"data": [{"paragraphs": [{"qas": [{"id": 7}]}]}]}, "'id' must be a string, not int"),
        (
            {"data": [{"paragraphs": [{"qas": [{"id": "q1", "question": ""}]}]}]},
            r"\(id q1\), its paragraph has no 'context'",
        ),
        ({"data": []}, "holds no question"),
        (official(question=None), r"qas\[0\] \(id q1\) has no 'question'"),
        (official(context=" \n"), r"\(id q1\): the context is empty"),
        (official(context=None), "'context' must be a string, not NoneType"),
        (official(answers="cat"), "'answers' must be a list, not str"),
        (official(answers=[{"text": "cat"}]), r"\(id q1\), answer 0 has no 'answer_start'"),
        (official(answers=[{"answer_start": 4}]), r"\(id q1\), answer 0 has no 'text'"),
        (
            official(answers=[{"text": "cat", "answer_start": 36}]),
            r"\(id q1\): answer_start 36 of 'cat' is outside the context of 36 characters",
        ),
        (official(answers=[{"text": "cat", "answer_start": -1}]), "answer_start -1 of 'cat' is"),
        (official(answers=[{"text": "cat", "answer_start": True}]), "a whole number, not bool"),
        (official(answers=[{"text": "cat", "answer_start": "4"}]), "a whole number, not str"),
        (official(is_impossible="no"), "is_impossible must be true or false, not 'no'"),
        (official(is_impossible=True), "the question is_impossible, but has answers"),
        ({"data": official()["data"] * 2}, r"data\[1\].*\(id q1\): another question has this id"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path, content, message):
    path = written(tmp_path, content, "bad.json")
    with pytest.raises(InputError, match=message) as caught:
        Squad2().read(path, "dev")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "task, fields, message",
    [
        (Squad(), {"answers": None}, "the question has no answer"),
        (Squad(), {"answers": []}, "the question has no answer"),
        (Squad(), {"answers": [], "is_impossible": True}, "squad-2.0 is the task for such"),
        (Squad2(), {"answers": [], "is_impossible": False}, "the question has no answer"),
        (Squad2(), {"answers": []}, "the question has no answer"),
    ],
)
def test_what_cannot_be_trained_on(tmp_path, task, fields, message):
    path = written(tmp_path, official(**fields))
    with pytest.raises(InputError, match=rf"some\.json.*\(id q1\): {message}|{message}"):
        task.read(path, "train")
    (question,) = task.read(path, "dev")
    assert len(task.features(question, TOKENIZER, None, False)) == 1
    with pytest.raises(InputError, match=f"question 'q1': .*{message}"):
        task.features(question, TOKENIZER, None, True)
    if fields.get("is_impossible") is not True:
        with pytest.raises(InputError, match="1 of 1 examples have no label"):
            task.score([question], [{"answer": "", "nbest": [], "null_odds": 0.0}])


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000], ids=repr)
def test_what_is_no_json(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.json is no JSON"):
        Squad().read(path, "dev")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Squad().read(tmp_path / "absent", "train")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        Squad().read(tmp_path, "train")


@pytest.mark.parametrize(
    "task, name, questions, impossible",
    [
        (Squad(), "dev-v1.1.json", 10_570, 0),
        (Squad2(), "dev-v2.0.json", 11_873, 5_945),
        (Squad(), "xquad.en.json", 1_190, 0),
    ],
)
def test_the_real_files_have_their_published_counts(task, name, questions, impossible):
    for split in ("dev", "train"):  # no answer is lost
        found = task.read(shared(f"data/squad/{name}"), split)
        assert len(found) == questions
        assert sum(bool(question.impossible) for question in found) == impossible


@pytest.mark.parametrize("kind", [str, str.encode])
def test_from_tensorflow_datasets(kind):
    row = {
        "id": kind("q1"),
        "title": kind("Cats"),
        "context": kind("É sat"),
        "question": kind("Who?"),
        "answers": {
            "text": np.array([kind("sat"), kind("É")], object),
            "answer_start": np.array([2, 0], np.int32),
        },
    }
    answered = Question("q1", "Who?", "É sat", (("sat", 2), ("É", 0)), None, "Cats")
    assert Squad().from_tfds([row], SimpleNamespace(), "train") == [answered]
    empty = {"text": np.array([], object), "answer_start": np.array([], np.int32)}
    row |= {"answers": empty, "is_impossible": np.True_, "plausible_answers": empty}
    (question,) = Squad2().from_tfds([row], SimpleNamespace(), "train")
    assert question == Question("q1", "Who?", "É sat", (), True, "Cats")
    assert question.impossible is True
    with pytest.raises(InputError, match="row 0: the question is impossible"):
        Squad().from_tfds([row], SimpleNamespace(), "train")


def test_examples():
    expected = Question("", "Who?", "A cat.")
    task = Squad()
    assert task.example(("Who?", "A cat.")) == task.example(["Who?", "A cat."]) == expected
    assert task.example({"context": "A cat.", "question": "Who?"}) == expected
    assert task.example({"context": "A cat.", "question": "Who?", "id": "q"}).id == "q"
    assert task.example(expected) is expected


@pytest.mark.parametrize(
    "value, message",
    [
        ("Who?", "str where a pair"),
        (("Who?", "A", "cat"), "tuple where a pair"),
        (("Who?", ""), "the context is empty"),
        (("Who?", None), "'context' must be a string, not NoneType"),
        ({"question": "Who?"}, "has no 'context'"),
        ({"question": "Who?", "context": "A cat.", "id": 5}, "'id' must be a string, not int"),
    ],
)
def test_what_is_no_example(value, message):
    with pytest.raises(InputError, match=message):
        Squad().example(value)


# --- settings


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_length": 64}, "max_length 64 leaves 0 pieces for the context"),
        ({"max_length": 128}, "leaves 61 pieces .* and doc_stride 128 would pass over some"),
        ({"doc_stride": 0}, "doc_stride must be a whole number above 0, not 0"),
        ({"doc_stride": 318}, "leaves 317 pieces"),
        ({"max_query_length": 2.5}, "max_query_length must be a whole number above 0, not 2.5"),
        ({"max_answer_length": True}, "max_answer_length must be"),
        ({"n_best": -1}, "n_best must be"),
        ({"out_of_window": "skip"}, "out_of_window must be 'null' or 'drop', not 'skip'"),
        ({"null_threshold": "0"}, "null_threshold must be a number, not '0'"),
        ({"null_threshold": float("inf")}, "null_threshold must be a number, not inf"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        Squad2(**settings)


def test_long_questions_are_cut_and_windows_come_to_an_end():
    task = Squad(max_length=16, doc_stride=2, max_query_length=11)
    question = Question("q", "know " * 500, "9 " * 30)
    rows = task.features(question, TOKENIZER, None, False)
    assert len(rows) == 15
    assert all(len(row.input_ids) == 16 and row.window.first == 13 for row in rows)
    assert sum(row.window.owned.sum() for row in rows) == 30


# --- predictions of a whole file


def prediction(key, answer, odds=None):
    nbest = [{"text": answer, "probability": 1.0, "start_logit": 1.0, "end_logit": 2.0}]
    found = {"id": key, "answer": answer, "start": 0, "end": 1, "probability": 1.0, "nbest": nbest}
    return found if odds is None else {**found, "null_odds": odds}


def test_written_predictions_score_the_same(tmp_path):
    examples = [
        Question("p", "?", "cat sat", (("cat", 0), ("cat sat", 0))),
        Question("q", "?", "cat sat", (("sat", 4),)),
    ]
    predictions = [prediction("p", "cat sat"), prediction("q", "cat sat")]
    paths = Squad().write(examples, predictions, tmp_path, "dev")
    assert [path.name for path in paths] == ["predictions.json", "nbest_predictions.json"]
    answers, nbest = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    assert list(answers.items()) == [("p", "cat sat"), ("q", "cat sat")]
    assert nbest == {key: predictions[0]["nbest"] for key in "pq"}
    gold = [
        {"id": one.id, "answers": [{"text": text} for text, _ in one.answers]} for one in examples
    ]
    content = {"data": [{"paragraphs": [{"qas": gold}]}]}
    found = Squad().score(examples, predictions)
    assert found == score(content, paths[0])
    assert found == {"exact": 50, "f1": pytest.approx(100 * (1 + 2 / 3) / 2), "total": 2}


def test_the_threshold_decides_what_is_written_and_scored(tmp_path):
    examples = [
        Question("p", "?", "cat sat", (("cat", 0),), False),
        Question("q", "?", "cat sat", (), True),
        Question("r", "?", "cat sat", (("sat", 4),), False),
    ]
    predictions = [prediction("p", "cat", 3.5), prediction("q", "cat", 7), prediction("r", "t", 2)]
    task = Squad2()
    found = task.score(examples, predictions)
    assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (
        pytest.approx(100 / 3),
        0,
        100,
    )
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(200 / 3), 3.5)
    best = task.chosen_on_dev(found)
    assert best == Squad2(null_threshold=3.5)
    assert best.score(examples, predictions)["f1"] == found["best_f1"]
    for one, answers in ((task, ["", "", ""]), (best, ["cat", "", "t"])):
        paths = one.write(examples, predictions, tmp_path, "dev")
        contents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        assert contents[0] == dict(zip("pqr", answers, strict=True))
        assert contents[2] == {"p": 3.5, "q": 7, "r": 2}
    assert [path.name for path in paths][2] == "null_odds.json"


def test_predictions_that_cannot_be_written(tmp_path):
    twice = [prediction("p", "x"), prediction("p", "y")]
    with pytest.raises(InputError, match="written by id, but questions share one"):
        Squad().write([], twice, tmp_path, "dev")
    with pytest.raises(OutputError, match=r"predictions\.json cannot be written"):
        Squad().write([], twice[:1], tmp_path / "absent", "dev")
    assert list(tmp_path.iterdir()) == []


def test_tensorflow_is_not_needed():
    code = "import sys, keras_bert_ref.tasks.squad; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
