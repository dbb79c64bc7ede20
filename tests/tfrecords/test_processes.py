"""What becomes of processes and files when create_pretraining_data is not left in peace."""

import os
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import os, resource, signal, sys
from keras_bert_ref.errors import BertError, CorpusError
from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords.create import create_pretraining_data
from tfrecords.settings import InstanceSettings


class Dying(WordPieceTokenizer):
    def token_ids(self, text):
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does when memory is short


class Failing(WordPieceTokenizer):
    def token_ids(self, text):
        raise CorpusError("this text cannot be tokenized")


def told(phase, done, total):
    print(phase, done, flush=True)


def main():
    # As at a terminal: what starts the tests in the background may have told them to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes, limit, kind = int(sys.argv[1]), int(sys.argv[2]), globals()[sys.argv[3]]
    if limit:  # of the size of files, in bytes: stands in for a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        create_pretraining_data(
            "text.txt", kind.from_vocab("vocab.txt"), "out", InstanceSettings(dupe_factor=50),
            processes=processes, shards=20, progress=told,
        )
    except KeyboardInterrupt:
        print("interrupted")
    except BertError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def start(tmp_path, text_of, tokenizer):
    (tmp_path / "text.txt").write_text(text_of(100))
    tokenizer.save_vocabulary(tmp_path / "vocab.txt")

    def run(processes, limit=0, kind="WordPieceTokenizer", script=SCRIPT):
        (tmp_path / "main.py").write_text(script)
        return subprocess.Popen(
            [sys.executable, "main.py", str(processes), str(limit), kind],
            cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    return run


def alive(group):
    """The processes of a process group, without those that have ended."""
    lines = subprocess.run(["ps", "-eo", "pgid,stat"], capture_output=True, text=True).stdout
    return [
        line for line in lines.split("\n") if line.split()[:1] == [str(group)] and "Z" not in line
    ]


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_ends_all_processes_and_leaves_nothing(start, tmp_path, processes):
    process = start(processes)
    assert any(line.startswith("write") for line in iter(process.stdout.readline, ""))
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0].endswith("interrupted\n")
    assert wait_until(lambda: not alive(process.pid))
    assert sorted(os.listdir(tmp_path)) == ["main.py", "text.txt", "vocab.txt"]


def test_workers_do_not_outlive_a_killed_parent(start, tmp_path):
    process = start(2)
    assert any(line.startswith("write") for line in iter(process.stdout.readline, ""))
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not alive(process.pid))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("limit", [5_000, 60_000])  # too little for the store, for the shards
def test_a_full_disk_is_named_and_leaves_nothing(start, tmp_path, processes, limit):
    output = start(processes, limit).communicate(timeout=60)[0]
    assert output.splitlines()[-1].startswith("OutputError")
    assert "out" in output and "cannot be written" in output
    assert sorted(os.listdir(tmp_path)) == ["main.py", "text.txt", "vocab.txt"]


@pytest.mark.parametrize(
    "kind, message",
    [("Dying", "BertError A worker process"), ("Failing", "CorpusError this text cannot be")],
)
def test_a_failure_in_a_worker_leaves_nothing(start, tmp_path, kind, message):
    process = start(2, kind=kind)
    assert process.communicate(timeout=60)[0].splitlines()[-1].startswith(message)
    assert wait_until(lambda: not alive(process.pid))
    assert sorted(os.listdir(tmp_path)) == ["main.py", "text.txt", "vocab.txt"]


def test_a_script_without_a_protected_main_part_ends_with_advice(start, tmp_path):
    script = SCRIPT.replace('if __name__ == "__main__":\n    main()', "main()")
    output = start(2, script=script).communicate(timeout=60)[0]
    assert "BertError" in output and "if __name__ == " in output
    assert sorted(os.listdir(tmp_path)) == ["main.py", "text.txt", "vocab.txt"]
