"""Raw text, read as a stream: a sentence a line, a blank line between documents.

Memory stays flat whatever the files hold: nothing longer than one line is ever kept, and a line has
a limit. Everything wrong with a file is said with its name, the line and the byte.
"""

import glob
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator

from keras_bert_ref.errors import ConfigError, CorpusError

MAX_LINE_BYTES = 1 << 20
END_OF_DOCUMENT = ""

TFDS = "tfds:"  # before a data set's name; its split "train" is read

_WILDCARDS = frozenset("*?[")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def corpus_files(patterns: str | os.PathLike | Iterable[str | os.PathLike]) -> list[str]:
    """Returns the files that paths and patterns name, each once.

    Args:
        patterns: One or several paths or globs (`**` for all folders below). The matches of a glob
            are sorted; the patterns keep their order. `tfds:NAME` is a data set of
            tensorflow-datasets, such as `tfds:wikipedia/20230601.en`.

    Raises:
        CorpusError: A path or a glob names no file, or names a folder.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    files = {}
    for pattern in map(os.fspath, patterns):
        if pattern.startswith(TFDS):
            found = [pattern]
        elif os.path.isdir(pattern):
            raise CorpusError(f"{pattern} is a folder: name its files, as in {pattern}/*.txt")
        elif os.path.exists(pattern):
            found = [pattern]
        elif _WILDCARDS.isdisjoint(pattern):
            raise CorpusError(f"{pattern}: there is no such file.")
        else:
            found = sorted(f for f in glob.glob(pattern, recursive=True) if not os.path.isdir(f))
            if not found:
                raise CorpusError(f"{pattern} matches no file.")
        files |= dict.fromkeys(found)
    if not files:
        raise CorpusError("No text file was named.")
    return list(files)


def corpus_bytes(file: str) -> int:
    """Returns the size of a file, or of a data set's records.

    Raises:
        CorpusError: The file is no longer there.
        InputError: There is no such data set.
    """
    if not file.startswith(TFDS):
        try:
            return os.path.getsize(file)
        except OSError as error:
            raise CorpusError(f"{file} cannot be read: {error.strerror or error}.") from None
    with _open_tfds(file) as (_, info):
        return _size_of(info)[0]


def read_sentences(
    patterns: str | os.PathLike | Iterable[str | os.PathLike],
    *,
    errors: str = "strict",
    progress: Callable[[int], None] | None = None,
) -> Iterator[str]:
    """Yields the sentences of a corpus, and `END_OF_DOCUMENT` (an empty one) after each document.

    A document ends at a blank line and at the end of its file. Files may be plain or gzip (told by
    their first bytes). White space around a sentence is dropped. Of a data set of
    tensorflow-datasets every `text` is a document, whose lines are its sentences.

    Args:
        patterns: As in `corpus_files`.
        errors: "strict" refuses bytes that are not UTF-8, and NUL characters; "replace" puts
            U+FFFD for the former (the tokenizer drops it) and drops the latter.
        progress: Called now and then with the number of bytes read since the last call (of the
            compressed file where there is one).

    Raises:
        CorpusError: A file cannot be read, or holds no UTF-8 text of sensible lines.
        InputError: A data set cannot be read, or has no `text`.
    """
    if errors not in ("strict", "replace"):
        raise ConfigError(f"errors is {errors!r}: it must be 'strict' or 'replace'.")
    for name in corpus_files(patterns):
        if name.startswith(TFDS):
            yield from _read_tfds(name, progress or (lambda count: None))
            continue
        in_document = False
        for sentence in _read_file(name, errors, progress or (lambda count: None)):
            if sentence:
                in_document = True
                yield sentence
            elif in_document:
                in_document = False
                yield END_OF_DOCUMENT
        if in_document:
            yield END_OF_DOCUMENT


def _open_tfds(name):
    from keras_bert_ref.tasks.tfds import open_tfds  # which most texts do without

    return open_tfds(name.removeprefix(TFDS), "train", "pretraining")


def _size_of(info):
    """Returns bytes and rows of the split; 0 where its makers do not say."""
    if "train" not in info.splits:
        return 0, 0
    split = info.splits["train"]
    return split.num_bytes, split.num_examples


def _read_tfds(name, progress):
    """Yields the lines of each text that are not blank, and `END_OF_DOCUMENT` after the last."""
    with _open_tfds(name) as (rows, info):
        (total, count), reported = _size_of(info), 0
        for number, row in enumerate(rows, 1):
            lines = list(filter(None, map(str.strip, row["text"].split("\n"))))
            if lines:
                yield from lines
                yield END_OF_DOCUMENT
            if number % 1024 == 0:
                position = min(total, total * number // max(1, count))
                progress(position - reported)
                reported = position
        progress(total - reported)


def _read_file(name, errors, progress):
    """Yields the stripped lines of a file."""
    number, offset, reported = 0, 0, 0
    try:
        with open(name, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(raw) if packed else raw as lines:
                while line := lines.readline(MAX_LINE_BYTES + 1):
                    number += 1
                    yield _decode(line, name, number, offset, errors)
                    offset += len(line)
                    if number % 1024 == 0 and (position := raw.tell()) > reported:
                        progress(position - reported)
                        reported = position
                progress(os.fstat(raw.fileno()).st_size - reported)
    except EOFError:
        raise CorpusError(
            f"{name} is cut short: its gzip stream ends after line {number}, before its end mark."
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{name} is damaged after line {number}: {error}.") from None
    except OSError as error:
        raise CorpusError(f"{name} cannot be read: {error.strerror or error}.") from None


def _decode(line, name, number, offset, errors):
    place = f"{name}, line {number}"
    if len(line) > MAX_LINE_BYTES:
        raise CorpusError(
            f"{place} (from byte {offset}) is longer than {MAX_LINE_BYTES >> 20} MiB, which is not "
            "a sentence: write a sentence a line, with a blank line between documents."
        )
    if b"\0" in line:
        if errors == "strict":
            raise CorpusError(
                f"{place}: NUL character at byte {offset + line.index(0)}. Is this UTF-16, or no "
                "text at all? Convert it to UTF-8, or drop such characters with errors='replace'."
            )
        line = line.replace(b"\0", b"")
    try:
        text = line.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        utf16 = " The file looks like UTF-16." if offset == 0 and line[:2] in _UTF16_MARKS else ""
        raise CorpusError(
            f"{place}: byte {offset + error.start} (0x{line[error.start]:02x}) is not UTF-8 "
            f"({error.reason}).{utf16} Convert the file, or go on with errors='replace'."
        ) from None
    if number == 1:
        text = text.removeprefix("\ufeff")  # a byte order mark belongs to the file, not the text
    return text.strip()
