"""Who does a command's work: this machine's processes, or an Apache Beam pipeline."""

import shlex
from typing import Annotated

import typer

from keras_bert_ref.errors import ConfigError

Runner = Annotated[
    str, typer.Option(help="local, or beam: Apache Beam, for Flink, Spark, Dataflow.")
]
BeamOptions = Annotated[
    str, typer.Option(help="Beam's own, such as '--runner=FlinkRunner --flink_master=…'.")
]


def make_runner(name, options, processes=1):
    """Returns a `BeamRunner`, or None for this machine.

    Raises:
        ConfigError: the name is unknown, or the options are none of it.
    """
    if name not in ("local", "beam"):
        raise ConfigError(f"runner {name!r} is unknown: choose local or beam")
    if name == "local":
        if options:
            raise ConfigError("--beam-options are of --runner beam: name it")
        return None
    from tfrecords.beam import BeamRunner

    try:
        options = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"--beam-options cannot be read: {error}") from None
    return BeamRunner(options, processes)
