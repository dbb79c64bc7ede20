"""Committed features as a whole file of some format, block by block."""

import contextlib
import itertools
import zipfile

import numpy as np

from keras_bert_ref.features.reading import require_pyarrow

_BLOCK = 1 << 26  # bytes of vectors that are in memory at once while the file is made


def make_npz(whole, folder, done, size):
    def write(archive, name, dtype, shape, blocks):
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(block)

    with zipfile.ZipFile(whole, "w") as archive:
        with open(folder / "features", "rb") as file:
            shape = (done.vectors, *size)
            write(archive, "features", "<f4", shape, iter(lambda: file.read(1 << 20), b""))
        if "offsets" not in done.sizes:
            return
        with open(folder / "offsets", "rb") as file:
            blocks = itertools.chain([bytes(8)], iter(lambda: file.read(1 << 20), b""))
            write(archive, "offsets", "<i8", (done.rows + 1,), blocks)
        # NumPy's strings are all as wide as the longest.
        with _tokens(folder) as tokens:
            dtype = f"<U{max(map(len, tokens), default=1)}"
        with _tokens(folder) as tokens:
            blocks = (np.array(block, dtype).tobytes() for block in _batched(tokens, 1 << 14))
            write(archive, "tokens", dtype, (done.vectors,), blocks)


def make_hdf5(whole, folder, done, size):
    import h5py

    with h5py.File(whole, "w") as file:
        features = file.create_dataset("features", (done.vectors, *size), "<f4")
        first = 0
        with open(folder / "features", "rb") as source:
            for block in _vectors(source, size):
                features[first : first + len(block)] = block
                first += len(block)
        if "offsets" not in done.sizes:
            return
        offsets = file.create_dataset("offsets", (done.rows + 1,), "<i8")
        with open(folder / "offsets", "rb") as source:
            for first in range(1, done.rows + 1, 1 << 17):
                block = np.fromfile(source, "<i8", 1 << 17)
                offsets[first : first + len(block)] = block
        tokens = file.create_dataset("tokens", (done.vectors,), h5py.string_dtype())
        first = 0
        with _tokens(folder) as source:
            for block in _batched(source, 1 << 14):
                tokens[first : first + len(block)] = block
                first += len(block)


def make_parquet(whole, folder, done, size):
    pyarrow = require_pyarrow(whole)

    def tables():
        with open(folder / "features", "rb") as source:
            if "offsets" not in done.sizes:
                for block in _vectors(source, size):
                    yield pyarrow.table([parquet_vectors(block)], schema)
                return
            with _tokens(folder) as tokens:
                for ends in _row_ends(folder, _BLOCK // (4 * int(np.prod(size)))):
                    count = ends[-1] - ends[0]
                    block = np.fromfile(source, "<f4", count * int(np.prod(size)))
                    words = pyarrow.array(list(itertools.islice(tokens, count)), pyarrow.string())
                    ends = pyarrow.array((ends - ends[0]).astype(np.int32))
                    lists = [
                        pyarrow.ListArray.from_arrays(ends, array)
                        for array in (parquet_vectors(block.reshape(-1, *size)), words)
                    ]
                    yield pyarrow.table(lists, schema)

    schema = parquet_schema(size, lists="offsets" in done.sizes)
    # Vectors hardly repeat: looking for it takes time alone.
    with pyarrow.parquet.ParquetWriter(whole, schema, use_dictionary=False) as writer:
        for table in tables():
            writer.write_table(table)


def parquet_schema(size, *, lists):
    """Returns the columns of features: `features`, and `tokens` of lists of them.

    Args:
        size: the shape of a vector.
        lists: whether a row has a vector for each piece or word, or one.
    """
    import pyarrow

    vector = pyarrow.float32()
    for width in reversed(size):
        vector = pyarrow.list_(vector, width)
    if not lists:
        return pyarrow.schema({"features": vector})
    return pyarrow.schema(
        {"features": pyarrow.list_(vector), "tokens": pyarrow.list_(pyarrow.string())}
    )


def parquet_vectors(values):
    """Returns float32 [n, *size] as an Arrow array of n vectors."""
    import pyarrow

    array = pyarrow.array(values.ravel())
    for width in reversed(values.shape[1:]):
        array = pyarrow.FixedSizeListArray.from_arrays(array, width)
    return array


def _vectors(file, size):
    """Yields all vectors of a file in arrays [n, *size]."""
    width = int(np.prod(size))
    count = max(1, _BLOCK // (4 * width)) * width
    while len(block := np.fromfile(file, "<f4", count)):
        yield block.reshape(-1, *size)


def _row_ends(folder, most):
    """Yields n + 1 offsets at a time, of n rows that have `most` vectors, or one that has more."""
    ends = np.zeros(1, np.int64)
    with open(folder / "offsets", "rb") as file:
        while len(more := np.fromfile(file, "<i8", 4096)):
            ends = np.concatenate([ends[-1:], more])
            while len(ends) > 1:
                last = max(1, int(np.searchsorted(ends, ends[0] + most, "right")) - 1)
                yield ends[: last + 1]
                ends = ends[last:]


@contextlib.contextmanager
def _tokens(folder):
    """Opens the tokens, one after the other."""
    with open(folder / "tokens", encoding="utf-8", newline="\n") as file:
        yield (line[:-1] for line in file)


def _batched(values, count):
    while block := list(itertools.islice(values, count)):
        yield block
