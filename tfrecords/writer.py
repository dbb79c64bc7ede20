"""Rows → records → shard files, without TensorFlow: only as many bytes as TFRecord asks for.

A record is a serialized `tf.train.Example`. Its parts are few and of fixed kinds, so that a whole
batch is encoded with NumPy; the bytes are those protobuf gives (in key order).
"""

import functools
import gzip
import itertools
import os
import struct
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from keras_bert_ref.checksums import masked_crc
from keras_bert_ref.errors import ConfigError, OutputError
from keras_bert_ref.files import writing

COMPRESSIONS = (None, "GZIP")

# Protobuf tags: field number << 3 | wire type 2 (length-delimited).
_FEATURES, _ENTRY, _KEY, _VALUE, _LIST = b"\x0a", b"\x0a", b"\x0a", b"\x12", b"\x0a"
_FLOAT_LIST, _INT64_LIST = b"\x12", b"\x1a"


def encode_examples(columns: Mapping[str, np.ndarray]) -> list[bytes]:
    """Serializes rows as `tf.train.Example` messages.

    Args:
        columns: Arrays [N, width] by feature name: floats, or integers from 0 to 2³²-1.

    Returns:
        N messages.
    """
    entries = []
    for name, values in sorted(columns.items()):
        kind = _FLOAT_LIST if np.issubdtype(values.dtype, np.floating) else _INT64_LIST
        data, ends = (_pack_floats if kind == _FLOAT_LIST else _pack_integers)(values)
        rows = itertools.pairwise([0, *ends])
        entries.append([_entry_head(name, kind, e - s) + data[s:e] for s, e in rows])
    rows = map(b"".join, zip(*entries, strict=True))
    return [_FEATURES + _varint(len(row)) + row for row in rows]


@functools.lru_cache(maxsize=1 << 14)
def _entry_head(name, kind, size):
    """Returns what stands before the `size` packed bytes of a feature."""
    key = _KEY + _varint(len(name)) + name.encode()
    head = _LIST + _varint(size)
    head = kind + _varint(len(head) + size) + head
    head = key + _VALUE + _varint(len(head) + size) + head
    return _ENTRY + _varint(len(head) + size) + head


def _varint(value):
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _pack_floats(values):
    """Returns the rows as one run of bytes, and where each row ends in it."""
    n, width = values.shape
    return values.astype("<f4").tobytes(), _even_ends(n, 4 * width)


def _even_ends(count, size):
    return list(range(size, size * count + 1, size))


def _pack_integers(values):
    """Returns the rows as one run of varints, and where each row ends in it."""
    n, width = values.shape
    values = values.astype(np.uint32)
    most = (int(values.max(initial=0)).bit_length() + 6) // 7 or 1  # bytes of the longest varint
    if most == 1:
        return values.astype(np.uint8).tobytes(), _even_ends(n, width)
    groups = np.empty((n, width, most), np.uint8)
    used = np.empty((n, width, most), bool)
    for k in range(most):
        rest = values >> np.uint32(7 * k)
        groups[..., k] = (rest & np.uint32(0x7F)) | (
            (rest > 0x7F).astype(np.uint32) << np.uint32(7)
        )
        used[..., k] = rest > 0
    used[..., 0] = True
    return groups[used].tobytes(), np.cumsum(used.sum(axis=(1, 2))).tolist()


class ShardWriter:
    """Writes one shard; the file appears under its name only when the `with` block ends well.

    The bytes depend on the records alone: a GZIP shard carries neither time nor name.

    Args:
        path: The file.
        compression: None or "GZIP".

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, compression: str | None = None):
        if compression not in COMPRESSIONS:
            raise ConfigError(f"compression is {compression!r}: it must be None or 'GZIP'.")
        self.path = Path(path)
        self.records = 0
        # A name of its own: a pipeline may have two workers at one shard.
        self._partial = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}.partial")
        self._compression = compression

    def __enter__(self) -> "ShardWriter":
        with writing(self.path):
            self._file = self._out = open(self._partial, "wb")
            if self._compression:
                self._out = gzip.GzipFile("", "wb", 6, self._file, mtime=0)
        return self

    def write(self, records: Iterable[bytes]) -> None:
        """Appends serialized records."""
        parts = []
        for record in records:
            length = struct.pack("<Q", len(record))
            parts += (
                length,
                struct.pack("<I", masked_crc(length)),
                record,
                struct.pack("<I", masked_crc(record)),
            )
        with writing(self.path):
            self._out.write(b"".join(parts))
        self.records += len(parts) // 4

    def __exit__(self, kind, error, traceback):
        try:
            with writing(self.path):
                try:
                    self._out.close()
                finally:
                    self._file.close()
                if error is None:
                    os.replace(self._partial, self.path)
        except OutputError:
            if error is None:
                raise
        finally:
            self._partial.unlink(missing_ok=True)
