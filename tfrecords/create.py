"""Raw text → token store → instances → shards: the pretraining data of a corpus, in one call."""

import contextlib
import dataclasses
import itertools
import math
import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import ConfigError, CorpusError
from keras_bert_ref.files import writing
from tfrecords import manifest
from tfrecords.corpus import TFDS, corpus_bytes, corpus_files, read_sentences
from tfrecords.manifest import Manifest, Split
from tfrecords.output_folder import output_folder
from tfrecords.schema import DYNAMIC, record_bytes
from tfrecords.settings import InstanceSettings
from tfrecords.shard_job import ShardPlan, WriteShard, permutation, save_split
from tfrecords.store import TokenizeFile, TokenStore, build_store, join_stores
from tfrecords.workers import ordered_map
from tfrecords.writer import COMPRESSIONS

SHARD_BYTES = 64 << 20  # of a file before compression, about


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
    deduplicate: bool = False,
    overwrite: bool = False,
    runner: Callable | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Manifest:
    """Writes a folder of shards, `vocab.txt` and `manifest.json`.

    The folder appears as a whole at the end, or not at all. Memory stays flat however large the
    corpus; on the disk of `out` it takes, besides the shards, about the size of the text. A process
    that is killed (SIGKILL, SIGTERM) cannot clear up: what it leaves is a hidden folder
    `.NAME.xxxx` beside `out`, which may be deleted.

    Args:
        patterns: Text files or globs, see `corpus_files` and `read_sentences`.
        tokenizer: A `WordPieceTokenizer`.
        out: The folder to make.
        settings: See `InstanceSettings`.
        split_sentences: Language code ("en", lower case) by which to split lines into sentences,
            by English rules where the code is unknown; None where a line is a sentence.
        errors: What to do with bytes that are no text: "strict" or "replace", see `read_sentences`.
        seed: Of all draws.
        processes: Number of processes.
        shards: Number of training shards; None for files of about 64 MB before compression.
        held_out: Share of the documents set apart as split "heldout". It is always masked in the
            records and in one pass, so that evaluations compare.
        compression: None or "GZIP".
        dynamic_masking: Store the pairs of a single pass (`dupe_factor` does not apply), without
            masks; they are drawn anew in every epoch while reading.
        deduplicate: Leave out documents whose tokens an earlier one has.
        overwrite: Replace `out` if it holds pretraining data; the old data stay until the new are
            complete.
        runner: What spreads the work, called as a `tfrecords.beam.BeamRunner` is, which needs `out`
            to be on a file system that its workers see; None for this machine's `processes`. The
            shards are the same.
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
    files = corpus_files(patterns)
    with output_folder(Path(out), overwrite, files) as folder, writing(out):
        # Not before: a data set that is named is downloaded for it.
        sources = tuple({"file": file, "bytes": corpus_bytes(file)} for file in files)
        progress = _Progress(progress, sum(source["bytes"] for source in sources))
        store_folder = folder / "store"
        store_folder.mkdir()
        if runner is None:
            counts = build_store(
                store_folder,
                read_sentences(files, errors=errors, progress=progress.tokenized),
                tokenizer,
                split_sentences=split_sentences,
                processes=processes,
            )
        else:
            tokenize = TokenizeFile(store_folder, tokenizer, split_sentences, errors)
            places = [file if file.startswith(TFDS) else os.path.abspath(file) for file in files]
            parts = runner(
                tokenize,
                list(enumerate(places)),
                folder,
                lambda number: progress.tokenized(sources[number]["bytes"]),
            )
            counts = join_stores(store_folder, parts)
        if not counts.documents:
            raise CorpusError(f"There is no text in {_names(files)}.")
        store = TokenStore.open(store_folder)
        kept = store.distinct_documents() if deduplicate else np.arange(counts.documents)
        splits = {
            name: _SplitDocuments(kept[part], store)
            for name, part in _split(len(kept), held_out, seed, settings, files).items()
        }
        plans = []
        for name, split in splits.items():
            held = name == "heldout"
            passes = 1 if held else settings.dupe_factor
            save_split(store_folder, name, split.documents, passes=passes, seed=seed)
            plans += _plan(
                name,
                split,
                settings,
                passes=passes,
                masked=held or not dynamic_masking,
                shards=None if held else shards,
                suffix=".tfrecord.gz" if compression else ".tfrecord",
            )

        store.release()
        task = WriteShard(store_folder, folder, settings, tokenizer, seed, compression)
        written = []
        progress.written(0, len(plans))
        if runner is None:
            with contextlib.closing(ordered_map(task, plans, processes)) as results:
                for result in results:
                    written.append(result)
                    progress.written(len(written), len(plans))
        else:
            done = itertools.count(1)
            written = runner(
                task, plans, folder, lambda _: progress.written(next(done), len(plans))
            )

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
            duplicates=counts.documents - len(kept),
            splits={
                name: splits[name].summary(list(part), settings)
                for name, part in itertools.groupby(written, key=lambda shard: shard.plan.split)
            },
            warnings=tuple(_warnings(counts, settings)),
        )
        shutil.rmtree(store_folder)
        for stray in folder.glob(".*.partial"):  # of a pipeline's worker that was killed
            stray.unlink(missing_ok=True)
        tokenizer.save_vocabulary(folder / "vocab.txt")
        result.save(folder)
    return result


class _Progress:
    """Turns what the two phases report into calls of one function."""

    def __init__(self, call, total_bytes):
        self._call = call or (lambda phase, done, total: None)
        self._bytes, self._total_bytes = 0, total_bytes

    def tokenized(self, count):
        self._bytes += count
        self._call("tokenize", self._bytes, self._total_bytes)

    def written(self, done, total):
        self._call("write", done, total)


def _names(files):
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def _split(count, held_out, seed, settings, files):
    """Returns the document numbers of each split, ascending, as int64 arrays."""
    least = 2 if settings.next_sentence else 1
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
    order = permutation(random.Random(f"{seed} held out"), count)
    return {"train": np.sort(order[apart:]), "heldout": np.sort(order[:apart])}


class _SplitDocuments:
    """The documents of a split."""

    def __init__(self, documents, store):
        self.documents = documents
        starts = np.asarray(store.document_starts)
        self.sentences = int(np.diff(starts)[documents].sum())
        self.tokens = int(np.diff(np.asarray(store.sentence_starts)[starts])[documents].sum())

    def summary(self, written, settings):
        """Returns what the manifest says of the split, given its `WrittenShard`s."""
        rows = sum(part.shard.records for part in written)
        instances = sum(part.instances for part in written)
        filled = sum(part.tokens for part in written)
        return Split(
            masking="static" if written[0].plan.masked else "dynamic",
            documents=len(self.documents),
            sentences=self.sentences,
            tokens=self.tokens,
            instances=instances,
            mean_length=filled / instances,
            padding=1 - filled / (rows * settings.max_seq_length),
            random_next=sum(part.random_next for part in written) / instances,
            shards=tuple(part.shard for part in written),
        )


def _plan(name, split, settings, *, passes, masked, shards, suffix):
    """Returns the plans of the shards of a split; by default their number follows from its size."""
    most = len(split.documents)
    if shards is None:
        # As measured on English novels. Half the pairs leave part of their sentences to the next.
        tokens_per_row = settings.max_seq_length * (0.85 if settings.next_sentence else 0.95)
        predictions = settings.predictions_per_row if masked else DYNAMIC
        row_bytes = record_bytes(settings.max_seq_length, predictions)
        size = split.tokens * passes / tokens_per_row * row_bytes
        shards = min(most, math.ceil(size / SHARD_BYTES))
    if shards > most:
        raise ConfigError(
            f"shards is {shards}, but there are only {most} documents to spread over them."
        )
    return [
        ShardPlan(
            split=name,
            number=number,
            count=shards,
            file=f"{name}-{number:05d}-of-{shards:05d}{suffix}",
            passes=passes,
            masked=masked,
        )
        for number in range(shards)
    ]


def _warnings(counts, settings):
    if settings.next_sentence and counts.sentences == counts.documents:
        yield (
            "Every document is a single sentence, so every next sentence is a random one and next "
            "sentence prediction has nothing to learn: put the sentences of a document on lines of "
            "their own, split them (split_sentences), or turn next_sentence off."
        )
