import collections
import concurrent.futures
import gzip
import hashlib
import itertools
import json
import pickle
import subprocess
import sys
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import FIXTURES, shared

from keras_bert_ref import WordPieceTokenizer, basic_tokenization, tokenization
from keras_bert_ref.basic_tokenization import BasicTokenizer
from keras_bert_ref.errors import ConfigError, VocabularyError

VOCABULARY = FIXTURES / "tokenization" / "vocab.txt"
RELEASED = {"uncased": True, "cased": False, "multilingual_cased": False, "chinese": True}
CASINGS = list(itertools.product([True, False], repeat=2))  # lower_case, strip_accents

TOKENIZERS = {casing: WordPieceTokenizer.from_vocab(VOCABULARY, *casing) for casing in CASINGS}
UNCASED, CASED = TOKENIZERS[True, True], TOKENIZERS[False, False]


def released(name, **options):
    path = shared(f"data/vocab/bert-base-{name.replace('_', '-')}-vocab.txt")
    return WordPieceTokenizer.from_vocab(path, lower_case=RELEASED[name], **options)


def json_lines(path):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


# The rules spelt out a character at a time, to compare with on any text.


def is_deleted(char):
    return char in "\0\ufffd" or (
        char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")
    )


def is_ideograph(char):
    blocks = [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF)]
    blocks += [(0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F)]
    return any(first <= ord(char) <= last for first, last in blocks)


def is_punctuation(char):
    return char in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(char)[0] == "P"


def reference_words(text, lower_case, strip_accents):
    text = "".join(char for char in text if not is_deleted(char))
    text = "".join(f" {char} " if is_ideograph(char) else char for char in text)
    words = []
    for token in text.split():
        if lower_case:
            token = token.lower()
        if strip_accents:
            decomposed = unicodedata.normalize("NFD", token)
            token = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        token = "".join(f" {char} " if is_punctuation(char) else char for char in token)
        words += token.split()
    return words


def reference_pieces(word, vocabulary):
    pieces, rest, prefix = [], word, ""
    while rest and len(word) <= 200:
        fitting = [n for n in range(1, len(rest) + 1) if prefix + rest[:n] in vocabulary]
        if not fitting:
            return ["[UNK]"]
        pieces.append(prefix + rest[: fitting[-1]])
        rest, prefix = rest[fitting[-1] :], "##"
    return pieces or ["[UNK]"]


HOSTILE = (
    "aeisn AEISN .,'-![]# \t\n\r\0\x0b\x0c\x1c\x1f\x85\xa0\xad\u200b\u200d\u2028\u2029\u3000"
    "\ufeff\ufffd"
    "\u0301\u0316\u0345\u0307\u034f\u0338\ufe0fİıΣσςßẞﬁǅŉΐéÉÅK²①½中国\u3400\uf900\U0002f800\U00020000"
    "한가각\u1100\u1161\u11a8でが゛\u0f73\u0f71\u0f80\u0344\U0001d165\U0001d16d\u302a\u302e\u1b44"
    "\u037e\u1fef≠😀\ud800\U0010ffff—“”’،।。"
)
texts = st.text(
    st.one_of(st.sampled_from("aeisn .,"), st.sampled_from(HOSTILE), st.characters()), max_size=40
) | st.lists(
    st.sampled_from(
        ["unaffable", "Hello", "[MASK]", "İstanbul", "ΑΣ", "cafe\u0301", "don't", "中国"]
    )
    | st.text(HOSTILE, max_size=4)
).map(" ".join)


# Equality with the original


@pytest.mark.parametrize("name", RELEASED)
def test_pieces_are_the_originals(name):
    recorded = shared(f"expected/tokenization/wordpiece_{name}.given.jsonl.gz")
    tokenizer = released(name)
    different = [
        text
        for text, tokens in json_lines(recorded)
        if tokenizer.tokenize(text) != tokens or tokenizer.encode(text).tokens[1:-1] != tokens
    ]
    assert different == []


