"""Reads TensorFlow checkpoints (`PREFIX.index`, `PREFIX.data-00000-of-00001`) without TensorFlow.

Looking into a checkpoint is then a matter of milliseconds, not of TensorFlow's start. Every byte is
checked: the index is a LevelDB table whose blocks carry a CRC-32C, and it holds one of the data of
each tensor.

Format: tensorflow/core/protobuf/tensor_bundle.proto and tensorflow/core/lib/io/table_format.txt.
"""

import dataclasses
import math
import os
import re
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

from keras_bert_ref.checksums import masked_crc
from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.files import opening

_FOOTER, _MAGIC = 48, 0xDB4775248B80FB57
_TRAILER = 5  # after each block: how it is compressed, and its checksum
# Numbers of tensorflow/core/framework/types.proto; others (strings) are listed, but not read.
_DTYPES = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    9: np.dtype(np.int64),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype(np.float16),
}
# Field numbers of BundleHeaderProto and BundleEntryProto.
_SHARDS, _ENDIANNESS = 1, 2
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CRC, _SLICES = range(1, 8)


@dataclasses.dataclass(frozen=True)
class _Entry:
    dtype: np.dtype | None
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


class TensorBundle:
    """The tensors of a TensorFlow checkpoint, TF1's by variable name or TF2's object-based ones.

    Args:
        prefix: the path without `.index`.

    Attributes:
        path: the index file.
        shapes: tensor name → shape.
        dtypes: tensor name → name of its dtype.

    Raises:
        CheckpointError: the index is missing or damaged.
    """

    def __init__(self, prefix):
        self.prefix = Path(prefix)
        self.path = self.prefix.with_name(self.prefix.name + ".index")
        with opening(self.path):
            table = self.path.read_bytes()
        try:
            entries = dict(_table(table))
            header = _fields(entries.pop(b""))
            if header.get(_ENDIANNESS, 0):
                raise _DamageError("it is big-endian, which is not supported")
            self._shards = header[_SHARDS]
            # The parts of a partitioned tensor have names that are no text; its own entry tells.
            named = {_text(name): value for name, value in entries.items() if _text(name)}
            self._entries = {name: _entry(value) for name, value in named.items()}
        except _DamageError as error:
            raise CheckpointError(f"{self.path} is damaged or no checkpoint: {error}") from None
        except (KeyError, IndexError, struct.error, TypeError) as error:
            raise CheckpointError(
                f"{self.path} is damaged or no checkpoint: its entries cannot be parsed"
            ) from error
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self.dtypes = {
            name: entry.dtype.name if entry.dtype else "string"
            for name, entry in self._entries.items()
        }

    def read(self, name):
        """Returns a tensor as an array.

        Raises:
            CheckpointError: its data is missing, cut off or damaged.
        """
        entry = self._entries[name]
        if entry.dtype is None or entry.sliced:
            kind = "is partitioned" if entry.sliced else "does not hold numbers"
            raise CheckpointError(f"{self.path}: the tensor {name} {kind}: it cannot be read")
        file = f"{self.prefix}.data-{entry.shard:05d}-of-{self._shards:05d}"
        if entry.size != math.prod(entry.shape) * entry.dtype.itemsize:
            raise CheckpointError(f"{self.path}: the sizes of the tensor {name} disagree")
        with opening(file), open(file, "rb") as data:
            content = b""
            if entry.offset + entry.size <= os.fstat(data.fileno()).st_size:
                data.seek(entry.offset)
                content = data.read(entry.size)
        if len(content) < entry.size:
            raise CheckpointError(f"{file} is cut off within the tensor {name}: fetch it again")
        if masked_crc(content) != entry.crc:
            raise CheckpointError(
                f"{file} is damaged: the tensor {name} does not match its checksum: fetch it again"
            )
        return np.frombuffer(content, entry.dtype).reshape(entry.shape)


class _DamageError(Exception):
    pass


def bundles(folder):
    """Returns the prefixes of all TensorFlow checkpoints in a folder, sorted."""
    return sorted(path.with_suffix("") for path in Path(folder).glob("*.index") if path.is_file())


def latest(folder):
    """Returns the prefix that a folder's `checkpoint` file names as the last one, or None."""
    try:
        text = (Path(folder) / "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r'^model_checkpoint_path: "([^"]+)"', text, re.MULTILINE)
    # Only its last part: the folder may have moved since the file was written.
    return Path(folder) / Path(found[1]).name if found else None


def _table(data):
    """Yields the (key, value) pairs of a LevelDB table."""
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise _DamageError("its end is cut off or not a checkpoint's")
    footer = data[-_FOOTER:]
    meta, place = _handle(footer, 0)
    index, _ = _handle(footer, place)
    list(_block(data, *meta))  # empty; its checksum counts
    for _, value in _block(data, *index):
        handle, _ = _handle(value, 0)
        yield from _block(data, *handle)


def _block(data, offset, size):
    content, trailer = data[offset : offset + size + 1], data[offset + size + 1 :][:4]
    if len(content) <= size or len(trailer) < 4:
        raise _DamageError("a block reaches beyond its end")
    if masked_crc(content) != struct.unpack("<I", trailer)[0]:
        raise _DamageError("a block does not match its checksum")
    if content[-1]:
        raise _DamageError("it is compressed, which is not supported")
    (restarts,) = struct.unpack("<I", content[-5:-1])
    end, place, key = size - 4 * (restarts + 1), 0, b""
    while place < end:
        shared, place = _varint(content, place)
        added, place = _varint(content, place)
        length, place = _varint(content, place)
        key = key[:shared] + content[place : place + added]
        place += added
        yield key, content[place : place + length]
        place += length


def _text(name):
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _handle(data, place):
    offset, place = _varint(data, place)
    size, place = _varint(data, place)
    return (offset, size), place


def _varint(data, place):
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _fields(message):
    """Returns field number → value of a protobuf message; a list for those that come again."""
    fields, place = {}, 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(message, place)
        elif kind == 2:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        elif kind == 5:
            (value,), place = struct.unpack("<I", message[place : place + 4]), place + 4
        else:
            raise _DamageError("an entry has a field of an unknown kind")
        if kind == 2:
            fields.setdefault(number, []).append(value)
        else:
            fields[number] = value
    return fields


def _entry(message):
    fields = _fields(message)
    dimensions = [
        _fields(dimension).get(1, 0)
        for shape in fields.get(_SHAPE, [])
        for dimension in _fields(shape).get(2, [])
    ]
    return _Entry(
        dtype=_DTYPES.get(fields[_DTYPE]),
        shape=tuple(dimensions),
        shard=fields.get(_SHARD, 0),
        offset=fields.get(_OFFSET, 0),
        size=fields.get(_SIZE, 0),
        crc=fields.get(_CRC, 0),
        sliced=_SLICES in fields,
    )
