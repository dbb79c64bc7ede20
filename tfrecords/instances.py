"""Documents → training instances (paper, section 3.1 and appendix A.2), without TensorFlow.

A pair is five numbers, the borders of its two segments in the flat token store; no token is touched
before a batch of pairs becomes rows. The draws, and their order, are those of the original
`create_pretraining_data.py`.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfrecords.masking import mask_one
from tfrecords.settings import InstanceSettings


class Pair(NamedTuple):
    """Two runs of tokens, as offsets into the store; B is empty when there are no pairs."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    is_random_next: bool


def sentence_pairs(
    store, documents: Sequence[int], index: int, settings: InstanceSettings, rng: random.Random
) -> Iterator[Pair]:
    """Yields the sentence pairs of one pass over a document.

    The draws interleave with the caller's when both use the same `rng`, as in the original, where
    each pair is masked before the next one is built.

    Args:
        store: A `TokenStore`.
        documents: Numbers of the documents a random next may come from; at least two.
        index: Which of `documents` to pair up.
        settings: See there.
        rng: Where the draws come from.
    """
    sentences = store.sentence_starts
    first, last = store.document_sentences(documents[index])
    most = settings.max_seq_length - 3
    target = most
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, most)
    at = first
    while at < last:
        # A chunk is as many sentences as it takes to reach the target.
        end = bisect_left(sentences, sentences[at] + target, at + 1, last)
        a_end = at + rng.randint(1, end - at - 1) if end - at > 1 else at + 1
        a = sentences[at], sentences[a_end]
        is_random_next = end - at == 1 or rng.random() < 0.5
        if is_random_next:
            for _ in range(10):
                other = rng.randint(0, len(documents) - 1)
                if other != index:
                    break
            other_first, other_last = store.document_sentences(documents[other])
            b_first = other_first + rng.randint(0, other_last - other_first - 1)
            wanted = sentences[b_first] + target - (a[1] - a[0])
            b_last = bisect_left(sentences, wanted, b_first + 1, other_last)
            b = sentences[b_first], sentences[b_last]
            at = a_end  # the rest of the chunk was not used: it opens the next one
        else:
            b = sentences[a_end], sentences[end]
            at = end
        yield Pair(*_truncate(*a, *b, most, rng), is_random_next)


def _truncate(a_start, a_end, b_start, b_end, most, rng):
    """Drops tokens from the longer segment, each at its front or back by chance."""
    a, b = a_end - a_start, b_end - b_start
    excess = a + b - most
    if excess <= 0:
        return a_start, a_end, b_start, b_end
    # The bytes behind `excess` calls of rng.random(): eight each, and it is below 0.5 where the
    # fourth is below 128. On running text this is most of the draws, and ten times as fast.
    ends = rng.randbytes(8 * excess)[3::8].translate(_FRONT_OR_BACK)
    # Which segment is the longer at each step is known beforehand: first the one that is, then,
    # once they are equal, B and A in turn.
    first = abs(a - b)
    from_a, from_b = ends[first + 1 :: 2], ends[first::2]
    if a > b:
        from_a += ends[:first]
    else:
        from_b += ends[:first]
    a_start, a_end = a_start + from_a.count(b"F"), a_end - from_a.count(b"B")
    b_start, b_end = b_start + from_b.count(b"F"), b_end - from_b.count(b"B")
    return a_start, a_end, b_start, b_end


_FRONT_OR_BACK = b"F" * 128 + b"B" * 128


