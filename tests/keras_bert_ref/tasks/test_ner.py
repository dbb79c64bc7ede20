import json

import checkpoint_models
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.tasks import conll
from keras_bert_ref.tasks.conll import Sentence
from keras_bert_ref.tasks.ner import Conll2003
from keras_bert_ref.tasks.registry import make_task, read_split

TOKENIZER = checkpoint_models.tokenizer()  # a piece for each letter
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

WORDS = st.text("abcxyz?", min_size=1, max_size=9)  # "?" is unknown
SENTENCES = st.lists(st.tuples(WORDS, st.sampled_from(LABELS)), min_size=1, max_size=12).map(
    lambda rows: Sentence(*map(tuple, zip(*rows, strict=True)))
)


def logits_of(row):
    """Returns what a model would that predicts the labels it is trained on, and else another."""
    ids = np.array(row.labels["label_ids"])
    return {"logits": np.eye(len(LABELS))[np.where(ids < 0, 1, ids)]}


@given(st.lists(SENTENCES, min_size=1, max_size=6), st.integers(8, 40), st.booleans())
def test_every_word_is_predicted_once_from_its_first_piece(sentences, max_length, by_document):
    task = Conll2003(max_length, "document" if by_document else "sentence")
    examples = [tuple(sentences)] if by_document else sentences
    predictions = []
    for example in examples:
        rows = task.features(example, TOKENIZER, LABELS, True)
        for row in rows:
            assert len(row.input_ids) == len(row.labels["label_ids"]) <= max_length
            scored = [n for n, tag in enumerate(row.labels["label_ids"]) if tag >= 0]
            assert scored == row.window
            assert not any(TOKENIZER.continues_word[row.input_ids[n]] for n in scored)
        predictions.append(task.decode(example, rows, list(map(logits_of, rows)), LABELS))
        unlabelled = task.features(example, TOKENIZER, LABELS, False)
        assert [row.labels for row in unlabelled] == [{}] * len(rows)
        assert [row.input_ids for row in unlabelled] == [row.input_ids for row in rows]
    found = predictions[0]["sentences"] if by_document else predictions
    assert [tuple(one["tags"]) for one in found] == [sentence.tags for sentence in sentences]
    assert task.score(examples, predictions)["accuracy"] == 100
    assert json.loads(json.dumps(predictions)) == predictions


def test_a_row_by_hand():
    sentence = Sentence(("ab", "c", "def"), ("B-PER", "O", "B-LOC"))
    (row,) = Conll2003().features(sentence, TOKENIZER, LABELS, True)
    tokens = [TOKENIZER.vocabulary[i] for i in row.input_ids]
    assert tokens == ["[CLS]", "a", "##b", "c", "d", "##e", "##f", "[SEP]"]
    assert row.labels["label_ids"] == [-1, 1, -1, 0, 3, -1, -1, -1]
    assert row.segment_ids == [0] * 8


def test_what_is_too_long_is_cut_between_words_and_a_word_after_its_first_pieces():
    sentence = Sentence(("abc", "de", "f", "abcdefghij", "k"))
    rows = Conll2003(max_length=8).features(sentence, TOKENIZER, LABELS, False)
    texts = [" ".join(TOKENIZER.vocabulary[i] for i in row.input_ids[1:-1]) for row in rows]
    assert texts == ["a ##b ##c d ##e f", "a ##b ##c ##d ##e ##f", "k"]


def test_with_documents_a_row_shows_the_sentences_around():
    document = tuple(Sentence((letter,) * 2, ("O", "O")) for letter in "abcdefgh")
    rows = Conll2003(max_length=10, context="document").features(document, TOKENIZER, LABELS, True)
    assert len(rows) == 5  # the first and the last three words share windows
    assert all(len(row.input_ids) == 10 for row in rows)  # full, but 2 to 4 words are its own
    assert sum(len(row.window) for row in rows) == 16


def test_entities():
    words = ("Anna", "Lee", "sees", "New", "York")
    outputs = [{"logits": np.eye(5)[[0, 1, 2, 0, 4, 4, 0]]}]  # I-LOC without B-LOC
    rows = Conll2003().features(Sentence(words), TOKENIZER, LABELS, False)
    rows[0].window[:] = [1, 2, 3, 4, 5]
    assert Conll2003().decode(Sentence(words), rows, outputs, LABELS) == {
        "tags": ["B-PER", "I-PER", "O", "I-LOC", "I-LOC"],
        "entities": [
            {"start": 0, "end": 2, "type": "PER", "text": "Anna Lee"},
            {"start": 3, "end": 5, "type": "LOC", "text": "New York"},
        ],
    }


