"""Where a model trains: one device, all devices of a machine, several machines, or TPUs."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, WorkerError

STRATEGIES = ("auto", "one-device", "mirrored", "multi-worker", "tpu")
_LONGEST_TIMEOUT = 1_000_000  # in seconds: eleven days


def make_strategy(name="auto", *, tpu=None, timeout=600):
    """Returns the `tf.distribute` strategy to build and train a model under.

    Several workers must make theirs before anything else of TensorFlow runs in the process.

    Args:
        name: "one-device" (the first GPU, else the CPU), "mirrored" (all GPUs of this machine),
            "multi-worker" (all devices of the workers that `TF_CONFIG` names), "tpu", or "auto":
            the first that applies of "tpu" where one is named, "multi-worker" where `TF_CONFIG`
            names several, "mirrored" where there are several GPUs, and "one-device".
        tpu: the TPU's name or address; "local" for those of this machine.
        timeout: seconds to wait for other workers. One that is lost while TensorFlow itself starts
            ends this process by SIGKILL when they are over.

    Raises:
        ConfigError: the name is unknown, `TF_CONFIG` or the timeout is wrong, or there is no such
            TPU.
        WorkerError: a worker cannot be reached.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy {name!r} is unknown: choose one of {', '.join(STRATEGIES)}")
    if not 0 < timeout <= _LONGEST_TIMEOUT:
        raise ConfigError(
            f"the timeout of workers must be above 0 and at most {_LONGEST_TIMEOUT:,} s, "
            f"not {timeout:g}"
        )
    if tpu is not None and name not in ("auto", "tpu"):
        raise ConfigError(f"a TPU is named, but the strategy is {name}: leave one of them out")
    if name == "tpu" or tpu is not None:
        return _tpu_strategy(tpu)
    cluster = Cluster.from_environment() if name in ("auto", "multi-worker") else None
    if name == "multi-worker" or (cluster and len(cluster.workers) > 1):
        return _multi_worker_strategy(cluster, timeout)
    gpus = tf.config.list_logical_devices("GPU")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a job, as the environment variable `TF_CONFIG` names them.

    Attributes:
        workers: host:port of each, the first (the chief, if there is one) before the others.
        index: which of them this process is.
    """

    workers: tuple[str, ...]
    index: int

    @classmethod
    def from_environment(cls):
        """Returns what `TF_CONFIG` says; None where it is not set.

        Raises:
            ConfigError: it is not of the form that TensorFlow documents.
        """
        text = os.environ.get("TF_CONFIG")
        if not text:
            return None
        form = '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'

        def wrong(fault):
            return ConfigError(f"TF_CONFIG {fault}: it must look like {form}, not {text}")

        try:
            content = json.loads(text)
        except ValueError:
            raise wrong("is no JSON") from None
        cluster = content.get("cluster") if isinstance(content, dict) else None
        task = content.get("task") if isinstance(content, dict) else None
        if not isinstance(cluster, dict) or not isinstance(task, dict):
            raise wrong("lacks cluster or task")
        if others := cluster.keys() - {"chief", "worker"}:
            raise wrong(f"has {', '.join(sorted(others))}, which no training here uses")
        jobs = {job: cluster.get(job, []) for job in ("chief", "worker")}
        for addresses in jobs.values():
            if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
                raise wrong("has an address that is not host:port")
        if "chief" in cluster and not jobs["chief"]:
            raise wrong("has an empty list of chiefs")
        workers = (*jobs["chief"], *jobs["worker"])
        if len(set(workers)) != len(workers):
            raise wrong("names an address twice")
        kind, index = task.get("type"), task.get("index")
        if kind not in jobs or type(index) is not int or not 0 <= index < len(jobs[kind]):
            raise wrong(f"has the task {kind!r} {index!r}, which its cluster does not have")
        return cls(workers, index + (len(jobs["chief"]) if kind == "worker" else 0))

    def wait(self, timeout):
        """Waits until every worker listens.

        TensorFlow itself waits for ever, in a call that nothing interrupts. So each worker first
        listens, with a plain socket, where TensorFlow will, and tries all others. Who finds them
        all leaves; TensorFlow's server, listening at the same place, answers those still waiting.

        Args:
            timeout: in seconds.

        Raises:
            WorkerError: the time is over; the workers that do not answer are named.
        """
        end = time.monotonic() + timeout
        missing = [n for n in range(len(self.workers)) if n != self.index]
        port = int(self.workers[self.index].rpartition(":")[2])
        try:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            here = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        except OSError as error:
            raise WorkerError(
                f"worker {self.index} cannot listen at {self.workers[self.index]}: "
                f"{error.strerror}; another process, such as a run that has not ended yet, may "
                "use the port"
            ) from None
        with here:
            while missing := [n for n in missing if not _answers(self.workers[n])]:
                if time.monotonic() > end:
                    names = ", ".join(f"{n} ({self.workers[n]})" for n in missing)
                    raise WorkerError(
                        f"after {timeout:g} s there is no answer from worker {names}: start all "
                        "workers within that time, with the same cluster in TF_CONFIG"
                    )
                time.sleep(0.2)


def _is_address(address):
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return bool(host) and port.isdecimal() and 0 < int(port) < 1 << 16


def _answers(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def _multi_worker_strategy(cluster, timeout):
    if cluster is None:
        raise ConfigError(
            "the strategy multi-worker needs TF_CONFIG in the environment of each worker: see "
            "docs/scale.md"
        )
    cluster.wait(timeout)
    try:
        with _ending_after(
            timeout,
            f"after {timeout:g} s TensorFlow has not found all workers, though each has answered: "
            "one has ended since. See what it printed itself, and start all again",
        ):
            return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise ConfigError(
            f"the strategy of several workers must be made before TensorFlow is used: {error}"
        ) from None


@contextlib.contextmanager
def _ending_after(timeout, reason):
    """Ends the process if the block takes longer, having printed the reason.

    TensorFlow waits for ever for a worker that ended after it had answered here, in a call that
    lets no other thread of Python run. So another process looks on.
    """
    watch = subprocess.Popen(
        [sys.executable, "-SE", "-c", _WATCH, str(os.getpid()), str(timeout), reason],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it
    )
    try:
        yield
    finally:
        watch.stdin.close()
        watch.wait()


_WATCH = """
import os, select, signal, sys
process, timeout, reason = sys.argv[1:]
if not select.select([0], [], [], float(timeout))[0]:  # closed, too, where the process has ended
    print("WorkerError:", reason, file=sys.stderr, flush=True)
    os.kill(int(process), signal.SIGKILL)
"""


def _tpu_strategy(tpu):
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        name = "no TPU" if tpu is None else f"no TPU {tpu!r}"
        raise ConfigError(
            f"there is {name} here: {str(error).splitlines()[0]} (a TPU's name, its address, or "
            "local for this machine's)"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


def whole_step_compiles():
    """Returns whether XLA is asked to compile the whole step: on GPU it is the fast path.

    On CPU it is not, and on TPU every step is compiled anyway.
    """
    return bool(tf.config.list_logical_devices("GPU"))


def fast_precision():
    """Returns the dtype policy that trains fastest on this machine's first device.

    bfloat16 where there are units for it (TPU, NVIDIA from compute capability 8, CPUs with AMX or
    AVX512-BF16), else float32.
    """
    if tf.config.list_physical_devices("TPU"):
        return "mixed_bfloat16"
    if gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        fast = details.get("compute_capability", (0, 0)) >= (8, 0)
    else:
        try:
            flags = Path("/proc/cpuinfo").read_text()
        except OSError:
            flags = ""
        fast = "amx_bf16" in flags or "avx512_bf16" in flags
    return "mixed_bfloat16" if fast else "float32"
