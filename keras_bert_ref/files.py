"""Writing files whole or not at all, and saying what went wrong."""

import contextlib
import json
import os
from pathlib import Path

from keras_bert_ref.errors import CheckpointError, InputError, OutputError


@contextlib.contextmanager
def writing(place):
    """Turns what the system says while writing to `place` into an `OutputError` that names it."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{place} cannot be written: {error.strerror or error}") from None


@contextlib.contextmanager
def opening(place):
    """Turns what the system says while reading a checkpoint's file into a `CheckpointError`."""
    try:
        if not os.path.isfile(place) and os.path.exists(place):
            raise CheckpointError(f"{place} is no file")  # a pipe would be waited for
        yield
    except OSError as error:
        raise CheckpointError(f"{place} cannot be read: {error.strerror or error}") from None
    except (ValueError, OverflowError) as error:  # a name that no file can have
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{place!r} cannot be read: {first_line(error)}") from None


def read_json(path):
    """Returns the object that a JSON file of a checkpoint holds.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    with opening(path):
        content = Path(path).read_bytes()
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged: it holds no JSON object")
    return found


def replace_text(path, text):
    r"""Writes a UTF-8 text file with "\n" line ends under a temporary name, then renames it.

    Raises:
        OutputError: it cannot be written; an older file is untouched.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with writing(path):
        try:
            part.write_text(text, encoding="utf-8", newline="\n")
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def replace_figure(path, figure):
    """Writes a matplotlib figure under a temporary name, renames it, and closes the figure.

    Raises:
        OutputError: it cannot be written; an older file is untouched.
    """
    from matplotlib import pyplot

    path = Path(path)
    part = path.with_name(f"part.{path.name}")  # its ending tells the format
    with writing(path):
        figure.savefig(part, dpi=110)
        part.replace(path)
    pyplot.close(figure)


def parse_json(text, place):
    """Returns what a line of JSON says.

    Args:
        text: the line.
        place: where it stands, for the message.

    Raises:
        InputError: it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is no JSON: {first_line(error)}") from None


def first_line(error):
    """Returns the first line of an error's message, or its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
