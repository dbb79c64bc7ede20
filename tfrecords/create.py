"""Raw text → token store → instances → shards: the pretraining data of a corpus, in one call.

Which documents a shard gets, and every draw made for it, depend on the seed and on the shard's
number alone, so that the shards are the same whatever number of processes writes them.
"""

import contextlib
import dataclasses
import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import ConfigError, CorpusError, OutputError
from tfrecords import manifest
from tfrecords.corpus import corpus_files, read_sentences
from tfrecords.instances import full_sentences, lay_out, sentence_pairs
from tfrecords.manifest import Manifest, Shard, Split
from tfrecords.masking import mask_rows
from tfrecords.settings import InstanceSettings
from tfrecords.store import TokenStore, build_store
from tfrecords.workers import check_running, ordered_map
from tfrecords.writer import COMPRESSIONS, ShardWriter, encode_examples, writing

SHARD_BYTES = 64 << 20
_BATCH = 1024  # rows encoded at once; the masks drawn depend on it
_PAIR_FIELDS = 5


def create_pretraining_data(
    patterns: str | os.PathLike | Iterable[str | os.PathLike],
    tokenizer,
    out: str | os.PathLike,
    settings: InstanceSettings | None = None,
    *,
    split_sentences: str | None = None,
    errors: str = "strict",
    seed: int = 12345,
    processes: int = 1,
    shards: int | None = None,
    held_out: float = 0.0,
    compression: str | None = None,
    dynamic_masking: bool = False,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Manifest:
    """Writes a folder of shards, `vocab.txt` and `manifest.json`.

    The folder appears as a whole at the end, or not at all. Memory stays flat however large the
    corpus; on the disk of `out` it takes, besides the shards, about the size of the text.

    Args:
        patterns: Text files or globs, see `corpus_files` and `read_sentences`.
        tokenizer: A `WordPieceTokenizer`.
        out: The folder to make.
        settings: See `InstanceSettings`.
        split_sentences: Language code ("en") by which to split lines into sentences; None where a
            line is a sentence.
        errors: What to do with bytes that are no text: "strict" or "replace", see `read_sentences`.
        seed: Of all draws.
        processes: Number of processes.
        shards: Number of training shards; None for files of about 64 MB.
        held_out: Share of the documents set apart as split "heldout". It is always masked in the
            records and in one pass, so that evaluations compare.
        compression: None or "GZIP".
        dynamic_masking: Store the pairs of a single pass (`dupe_factor` does not apply), without
            masks; they are drawn anew in every epoch while reading.
        overwrite: Replace `out` if it holds pretraining data; the old data stay until the new are
            complete.
        progress: Called with the phase ("tokenize" in bytes, then "write" in shards), the amount
            done and the total.

    Returns:
        The manifest, `warnings` included.

    Raises:
        ConfigError: An argument is out of range.
        CorpusError: The text cannot be read or used.
        OutputError: `out` is in use or cannot be written.
    """
    settings = settings or InstanceSettings()
    if dynamic_masking:
        settings = dataclasses.replace(settings, dupe_factor=1)
    if processes < 1:
        raise ConfigError(f"processes is {processes}: it must be at least 1.")
    if shards is not None and shards < 1:
        raise ConfigError(f"shards is {shards}: it must be at least 1.")
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out is {held_out}: it must be 0 or more, and less than 1.")
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression is {compression!r}: it must be None or 'GZIP'.")
    progress = progress or (lambda phase, done, total: None)
    files = corpus_files(patterns)
    sources = tuple({"file": file, "bytes": os.path.getsize(file)} for file in files)

    with _new_folder(Path(out), overwrite, files) as folder:
        store_folder = folder / "store"
        with writing(out):
            store_folder.mkdir()
            done, total = 0, sum(source["bytes"] for source in sources)

            def tokenized(count):
                nonlocal done
                done += count
                progress("tokenize", done, total)

            counts = build_store(
                store_folder,
                read_sentences(files, errors=errors, progress=tokenized),
                tokenizer,
                split_sentences=split_sentences,
                processes=processes,
            )
            if not counts.documents:
                raise CorpusError(f"There is no text in {_names(files)}.")
            store = TokenStore.open(store_folder)
            splits = _split_documents(store, held_out, seed, settings, files)
            plans = []
            for name, documents in splits.items():
                np.save(store_folder / f"{name}.npy", documents)
                plans += _plan(name, documents, store, settings, shards, compression, files)

        task = _WriteShard(
            store_folder, folder, settings, tokenizer, seed, compression, dynamic_masking
        )
        written = {name: [] for name in splits}
        progress("write", 0, len(plans))
        with contextlib.closing(ordered_map(task, plans, processes)) as results:
            for number, (plan, result) in enumerate(zip(plans, results, strict=True), 1):
                written[plan.split].append(result)
                progress("write", number, len(plans))

        warnings = []
        if settings.next_sentence and counts.sentences == counts.documents:
            warnings.append(
                "Every document is a single sentence, so every next sentence is a random one and "
                "next sentence prediction has nothing to learn: put the sentences of a document on "
                "lines of their own, split them (split_sentences), or turn next_sentence off."
            )
        with writing(out):
            result = Manifest(
                version=manifest.VERSION,
                settings=settings,
                seed=seed,
                tokenizer={
                    "lower_case": tokenizer.lower_case,
                    "strip_accents": tokenizer.strip_accents,
                    "never_split": list(tokenizer.never_split),
                },
                vocabulary={
                    "file": "vocab.txt",
                    "size": tokenizer.vocab_size,
                    "sha256": tokenizer.vocabulary_sha256,
                },
                sources=sources,
                split_sentences=split_sentences,
                errors=errors,
                unknown_tokens=counts.unknown_tokens / counts.tokens,
                splits={
                    name: _summary(name, documents, store, written[name], settings, dynamic_masking)
                    for name, documents in splits.items()
                },
                warnings=tuple(warnings),
            )
            shutil.rmtree(store_folder)
            tokenizer.save_vocabulary(folder / "vocab.txt")
            result.save(folder)
    return result


@contextlib.contextmanager
def _new_folder(out, overwrite, files):
    """Gives a temporary folder beside `out`, which takes its place when the block ends well."""
    out = out.resolve()
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used and not overwrite:
        raise OutputError(f"{out} is not empty: name another folder, or allow overwriting.")
    if used and not (out / manifest.FILE).is_file():
        raise OutputError(
            f"{out} holds no {manifest.FILE}, so it is not pretraining data and will not be "
            "overwritten: name another folder."
        )
    if used and any(Path(file).resolve().is_relative_to(out) for file in files):
        raise OutputError(f"{out} holds texts to be read and will not be overwritten.")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        new, old = beside / "new", beside / "old"
        with writing(out):
            new.mkdir()
        yield new
        with writing(out):
            if used:
                os.rename(out, old)
            try:
                os.rename(new, out)
            except OSError:
                if used:
                    os.rename(old, out)
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _split_documents(store, held_out, seed, settings, files):
    """Returns the document numbers of each split, ascending, as int64 arrays."""
    least = 2 if settings.next_sentence else 1
    count = store.document_count
    if count < least:
        raise CorpusError(
            f"{_names(files)} is a single document, for no blank line stands between sentences: "
            "there is no other document to draw a random next sentence from. Put a blank line "
            "between documents, or turn next sentence prediction off "
            "(next_sentence=False, --no-nsp)."
        )
    if not held_out:
        return {"train": np.arange(count)}
    apart = max(least, round(held_out * count))
    if count - apart < least:
        raise CorpusError(
            f"{_names(files)} has {count} documents, too few to set {held_out:g} of them apart: "
            f"each split needs {least}"
            + (" (a random next sentence comes from another document)." if least == 2 else ".")
        )
    order = _permutation(random.Random(f"{seed} held out"), count)
    return {"train": np.sort(order[apart:]), "heldout": np.sort(order[:apart])}


def _names(files):
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"


def _permutation(rng, count):
    """Returns 0 … count-1 in random order."""
    return np.argsort(np.frombuffer(rng.randbytes(8 * count), "<u8"), kind="stable")


@dataclasses.dataclass(frozen=True)
class _Plan:
    """A shard to write."""

    split: str
    number: int
    count: int  # of shards in the split
    file: str


def _plan(split, documents, store, settings, shards, compression, files):
    if split == "heldout":
        settings, shards = dataclasses.replace(settings, dupe_factor=1), None
    if shards is None:
        tokens = _counts(documents, store)[1] * settings.dupe_factor
        # Measured on English: half the pairs put the rest of their chunk back.
        per_row = settings.max_seq_length * (0.75 if settings.next_sentence else 0.9)
        row_bytes = 300 + 4 * settings.max_seq_length + 7 * settings.max_predictions_per_seq
        shards = min(len(documents), max(1, round(tokens / per_row * row_bytes / SHARD_BYTES)))
    if shards > len(documents):
        raise ConfigError(
            f"shards is {shards}, but {_names(files)} has only {len(documents)} documents to "
            "spread over them."
        )
    suffix = ".tfrecord.gz" if compression else ".tfrecord"
    return [
        _Plan(split, number, shards, f"{split}-{number:05d}-of-{shards:05d}{suffix}")
        for number in range(shards)
    ]


@dataclasses.dataclass(frozen=True)
class _Written:
    """What a shard came to."""

    shard: Shard
    tokens: int  # in its rows
    random_next: int


@dataclasses.dataclass
class _WriteShard:
    """Writes the shard of a plan."""

    store_folder: Path
    out: Path
    settings: InstanceSettings
    tokenizer: object
    seed: int
    compression: str | None
    dynamic_masking: bool

    def __call__(self, plan: _Plan) -> _Written:
        store = TokenStore.open(self.store_folder)
        documents = np.load(self.store_folder / f"{plan.split}.npy", mmap_mode="r")
        rng = random.Random(f"{self.seed} {plan.split} {plan.number}")
        pairs = self._pairs(plan, store, memoryview(documents), rng)
        tokens = 0
        with ShardWriter(self.out / plan.file, self.compression) as writer:
            for batch in np.split(pairs, range(_BATCH, len(pairs), _BATCH)):
                check_running()
                rows = lay_out(batch, store.tokens, self.settings, self.tokenizer)
                writer.write(encode_examples(self._columns(plan.split, batch, rows, rng)))
                tokens += int(rows.lengths.sum())
                store.release()
        size = (self.out / plan.file).stat().st_size
        shard = Shard(file=plan.file, records=writer.records, bytes=size)
        return _Written(shard, tokens, int(pairs[:, 4].sum()))

    def _pairs(self, plan, store, documents, rng):
        """Draws the pairs of the shard's share of all passes over the documents, shuffled."""
        draw = sentence_pairs if self.settings.next_sentence else full_sentences
        passes = 1 if plan.split == "heldout" else self.settings.dupe_factor
        first, last = (len(documents) * n // plan.count for n in (plan.number, plan.number + 1))
        pairs = array("q")
        for number in range(passes):
            # Every shard draws the same order and takes its own stretch of it.
            order = _permutation(random.Random(f"{self.seed} pass {number}"), len(documents))
            for count, index in enumerate(order[first:last].tolist()):
                for pair in draw(store, documents, index, self.settings, rng):
                    pairs.extend(pair)
                if count % 1024 == 0:
                    check_running()
                    store.release()
        pairs = np.frombuffer(pairs, np.int64).reshape(-1, _PAIR_FIELDS)
        return pairs[_permutation(rng, len(pairs))]

    def _columns(self, split, batch, rows, rng):
        position = np.arange(self.settings.max_seq_length)
        columns = {
            "input_ids": rows.input_ids,
            "input_mask": (position < rows.lengths[:, None]).astype(np.int8),
            "segment_ids": rows.segment_ids,
            "next_sentence_labels": batch[:, 4:],
        }
        if split == "heldout" or not self.dynamic_masking:
            columns |= mask_rows(rows.input_ids, rows.lengths, self.settings, self.tokenizer, rng)
        return columns


def _counts(documents, store):
    """Returns the numbers of sentences and of tokens in documents."""
    starts = np.asarray(store.document_starts)
    ends = np.asarray(store.sentence_starts)[starts]
    return int(np.diff(starts)[documents].sum()), int(np.diff(ends)[documents].sum())


def _summary(name, documents, store, written, settings, dynamic_masking):
    sentences, tokens = _counts(documents, store)
    rows = sum(result.shard.records for result in written)
    filled = sum(result.tokens for result in written)
    return Split(
        masking="dynamic" if dynamic_masking and name == "train" else "static",
        documents=len(documents),
        sentences=sentences,
        tokens=tokens,
        instances=rows,
        mean_length=filled / rows,
        padding=1 - filled / (rows * settings.max_seq_length),
        random_next=sum(result.random_next for result in written) / rows,
        shards=tuple(result.shard for result in written),
    )