def test_words_are_the_originals_at_every_code_point():
    # Recorded with Unicode 14 (Python 3.11). Up to Unicode 15.1 (Python 3.13) no assigned code
    # point has changed its category or decomposition, so there is nothing to make allowance for.
    recorded = shared("expected/tokenization/basic_tokenizer_codepoints.jsonl.gz")
    uncased, cased = BasicTokenizer(True, True), BasicTokenizer(False, False)
    different = []
    for code_point, uncased_words, cased_words in json_lines(recorded):
        text = f"a{chr(code_point)}b {chr(code_point)}"
        for basic, words in ((uncased, uncased_words), (cased, cased_words)):
            if not basic.words(text) == basic.located_words(text)[0] == words:
                different.append((hex(code_point), basic.words(text), words))
    assert different == []


@pytest.mark.parametrize("case", list(json_lines(FIXTURES / "tokenization" / "cases.jsonl")))
def test_recorded_cases(case):
    assert UNCASED.tokenize(case["text"]) == case["uncased"]
    assert CASED.tokenize(case["text"]) == case["cased"]


@pytest.mark.parametrize("casing", CASINGS)
@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_pieces_follow_the_rules(casing, text):
    tokenizer = TOKENIZERS[casing]
    words = reference_words(text, *casing)
    vocabulary = set(tokenizer.vocabulary)
    expected = [piece for word in words for piece in reference_pieces(word, vocabulary)]
    assert tokenizer.tokenize(text) == expected
    encoding = tokenizer.encode(text)
    assert encoding.tokens == ["[CLS]", *expected, "[SEP]"]
    pieces_of_word = collections.Counter(encoding.word_ids[1:-1])
    assert [pieces_of_word[i] for i in range(len(words))] == [
        len(reference_pieces(word, vocabulary)) for word in words
    ]


@pytest.mark.parametrize("casing", CASINGS)
@pytest.mark.parametrize("part", [2, 1024])
@given(text=st.text("a Σ.é\u0301\u0316\u0f73\u0344\u302e\U0001d165\U0001d16d") | texts)
@settings(deadline=None)
def test_words_and_their_origins_follow_the_rules(casing, part, text):
    basic = BasicTokenizer(*casing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basic_tokenization, "_PART", part)
        words, starts, ends = basic.located_words(text)
        assert basic.words(text) == words == reference_words(text, *casing)
    for char, start, end in zip("".join(words), starts, ends, strict=True):
        assert char.replace("ς", "σ") in normal(text[start], casing)
        assert start < end <= len(text)


def test_white_space_is_the_originals():
    every = list(map(chr, range(sys.maxunicode + 1)))
    space = [c for c in every if c in "\t\n\r" or unicodedata.category(c) in ("Zs", "Zl", "Zp")]
    assert [c for c in every if not basic_tokenization._CHUNK.match(c)] == space
    assert [c for c in every if c.isspace() and c not in space] == [
        c for c in every if basic_tokenization._FALSE_SPACE.match(c)
    ]
    assert all(is_deleted(c) for c in every if basic_tokenization._FALSE_SPACE.match(c))


def test_a_word_of_200_characters_is_the_longest():
    assert UNCASED.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert UNCASED.tokenize("a" * 201) == ["[UNK]"]
    assert UNCASED.tokenize("á" * 200) == ["a"] + ["##a"] * 199  # characters, not bytes


# One answer whichever way it is asked for


@pytest.mark.parametrize("casing", CASINGS)
@given(text=texts)
@settings(deadline=None)
def test_ids_pieces_and_encodings_agree(casing, text):
    remembering = TOKENIZERS[casing]
    new = WordPieceTokenizer(remembering.vocabulary, *casing)
    ids = remembering.token_ids(text)
    assert ids == remembering.token_ids(text) == new.token_ids(text)
    assert [new.vocabulary[i] for i in ids] == new.tokenize(text)
    encoding = new.encode(text)
    assert encoding == remembering.encode(text)
    assert encoding.input_ids == [new.cls_id, *ids, new.sep_id]


