"""The token store: a tokenized corpus on disk, mapped into memory.

Three flat files hold the token ids, where each sentence starts among the tokens, and where each
document starts among the sentences. Every process maps the same pages, so memory does not grow with
the corpus.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import mmap
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tfrecords.corpus import END_OF_DOCUMENT, read_sentences
from tfrecords.workers import ordered_map

_BLOCK_CHARACTERS = 1 << 20


class TokenStore:
    """Read access to a tokenized corpus.

    Args:
        tokens: Token ids, one flat array.
        sentence_starts: Ascending offsets into `tokens`; the last one is the end.
        document_starts: Ascending offsets into `sentence_starts`; the last one is the end.
    """

    def __init__(
        self, tokens: np.ndarray, sentence_starts: Sequence[int], document_starts: Sequence[int]
    ):
        self.tokens = tokens
        self.sentence_starts = sentence_starts
        self.document_starts = document_starts
        self._maps = []

    @classmethod
    def open(cls, folder: Path) -> "TokenStore":
        """Maps the store that `build_store` wrote into a folder."""
        (tokens,) = Path(folder).glob("tokens.*")
        paths = (tokens, Path(folder, "sentences.int64"), Path(folder, "documents.int64"))
        maps = [_map(path) for path in paths]
        # A memoryview gives plain ints, three times faster than a NumPy array does.
        starts = [memoryview(m).cast("q") for m in maps[1:]]
        store = cls(np.frombuffer(maps[0], tokens.suffix[1:]), *starts)
        store._maps = maps
        return store

    @property
    def document_count(self) -> int:
        return len(self.document_starts) - 1

    def document_sentences(self, document: int) -> tuple[int, int]:
        """Returns the numbers of the first sentence of a document and of the one after its last."""
        return self.document_starts[document], self.document_starts[document + 1]

    def distinct_documents(self) -> np.ndarray:
        """Returns the numbers of documents that are no copy of an earlier one, int64, ascending.

        Copies have the same tokens in the same order, wherever their sentences end.
        """
        digests = np.empty(self.document_count, np.uint64)
        for document in range(self.document_count):
            first, last = (self.sentence_starts[n] for n in self.document_sentences(document))
            digest = hashlib.blake2b(self.tokens[first:last].tobytes(), digest_size=8).digest()
            digests[document] = int.from_bytes(digest, "little")
            if document % 1024 == 0:
                self.release()
        _, firsts = np.unique(digests, return_index=True)
        return np.sort(firsts)

    def release(self) -> None:
        """Lets go of the pages read so far; they stay in the system's cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def _map(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@dataclasses.dataclass
