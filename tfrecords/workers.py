"""Work spread over processes: results in order, a bounded number under way, no orphans."""

import collections
import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from keras_bert_ref.errors import BertError
from keras_bert_ref.files import writing

_task = None
_stopped = None


class StoppedError(Exception):
    """Another process has failed, so this result is no longer wanted."""


def ordered_map(task: Callable, items: Iterable, processes: int) -> Iterator:
    """Yields `task(item)` for each item, in order.

    Close the iterator (`contextlib.closing`) when leaving it early: it then waits for the workers,
    which give up at their next `check_running()`.

    Args:
        task: Sent to each worker once, so it may hold state that is dear to make. Must be picklable
            if there are several processes.
        items: Drawn only a few ahead of the results.
        processes: With 1 all work is done in this process.

    Raises:
        BertError: A worker died.
        OutputError: There is no room for a temporary file.
    """
    if processes == 1:
        yield from map(task, items)
        return
    # A fork would copy TensorFlow's threads in an unknown state, if the caller has loaded it.
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    # By a file: if a worker dies while it starts, Python waits for ever to hand it more than the
    # 64 KiB a pipe holds.
    with (
        writing("A temporary file ($TMPDIR)"),
        tempfile.NamedTemporaryFile(delete=False) as file,
    ):
        pickle.dump(task, file)
    pool = ProcessPoolExecutor(processes, context, _start, (file.name, stopped))
    pending = collections.deque()
    try:
        for item in items:
            pending.append(pool.submit(_run, item))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise BertError(
            "A worker process ended before its work was done: it was killed (out of memory?), or "
            "the calling script does not protect its main part by `if __name__ == '__main__':`."
        ) from None
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
        os.unlink(file.name)


def check_running() -> None:
    """Raises `StoppedError` in a worker whose result is no longer wanted."""
    if _stopped is not None and _stopped.is_set():
        raise StoppedError


def _start(task_file, stopped):
    global _task, _stopped
    _stopped = stopped
    with open(task_file, "rb") as file:
        _task = pickle.load(file)
    with contextlib.suppress(ValueError):  # Ctrl-C reaches every process: the parent handles it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def _run(item):
    check_running()
    return _task(item)