@given(parts=st.lists(texts), space=st.sampled_from([" ", "\n", "\u3000", "\u2028"]))
@settings(deadline=None)
def test_white_space_separates(parts, space):
    joined = UNCASED.token_ids(space.join(parts))
    assert joined == list(itertools.chain.from_iterable(map(UNCASED.token_ids, parts)))


@given(parts=st.lists(texts, min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_a_full_memo_changes_nothing(parts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenization, "_MEMO_ENTRIES", 3)
        patch.setattr(tokenization, "_MEMO_KEY", 4)
        small = WordPieceTokenizer(UNCASED.vocabulary)
        assert [small.token_ids(part) for part in parts] == list(map(UNCASED.token_ids, parts))
        assert [small.encode(part) for part in parts] == list(map(UNCASED.encode, parts))
        assert 0 <= len(small._ids_of_chunk) <= 3


@pytest.mark.parametrize("casing", CASINGS)
@given(text=texts)
@settings(deadline=None)
def test_working_in_parts_changes_nothing(casing, text):
    expected = WordPieceTokenizer(UNCASED.vocabulary, *casing).encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basic_tokenization, "_BLOCK", 3)
        patch.setattr(basic_tokenization, "_PART", 2)
        parts = WordPieceTokenizer(UNCASED.vocabulary, *casing)
        assert parts.token_ids(text) == expected.input_ids[1:-1]
        assert parts.encode(text) == expected


def test_shared_by_threads_and_sent_to_processes():
    lines = ["The unaffable tokenizer", "is playing", "naïve café 中国"] * 200
    tokenizer = pickle.loads(pickle.dumps(UNCASED))
    assert tokenizer.vocabulary_sha256 == UNCASED.vocabulary_sha256
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, lines)) == list(map(UNCASED.encode, lines))
    protecting = pickle.loads(pickle.dumps(protector("[MASK]", lower_case=False)))
    assert protecting.tokenize("A [MASK]") == ["A", "[MASK]"]


# Offsets


def normal(text, casing):
    return "".join(reference_words(text, *casing)).replace("ς", "σ")  # alone, no sigma is final


@pytest.mark.parametrize("casing", CASINGS)
@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_offsets_slice_back_to_what_the_piece_came_from(casing, text):
    encoding = TOKENIZERS[casing].encode(text)
    assert encoding.offsets[0] is encoding.offsets[-1] is None
    words = reference_words(text, *casing)
    pieces = list(zip(encoding.tokens, encoding.offsets, encoding.word_ids, strict=True))[1:-1]
    for index, word in enumerate(words):
        word = word.replace("ς", "σ")
        group = [piece for piece in pieces if piece[2] == index]
        starts, ends = zip(*(offsets for _, offsets, _ in group), strict=True)
        assert normal(text[min(starts) : max(ends)], casing) == word
        for piece, (start, end), _ in group:
            source = text[start:end]
            # No white space or deleted character at either end (a stripped mark may end it).
            assert normal(source[0], casing)
            assert not is_deleted(source[-1]) and not source[-1].isspace()
            piece = (word if piece == "[UNK]" else piece.removeprefix("##")).replace("ς", "σ")
            # More than the piece only where one character became several, or marks changed places.
            assert collections.Counter(piece) <= collections.Counter(normal(source, casing))
            if all(len(normal(char, casing)) <= 1 for char in source) and piece.isalnum():
                assert normal(source, casing) == piece


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("The unaffable", ["T", "h", "e", "un", "aff", "able"]),
        ("cafe\u0301s café", ["cafe\u0301", "s", "café"]),
        ("u\0n\u00adaff", ["u\0n", "aff"]),
        ("\u0301un \ufeffaff", ["un", "aff"]),
        ("İstanbul!", ["İstanbul", "!"]),
        ("xЖ\u0e01, of", ["xЖ\u0e01", ",", "of"]),
        ("한가", ["한", "한", "한", "가", "가"]),
        ("a中\u0301b", ["a", "中\u0301", "b"]),
        ("\u3000 un-\u2028well", ["un", "-", "well"]),
        ("nai\u0308\u200bve", ["nai\u0308\u200bve"]),
        ("≠", ["≠"]),
        ("b a\U0001d16d\U0001d165s", ["b", "a", "\U0001d16d\U0001d165", "s"]),  # swapped by NFD
    ],
)
def test_offsets_by_example(text, sources):
    vocabulary = [*UNCASED.vocabulary, "##ᄀ", "##\U0001d165\U0001d16d"]
    if "The" in text:
        vocabulary.remove("the")
    encoding = WordPieceTokenizer(vocabulary).encode(text)
    assert [text[start:end] for start, end in encoding.offsets[1:-1]] == sources


