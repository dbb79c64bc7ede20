import dataclasses
import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import shared

from keras_bert_ref.errors import ConfigError
from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords.corpus import read_sentences
from tfrecords.instances import create_instances, full_sentences, lay_out
from tfrecords.masking import mask_one, mask_rows
from tfrecords.settings import InstanceSettings
from tfrecords.store import TokenStore, build_store

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b", "##c"]
VOCABULARY = WordPieceTokenizer(PIECES)


def store_of(documents):
    """A store of documents, each a list of sentences, each a list of token ids."""
    sentences = [sentence for document in documents for sentence in document]
    return TokenStore(
        np.array([token for sentence in sentences for token in sentence], np.uint16),
        [0, *np.cumsum([len(sentence) for sentence in sentences]).tolist()],
        [0, *np.cumsum([len(document) for document in documents]).tolist()],
    )


def reference_instances(documents, settings, rng):
    """The original's algorithm on lists of tokens, step by step and as plain as can be."""
    documents = [list(document) for document in documents]
    rng.shuffle(documents)
    instances = []
    for _ in range(settings.dupe_factor):
        for number, document in enumerate(documents):
            most = settings.max_seq_length - 3
            target = rng.randint(2, most) if rng.random() < settings.short_seq_prob else most
            chunk, i = [], 0
            while i < len(document):
                chunk.append(document[i])
                i += 1
                if i < len(document) and sum(map(len, chunk)) < target:
                    continue
                split = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a, b = joined(chunk[:split]), joined(chunk[split:])
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    for _ in range(10):
                        other = rng.randint(0, len(documents) - 1)
                        if other != number:
                            break
                    start, b = rng.randint(0, len(documents[other]) - 1), []
                    for sentence in documents[other][start:]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    i -= len(chunk) - split
                chunk = []
                while len(a) + len(b) > most:
                    longer = a if len(a) > len(b) else b
                    longer.pop(0 if rng.random() < 0.5 else -1)
                tokens = [2, *a, 3, *b, 3]
                shown, positions = reference_masking(tokens, settings, rng)
                segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
                labels = [tokens[p] for p in positions]
                instances.append((shown, segments, positions, labels, is_random))
    rng.shuffle(instances)
    return instances


def joined(sentences):
    return [token for sentence in sentences for token in sentence]


def reference_masking(tokens, settings, rng):
    words = []
    for i, token in enumerate(tokens):
        if token in (2, 3):
            continue
        if settings.whole_word_masking and words and PIECES[token].startswith("##"):
            words[-1].append(i)
        else:
            words.append([i])
    rng.shuffle(words)
    limit = min(
        settings.max_predictions_per_seq,
        max(1, round(len(tokens) * settings.masked_lm_prob)),
    )
    shown, positions = list(tokens), []
    for word in words:
        if len(positions) >= limit:
            break
        if len(positions) + len(word) > limit:
            continue
        for i in word:
            positions.append(i)
            if rng.random() < 0.8:
                shown[i] = 4
            elif rng.random() >= 0.5:
                shown[i] = rng.randint(0, len(PIECES) - 1)
    return shown, sorted(positions)


SENTENCE = st.lists(st.integers(5, len(PIECES) - 1), min_size=1, max_size=12)
DOCUMENT = st.lists(SENTENCE, min_size=1, max_size=9)


@given(
    documents=st.lists(DOCUMENT, min_size=2, max_size=5),
    length=st.integers(5, 33),
    most=st.integers(1, 5),
    whole_words=st.booleans(),
    short=st.sampled_from([0.0, 0.1, 0.9]),
    seed=st.integers(0, 2**32),
)
def test_instances_equal_the_plain_algorithm(documents, length, most, whole_words, short, seed):
    settings = InstanceSettings(
        max_seq_length=length,
        max_predictions_per_seq=most,
        short_seq_prob=short,
        dupe_factor=2,
        whole_word_masking=whole_words,
    )
    ours = create_instances(store_of(documents), settings, VOCABULARY, random.Random(seed))
    assert [tuple(i) for i in ours] == reference_instances(documents, settings, random.Random(seed))


