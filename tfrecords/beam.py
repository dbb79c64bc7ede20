"""Work spread over machines: `ordered_map` as an Apache Beam pipeline.

Beam runs the same pipeline in this process, in several of this machine, or on Flink, Spark or
Dataflow, which start workers, try again what failed, and know nothing of tokens. All workers must
see one file system: a corpus's store is read at random places, and that is where it lies.
"""

import contextlib
import dataclasses
import functools
import io
import logging
import os
import pickle
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_bert_ref import errors
from keras_bert_ref.errors import BertError, BertWarning, ConfigError, OutputError

# How Beam tells of an error that a worker raised, and what it adds to it.
_OURS = re.compile(r"keras_bert_ref\.errors\.(?P<kind>\w+): (?P<message>.*)")
_WHERE = re.compile(r" \[while running [^\]]*\]$")
_RAISED = re.compile(r"(Caused by: )?[\w.$]+(Error|Exception)\b")

_SECONDS_BETWEEN_LOOKS = 2.0


class BeamRunner:
    """Runs a task over items as a Beam pipeline.

    Args:
        options: Beam's own, such as `["--runner=FlinkRunner", "--flink_master=host:8081"]`. Without
            `--runner`, the pipeline runs on this machine. What Beam does not know it passes over,
            with a warning.
        processes: Of this machine, where no runner is named.

    Raises:
        ConfigError: Apache Beam is not installed, an option has a value that it cannot have, or
            processes are asked for where a runner is named.
    """

    def __init__(self, options: Sequence[str] = (), processes: int = 1):
        try:
            with quietly():
                from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        except ImportError:
            raise ConfigError(
                "the runner beam needs Apache Beam: pip install 'keras-bert-ref[beam]'"
            ) from None
        options = list(options)
        local = not any(option.split("=")[0] == "--runner" for option in options)
        if local and processes > 1:
            options += [
                f"--direct_num_workers={processes}",
                "--direct_running_mode=multi_processing",
            ]
        elif processes > 1:
            raise ConfigError(
                "processes are of this machine: a runner that is named has options of its own, "
                "such as --parallelism or --num_workers"
            )
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):  # argparse prints, and exits
                self._options = PipelineOptions(options)
                self._options.get_all_options()  # reads them all
                named = self._options.view_as(StandardOptions).runner
        except (SystemExit, ValueError) as error:
            reason = said.getvalue().strip().splitlines()[-1:] or [str(error)]
            raise ConfigError(f"Beam cannot read its options: {reason[0]}") from None
        # By name: Beam's own default downloads a program.
        self._runner = "FnApiRunner" if local else None
        self.name = self._runner or named

    def __call__(
        self,
        task: Callable,
        items: Sequence,
        folder: Path,
        report: Callable[[int], None] = lambda number: None,
    ) -> list:
        """Returns `task(item)` for each item, in order.

        Args:
            task: Picklable; loaded once by each worker.
            items: Picklable.
            folder: On the file system that all workers see; what passes through it is deleted.
            report: Called, from another thread, with the number of each item that is done.

        Raises:
            BertError: What the task raised, or that the pipeline failed.
            OutputError: The workers do not see `folder`.
        """
        import apache_beam

        mark = uuid.uuid4().hex[:8]
        results = Path(folder, f"results-{mark}")
        results.mkdir()
        task_file = results / "task.pickle"
        task_file.write_bytes(pickle.dumps(task))
        run = _Run(str(task_file), str(results))

        def build(pipeline):
            numbered = pipeline | apache_beam.Create(list(enumerate(items)))
            _ = numbered | apache_beam.Reshuffle() | apache_beam.Map(run)

        with _watching(results, len(items), report):
            self.run(build)
        found = []
        for number in range(len(items)):
            try:
                result = pickle.loads((results / f"{number}.pickle").read_bytes())
            except FileNotFoundError:
                raise no_shared_files(folder) from None
            if isinstance(result, Exception):
                raise result
            found.append(result)
        shutil.rmtree(results, ignore_errors=True)  # a worker that was given up may still write
        return found

    def run(self, build: Callable):
        """Runs the pipeline that `build(pipeline)` makes, to its end; returns its result.

        Interrupted, it asks the runner to end the pipeline, and warns where that cannot be.

        Raises:
            BertError: It failed: what a worker raised, where Beam tells.
        """
        with quietly():
            import apache_beam
            from apache_beam.runners.runner import PipelineState

        pipeline = None
        try:
            with quietly():
                pipeline = apache_beam.Pipeline(options=self._options, **self._named_runner())
                with pipeline:
                    build(pipeline)
                # Beam's own options may say not to; but what follows needs what it makes.
                pipeline.result.wait_until_finish()
                state = pipeline.result.state
        except Exception as error:
            raise self._told(error) from error
        except BaseException:
            if self._runner is None:  # elsewhere: a local one ends with this process
                self._cancel(pipeline)
            raise
        if state != PipelineState.DONE:
            raise BertError(f"the Beam pipeline on {self.name} ended, but is {state}")
        return pipeline.result

    def _cancel(self, pipeline):
        try:
            pipeline.result.cancel()
        except Exception:  # not begun, or its job server, which Ctrl-C is for too, ended first
            BertWarning.issue(
                f"the pipeline could not be cancelled, and may go on: look for it on {self.name}"
            )

    def _told(self, error):
        """Returns what a worker raised, as this library's own error; else that Beam failed."""
        if isinstance(error, BertError):  # of this process
            return type(error)(_WHERE.sub("", str(error)))
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The last error of a traceback, which frames of Java may follow.
        raised = [line for line in lines if _RAISED.match(line)] or lines or [repr(error)]
        reason = _WHERE.sub("", raised[-1])
        if told := _OURS.search(reason):
            kind = getattr(errors, told["kind"], None)
            if isinstance(kind, type) and issubclass(kind, BertError):
                return kind(told["message"])
        return BertError(f"the Beam pipeline failed on {self.name}: {reason}")

    def _named_runner(self):
        if self._runner is None:
            return {}
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        return {"runner": FnApiRunner()}


