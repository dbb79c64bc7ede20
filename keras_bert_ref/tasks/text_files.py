"""Files of a row a line, as data sets come in them."""

from pathlib import Path

from keras_bert_ref.errors import InputError


def numbered_lines(path):
    r"""Yields (number, text) for the lines of a UTF-8 file, from 1, divided at "\n" alone.

    Raises:
        InputError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            yield number, line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {number}: not UTF-8; convert the file") from None


def tsv_rows(path, columns=None, strict=True):
    """Yields (line number, column → value) for a file of tab-separated values.

    Quotes mean nothing, as in GLUE's files, where they do not balance. Blank lines are passed over.

    Args:
        path: the file.
        columns: the names of its columns; None for a file whose first line names them.
        strict: whether a line with too few or too many values is an error; else its row is None.

    Raises:
        InputError: the file cannot be read, or a line is wrong.
    """
    for number, line in numbered_lines(path):
        values = line.split("\t")
        if columns is None:
            columns = values
        elif line.strip():
            right = len(values) == len(columns)
            if strict and not right:
                raise InputError(
                    f"{path}, line {number}: {len(values)} values, but there are {len(columns)} "
                    f"columns ({', '.join(columns)})"
                )
            yield number, dict(zip(columns, values, strict=True)) if right else None