@pytest.mark.parametrize("whole_words, suffix, count", [(False, "", 60), (True, "_wwm", 64)])
def test_instances_of_the_sample_text_are_the_recorded_ones(tmp_path, whole_words, suffix, count):
    tokenizer = WordPieceTokenizer.from_vocab(shared("data/vocab/bert-base-uncased-vocab.txt"))
    text = shared("data/text/google_sample_text.txt")
    recorded = shared(f"expected/pretraining_data/instances_sample_text{suffix}.jsonl.gz")
    build_store(tmp_path, read_sentences(text), tokenizer)
    settings = InstanceSettings(dupe_factor=5, whole_word_masking=whole_words)
    instances = create_instances(
        TokenStore.open(tmp_path), settings, tokenizer, random.Random(12345)
    )
    with gzip.open(recorded, "rt", encoding="utf-8") as lines:
        expected = [json.loads(line) for line in lines]
    assert len(instances) == len(expected) == count
    pieces = tokenizer.vocabulary
    for instance, wanted in zip(instances, expected, strict=True):
        assert [pieces[i] for i in instance.input_ids] == wanted["tokens"]
        assert instance.segment_ids == wanted["segment_ids"]
        assert instance.masked_lm_positions == wanted["masked_lm_positions"]
        assert [pieces[i] for i in instance.masked_lm_ids] == wanted["masked_lm_labels"]
        assert instance.is_random_next == wanted["is_random_next"]


@given(documents=st.lists(DOCUMENT, min_size=1, max_size=3), length=st.integers(5, 33))
def test_full_sentences_lose_nothing_and_break_only_what_does_not_fit(documents, length):
    store = store_of(documents)
    settings = InstanceSettings(
        max_seq_length=length, max_predictions_per_seq=5, next_sentence=False, short_seq_prob=0.5
    )
    numbers = range(len(documents))
    borders = set(store.sentence_starts)
    for index, document in enumerate(documents):
        pairs = list(full_sentences(store, numbers, index, settings, random.Random(0)))
        assert all(pair.b_start == pair.b_end and not pair.is_random_next for pair in pairs)
        tokens = [t for pair in pairs for t in store.tokens[pair.a_start : pair.a_end].tolist()]
        assert tokens == [t for sentence in document for t in sentence]
        for pair in pairs:
            size = pair.a_end - pair.a_start
            assert 1 <= size <= length - 2
            assert pair.a_end in borders or size == length - 2
        rows = lay_out(np.array([p[:4] for p in pairs]), store.tokens, settings, VOCABULARY)
        for pair, row, count in zip(pairs, rows.input_ids, rows.lengths, strict=True):
            body = store.tokens[pair.a_start : pair.a_end].tolist()
            assert row.tolist() == [2, *body, 3] + [0] * (length - count)
        assert not rows.segment_ids.any()


def test_without_short_passes_full_sentences_fill_their_rows():
    store = store_of([[[5] * 4, [6] * 3, [7] * 4, [8] * 25, [9] * 2, [10] * 4]])
    settings = InstanceSettings(
        max_seq_length=12, max_predictions_per_seq=2, next_sentence=False, short_seq_prob=0
    )
    pairs = full_sentences(store, [0], 0, settings, random.Random(0))
    ends = [pair.a_end for pair in pairs]
    assert ends == [7, 11, 21, 31, 38, 42]


def test_rows_are_laid_out_as_pairs():
    tokens = np.arange(5, 16, dtype=np.uint16)
    settings = InstanceSettings(max_seq_length=9, max_predictions_per_seq=3)
    rows = lay_out(np.array([[0, 2, 8, 11], [4, 5, 5, 6]]), tokens, settings, VOCABULARY)
    assert rows.input_ids.tolist() == [[2, 5, 6, 3, 13, 14, 15, 3, 0], [2, 9, 3, 10, 3, 0, 0, 0, 0]]
    assert rows.segment_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0]]
    assert rows.lengths.tolist() == [8, 5]


