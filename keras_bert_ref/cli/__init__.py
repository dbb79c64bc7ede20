"""The command line, `keras-bert-ref`: one module a group of commands.

Exit codes: 0 done, 1 an error that the message explains, 2 wrong usage or settings, 3 training
stopped because the loss was not finite, 75 training was told to end (SIGTERM) and can go on, 130
interrupted.
"""

import sys
import warnings

import typer
from rich.console import Console
from rich.markup import escape

from keras_bert_ref.errors import (
    BertError,
    BertWarning,
    ConfigError,
    DivergedError,
    PreemptedError,
)

app = typer.Typer(
    help="BERT for TensorFlow and Keras 3: from raw text to a pretrained encoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main():
    """Runs the command line; errors of input end in a sentence, not in a stack trace."""
    # Each module adds its commands.
    from keras_bert_ref.cli import (  # noqa: F401
        checkpoints,
        data,
        export,
        features,
        finetune,
        plan,
        pretrain,
        quickstart,
    )

    _show_warnings_as_lines()
    try:
        app()
    except BertError as error:
        codes = {ConfigError: 2, DivergedError: 3, PreemptedError: 75}
        _stop(error, codes.get(type(error), 1))
    except OSError as error:  # a place that the user named and the system refuses
        _stop(f"{error.filename}: {error.strerror}" if error.filename else error, 1)


def _show_warnings_as_lines():
    """Prints this library's warnings as lines of their own, without a place in the code."""
    usual = warnings.showwarning

    def show(message, category, *place, **options):
        if issubclass(category, BertWarning):
            Console(stderr=True).print(
                f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True
            )
        else:
            usual(message, category, *place, **options)

    warnings.showwarning = show


def _stop(error, code):
    Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    sys.exit(code)
