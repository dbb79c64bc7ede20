"""One shard's work: from the token store to a file of records.

The jobs of a split share what `save_split` leaves in the store's folder. Which documents a shard
gets, and every draw made for it, depend on the seed and on the shard's number alone. So any
process, or machine that sees the store, can write any shard.
"""

import dataclasses
import random
from array import array
from pathlib import Path

import numpy as np

from tfrecords.instances import full_sentences, lay_out, row_lengths, sentence_pairs
from tfrecords.manifest import Shard
from tfrecords.masking import mask_rows
from tfrecords.packing import merge, pack
from tfrecords.settings import InstanceSettings
from tfrecords.store import TokenStore
from tfrecords.workers import check_running
from tfrecords.writer import ShardWriter, encode_examples

_BATCH = 1024  # sequences laid out, masked and encoded at once; the masks drawn depend on it
_PAIR_FIELDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """A shard to write."""

    split: str
    number: int
    count: int  # of shards in the split
    file: str
    passes: int  # over the documents of the split
    masked: bool  # in the records, or while reading


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """What a plan came to."""

    plan: ShardPlan
    shard: Shard
    instances: int  # sequences in its rows
    tokens: int
    random_next: int


def save_split(
    store_folder: Path, split: str, documents: np.ndarray, *, passes: int, seed: int
) -> None:
    """Saves what all shards of a split need: its documents, and their order in each pass.

    Args:
        store_folder: Where to.
        split: Its name.
        documents: Document numbers, ascending, int64 [N].
        passes: Over the documents.
        seed: Of the orders.
    """
    np.save(store_folder / f"{split}.npy", documents)
    for number in range(passes):
        order = permutation(random.Random(f"{seed} pass {number}"), len(documents))
        np.save(store_folder / f"{split}.pass{number}.npy", order)


@dataclasses.dataclass
class WriteShard:
    """Writes the shard of a plan, whose split was saved in the store's folder, into a folder."""

    store_folder: Path
    out: Path
    settings: InstanceSettings
    tokenizer: object
    seed: int
    compression: str | None

    def __call__(self, plan: ShardPlan) -> WrittenShard:
        store = TokenStore.open(self.store_folder)
        documents = np.load(self.store_folder / f"{plan.split}.npy", mmap_mode="r")
        rng = random.Random(f"{self.seed} {plan.split} {plan.number}")
        pairs = self._pairs(plan, store, memoryview(documents), rng)
        tokens = 0
        with ShardWriter(self.out / plan.file, self.compression) as writer:
            for packed in self._rows(pairs, rng):
                check_running()
                batch = pairs[packed[packed >= 0]]
                sequences = lay_out(batch, store.tokens, self.settings, self.tokenizer)
                columns = self._columns(plan, batch, sequences, rng)
                if self.settings.sequences_per_row > 1:
                    columns = merge(
                        columns, sequences.lengths, packed, self.settings, self.tokenizer.pad_id
                    )
                writer.write(encode_examples(columns))
                tokens += int(sequences.lengths.sum())
                store.release()
        size = (self.out / plan.file).stat().st_size
        shard = Shard(file=plan.file, records=writer.records, bytes=size)
        return WrittenShard(plan, shard, len(pairs), tokens, int(pairs[:, 4].sum()))

    def _pairs(self, plan, store, documents, rng):
        """Draws the pairs of the shard's share of all passes over the documents, shuffled."""
        draw = sentence_pairs if self.settings.next_sentence else full_sentences
        first, last = (len(documents) * n // plan.count for n in (plan.number, plan.number + 1))
        pairs = array("q")
        for number in range(plan.passes):
            # Every shard takes its own stretch of the pass.
            order = np.load(self.store_folder / f"{plan.split}.pass{number}.npy", mmap_mode="r")
            for count, index in enumerate(order[first:last].tolist()):
                for pair in draw(store, documents, index, self.settings, rng):
                    pairs.extend(pair)
                if count % 1024 == 0:
                    check_running()
                    store.release()
        pairs = np.frombuffer(pairs, np.int64).reshape(-1, _PAIR_FIELDS)
        return pairs[permutation(rng, len(pairs))]

    def _rows(self, pairs, rng):
        """Returns the numbers of the pairs in each row, batch by batch: a list of int64 [R, N]."""
        places = self.settings.sequences_per_row
        if places == 1:
            packed = np.arange(len(pairs))[:, None]
        else:
            packed = pack(row_lengths(pairs), self.settings.max_seq_length, places)
            packed = packed[permutation(rng, len(packed))]
        rows = max(1, _BATCH // places)
        return np.split(packed, range(rows, len(packed), rows))

    def _columns(self, plan, batch, rows, rng):
        position = np.arange(self.settings.max_seq_length)
        columns = {
            "input_ids": rows.input_ids,
            "input_mask": (position < rows.lengths[:, None]).astype(np.int8),
            "segment_ids": rows.segment_ids,
            "next_sentence_labels": batch[:, 4:],
        }
        if plan.masked:
            columns |= mask_rows(rows.input_ids, rows.lengths, self.settings, self.tokenizer, rng)
        return columns


def permutation(rng, count):
    """Returns 0 … count-1 in random order, int64 [count]."""
    return np.argsort(np.frombuffer(rng.randbytes(8 * count), "<u8"), kind="stable")