def random_rows(count, settings, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, settings.max_seq_length + 1, count)
    ids = rng.integers(5, len(PIECES), (count, settings.max_seq_length))
    position = np.arange(settings.max_seq_length)
    ids[:, 0] = 2
    ids[(position == lengths[:, None] - 1) | (position == lengths[:, None] // 2)] = 3
    ids[position >= lengths[:, None]] = 0
    return ids.astype(np.int32), lengths


@pytest.mark.parametrize("whole_words", [False, True])
def test_rows_are_masked_by_the_rule(whole_words):
    settings = InstanceSettings(
        max_seq_length=37, max_predictions_per_seq=4, whole_word_masking=whole_words
    )
    ids, lengths = random_rows(500, settings)
    masked = mask_rows(ids, lengths, settings, VOCABULARY, random.Random(3))
    wanted = settings.predictions_by_length[lengths]
    for i in range(len(ids)):
        used = int(masked["masked_lm_weights"][i].sum())
        positions = masked["masked_lm_positions"][i, :used]
        assert used == wanted[i] if not whole_words else used <= wanted[i]
        assert (np.diff(positions) > 0).all()
        assert (ids[i, positions] == masked["masked_lm_ids"][i, :used]).all()
        assert np.isin(ids[i, positions], [0, 2, 3]).sum() == 0
        assert not masked["masked_lm_positions"][i, used:].any()
        assert not masked["masked_lm_ids"][i, used:].any()
        untouched = np.setdiff1d(np.arange(37), positions)
        assert (masked["input_ids"][i, untouched] == ids[i, untouched]).all()
        if whole_words:
            words = []
            for position in range(lengths[i]):
                if ids[i, position] in (2, 3):
                    continue
                if words and VOCABULARY.continues_word[ids[i, position]]:
                    words[-1].append(position)
                else:
                    words.append([position])
            chosen = set(positions.tolist())
            assert all(chosen.issuperset(w) or chosen.isdisjoint(w) for w in words)
            # As many as fit: no word left out is small enough for the room left over.
            left = [len(w) for w in words if chosen.isdisjoint(w)]
            assert not left or min(left) > wanted[i] - used


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.0, 0.2, 0.8), (1.0, 0.0, 0.0)])
def test_rows_are_masked_as_often_as_the_original_would(whole_words, shares):
    """Both maskings predict every position, and show each kind of token, equally often."""
    settings = InstanceSettings(
        max_seq_length=21,
        max_predictions_per_seq=5,
        masked_lm_prob=0.2,
        whole_word_masking=whole_words,
        **dict(zip(("mask_share", "same_share", "random_share"), shares, strict=True)),
    )
    ids, lengths = random_rows(1, settings, seed=2)
    lengths[:] = 21
    ids[0] = [2, 5, 13, 6, 7, 14, 15, 8, 9, 3, 13, 5, 6, 14, 7, 13, 8, 9, 10, 11, 3]
    n = 20000
    rows = np.repeat(ids, n, axis=0), np.repeat(lengths, n)
    many = mask_rows(*rows, settings, VOCABULARY, random.Random(5))
    rng = random.Random(7)
    counts, kinds, total = np.zeros(21), np.zeros(3), 0
    for _ in range(n):
        shown, positions = mask_one(ids[0].tolist(), settings, VOCABULARY, rng)
        counts[positions] += 1
        for p in positions:
            kinds += [shown[p] == 4, shown[p] == ids[0, p], shown[p] not in (4, ids[0, p])]
        total += len(positions)
    used = many["masked_lm_weights"] == 1
    ours = np.bincount(many["masked_lm_positions"][used], minlength=21)
    shown = np.take_along_axis(many["input_ids"], many["masked_lm_positions"], 1)[used]
    labels = many["masked_lm_ids"][used]
    masks, same = (shown == 4).sum(), (shown == labels).sum()
    our_kinds = [masks, same, len(shown) - masks - same]
    assert abs(used.sum() - total) < 5 * np.sqrt(total)
    np.testing.assert_allclose(ours, counts, atol=5 * np.sqrt(2 * counts.max()))
    np.testing.assert_allclose(our_kinds, kinds, atol=5 * np.sqrt(2 * kinds.max()))


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_seq_length", 4), ("max_seq_length", 12.5), ("max_seq_length", 1 << 16),
        ("max_predictions_per_seq", 0), ("max_predictions_per_seq", 129),
        ("masked_lm_prob", 0), ("masked_lm_prob", 1.5), ("short_seq_prob", -0.1),
        ("dupe_factor", 0), ("mask_share", 0.9), ("random_share", float("nan")),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        InstanceSettings(**{field: value})


def test_settings_of_table_8_are_accepted():
    for shares in [(1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1)]:
        names = ("mask_share", "same_share", "random_share")
        settings = InstanceSettings(**dict(zip(names, shares, strict=True)))
        assert dataclasses.asdict(settings)["mask_share"] == shares[0]


def test_predictions_round_half_to_even():
    table = InstanceSettings().predictions_by_length
    assert table[[5, 10, 30, 50, 70, 128]].tolist() == [1, 2, 4, 8, 10, 19]
