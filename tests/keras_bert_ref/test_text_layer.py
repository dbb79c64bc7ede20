import gzip
import itertools
import json
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from shared_data import FIXTURES, shared

from keras_bert_ref import WordPieceTokenizer
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.text_layer import TextLayer, _truncated

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RELEASED = {"uncased": True, "cased": False, "multilingual_cased": False, "chinese": True}
CASINGS = list(itertools.product([True, False], repeat=2))  # lower_case, strip_accents

# Characters that follow a rule of their own: case, accents, white space, deletion, punctuation,
# ideographs (U+FADB is unassigned), marks that NFD sorts, and what a final sigma looks at.
PECULIAR = (
    "aAbBΣσςİıIßéÉﬁ²①ǅẛ'’·:.,-_$^`+~ \t\n\r\x0b\x0c\x1c\x85\0\xa0\xad\u200b\u200d\u2028\u3000\ufeff"
    "\ufffd\ufadb\uf900中文ｱ가각\u0301\u0307\u0323\u0345\u034f\u0488\u0903\u1715\u302e\u302f\u1b44"
    "\U0001d165\U0001d16d\U0001d15e\U0001d400\U000e0001\U000e0100\ue000\u0378\U0010ffff"
)
LETTERS = sorted(
    {
        part
        for char in PECULIAR
        for form in (char, char.lower())
        for part in form + unicodedata.normalize("NFD", form)
        if part not in "\n\0\ue000\u0378\ufadb"  # of the last three there is no piece
    }
)
# Nearly every character is a piece, so what became of it can be seen.
PIECES = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "ab", "##aba", "abab"]


@pytest.fixture(scope="module")
def layers():
    made = {}
    for casing in CASINGS:
        tokenizer = WordPieceTokenizer(PIECES, *casing)
        made[casing] = tokenizer, TextLayer(tokenizer, max_length=13)
    return made


@pytest.fixture(scope="module")
def uncased():
    tokenizer = WordPieceTokenizer.from_vocab(FIXTURES / "tokenization" / "vocab.txt")
    return tokenizer, TextLayer(tokenizer, max_length=11)


def json_lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def lists(tensors):
    return {name: tensor.numpy().tolist() for name, tensor in tensors.items()}


def padded(encodings):
    width = max(len(encoding.input_ids) for encoding in encodings)

    def pad(values, padding):
        return values + [padding] * (width - len(values))

    return {
        "input_ids": [pad(encoding.input_ids, 0) for encoding in encodings],
        "input_mask": [pad(encoding.input_mask, 0) for encoding in encodings],
        "segment_ids": [pad(encoding.segment_ids, 0) for encoding in encodings],
    }


def assert_tokenized_alike(tokenizer, layer, texts):
    found = {name: values.to_list() for name, values in layer.tokenize(texts).items()}
    for i, text in enumerate(texts):
        expected = tokenizer.encode(text)
        assert found["ids"][i] == expected.input_ids[1:-1], ascii(text)
        assert [token.decode() for token in found["tokens"][i]] == expected.tokens[1:-1]
        spans = list(zip(found["starts"][i], found["ends"][i], strict=True))
        assert spans == expected.offsets[1:-1], ascii(text)


# Equality with what the original tokenizer gave


@pytest.mark.parametrize("name", RELEASED)
def test_pieces_are_the_originals(name):
    path = shared(f"data/vocab/bert-base-{name.replace('_', '-')}-vocab.txt")
    tokenizer = WordPieceTokenizer.from_vocab(path, lower_case=RELEASED[name])
    layer = TextLayer(tokenizer, max_length=10**6)
    recorded = list(json_lines(shared(f"expected/tokenization/wordpiece_{name}.given.jsonl.gz")))
    different = []
    for begin in range(0, len(recorded), 500):
        part = recorded[begin : begin + 500]
        texts = [text for text, _ in part]
        encoded = layer(texts)["input_ids"].numpy()
        lengths = np.sum(encoded != tokenizer.pad_id, 1)
        for (text, tokens), ids, length in zip(part, encoded, lengths, strict=True):
            if [tokenizer.vocabulary[i] for i in ids[1 : length - 1]] != tokens:
                different.append(text)
        assert_tokenized_alike(tokenizer, layer, texts[::7])
    assert different == []


