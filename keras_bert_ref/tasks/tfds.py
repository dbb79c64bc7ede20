"""Data sets of tensorflow-datasets, as examples of a task."""

import contextlib
import logging

import numpy as np

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.files import first_line


def read_tfds(task, name, split):
    """Returns the examples of a split of a data set, which is downloaded if it is not there.

    Args:
        task: a `Task` with `from_tfds`.
        name: such as "glue/mrpc".
        split: one of `task.tfds_splits`.

    Raises:
        ConfigError: tensorflow-datasets is not installed, or the task does not read it.
        InputError: there is no such data set or split, it cannot be downloaded, or it is not the
            task's.
    """
    if split not in task.tfds_splits:
        raise InputError(
            f"{task.name} has no split {split!r} in tensorflow-datasets; it has "
            f"{', '.join(task.tfds_splits)}"
        )
    with open_tfds(name, task.tfds_splits[split], task.name) as (rows, info):
        return task.from_tfds(rows, info, split)


@contextlib.contextmanager
def open_tfds(name, split, reader):
    """Yields the rows of a split, dicts of plain values, and tensorflow-datasets' info on the set.

    Args:
        name: such as "glue/mrpc".
        split: as tensorflow-datasets names it.
        reader: who reads, for the message where a row lacks what is read.

    Raises:
        ConfigError: tensorflow-datasets is not installed.
        InputError: there is no such data set or split, it cannot be downloaded, or it is damaged.
    """
    tfds = _tensorflow_datasets()
    place = f"tfds:{name}"
    with _quiet(tfds):
        try:
            data, info = tfds.load(name, split=split, with_info=True)
        except tfds.core.DatasetNotFoundError:
            raise InputError(f"{place}: tensorflow-datasets has no such data set") from None
        except ValueError as error:  # a name, a configuration or a split that is not there
            raise InputError(f"{place} cannot be read: {first_line(error)}") from None
        except Exception as error:  # whatever a download comes to
            raise InputError(
                f"{place} is not on this machine and cannot be downloaded and prepared: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from None
        yield _rows(tfds.as_numpy(data), place, reader), info


def _rows(data, place, reader):
    try:
        for row in data:
            yield _Row(_plain(row), place, reader)
    except Exception as error:  # whatever a damaged file comes to
        raise InputError(f"{place} is damaged: {first_line(error)}") from None


class _Row(dict):
    """A row that says so when it is asked for what it has not."""

    def __init__(self, values, place, reader):
        super().__init__(values)
        self._place, self._reader = place, reader

    def __missing__(self, key):
        raise InputError(
            f"{self._place} has no {key!r}, which {self._reader} reads; it has {', '.join(self)}"
        )


def _tensorflow_datasets():
    import keras_bert_ref._tensorflow  # noqa: F401 (quietly, before the other does it)

    try:
        import tensorflow_datasets
    except ImportError:
        raise ConfigError(
            "tfds: data needs tensorflow-datasets: pip install 'keras-bert-ref[tfds]'"
        ) from None
    return tensorflow_datasets


@contextlib.contextmanager
def _quiet(tfds):
    """Without progress bars, and without notes below an error."""
    tfds.disable_progress_bar()
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow", "urllib3")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _plain(value):
    """Returns arrays and bytes, in dicts and lists too, as lists, numbers and strings."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value