# Encoding


def test_an_encoding_is_what_the_model_takes():
    encoding = UNCASED.encode("unaffable!", "Hello café")
    assert encoding.tokens == [
        *["[CLS]", "un", "##aff", "##able", "!", "[SEP]"],
        *["hello", "cafe", "[SEP]"],
    ]
    assert encoding.input_ids == [UNCASED.vocabulary.index(token) for token in encoding.tokens]
    assert encoding.input_mask == [1] * 9
    assert encoding.segment_ids == [0] * 6 + [1] * 3
    assert encoding.word_ids == [None, 0, 0, 0, 1, None, 0, 1, None]
    assert encoding.offsets[4:8] == [(9, 10), None, (0, 5), (6, 10)]
    assert UNCASED.encode("").tokens == ["[CLS]", "[SEP]"]
    assert UNCASED.encode("", "").segment_ids == [0, 0, 1]
    with pytest.raises(AttributeError):
        encoding.tokens = []


@given(a=st.integers(0, 30), b=st.none() | st.integers(0, 30), max_length=st.integers(3, 40))
@settings(deadline=None)
def test_truncation_takes_from_the_end_of_the_longer(a, b, max_length):
    text, pair = "un ! " * a, None if b is None else "hello " * b
    whole = UNCASED.encode(text, pair)
    # As the original does it, popping one piece at a time.
    first = UNCASED.tokenize(text)
    second = [] if pair is None else UNCASED.tokenize(pair)
    while len(first) + len(second) > max_length - (2 if pair is None else 3):
        (first if len(first) > len(second) else second).pop()
    tokens = ["[CLS]", *first, "[SEP]"] + ([] if pair is None else [*second, "[SEP]"])
    cut = UNCASED.encode(text, pair, max_length=max_length)
    assert cut.tokens == tokens
    assert cut.offsets[1 : 1 + len(first)] == whole.offsets[1 : 1 + len(first)]
    assert len(set(map(len, vars(cut).values()))) == 1


def test_max_length_has_room_for_the_special_pieces():
    assert UNCASED.encode("un", max_length=2).tokens == ["[CLS]", "[SEP]"]
    assert UNCASED.encode("un", "un", max_length=3).tokens == ["[CLS]", "[SEP]", "[SEP]"]
    with pytest.raises(ConfigError, match=r"max_length=1 .* at least 2"):
        UNCASED.encode("un", max_length=1)
    with pytest.raises(ConfigError, match=r"max_length=2 .* at least 3"):
        UNCASED.encode("un", "un", max_length=2)


@pytest.mark.parametrize("text", [b"bytes", None, 3, ["a", "list"]])
def test_text_must_be_a_string(text):
    for method in (UNCASED.tokenize, UNCASED.token_ids, UNCASED.encode):
        with pytest.raises(TypeError, match=f"must be a str, not {type(text).__name__}"):
            method(text)
    if text is not None:
        with pytest.raises(TypeError, match="must be a str"):
            UNCASED.encode("a", text)