@pytest.mark.parametrize(("column", "cased"), [(1, False), (2, True)])
def test_words_are_the_originals_at_every_code_point(column, cased):
    recorded = list(json_lines(shared("expected/tokenization/basic_tokenizer_codepoints.jsonl.gz")))
    words = {word for line in recorded for word in line[column]}
    tokenizer = WordPieceTokenizer([*SPECIALS, *sorted(words)], lower_case=not cased)
    layer = TextLayer(tokenizer)
    texts = [f"a{chr(code_point)}b {chr(code_point)}" for code_point, *_ in recorded]
    found = layer.tokenize(texts)["tokens"].to_list()
    different = [
        (hex(line[0]), tokens, line[column])
        for line, tokens in zip(recorded, found, strict=True)
        if [token.decode() for token in tokens] != line[column]
    ]
    assert different == []


# Equality with WordPieceTokenizer


@pytest.mark.parametrize("casing", CASINGS)
def test_any_text_gives_the_same_pieces_and_offsets(casing, layers):
    rng = random.Random(5)
    texts = ["".join(rng.choices(PECULIAR, k=rng.randrange(30))) for _ in range(2000)]
    marks = "".join(char for char in PECULIAR if unicodedata.category(char)[0] == "M") + "aΣ "
    texts += ["".join(rng.choices(marks, k=rng.randrange(30))) for _ in range(500)]
    texts += ["".join(rng.choices("ab ", k=rng.randrange(40))) for _ in range(300)]
    assert_tokenized_alike(*layers[casing], texts)


@pytest.mark.parametrize("casing", CASINGS)
def test_batches_are_encoded_alike(casing, layers):
    tokenizer, layer = layers[casing]
    rng = random.Random(7)
    texts = ["".join(rng.choices(PECULIAR, k=rng.randrange(12))) for _ in range(300)]
    pairs = rng.sample(texts, len(texts))
    assert lists(layer(texts)) == padded([tokenizer.encode(text, None, 13) for text in texts])
    expected = [tokenizer.encode(*both, 13) for both in zip(texts, pairs, strict=True)]
    assert lists(layer(texts, pairs)) == padded(expected)


def test_final_sigmas(layers):
    words = [
        "ΟΔΟΣ",
        "Σ",
        "ΣΣ",
        "ΟΣ.",
        "ΟΣ.A",
        "ΟΣ\u00ad\u0301 Α",
        "Ο\u00ad.Σ",
        "ΑΣ中",
        "ΑΣ\0Α",
        "1Σ",
    ]
    tokenizer, layer = layers[True, False]
    assert_tokenized_alike(tokenizer, layer, words)
    found = layer.tokenize(["AΣ ΣA AΣA Σ"])["tokens"].to_list()
    assert b"".join(found[0]).decode().replace("##", "") == "aςσaaσaσ"


def test_truncation_takes_from_the_end_of_the_longer():
    for room in range(9):
        a, b = np.array(list(itertools.product(range(11), repeat=2))).T
        kept = np.array(_truncated(tf.constant(a), tf.constant(b), room)).T.tolist()
        for first, second, given in zip(a.tolist(), b.tolist(), kept, strict=True):
            while first + second > room:
                if first > second:
                    first -= 1
                else:
                    second -= 1
            assert given == [first, second]


@pytest.mark.parametrize("max_length", [2, 3, 4, 50])
def test_lengths_from_nothing_to_everything(max_length, uncased):
    tokenizer = uncased[0]
    layer = TextLayer(tokenizer, max_length)
    texts = ["un " * n + "unaffable" * m for n in range(7) for m in range(5)] + [""]
    pairs = texts[::-1]
    expected = padded([tokenizer.encode(text, None, max_length) for text in texts])
    assert lists(layer(texts)) == expected
    if max_length > 2:
        both = zip(texts, pairs, strict=True)
        assert lists(layer(texts, pairs)) == padded(
            [tokenizer.encode(text, pair, max_length) for text, pair in both]
        )
    else:
        with pytest.raises(ConfigError, match=r"max_length=2 .* at least 3"):
            layer(texts, pairs)


