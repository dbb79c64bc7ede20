"""What has been computed about texts, on disk, so that no text is read twice."""

import contextlib
import sqlite3
import time
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import OutputError

_FILE = "features-1.sqlite"  # the number is that of what is stored
_AT_ONCE = 500  # keys of one query
_PATIENCE = 60  # seconds to wait for others that use the table


class FeatureCache:
    """A table from keys to dicts of arrays, shared by processes and threads.

    SQLite sees to it that a reader never meets half of a write, whatever happens to the writer.

    Args:
        folder: where the table is kept; made if it is not there.

    Raises:
        OutputError: the folder cannot be written, or what lies there is no such table.
    """

    def __init__(self, folder):
        self.path = Path(folder) / _FILE
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._transaction(_create)

    def get(self, keys):
        """Returns key → dict of arrays for those of `keys` that are there."""
        keys = list(keys)

        def read(connection):
            found = {}
            for first in range(0, len(keys), _AT_ONCE):
                some = keys[first : first + _AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, value FROM features WHERE key IN ({marks})"
                found |= {key: _unpack(value) for key, value in connection.execute(query, some)}
            return found

        return self._transaction(read)

    def put(self, values):
        """Stores key → dict of float32 arrays, all of them or none."""
        rows = [(key, _pack(arrays)) for key, arrays in values.items()]
        self._transaction(
            lambda connection: connection.executemany(
                "INSERT OR REPLACE INTO features VALUES (?, ?)", rows
            )
        )

    def _transaction(self, work):
        """Returns `work(connection)`, tried again while others hold the table."""
        end = time.monotonic() + _PATIENCE
        with self._errors():
            while True:
                try:
                    connection = sqlite3.connect(self.path, timeout=_PATIENCE)
                    with contextlib.closing(connection), connection:
                        return work(connection)
                except sqlite3.OperationalError as error:
                    # SQLite's own patience does not go for all it does: not for the switch to
                    # WAL, nor for a reader that comes as the last other one clears up.
                    busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                    if not busy or time.monotonic() > end:
                        raise
                    time.sleep(0.02)

    @contextlib.contextmanager
    def _errors(self):
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise OutputError(
                f"{self.path} cannot be used: {error}: delete it, or choose another folder"
            ) from None
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from None


def _create(connection):
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB)")


def _pack(arrays):
    head = ";".join(f"{name}:{','.join(map(str, a.shape))}" for name, a in arrays.items())
    data = b"".join(np.ascontiguousarray(a, np.float32).tobytes() for a in arrays.values())
    return head.encode() + b"\n" + data


def _unpack(value):
    head, data = value.split(b"\n", 1)
    arrays, place = {}, 0
    for part in head.decode().split(";"):
        name, shape = part.split(":")
        shape = tuple(map(int, shape.split(",")))
        size = int(np.prod(shape))
        arrays[name] = np.frombuffer(data, np.float32, size, place).reshape(shape)
        place += 4 * size
    return arrays