def no_shared_files(folder: Path) -> OutputError:
    """Returns what to raise where a pipeline has ended, but what it wrote is not here."""
    return OutputError(
        f"{folder} does not hold what the workers wrote: it must be on a file system that they all "
        "and this machine see, under the same path"
    )


@contextlib.contextmanager
def quietly():
    """Keeps from the screen what Beam says of parts of it that are not there.

    It says so through its own loggers and the root one; what others say is let through.
    """
    root = logging.getLogger()
    # Of options that it passes over, it should warn.
    own = {"apache_beam": logging.ERROR, "apache_beam.options": logging.WARNING}
    before = {name: logging.getLogger(name).level for name in own}
    for name, level in own.items():
        logging.getLogger(name).setLevel(level)
    root.addFilter(_is_error)
    try:
        yield
    finally:
        root.removeFilter(_is_error)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _is_error(record):
    return record.levelno >= logging.ERROR


@contextlib.contextmanager
def _watching(results, count, report):
    """Reports results as their files appear, and all that there are at the end."""
    waiting, ended = {f"{number}.pickle": number for number in range(count)}, threading.Event()

    def look():
        for name in sorted(waiting.keys() & os.listdir(results)):
            report(waiting.pop(name))

    def look_on():
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            look()

    thread = threading.Thread(target=look_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    look()


@dataclasses.dataclass
class _Run:
    """Runs the task on an item, in any worker; the result is a file, which appears as a whole."""

    task_file: str
    results: str

    def __call__(self, numbered):
        number, item = numbered
        if not os.path.isdir(self.results):
            raise no_shared_files(Path(self.results).parent)
        try:
            result = _load(self.task_file)(item)
        except BertError as error:  # not for Beam to try again: the driver raises it
            result = error
        part = Path(self.results, f".{number}.{uuid.uuid4().hex[:8]}")
        part.write_bytes(pickle.dumps(result))
        os.replace(part, Path(self.results, f"{number}.pickle"))


@functools.lru_cache(maxsize=1)
def _load(task_file):
    return pickle.loads(Path(task_file).read_bytes())
