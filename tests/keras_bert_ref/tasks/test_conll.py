import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared

from keras_bert_ref.errors import InputError
from keras_bert_ref.tasks import conll

TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-X-Y", "I-X-Y"])
PAIRS = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=9), max_size=6)


def split(pairs):
    return [[g for g, _ in s] for s in pairs], [[p for _, p in s] for s in pairs]


# --- an independent account of conlleval: its state machine, token by token, as the script has it


def end_of_chunk(before, tag, type_before, kind):
    pairs = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
    return (before, tag) in pairs or (before != "O" and type_before != kind)


def start_of_chunk(before, tag, type_before, kind):
    pairs = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
    return (before, tag) in pairs or (tag != "O" and type_before != kind)


def conlleval(gold, predicted):
    stream = []
    for true, guess in zip(gold, predicted, strict=True):
        stream += [*zip(true, guess, strict=True), ("O", "O")]
    counts, inside = {"gold": 0, "predicted": 0, "correct": 0}, False
    last_true, last_guess = ("O", ""), ("O", "")
    for true, guess in stream:
        true, guess = (tag.partition("-")[::2] for tag in (true, guess))
        ends_true = end_of_chunk(last_true[0], true[0], last_true[1], true[1])
        ends_guess = end_of_chunk(last_guess[0], guess[0], last_guess[1], guess[1])
        if inside:
            if ends_true and ends_guess and last_guess[1] == last_true[1]:
                inside = False
                counts["correct"] += 1
            elif ends_true != ends_guess or guess[1] != true[1]:
                inside = False
        starts_true = start_of_chunk(last_true[0], true[0], last_true[1], true[1])
        starts_guess = start_of_chunk(last_guess[0], guess[0], last_guess[1], guess[1])
        inside = inside or (starts_true and starts_guess and guess[1] == true[1])
        counts["gold"] += starts_true
        counts["predicted"] += starts_guess
        last_true, last_guess = true, guess
    return counts


@given(PAIRS)
def test_counts_are_those_of_conlleval(pairs):
    gold, predicted = split(pairs)
    result = conll.score(gold, predicted)
    assert {name: result[name] for name in ("gold", "predicted", "correct")} == conlleval(
        gold, predicted
    )
    precision, recall = result["precision"], result["recall"]
    harmonic = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert result["f1"] == pytest.approx(harmonic, abs=1e-9)


@given(PAIRS)
def test_types_add_up_to_the_whole(pairs):
    gold, predicted = split(pairs)
    result = conll.score(gold, predicted)
    for name in ("gold", "predicted", "correct"):
        assert sum(kind[name] for kind in result["types"].values()) == result[name]
    used = {tag[2:] for sentence in gold + predicted for tag in sentence} - {""}
    assert set(result["types"]) == used


@given(PAIRS, st.randoms())
def test_the_order_of_sentences_does_not_matter(pairs, rng):
    shuffled = list(pairs)
    rng.shuffle(shuffled)
    assert conll.score(*split(pairs)) == conll.score(*split(shuffled))


@given(PAIRS)
def test_what_is_predicted_perfectly_scores_100(pairs):
    gold, _ = split(pairs)
    result = conll.score(gold, gold)
    found = any(tag != "O" for sentence in gold for tag in sentence)
    assert result["f1"] == result["precision"] == result["recall"] == (100 if found else 0)
    assert result["accuracy"] == (100 if gold else 0)


@given(st.lists(TAGS, max_size=9))
def test_iob2_keeps_the_entities_and_is_well_formed(tags):
    converted = conll.iob2(tags)
    assert conll.entities(converted) == conll.entities(tags)
    assert conll.iob2(converted) == converted
    for before, tag in zip(("O", *converted), converted, strict=False):
        assert tag[0] != "I" or before[1:] == tag[1:]


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("I-PER I-PER O I-PER", [(0, 2, "PER"), (3, 4, "PER")]),
        ("I-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("B-PER I-LOC I-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("O I-LOC I-PER B-PER", [(1, 2, "LOC"), (2, 3, "PER"), (3, 4, "PER")]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_by_hand(tags, expected):
    assert conll.entities(tags.split()) == expected


def test_score_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["O", "B-ORG"]]
    result = conll.score(gold, predicted)
    types = result.pop("types")
    assert result == {
        "precision": pytest.approx(100 / 3),
        "recall": pytest.approx(100 / 3),
        "f1": pytest.approx(100 / 3),
        "gold": 3,
        "predicted": 3,
        "correct": 1,
        "accuracy": 50.0,
        "words": 6,
    }
    assert types["PER"]["f1"] == 100
    assert types["LOC"] == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "gold": 1,
        "predicted": 0,
        "correct": 0,
    }
    assert (types["ORG"]["gold"], types["ORG"]["predicted"], types["ORG"]["correct"]) == (1, 2, 0)