# Protected pieces


def protector(*pieces, **options):
    return WordPieceTokenizer.from_vocab(VOCABULARY, never_split=pieces, **options)


def test_protected_pieces_are_kept_whole_everywhere():
    assert UNCASED.tokenize("[MASK]") == ["[", "m", "##a", "##s", "##k", "]"]
    tokenizer = protector("[MASK]")
    text = "The [MASK]. un[MASK]able [mask]"
    tokens = ["the", "[MASK]", ".", "un", "[MASK]", "a", "##b", "##l", "##e"]
    tokens += ["[", "m", "##a", "##s", "##k", "]"]
    assert tokenizer.tokenize(text) == tokens
    encoding = tokenizer.encode(text)
    assert encoding.tokens[1:-1] == tokens
    sources = [text[start:end] for start, end in encoding.offsets[1:-1]]
    assert sources == ["The", "[MASK]", ".", "un", "[MASK]", *"able", "[", *"mask", "]"]
    assert encoding.word_ids[1:11] == [0, 1, 2, 3, 4, 5, 5, 5, 5, 6]
    assert encoding.input_ids[2] == tokenizer.mask_id


def test_the_longest_protected_piece_wins():
    tokenizer = protector("p", "play", "[unused0]")
    assert tokenizer.tokenize("[unused0]pplayp") == ["[unused0]", "p", "play", "p"]
    assert tokenizer.never_split == ("p", "play", "[unused0]")


def test_a_protected_piece_must_be_in_the_vocabulary():
    with pytest.raises(ConfigError, match=r"never_split: '\[ENT\]' is not in the vocabulary"):
        protector("[MASK]", "[ENT]")
    assert WordPieceTokenizer.from_vocab(VOCABULARY, never_split="[MASK]").never_split == (
        "[MASK]",
    )


# Back to text


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("The unaffable  tokenizer.", "the unaffable tokenizer."),
        ("Hello, world! (well-known)", "hello, world! (well-known)"),
        ("don't; what’ll", "don't; what’ll"),
        ("“hello” [un]", "“hello” [un]"),
        ("中国人 a", "中国人 a"),
        ("", ""),
    ],
)
def test_decode_reads_like_text(text, decoded):
    ids = UNCASED.encode(text).input_ids
    assert UNCASED.decode(ids) == decoded
    assert UNCASED.decode(np.array(ids, np.int32)) == decoded


def test_decode_keeps_what_stands_for_text():
    tokenizer = protector("[MASK]")
    ids = [*tokenizer.encode("un [MASK] \u0e01", "of").input_ids, tokenizer.pad_id]
    assert tokenizer.decode(ids) == "un [MASK] [UNK] of"
    whole = tokenizer.decode(ids, skip_special=False)
    assert whole == "[CLS] un [MASK] [UNK] [SEP] of [SEP] [PAD]"


@pytest.mark.parametrize("wrong", [-1, UNCASED.vocab_size])
def test_decode_refuses_ids_outside_the_vocabulary(wrong):
    with pytest.raises(VocabularyError, match=f"id {wrong} is outside .* 0 to"):
        UNCASED.decode([1, wrong])


@given(words=st.lists(st.sampled_from(["unaffable", "token", "players", "well", "istanbul"])))
def test_words_decode_to_themselves(words):
    assert UNCASED.decode(UNCASED.token_ids(" ".join(words))) == " ".join(words)


# The vocabulary


def test_the_vocabulary_as_seen_from_outside():
    pieces = VOCABULARY.read_bytes().decode().split("\n")[:-1]
    assert UNCASED.vocabulary == tuple(pieces)
    assert UNCASED.vocab_size == len(pieces)
    specials = [UNCASED.pad_id, UNCASED.unk_id, UNCASED.cls_id, UNCASED.sep_id, UNCASED.mask_id]
    assert specials == [0, 2, 3, 4, 5]
    assert UNCASED.vocabulary_sha256 == hashlib.sha256(VOCABULARY.read_bytes()).hexdigest()
    assert UNCASED.continues_word.dtype == bool
    assert UNCASED.continues_word.tolist() == [piece.startswith("##") for piece in pieces]
    with pytest.raises(ValueError, match="read-only"):
        UNCASED.continues_word[0] = True
    assert WordPieceTokenizer(pieces, lower_case=False).strip_accents is False
    assert WordPieceTokenizer(pieces, False, True).strip_accents is True