def test_bytes_that_are_no_text_are_dropped(uncased):
    tokenizer, layer = uncased
    rng = random.Random(11)
    texts = [b"\xff", b"un\xffaff\xe4\xb8", b"\xed\xa0\x80un", b"\xf4\x90\x80\x80un", b"u\0n"]
    choices = b"un \x80\xbf\xc0\xe4\xb8\xad\xf0\x9f\x98\xff"
    texts += [bytes(rng.choices(choices, k=rng.randrange(12))) for _ in range(300)]
    found = layer.tokenize(texts)
    for text, ids, starts in zip(texts, found["ids"], found["starts"], strict=True):
        expected = tokenizer.encode(text.decode(errors="replace"))
        assert ids.numpy().tolist() == expected.input_ids[1:-1]
        assert starts.numpy().tolist() == [start for start, _ in expected.offsets[1:-1]]


# The edges of the input


def test_no_texts_and_empty_texts(uncased):
    tokenizer, layer = uncased
    nothing = tf.constant([], tf.string)
    for outputs in (layer(nothing), layer(nothing, nothing)):
        assert all(values.shape == (0, 0) for values in outputs.values())
    assert all(values.shape == (0, None) for values in layer.tokenize(nothing).values())
    assert (
        lists(layer(["", " \n", "\0"]))["input_ids"] == [[tokenizer.cls_id, tokenizer.sep_id]] * 3
    )
    assert lists(layer([""], [""]))["segment_ids"] == [[0, 0, 1]]
    assert layer.tokenize(["", "un", ""])["tokens"].to_list() == [[], [b"un"], []]


def test_a_word_of_200_characters_is_the_longest(layers):
    texts = [
        "a" * 200,
        "a" * 201,
        "b " + "é" * 200 + " b",
        "b " + "a" * 999 + ".b",
        "\xad" + "a" * 200,
    ]
    for tokenizer, layer in layers.values():
        assert_tokenized_alike(tokenizer, layer, texts)


def test_a_megabyte_of_text(uncased):
    tokenizer, layer = uncased
    texts = ["unaffable wordings, " * 50_000, "x" * 1_000_000, "un" + " " * 1_000_000 + "un"]
    expected = padded([tokenizer.encode(text, None, 11) for text in texts])
    assert lists(layer(texts)) == expected
    ids = layer.tokenize(texts[:2])["ids"].to_list()
    assert ids == [tokenizer.token_ids(text) for text in texts[:2]]


def test_a_vocabulary_of_special_pieces_alone():
    tokenizer = WordPieceTokenizer(SPECIALS)
    assert_tokenized_alike(tokenizer, TextLayer(tokenizer), ["", "a b. c中", "[MASK]"])


@pytest.mark.parametrize("casing", CASINGS)
def test_pieces_that_are_never_split(casing):
    kept = ["[MASK]", "[a+b]", "[SEP]"]
    tokenizer = WordPieceTokenizer([*PIECES, "[a+b]"], *casing, never_split=kept)
    layer = TextLayer(tokenizer, max_length=13)
    parts = [*kept, *PECULIAR, "\ufdd0", "\ufdd1", "\ufdef", "[mask]", "[", "]", "MASK", "aΣ"]
    random_parts = random.Random(3)
    texts = ["".join(random_parts.choices(parts, k=n % 12)) for n in range(400)]
    texts += ["un[MASK].", "[[MASK]]", "aΣ[MASK]Σa", "[MASK]\u0301a", "[MASK][MASK]"]
    assert_tokenized_alike(tokenizer, layer, texts)
    assert lists(layer(texts)) == padded([tokenizer.encode(text, max_length=13) for text in texts])


def test_what_is_refused(uncased):
    tokenizer, layer = uncased
    vocabulary = [*tokenizer.vocabulary, "A[B]"]
    with pytest.raises(ConfigError, match=r"pieces like \[MASK\] whole, but not 'A\[B\]'"):
        TextLayer(WordPieceTokenizer(vocabulary, never_split=["[MASK]", "A[B]"]))
    with pytest.raises(ConfigError, match=r"max_length=1 .* at least 2"):
        TextLayer(tokenizer, max_length=1)
    for wrong in ("un", [["un"]], [1, 2]):
        with pytest.raises(InputError, match=r"texts: .* strings \[B\]"):
            layer(wrong)
        with pytest.raises(InputError, match=r"texts: .* strings \[B\]"):
            layer.tokenize(wrong)
    with pytest.raises(InputError, match="2 texts, but 3 pairs"):
        layer(["un"] * 2, ["un"] * 3)


