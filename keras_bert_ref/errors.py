"""What this library raises when the input, and not the library, is at fault.

Each message names the file, line, tensor or setting and says what to do; the command line prints it
without a stack trace. Every class is also the built-in error a caller would expect to catch.
"""

import sys
import warnings


class BertError(Exception):
    """Base of all errors of this library."""


class ConfigError(BertError, ValueError):
    """A setting that is unknown, out of range or at odds with another."""


class VocabularyError(BertError, ValueError):
    """A vocabulary that cannot be read or used."""


class CorpusError(BertError, ValueError):
    """Raw text that cannot be turned into training data."""


class RecordError(BertError, ValueError):
    """TFRecord shards that are damaged, or do not fit each other or the model."""


class OutputError(BertError, OSError):
    """An output place that is in use, or cannot be written."""


class CheckpointError(BertError, ValueError):
    """A checkpoint that is damaged, or does not fit the model or the run."""


class ExportError(BertError, ValueError):
    """A SavedModel that does not compute what its model does."""


class InputError(BertError, ValueError):
    """Text that cannot be read: of the wrong kind, or in a file of another kind."""


class BertWarning(UserWarning):
    """Base of all warnings of this library: something works, but its user should know of it."""

    @classmethod
    def issue(cls, message):
        """Warns, with the place in the code that called this library."""
        frame, level = sys._getframe(1), 2
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("keras_bert_ref"):
            frame, level = frame.f_back, level + 1
        warnings.warn(message, cls, stacklevel=level)


class CheckpointWarning(BertWarning):
    """A checkpoint does not say, or does not have, all that a model needs."""


class InputWarning(BertWarning):
    """A part of the input could not be used, and was passed over."""


class TruncationWarning(BertWarning):
    """Texts were longer than the model reads, and were cut."""


class DivergedError(BertError, ArithmeticError):
    """Training stopped because the loss was no longer finite."""


class WorkerError(BertError, ConnectionError):
    """A worker of a job of several cannot be reached, or has ended."""


class PreemptedError(BertError, InterruptedError):
    """Training was told to end (SIGTERM), and did so with its state saved."""