class StoreCounts:
    """What `build_store` stored."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0


def build_store(
    folder: Path,
    sentences: Iterable[str],
    tokenizer,
    *,
    split_sentences: str | None = None,
    processes: int = 1,
) -> StoreCounts:
    """Tokenizes a corpus into a store; a sentence without tokens and an empty document are dropped.

    Args:
        folder: An existing folder.
        sentences: As `read_sentences` yields them.
        tokenizer: A `WordPieceTokenizer`.
        split_sentences: Language code ("en", lower case) by which to split lines into sentences;
            None where a line is a sentence already. sentencex, which splits them, does not tell
            which codes it knows: English rules hold for any other.
        processes: Number of processes; the store is the same for any number.
    """
    dtype = np.dtype("uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32")
    counts = StoreCounts()
    task = _Tokenize(tokenizer, dtype, split_sentences)
    blocks = ordered_map(task, _blocks(sentences), processes)
    in_document = 0  # sentences of the document under way
    with contextlib.ExitStack() as stack:
        tokens, starts, documents = (
            stack.enter_context(open(Path(folder, name), "wb"))
            for name in (f"tokens.{dtype.name}", "sentences.int64", "documents.int64")
        )
        stack.enter_context(contextlib.closing(blocks))
        for data, lengths, unknown in blocks:
            tokens.write(data)
            counts.unknown_tokens += unknown
            block_starts, block_documents = array("q"), array("q")
            for length in lengths:
                if length:
                    block_starts.append(counts.tokens)
                    counts.tokens += length
                    in_document += 1
                elif in_document:
                    block_documents.append(counts.sentences)
                    counts.documents += 1
                    counts.sentences += in_document
                    in_document = 0
            block_starts.tofile(starts)
            block_documents.tofile(documents)
        array("q", [counts.tokens]).tofile(starts)
        array("q", [counts.sentences]).tofile(documents)
    return counts


@dataclasses.dataclass
class TokenizeFile:
    """Tokenizes one text into a store of its own, for `join_stores`.

    Any process, or machine that sees the files, can tokenize any of them; twice does no harm.
    """

    folder: Path
    tokenizer: object
    split_sentences: str | None
    errors: str

    def __call__(self, numbered: tuple[int, str]) -> tuple[str, StoreCounts]:
        number, file = numbered
        part = Path(tempfile.mkdtemp(prefix=f".part-{number}.", dir=self.folder))
        sentences = read_sentences([file], errors=self.errors)
        counts = build_store(part, sentences, self.tokenizer, split_sentences=self.split_sentences)
        name = f"part-{number}"
        try:
            part.rename(self.folder / name)
        except OSError:  # another attempt was quicker
            if not (self.folder / name).is_dir():
                raise
            shutil.rmtree(part)
        return name, counts


def join_stores(folder: Path, parts: Iterable[tuple[str, StoreCounts]]) -> StoreCounts:
    """Joins the stores of several texts to the one `build_store` would make of all of them.

    Args:
        folder: Where the parts are; each is deleted when it has been taken in.
        parts: What `TokenizeFile` returned, in the order of the texts.
    """
    total = StoreCounts()
    with contextlib.ExitStack() as stack:
        files = {}

        def append(name, data):
            if name not in files:
                files[name] = stack.enter_context(open(folder / name, "wb"))
            files[name].write(data)

        for name, counts in parts:
            for path in sorted((folder / name).iterdir()):
                if path.suffix == ".int64":
                    shift = total.tokens if path.stem == "sentences" else total.sentences
                    # Without the last, which is where the next part begins.
                    starts = np.memmap(path, np.int64, "r")[:-1]
                    append(path.name, b"")
                    for first in range(0, len(starts), 1 << 20):
                        append(path.name, (starts[first : first + (1 << 20)] + shift).tobytes())
                else:
                    with open(path, "rb") as source:
                        while block := source.read(1 << 24):
                            append(path.name, block)
                        append(path.name, b"")
            shutil.rmtree(folder / name)
            for field in dataclasses.fields(total):
                added = getattr(total, field.name) + getattr(counts, field.name)
                setattr(total, field.name, added)
        append("sentences.int64", np.int64(total.tokens).tobytes())
        append("documents.int64", np.int64(total.sentences).tobytes())
    return total


def _blocks(sentences):
    block, size = [], 0
    for sentence in sentences:
        block.append(sentence)
        size += len(sentence)
        if size >= _BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


@dataclasses.dataclass
class _Tokenize:
    """Tokenizes a block of sentences.

    Returns the token ids as bytes, the length of each sentence in tokens with 0 where a document
    ends, and the number of [UNK] tokens.
    """

    tokenizer: object
    dtype: np.dtype
    split_sentences: str | None

    def __call__(self, block):
        if self.split_sentences:
            block = itertools.chain.from_iterable(map(self._split, block))
        token_ids = self.tokenizer.token_ids
        tokens, lengths = [], array("q")
        for sentence in block:
            if sentence == END_OF_DOCUMENT:
                lengths.append(0)
            elif ids := token_ids(sentence):
                tokens += ids
                lengths.append(len(ids))
        tokens = np.array(tokens, self.dtype)
        return tokens.tobytes(), lengths, int((tokens == self.tokenizer.unk_id).sum())

    def _split(self, paragraph):
        if paragraph == END_OF_DOCUMENT:
            return [paragraph]
        import sentencex  # only for texts that need it

        # A sentence of nothing but white space would look like the end of a document.
        return filter(None, map(str.strip, sentencex.segment(self.split_sentences, paragraph)))
