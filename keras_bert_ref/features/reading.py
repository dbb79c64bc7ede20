"""Texts from files of every usual kind, row by row."""

import codecs
import contextlib
import gzip
import re
import reprlib
import zlib
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.files import first_line, parse_json

FORMATS = {
    "text": (".txt", ".text"),
    "tsv": (".tsv",),
    "jsonl": (".jsonl", ".ndjson"),
    "conll": (".conll", ".iob", ".iob2", ".bio"),
    "parquet": (".parquet", ".pq"),
}


def characters(value):
    """Returns the number of characters in a text, a pair, or words; what is none of these has 0."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple | np.ndarray):
        return sum(map(characters, value))
    return 0


class InputFile:
    """A file of texts, an iterable of (place, value).

    `place` names the file and line, for messages; `value` is what `FeatureExtractor` takes: a
    string, a pair (a tuple of two strings) or a list of words. Rows are read one at a time, and
    anew by each iteration.

    - text: a text a line, also an empty one; the last ` ||| ` of a line divides a pair.
    - tsv: fields between tabs, without any quoting. Empty lines are none.
    - jsonl: an object a line, whose value is a string or a list of words. Empty lines are none.
    - conll: a word a line, its columns between spaces or tabs, and an empty line after each
      sentence. "-DOCSTART-" lines are no sentences.
    - parquet: columns of strings, or one of lists of words.

    All but Parquet may be compressed with gzip.

    Args:
        path: the file.
        format: one of `FORMATS`; None to go by the file's name.
        columns: one, or two for pairs: numbers, from 1, in a TSV and (one) in a CoNLL file (by
            default the first); names in a TSV with a header, JSONL and Parquet.
        header: whether the first line of a TSV has names; None if `columns` has.

    Attributes:
        size: of the file, in bytes.
        position: how many of them have been read.

    Raises:
        ConfigError: `columns` does not fit the file; the message names those there are.
        InputError: the file cannot be read, or its first row. Iterating raises it for other rows.
    """

    def __init__(self, path, format=None, columns=(), header=None):
        self.path = Path(path)
        self.format = format or _format_of(self.path)
        self.columns = (columns,) if isinstance(columns, str | int) else tuple(columns)
        self.columns = tuple(map(str, self.columns))
        numbers = all(column.isdecimal() for column in self.columns)
        self.header = not numbers if header is None else header
        if self.format not in FORMATS:
            raise ConfigError(f"format {format!r} is unknown: choose one of {', '.join(FORMATS)}")
        most = {"text": 0, "conll": 1}.get(self.format, 2)
        if len(self.columns) > most:
            raise ConfigError(f"columns: a {self.format} file has at most {most} to choose")
        if self.format in ("tsv", "conll") and (
            "0" in self.columns or not (numbers or (self.header and self.format == "tsv"))
        ):
            raise ConfigError(
                f"columns: a {self.format} file's are counted from 1, or named in its header "
                f"if it is a TSV with one, and there is no {','.join(self.columns)}"
            )
        self.position = 0
        with self._reading():
            self.size = self.path.stat().st_size
        next(iter(self), None)

    def __iter__(self):
        with self._reading():
            if self.format == "parquet":
                yield from self._parquet()
            else:
                with open(self.path, "rb") as file:
                    yield from getattr(self, f"_{self.format}")(self._lines(file))

    @contextlib.contextmanager
    def _reading(self):
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path} is damaged or cut off: {first_line(error)}") from None
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise InputError(f"{self.path} cannot be read: {reason}") from None

    def _lines(self, file):
        """Yields the place of each line and its text."""
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        for number, line in enumerate(gzip.GzipFile(fileobj=file) if zipped else file, start=1):
            self.position = file.tell()
            place = f"{self.path}, line {number}"
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield place, line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{place}: its byte {error.start + 1} is no UTF-8 text: convert the file first"
                ) from None

    def _text(self, lines):
        for place, line in lines:
            first, mark, second = line.strip().rpartition(" ||| ")
            yield place, (first, second) if mark else second

    def _tsv(self, lines):
        numbers = None
        for place, line in lines:
            if not line:
                continue
            fields = line.split("\t")
            if numbers is None:
                numbers = self._numbers(fields)
                if self.header:
                    continue
            if len(fields) <= max(numbers):
                raise InputError(
                    f"{place}: has {len(fields)} columns, and column {max(numbers) + 1} is wanted"
                )
            yield place, self._value(place, [fields[number] for number in numbers])

    def _numbers(self, fields):
        """Returns the indices of the wanted fields, given those of the first line."""
        if self.columns and all(column.isdecimal() for column in self.columns):
            return [int(column) - 1 for column in self.columns]
        numbered = [f"{n} ({reprlib.repr(field)})" for n, field in enumerate(fields, start=1)]
        self._require_columns(fields if self.columns else numbered)
        return [fields.index(column) for column in self.columns]

    def _jsonl(self, lines):
        for place, line in lines:
            if not line.strip():
                continue
            row = parse_json(line, place)
            if not isinstance(row, dict):
                raise InputError(f"{place}: is no JSON object")
            if not self.columns:
                self._require_columns(row)
            for column in self.columns:
                if column not in row:
                    raise InputError(f"{place}: has no {column!r}, only {_listed(row)}")
            yield place, self._value(place, [row[column] for column in self.columns])

    def _conll(self, lines):
        number = int(self.columns[0]) - 1 if self.columns else 0
        words, begin = [], None
        for place, line in lines:
            # Not split(), for which a no-break space, too, ends a column.
            fields = re.split("[ \t]+", line.strip(" \t"))
            if fields == [""] or fields[0] == "-DOCSTART-":
                if words:
                    yield begin, words
                words = []
            elif len(fields) <= number:
                raise InputError(
                    f"{place}: has {len(fields)} columns, and column {number + 1} is wanted"
                )
            else:
                begin = begin if words else place
                words.append(fields[number])
        if words:
            yield begin, words

    def _parquet(self):
        pyarrow = require_pyarrow(self.path)
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                self._require_columns(file.schema_arrow.names)
                rows = 0
                for batch in file.iter_batches(256, columns=list(set(self.columns))):
                    self.position = self.size * rows // file.metadata.num_rows
                    columns = [batch.column(column).to_pylist() for column in self.columns]
                    for row in zip(*columns, strict=True):
                        place = f"{self.path}, row {rows} (from 0)"
                        yield place, self._value(place, row)
                        rows += 1
        except pyarrow.ArrowInvalid as error:
            raise InputError(f"{self.path} is damaged: {first_line(error)}") from None

    def _require_columns(self, present):
        """Raises ConfigError unless columns are chosen and, where they are named, are there."""
        if not self.columns:
            raise ConfigError(f"columns: say which of {self.path} to read: {_listed(present)}")
        for column in self.columns:
            if column not in present:
                raise ConfigError(
                    f"columns: {self.path} has no {column!r}, only {_listed(present)}"
                )

    def _value(self, place, parts):
        """Returns what the chosen columns of a row make up."""
        if len(parts) == 1 and isinstance(parts[0], list):
            wrong = [word for word in parts[0] if not isinstance(word, str)]
        else:
            wrong = [part for part in parts if not isinstance(part, str)]
        if wrong:
            raise InputError(
                f"{place}: {' and '.join(self.columns)} should be text and has "
                f"{reprlib.repr(wrong[0])}"
            )
        return tuple(parts) if len(parts) == 2 else parts[0]


def require_pyarrow(path):
    """Returns the module `pyarrow`, an extra.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet is read and written by pyarrow: pip install 'keras-bert-ref[parquet]'"
        ) from None
    return pyarrow


def _format_of(path):
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    for format, known in FORMATS.items():
        if suffixes and suffixes[-1] in known:
            return format
    raise ConfigError(
        f"the name of {path} does not tell its format: choose one of {', '.join(FORMATS)}"
    )


def _listed(names):
    return ", ".join(map(str, names))