def full_sentences(
    store, documents: Sequence[int], index: int, settings: InstanceSettings, rng: random.Random
) -> Iterator[Pair]:
    """Yields runs of whole sentences of one document: the "No NSP" input (paper, section 5.1).

    A row takes whole sentences while they fit, and at least one; a sentence that is longer than a
    row goes on in the next, so that nothing of the document is lost. As with pairs, some passes
    (`short_seq_prob`) aim at a random shorter length.

    The arguments are those of `sentence_pairs`; one document is enough.
    """
    sentences = store.sentence_starts
    first, last = store.document_sentences(documents[index])
    most = settings.max_seq_length - 2
    target = most
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, most)
    start, end_of_document = sentences[first], sentences[last]
    at = first  # the sentence that holds token `start`
    while start < end_of_document:
        at = max(bisect_right(sentences, start + target, at + 1, last + 1) - 1, at + 1)
        end = min(sentences[at], start + most)
        yield Pair(start, end, end, end, False)
        start = end
        if start < sentences[at]:
            at -= 1


class Rows(NamedTuple):
    """Pairs laid out as rows of tokens."""

    input_ids: np.ndarray  # int32 [N, S], [CLS] A [SEP] B [SEP], then zeros
    lengths: np.ndarray  # int64 [N], tokens in a row
    segment_ids: np.ndarray  # int8 [N, S]


def lay_out(pairs: np.ndarray, tokens: np.ndarray, settings: InstanceSettings, vocabulary) -> Rows:
    """Lays pairs out as rows.

    Args:
        pairs: int64 [N, 4 or more], the first four fields of `Pair`.
        tokens: The flat token ids.
        settings: See there.
        vocabulary: A tokenizer; its `cls_id`, `sep_id` and `pad_id` are used.
    """
    a_start, a_end, b_start = (pairs[:, i, None] for i in range(3))  # each [N, 1]
    sep_a = 1 + a_end - a_start  # where the first [SEP] stands
    length = row_lengths(pairs)[:, None]
    position = np.arange(settings.max_seq_length)
    source = position + np.where(position < sep_a, a_start - 1, b_start - sep_a - 1)
    ids = tokens[np.clip(source, 0, len(tokens) - 1)].astype(np.int32)
    ids[(position == sep_a) | (position == length - 1)] = vocabulary.sep_id
    ids[position >= length] = vocabulary.pad_id
    ids[:, 0] = vocabulary.cls_id
    segment_ids = ((position > sep_a) & (position < length)).astype(np.int8)
    return Rows(ids, length[:, 0], segment_ids)


def row_lengths(pairs: np.ndarray) -> np.ndarray:
    """Returns the number of tokens of pairs as rows, specials included: int64 [N].

    Args:
        pairs: int64 [N, 4 or more], the first four fields of `Pair`.
    """
    a, b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
    return a + b + np.where(b > 0, 3, 2)


class Instance(NamedTuple):
    """One masked training instance, unpadded."""

    input_ids: list[int]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    is_random_next: bool


def create_instances(
    store, settings: InstanceSettings, vocabulary, rng: random.Random
) -> list[Instance]:
    """Builds all instances of a corpus with one random stream, in the original's order.

    Everything is held in memory and every draw is made in Python, as in the original: with the same
    seed it gives the same instances. `create_pretraining_data` is the way for large corpora.

    Args:
        store: A `TokenStore`.
        settings: See there.
        vocabulary: A tokenizer, as in `mask_one`.
        rng: `random.Random(seed)`.
    """
    draw = sentence_pairs if settings.next_sentence else full_sentences
    documents = list(range(store.document_count))
    rng.shuffle(documents)
    instances = []
    for _ in range(settings.dupe_factor):
        for index in range(len(documents)):
            for pair in draw(store, documents, index, settings, rng):
                rows = lay_out(np.array([pair[:4]]), store.tokens, settings, vocabulary)
                length = rows.lengths[0]
                ids = rows.input_ids[0, :length].tolist()
                shown, positions = mask_one(ids, settings, vocabulary, rng)
                instances.append(
                    Instance(
                        shown,
                        rows.segment_ids[0, :length].tolist(),
                        positions,
                        [ids[position] for position in positions],
                        pair.is_random_next,
                    )
                )
    rng.shuffle(instances)
    return instances
