import os
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert_ref import WordPieceTokenizer, learn_vocabulary, vocabulary
from keras_bert_ref.errors import ConfigError, OutputError, VocabularyError
from keras_bert_ref.vocabulary import SPECIAL_PIECES, read_vocabulary, write_vocabulary


def write(path, *pieces, end="\n"):
    path.write_bytes("".join(piece + end for piece in pieces).encode())
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vocab.txt"


# Reading


def test_lines_end_at_newline_only(path):
    pieces = (*SPECIAL_PIECES, "\u2028", "\x85", "a\rb", "\x0b", " ", "##a")
    assert read_vocabulary(write(path, *pieces)) == pieces
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert read_vocabulary(str(path)) == pieces


def test_windows_lines_are_read_if_all_are(path):
    assert read_vocabulary(write(path, *SPECIAL_PIECES, "a", end="\r\n")) == (*SPECIAL_PIECES, "a")
    write(path, *SPECIAL_PIECES, "a\r", "\r")
    assert read_vocabulary(path) == (*SPECIAL_PIECES, "a\r", "\r")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n", "line 1 is empty"),
        (b"[PAD]\n[UNK]\n\n[CLS]\n", "line 3 is empty"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\n", "line 6 is empty"),
        (b"[PAD]\na\nb\na\n", "line 4: 'a' is on line 2 already"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"lacks \[MASK\]; a BERT vocabulary has all of"),
        (b"[UNK]\n[CLS]\na\n", r"lacks \[PAD\], \[SEP\], \[MASK\];"),
        (b"[PAD]\n[UNK]\nca\xff\xe9\n", "line 3: byte 0xff at offset 14 is not UTF-8"),
        (b"\xef\xbb\xbf[PAD]\n[UNK]\n", "line 1: a byte order mark"),
        ("[PAD]\n".encode("utf-16"), "line 1: byte 0xff at offset 0 is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_with_path_and_line(path, content, message):
    path.write_bytes(content)
    with pytest.raises(VocabularyError, match=message) as raised:
        read_vocabulary(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(VocabularyError, match="absent cannot be read: No such file"):
        read_vocabulary(tmp_path / "absent")
    with pytest.raises(VocabularyError, match="cannot be read: Is a directory"):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize("piece", ["a\nb", "\ud800", b"a", 3])
def test_pieces_that_are_no_line_of_text_are_refused(path, piece):
    with pytest.raises(VocabularyError, match="the vocabulary to write, line 6: "):
        write_vocabulary(path, [*SPECIAL_PIECES, piece])
    with pytest.raises(VocabularyError, match="the vocabulary, line 6: "):
        WordPieceTokenizer([*SPECIAL_PIECES, piece])
    assert not path.exists()


# Writing


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1))
)
@settings(deadline=None)
def test_what_is_written_is_read(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("written") / "vocab.txt"
    pieces = tuple(dict.fromkeys([*SPECIAL_PIECES, *pieces]))
    write_vocabulary(path, pieces)
    assert read_vocabulary(path) == pieces


def test_writing_is_all_or_nothing(path, monkeypatch):
    write(path, *SPECIAL_PIECES)
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OutputError, match=r"vocab\.txt cannot be written: No space left"):
        write_vocabulary(path, [*SPECIAL_PIECES, "a"])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"absent.*vocab\.txt cannot be written: No such file"):
        write_vocabulary(tmp_path / "absent" / "vocab.txt", SPECIAL_PIECES)


# Learning


