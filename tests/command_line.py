"""Runs the command line in this process, for tests."""

import sys

from keras_bert_ref import cli


def run_command(monkeypatch, capsys, *arguments):
    """Returns the exit code, the output and the errors of `keras-bert-ref` with these arguments.

    In a fixture of a module there is no `capsys`, and what was printed is not known.
    """
    monkeypatch.setattr(sys, "argv", ["keras-bert-ref", *map(str, arguments)])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code or 0
    return code, *(capsys.readouterr() if capsys else (None, None))