def test_pairs_that_are_too_few_are_noticed_in_a_graph(uncased):
    spec = tf.TensorSpec([None], tf.string)
    encode = tf.function(uncased[1].__call__, input_signature=[spec, spec])
    with pytest.raises(tf.errors.InvalidArgumentError):
        encode(tf.constant(["un"] * 3), tf.constant(["un"]))


# In a pipeline, and in a SavedModel

TEXTS = ["Unaffable wording!", "", "ΟΔΟΣ un 中 café", "un " * 30]

RELOAD = """
import json, sys
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
texts = tf.constant(json.loads(sys.argv[2]))
outputs = [model.signatures["single"](texts=texts)]
outputs.append(model.signatures["pairs"](texts=texts, pairs=texts[::-1]))
outputs.append(model.signatures["located"](texts=texts))
outputs = [{name: value.numpy().tolist() for name, value in output.items()} for output in outputs]
assert "tensorflow_text" not in sys.modules and "keras_bert_ref" not in sys.modules
print("outputs", json.dumps(outputs))
"""

# Operations of core TensorFlow alone. TensorFlow Serving has all of those, but only an old
# tensorflow-text, and not every operation of that (FastBertNormalize and TFText>RoundRobinTrim were
# reported missing). Models with exactly these load in TensorFlow 2.12; add only what 2.12 has.
ALLOWED = """
    AddV2 Any Cast ConcatV2 Const Cumsum Equal Fill FloorDiv FloorMod GatherV2 Greater
    GreaterEqual Identity Less LessEqual LogicalAnd LogicalNot LogicalOr LowerBound Max Maximum
    Minimum Mul Neg NotEqual OnesLike Pack PartitionedCall Placeholder Prod RaggedGather
    RaggedTensorToTensor Range Reshape SegmentMax SegmentMin SelectV2 Shape Size Squeeze
    StatelessIf StatelessWhile StridedSlice StringJoin Sub TensorScatterUpdate TopKV2 Unpack
    UnicodeDecode UpperBound Where
"""


class Served(tf.Module):
    """What a user would export: the layer with signatures around it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")])
    def single(self, texts):
        return self.layer(texts)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, n) for n in ("texts", "pairs")])
    def pairs(self, texts, pairs):
        return self.layer(texts, pairs)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")])
    def located(self, texts):
        pieces = self.layer.tokenize(texts)
        return {name: pieces[name].to_tensor() for name in ("ids", "starts", "ends")}

    @property
    def signatures(self):
        return {"single": self.single, "pairs": self.pairs, "located": self.located}


@pytest.fixture(scope="module")
def served(uncased):
    return Served(uncased[1])


def test_a_saved_model_needs_nothing_but_tensorflow(served, tmp_path):
    tf.saved_model.save(served, tmp_path / "made", signatures=served.signatures)
    moved = (tmp_path / "made").rename(tmp_path / "moved")
    given = subprocess.run(
        [sys.executable, "-c", RELOAD, moved, json.dumps(TEXTS)],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout
    texts = tf.constant(TEXTS)
    expected = [served.single(texts), served.pairs(texts, texts[::-1]), served.located(texts)]
    assert json.loads(given.split("outputs", 1)[1]) == list(map(lists, expected))


@pytest.mark.parametrize("casing", CASINGS)
def test_only_operations_of_core_tensorflow(casing, layers):
    served = Served(layers[casing][1])
    used = set()
    for function in served.signatures.values():
        graph = function.get_concrete_function().graph.as_graph_def()
        used |= {node.op for node in graph.node}
        used |= {node.op for inner in graph.library.function for node in inner.node_def}
    assert used - set(ALLOWED.split()) == set()
    # Nothing goes row by row: the loops are over the characters of pieces, and over pieces.
    assert not any(op.startswith(("Map", "TensorList", "TensorArray")) for op in used)


def test_in_a_pipeline(uncased):
    tokenizer, layer = uncased
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3).map(layer)
    batches = [lists(batch) for batch in dataset]
    expected = [tokenizer.encode(text, None, 11) for text in TEXTS]
    assert batches == [padded(expected[:3]), padded(expected[3:])]