def test_scores_are_conllevals():
    examples = [Sentence(("a", "b"), ("B-PER", "B-NEW")), Sentence(("c",), ("B-LOC",))]
    predictions = [{"tags": ["B-PER", "O"]}, {"tags": ["B-PER"]}]
    assert Conll2003().score(examples, predictions) == {
        "precision": 50.0,
        "recall": pytest.approx(100 / 3),
        "f1": 40.0,
        "accuracy": pytest.approx(100 / 3),
    }
    with pytest.raises(InputError, match="1 of 2 examples have no label"):
        Conll2003().score([*examples[:1], Sentence(("c",))], predictions)


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_predictions_are_written_as_conlleval_reads_them(tmp_path, context):
    task, found = Conll2003(context=context), [{"tags": ["O", "B-LOC"]}, {"tags": ["B-PER"]}]
    known = (Sentence(("a", "b"), ("O", "O")), Sentence(("c",), ("B-PER",)))
    unknown = tuple(Sentence(sentence.words) for sentence in known)
    for sentences, expected in (
        (known, "a O O\nb O B-LOC\n\nc B-PER B-PER\n\n"),
        (unknown, "a O\nb B-LOC\n\nc B-PER\n\n"),
    ):
        if context == "document":
            paths = task.write([sentences], [{"sentences": found}], tmp_path, "dev")
        else:
            paths = task.write(sentences, found, tmp_path, "dev")
        assert paths == [tmp_path / "dev.conll"]
        assert paths[0].read_text() == expected
    assert conll.read(paths[0])[0][0].tags == ("O", "B-LOC")


def test_values():
    task, by_document = Conll2003(), Conll2003(context="document")
    assert task.example("a b") == task.example(["a", "b"]) == Sentence(("a", "b"))
    assert by_document.example(["a b", ("c",)]) == (Sentence(("a", "b")), Sentence(("c",)))
    assert by_document.example("a b") == (Sentence(("a", "b")),)
    for value in ("", [], 5, ["a", 3], ["a b", "c"], [""], {"a": 1}):
        with pytest.raises(InputError, match="is no sentence"):
            task.example(value)
    for value in ("", [], 5, [[]], [["a b"]]):
        with pytest.raises(InputError, match=r"is no (sentence|document)"):
            by_document.example(value)


def test_settings_and_labels():
    with pytest.raises(ConfigError, match="context must be sentence or document, not 'text'"):
        make_task("conll-2003", context="text")
    train = [Sentence(("a",), ("B-X",)), Sentence(("b",), ("O",))]
    assert Conll2003().labels(train) == ("O", "B-X")
    assert Conll2003(context="document").labels([tuple(train)]) == ("O", "B-X")
    with pytest.raises(InputError, match="tag 'B-X' is unknown; the model's are O, B-PER"):
        Conll2003().features(train[0], TOKENIZER, LABELS, True)
    with pytest.raises(InputError, match="has no tags"):
        Conll2003().features(Sentence(("a",)), TOKENIZER, LABELS, True)


def test_files_without_tags_are_for_prediction_only(tmp_path):
    for name in ("eng.train", "eng.testb"):
        (tmp_path / name).write_text("a\nb\n\nc\n")
    assert read_split(Conll2003(), tmp_path, "test") == [Sentence(("a", "b")), Sentence(("c",))]
    with pytest.raises(InputError, match=r"eng\.train has words without tags"):
        read_split(Conll2003(), tmp_path, "train")


def test_prediction_does_not_depend_on_what_else_is_in_the_batch():
    model = checkpoint_models.make("tagger")
    task = Conll2003(max_length=12)
    values = ["ab c", "d", "abcde fgh ij k lm n o"]
    together = task.predict(model, values)
    assert task.predict(model, values[1:]) == together[1:]
    assert [len(one["tags"]) for one in together] == [2, 1, 7]


@pytest.mark.parametrize(
    "context, examples", [("sentence", 3_250), ("document", 216)], ids=["sentence", "document"]
)
def test_no_word_of_the_real_data_is_lost(context, examples):
    task = Conll2003(max_length=48, context=context)
    found = read_split(task, shared("data/conll2003"), "dev")
    assert len(found) == examples
    labels, words = task.labels(found), 0
    for example in found:
        rows = task.features(example, TOKENIZER, labels, True)
        words += sum(n >= 0 for row in rows for n in row.labels["label_ids"])
    assert words == 51_362
