"""The one place that imports TensorFlow and Keras: quietly, and with the right backend.

TensorFlow's C++ side writes start-up notes (oneDNN, missing CUDA drivers, CPU features) straight to
file descriptor 2, before any log level applies. They are dropped here; anything else written
meanwhile is passed on.
"""

import contextlib
import os
import platform
import re
import sys
import tempfile

from keras_bert_ref.errors import ConfigError

# glog/absl prefixes ("I0000 00:00:…", "E0000 …", "2026-… : I tensorflow/…") and their continuation.
_NOISE = re.compile(
    rb"^([IWE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|WARNING: All log messages before absl::InitializeLog|To enable the following instructions:)"
)


@contextlib.contextmanager
def _without_startup_notes():
    try:
        stderr = os.dup(2)
    except OSError:  # no stderr at all: nothing to keep clean
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            rest = [line for line in held if not _NOISE.match(line)]
            with contextlib.suppress(OSError):
                os.write(2, b"".join(rest))


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if platform.machine() in ("x86_64", "AMD64"):
    # TensorFlow leaves oneDNN off where there is no AVX-512, and its own small matrix products are
    # a good deal slower there (docs/serving.md has figures).
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
if os.environ.setdefault("KERAS_BACKEND", "tensorflow") != "tensorflow":
    raise ConfigError(
        f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}: keras_bert_ref runs on TensorFlow; "
        "unset the variable or set it to 'tensorflow' before Keras is imported."
    )
with _without_startup_notes():
    import keras
    import tensorflow as tf

    tf.config.list_physical_devices()  # the CUDA probe writes its note here, not at import
if keras.backend.backend() != "tensorflow":
    raise ConfigError(
        f"Keras was imported with the {keras.backend.backend()!r} backend: keras_bert_ref runs on "
        "TensorFlow; set KERAS_BACKEND=tensorflow before the first import of Keras."
    )


def frozen(function):
    """Returns a concrete function with the values of its variables as constants."""
    from tensorflow.python.framework import convert_to_constants

    return convert_to_constants.convert_variables_to_constants_v2(
        function, lower_control_flow=False
    )


def tell_other_processes(message):
    """Makes what the other processes of a job wait for end, with this message."""
    from tensorflow.python.eager import context

    with contextlib.suppress(tf.errors.OpError, ValueError):  # no job, or none left
        context.context().report_error_to_cluster(tf.errors.ABORTED, message)


__all__ = ["frozen", "keras", "tell_other_processes", "tf"]
