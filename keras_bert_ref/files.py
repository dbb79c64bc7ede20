"""Writing files whole or not at all, and saying what went wrong."""

import contextlib
import json
import os
import re
import shutil
import uuid
from pathlib import Path

from keras_bert_ref.errors import CheckpointError, InputError, OutputError

_OF_TENSORFLOW = re.compile(r"^\{\{function_node [^}]*\}\} | \[Op:\w+\]")


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


@contextlib.contextmanager
def replacing_folder(folder, known, overwrite):
    """Yields a folder to write to, which appears under its name when all went well, or not at all.

    Args:
        folder: the folder to make.
        known: the names that it may hold already to be replaced, see `check_free`.
        overwrite: whether what is found there is replaced.

    Raises:
        OutputError: it is in use, or cannot be written.
    """
    folder = check_free(folder, known, overwrite)
    # Names of its own: another that writes the same folder does not get in the way.
    mark = uuid.uuid4().hex[:8]
    part, old = (folder.with_name(f".{folder.name}.{mark}.{end}") for end in ("part", "old"))
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        with writing(folder):
            part.mkdir(parents=True)
        yield part
        with writing(folder):
            if folder.exists():
                check_free(folder, known, overwrite)  # once more: much may have happened meanwhile
                folder.rename(old)
            part.rename(folder)
    except BaseException as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(part, ignore_errors=True)
        with contextlib.suppress(OSError):  # in use by now
            for parent in made:
                parent.rmdir()
        if isinstance(error, OutputError):
            raise OutputError(str(error).replace(str(part), str(folder))) from None
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def check_free(folder, known, overwrite):
    """Returns the place of a folder that may be written.

    Args:
        folder: its path.
        known: names of files that are replaced; a folder that holds any other is in use.
        overwrite: whether they are.

    Raises:
        OutputError: it is in use, or exists and may not be replaced.
    """
    try:
        folder = Path(folder).expanduser().resolve()
        str(folder).encode()  # TensorFlow's names of files are UTF-8
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        taken = folder.exists() and not folder.is_dir()
    except (OSError, ValueError) as error:
        place = str(folder).encode(errors="replace").decode()
        raise OutputError(f"{place} cannot be written: {first_line(error)}") from None
    if taken:
        raise OutputError(f"{folder} is a file: choose another place")
    if folder == Path.cwd():
        raise OutputError(f"{folder} is the current folder: name one within it")
    if foreign := [name for name in found if name not in known]:
        raise OutputError(
            f"{folder} is in use and holds {', '.join(foreign[:3])}: choose another folder"
        )
    if found and not overwrite:
        raise OutputError(f"{folder} exists: choose another folder, or allow overwriting")
    return folder


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
    """Returns the first line of an error's message, or its class where it has none.

    TensorFlow's names of its own operations and functions are left out.
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _OF_TENSORFLOW.sub("", line) or line