def test_a_saved_vocabulary_is_the_same_bytes(tmp_path):
    UNCASED.save_vocabulary(tmp_path / "vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes() == VOCABULARY.read_bytes()


@pytest.mark.parametrize("name", RELEASED)
def test_released_vocabularies_survive_a_round_trip(name, tmp_path):
    tokenizer = released(name)
    tokenizer.save_vocabulary(tmp_path / "vocab.txt")
    path = shared(f"data/vocab/bert-base-{name.replace('_', '-')}-vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes() == path.read_bytes()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer.vocabulary_sha256


def test_a_vocabulary_without_special_pieces_is_refused():
    with pytest.raises(VocabularyError, match=r"the vocabulary lacks \[SEP\], \[MASK\]"):
        WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "a"])


# Cost


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a" * 1_000_000, id="word"),
        pytest.param("Σ'" * 100_000, id="sigmas"),
        pytest.param("中!" * 100_000, id="ideographs"),
        pytest.param("a \x0b" * 100_000, id="separators"),
        pytest.param("a" + "\u0301\u0316" * 100_000, id="marks"),
        pytest.param("a" + "\U0001d165\U0001d16d" * 100_000, id="spacing marks"),
    ],
)
def test_hostile_text_takes_linear_time(text):
    # Quadratic time would be minutes to hours.
    start = time.process_time()
    UNCASED.token_ids(text)
    UNCASED.encode(text, max_length=512)
    assert time.process_time() - start < 20


def test_only_what_fits_is_tokenized():
    start = time.process_time()
    UNCASED.encode("unaffable " * 500_000, "playing " * 500_000, max_length=512)
    assert time.process_time() - start < 1


def test_tokenizing_does_not_load_tensorflow():
    code = (
        "import sys, keras_bert_ref.tokenization, keras_bert_ref.vocabulary; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_words_keep_their_indices():
    tokenizer = WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", ".", "c", "d"]
    )
    encoding = tokenizer.encode_words(["ab", "A.c", "\u0000", "ü", "d"])
    assert encoding.tokens == ["[CLS]", "a", "##b", "a", ".", "c", "[UNK]", "[UNK]", "d", "[SEP]"]
    assert encoding.word_ids == [None, 0, 0, 1, 1, 1, 2, 3, 4, None]
    assert encoding.offsets == [
        *(None, (0, 1), (1, 2), (0, 1), (1, 2), (2, 3), (0, 1), (0, 1), (0, 1), None)
    ]
    assert set(encoding.segment_ids) == {0}
    cut = tokenizer.encode_words(["ab", "A.c", "d"], max_length=5)
    assert cut.tokens == ["[CLS]", "a", "##b", "a", "[SEP]"]
    assert tokenizer.encode_words([]).tokens == ["[CLS]", "[SEP]"]
    with pytest.raises(ConfigError, match="max_length=1 has no room"):
        tokenizer.encode_words(["a"], max_length=1)
    with pytest.raises(TypeError, match="must be a str, not int"):
        tokenizer.encode_words(["a", 3])


def test_words_and_text_give_the_same_pieces():
    tokenizer = WordPieceTokenizer.from_vocab(shared("data/vocab/bert-base-uncased-vocab.txt"))
    for line in shared("data/text/google_sample_text.txt").read_text().splitlines():
        words = line.split()
        if all(tokenizer.tokenize(word) for word in words):
            assert tokenizer.encode_words(words).input_ids == tokenizer.encode(line).input_ids