def prose(sentences=400, seed=5):
    """Sentences of made-up words with stems, endings and a Zipfian distribution."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    stems = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(300)]
    endings = ["", "", "s", "ing", "ed", "ness"]
    weights = [1 / rank for rank in range(1, len(stems) + 1)]
    for _ in range(sentences):
        words = [stem + draw.choice(endings) for stem in draw.choices(stems, weights, k=8)]
        yield " ".join(words).capitalize() + draw.choice(".!?")


@pytest.mark.parametrize("size", [100, 300, 450])
def test_the_size_is_met_and_nothing_is_unknown(size):
    pieces = learn_vocabulary(prose(), size)
    assert len(pieces) == len(set(pieces)) == size
    assert pieces[:5] == SPECIAL_PIECES
    letters = sorted(set("".join(prose()).lower()) - set(" .!?"))
    assert pieces[5 : 8 + 2 * len(letters)] == (
        *["!", ".", "?", *letters],
        *[f"##{letter}" for letter in letters],  # punctuation never goes on within a word
    )
    tokenizer = WordPieceTokenizer(pieces)
    assert all("[UNK]" not in tokenizer.tokenize(sentence) for sentence in prose())


def test_a_larger_vocabulary_needs_fewer_pieces():
    tokenizers = [WordPieceTokenizer(learn_vocabulary(prose(), n)) for n in (42, 60, 200, 450)]
    lengths = [sum(len(t.token_ids(sentence)) for sentence in prose()) for t in tokenizers]
    assert lengths[0] == sum(len(re.sub(r"\s", "", sentence)) for sentence in prose())
    assert lengths[0] > lengths[1] > lengths[2] > lengths[3]


def test_a_short_text_gives_fewer_pieces():
    pieces = learn_vocabulary(["play plays playing played"], 1000)
    assert pieces == (*SPECIAL_PIECES, *"adegilnpsy", *(f"##{c}" for c in "adegilnpsy"))
    assert {"play", "playing"} < set(learn_vocabulary(["play plays playing played"] * 2, 1000))


def test_case_and_accents_follow_the_settings():
    lines = ["Émile Émile émile"] * 3
    assert "emile" in learn_vocabulary(lines, 100)
    assert "émile" in learn_vocabulary(lines, 100, strip_accents=False)
    cased = learn_vocabulary(lines, 100, lower_case=False)
    assert {"Émile", "émile"} < set(cased)
    assert {"Emile", "emile"} < set(learn_vocabulary(lines, 100, False, True))


def test_rare_characters_are_left_out():
    # 1.2 million characters: one of them alone is rarer than one in a million.
    lines = ["token pieces"] * 100_000 + ["Ω", "token\u0416"]
    pieces = learn_vocabulary(lines, 50)
    assert not {"ω", "ж", "##ж"} & set(pieces)
    assert {"t", "##t", "token", "pieces"} < set(pieces)


def test_a_size_below_the_alphabet_is_refused_with_the_least():
    with pytest.raises(ConfigError, match=r"size=20 is too small: .* alone are 42"):
        learn_vocabulary(prose(), 20)
    assert 42 == 5 + 3 + 2 * 17  # special pieces, punctuation, letters
    assert len(learn_vocabulary(prose(), 42)) == 42


@pytest.mark.parametrize("texts", [[], [""], [" \n", "\u200b\0"]])
def test_there_must_be_text(texts):
    with pytest.raises(VocabularyError, match="no words to learn"):
        learn_vocabulary(texts, 100)


def test_one_string_is_not_a_corpus():
    with pytest.raises(TypeError, match="iterable of strings"):
        learn_vocabulary("the text itself", 100)
    with pytest.raises(TypeError, match="strings, not bytes"):
        learn_vocabulary([b"bytes"], 100)


def test_only_single_characters():
    assert learn_vocabulary(["中国 a!"], 50) == (*SPECIAL_PIECES, "!", "a", "中", "国", "##a")


def test_the_same_for_any_order_and_any_hash_seed():
    lines = list(prose())
    random.Random(1).shuffle(lines)
    expected = learn_vocabulary(prose(), 300)
    assert learn_vocabulary(lines, 300) == expected
    code = (
        "import sys; from keras_bert_ref import learn_vocabulary;"
        "sys.stdout.write('\\n'.join(learn_vocabulary(sys.stdin.read().split('\\n'), 300)));"
        "sys.exit('tensorflow' in sys.modules)"
    )
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            input="\n".join(lines),
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert run.stdout == "\n".join(expected)
        assert run.stderr == ""


def test_counting_in_parts_changes_nothing(monkeypatch):
    expected = learn_vocabulary(prose(), 300)
    monkeypatch.setattr(vocabulary, "_PENDING", 100)
    assert learn_vocabulary(prose(), 300) == expected
    assert learn_vocabulary([" ".join(prose())], 300) == expected


def test_memory_is_bounded_by_forgetting_the_rarest_words(monkeypatch):
    monkeypatch.setattr(vocabulary, "_PENDING", 1000)
    monkeypatch.setattr(vocabulary, "_MAX_WORDS", 200)
    pieces = learn_vocabulary(prose(), 150)
    assert len(pieces) == 150
    assert pieces == learn_vocabulary(prose(), 150)


def test_progress_is_told():
    messages = []
    learn_vocabulary(prose(), 300, progress=messages.append)
    words = re.findall(r"\w+|[.!?]", " ".join(prose()).lower())
    assert messages[0] == f"{len(words):,} words, {len(set(words)):,} different"
    assert all("pieces are seen" in message for message in messages[1:])
    assert len(messages) > 1