def test_an_entity_does_not_cross_from_one_sentence_into_the_next():
    result = conll.score([["I-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]])
    assert (result["gold"], result["correct"], result["accuracy"]) == (2, 2, 50.0)


def test_sentences_must_match():
    with pytest.raises(InputError, match="for 1 sentences, but there are 2"):
        conll.score([["O"], ["O"]], [["O"]])
    with pytest.raises(InputError, match=r"sentence 1 .* has 2 tags, but 1"):
        conll.score([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(InputError, match="'S-PER' is no tag"):
        conll.score([["O"]], [["S-PER"]])


# --- files


def test_read(tmp_path):
    path = tmp_path / "some.txt"
    path.write_bytes(
        b"\xef\xbb\xbf-DOCSTART- -X- O O\r\n\r\n"
        b"U.N. NNP I-NP I-ORG\r\nofficial NN I-NP O\r\n\r\n\r\n"
        b"Caf\xc3\xa9\tNNP\tI-NP\tI-LOC \nRome NNP I-NP B-LOC\n"
        b"-DOCSTART- -X- -X- O\n\n-DOCSTART- -X- -X- O\n\na\xc2\xa0b NNP I-NP I-PER"
    )
    assert conll.read(path) == [
        [
            conll.Sentence(("U.N.", "official"), ("B-ORG", "O")),
            conll.Sentence(("Café", "Rome"), ("B-LOC", "B-LOC")),
        ],
        [conll.Sentence(("a\xa0b",), ("B-PER",))],
    ]


def test_a_file_without_docstart_is_one_document(tmp_path):
    path = tmp_path / "some.txt"
    path.write_text("a O\n\nb I-X\n")
    assert conll.read(path) == [[conll.Sentence(("a",), ("O",)), conll.Sentence(("b",), ("B-X",))]]


def test_a_file_of_one_column_has_words_without_tags(tmp_path):
    path = tmp_path / "some.txt"
    path.write_text("-DOCSTART-\n\nB-X\nb\n\nc\n")
    (document,) = conll.read(path)
    assert document == [conll.Sentence(("B-X", "b"), None), conll.Sentence(("c",), None)]
    with pytest.raises(InputError, match="the sentence 'B-X b' has no tags"):
        conll.tag_names([document])


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "holds no sentence"),
        (b"-DOCSTART- -X- O O\n\n", "holds no sentence"),
        (b"a O\nb\n", "line 2: 'b' stands alone"),
        (b"a\nb O\n", "line 2: 2 columns, where the lines before have 1"),
        (b"a NN O\n\nb O\n", "line 3: 2 columns, where the lines before have 3"),
        (b"a O\nb NN\n", "line 2: 'NN' in the last column is no tag"),
        (b"a O\nb B-\n", "line 2: 'B-' in the last column is no tag"),
        (b"a O\nb\xff O\n", "line 2: not UTF-8"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        conll.read(path)
    assert str(path) in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        conll.read(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        conll.read(tmp_path)


@pytest.mark.parametrize(
    "name, documents, sentences, words, found",
    [
        ("eng.train", 946, 14_041, 203_621, 23_499),
        ("eng.testa", 216, 3_250, 51_362, 5_942),
        ("eng.testb", 231, 3_453, 46_435, 5_648),
    ],
)
def test_the_real_data_has_its_published_counts(name, documents, sentences, words, found):
    read = conll.read(shared("data/conll2003") / name)
    flat = [sentence for document in read for sentence in document]
    assert (len(read), len(flat)) == (documents, sentences)
    assert sum(len(sentence.words) for sentence in flat) == words
    assert sum(len(conll.entities(sentence.tags)) for sentence in flat) == found
    assert conll.tag_names(read) == (
        "O",
        *(f"{place}-{kind}" for place in "BI" for kind in ("LOC", "MISC", "ORG", "PER")),
    )


def test_damaged_real_tags_score_as_conlleval_scores_them():
    read = conll.read(shared("data/conll2003") / "eng.testb")
    gold = [sentence.tags for document in read for sentence in document]
    rng, names = random.Random(0), conll.tag_names(read)
    damaged = [[rng.choice(names) if rng.random() < 0.1 else t for t in tags] for tags in gold]
    result = conll.score(gold, damaged)
    assert {n: result[n] for n in ("gold", "predicted", "correct")} == conlleval(gold, damaged)
