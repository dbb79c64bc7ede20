"""Reads and writes safetensors files, one tensor at a time."""

import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from keras_bert_ref.checksums import masked_crc
from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.files import first_line, opening, read_json, writing

# The types that weights have; others (the position ids of old Hugging Face files) keep their codes.
_FLOATS = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_CRC = "crc32c:"  # then a tensor's name: the key of its checksum, which the format leaves to us


class SafetensorsFile:
    """The tensors of one safetensors file, or of several that an index file joins.

    Args:
        path: a `.safetensors` file, or the `.safetensors.index.json` that names its shards.

    Attributes:
        shapes: tensor name → shape.
        dtypes: tensor name → name of its dtype.

    Raises:
        CheckpointError: a file is missing or damaged, or the index leaves its folder.
    """

    def __init__(self, path):
        self.path = Path(path)
        self._open, self._checksums, self.shapes, self.dtypes = {}, {}, {}, {}
        for file in _shards(self.path) if self.path.suffix == ".json" else [self.path]:
            with opening(file), open(file, "rb"):
                pass  # a missing file in our own words
            try:
                # Held open: whatever replaces the file meanwhile, all is read from this one.
                tensors = safe_open(file, "numpy")
                metadata = tensors.metadata() or {}
                for name in tensors.keys():  # noqa: SIM118  safe_open is no mapping
                    part = tensors.get_slice(name)
                    self._open[name] = file, tensors
                    self.shapes[name] = tuple(part.get_shape())
                    code = part.get_dtype()
                    self.dtypes[name] = _FLOATS[code].name if code in _FLOATS else code.lower()
                    if _CRC + name in metadata:
                        self._checksums[name] = metadata[_CRC + name]
            except (SafetensorError, OSError, ValueError) as error:
                raise _damaged(file, error) from None

    def read(self, name):
        """Returns a tensor as an array.

        Raises:
            CheckpointError: it is damaged: it does not hold what its checksum says.
        """
        file, tensors = self._open[name]
        try:
            array = tensors.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise _damaged(file, error) from None
        if name in self._checksums and self._checksums[name] != _checksum(array):
            raise CheckpointError(
                f"{file} is damaged: the tensor {name} does not match its checksum: fetch it again"
            )
        return array


def write_safetensors(path, tensors, metadata):
    """Writes a safetensors file, with a checksum of each tensor among its metadata.

    Args:
        path: the file.
        tensors: name → (shape, function that returns the float32 array).
        metadata: str → str, for other readers.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    header, end = {}, 0
    for name, (shape, _) in tensors.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    # Checksums are known only once the data is written: their place is kept.
    checksums = dict.fromkeys(tensors, "0" * 8)
    with writing(path):
        try:
            with open(part, "wb") as file:
                file.write(_header(header, metadata, checksums))
                for name, (shape, value) in tensors.items():
                    array = np.ascontiguousarray(value(), dtype="<f4")
                    if array.shape != tuple(shape):
                        raise ValueError(f"{name} is {array.shape}, not {shape}")
                    checksums[name] = _checksum(array)
                    file.write(array.data)
                file.seek(0)
                file.write(_header(header, metadata, checksums))
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _header(header, metadata, checksums):
    metadata = {**metadata, **{_CRC + name: crc for name, crc in checksums.items()}}
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return struct.pack("<Q", len(text)) + text


def _checksum(array):
    return f"{masked_crc(array.reshape(-1).view(np.uint8)):08x}"


def _shards(index):
    """Returns the files that an index names, all within its own folder."""
    try:
        files = list(dict.fromkeys(read_json(index)["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of shards: {first_line(error)}") from None
    for file in files:
        if not isinstance(file, str) or file in ("", "..") or Path(file).name != file:
            raise CheckpointError(
                f"{index} names the shard {file!r}: shards must lie beside their index"
            )
    return [index.with_name(file) for file in files]


def _damaged(file, error):
    return CheckpointError(
        f"{file} is damaged or no safetensors file: {first_line(error)}: fetch it again"
    )
