"""Several devices and several processes: one mathematics, and defined ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small_data import make_data

from keras_bert_ref import BertConfig, BertPretrainer
from keras_bert_ref.errors import ConfigError, WorkerError
from keras_bert_ref.run_folder import read_metrics
from keras_bert_ref.strategies import Cluster, make_strategy

PROGRAM = Path(__file__).parents[1] / "training_process.py"


def free_ports(count):
    with contextlib.ExitStack() as open_:
        sockets = [open_.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def start(folder, settings, *, worker=None, ports=()):
    """Starts the program, as one of the workers at `ports` or alone."""
    if worker is not None:
        settings = {"strategy": "multi-worker", **settings}
    return start_python("-P", PROGRAM, folder, json.dumps(settings), worker=worker, ports=ports)


def start_python(*arguments, worker=None, ports=()):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_CONFIG", None)
    if worker is not None:
        cluster = {"worker": [f"localhost:{port}" for port in ports]}
        task = {"type": "worker", "index": worker}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_two(folder, settings, others=None):
    ports = free_ports(2)
    each = (settings, {**settings, **(others or {})})
    return [start(folder, one, worker=n, ports=ports) for n, one in enumerate(each)]


def ended(process, seconds=300):
    """Returns the exit code, output and errors of a process that must end by itself."""
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output, errors


def succeed(*processes):
    for process in processes:
        code, _, errors = ended(process)
        assert code == 0, errors[-3000:]


def wait_for_step(process, step, seconds=300):
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if line.split() and int(line.split()[-1]) >= step:
                return
    finally:
        timer.cancel()
    raise AssertionError(process.stderr.read()[-3000:])


def weights(folder):
    with np.load(folder / "weights.npz") as stored:
        return [stored[name] for name in stored.files]


@pytest.mark.slow
def test_devices_workers_and_micro_batches_train_as_one(tmp_path):
    """The same losses, metrics and weights over twenty steps, however the work is divided."""
    every = {"log_every": 1, "evaluate_every": 10}
    alone = start(tmp_path / "one", {"parts": [1, 2, 4], **every})
    mirrored = {"strategy": "mirrored", "devices": 2, "parts": [1, 4], **every}
    succeed(alone, start(tmp_path / "mirrored", mirrored))
    succeed(*start_two(tmp_path / "workers", {"parts": [1, 4], **every}))
    expected = weights(tmp_path / "one/1")
    lines = read_metrics(tmp_path / "one/1/metrics.jsonl")
    assert len(lines) == 22
    for way in ("one/2", "one/4", "mirrored/1", "mirrored/4", "workers/1", "workers/4"):
        for left, right in zip(expected, weights(tmp_path / way), strict=True):
            if np.issubdtype(left.dtype, np.floating):  # each micro-batch draws seeds of its own
                np.testing.assert_allclose(left, right, atol=3e-5)
        for left, right in zip(lines, read_metrics(tmp_path / way / "metrics.jsonl"), strict=True):
            assert left.pop("split") == right.pop("split"), way
            assert left == pytest.approx(right, rel=1e-4), way
        lines = read_metrics(tmp_path / "one/1/metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_worker_ends_the_others_and_the_job_goes_on(tmp_path, number):
    every = {"checkpoint_every": 5, "log_every": 5, "dropout": 0.1}
    succeed(*start_two(tmp_path / "whole", every))

    pair = start_two(tmp_path / "parts", {**every, "pause": 0.3})
    killed, other = pair[number], pair[1 - number]
    wait_for_step(killed, 8)
    killed.kill()
    # Within TensorFlow's ten seconds, and what a busy machine makes of them.
    code, _, errors = ended(other, seconds=120)
    # TensorFlow itself may end those that have lost the first, before Python learns why.
    assert code == 1 or (code != 0 and number == 0), errors[-3000:]
    if code == 1:
        assert f"WorkerError: worker {number} has ended or cannot be reached" in errors
    ended(killed)

    succeed(*start_two(tmp_path / "parts", every))
    for left, right in zip(
        weights(tmp_path / "whole/1"), weights(tmp_path / "parts/1"), strict=True
    ):
        np.testing.assert_allclose(left, right, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_fails_ends_the_others_with_its_reason(tmp_path, number):
    fails, goes_on = {"pause": 0.2, "fails_at": 4}, {"pause": 0.2, "fails_at": None}
    pair = start_two(tmp_path, *((fails, goes_on) if number == 0 else (goes_on, fails)))
    failed, other = pair[number], pair[1 - number]
    code, _, errors = ended(failed)
    assert code == 1 and "RecordError: record 7 is damaged" in errors, errors[-3000:]
    code, _, errors = ended(other, seconds=120)
    assert code == 1, errors[-3000:]
    assert f"WorkerError: worker {number} ended by RecordError: record 7 is damaged" in errors


@pytest.mark.slow
def test_one_worker_told_to_end_ends_all_with_their_state_saved(tmp_path):
    first, second = start_two(tmp_path, {"pause": 0.3, "log_every": 1})
    wait_for_step(second, 3)
    second.send_signal(signal.SIGTERM)
    for process in (first, second):
        code, _, errors = ended(process)
        assert code == 75, errors[-3000:]
        assert "told to end (SIGTERM) at step" in errors
    assert list(tmp_path.glob("1/checkpoints/step-*.index"))


@pytest.mark.slow
def test_one_worker_told_to_end_ends_an_evaluation_of_all(tmp_path):
    """Between two of the batches at which they ask each other."""
    first, second = start_two(tmp_path, {"evaluation_batches": 100, "evaluation_pause": 0.3})
    wait_for_step(second, 20)  # the last: the evaluation follows
    second.send_signal(signal.SIGTERM)
    for process in (first, second):
        code, _, errors = ended(process)
        assert code == 75, errors[-3000:]
        assert "told to end (SIGTERM) at step 20, which is saved" in errors
    lines = read_metrics(tmp_path / "1/metrics.jsonl")
    assert all(line["split"] == "train" for line in lines)


@pytest.mark.slow
def test_workers_with_different_settings_are_told(tmp_path):
    for process in start_two(tmp_path, {}, {"rate": 1e-3}):
        code, _, errors = ended(process)
        assert code == 1
        assert "rate is 0.01 in the first and 0.001 in that one" in errors


@pytest.mark.slow
def test_a_loss_that_one_worker_alone_sees_rolls_all_back(tmp_path):
    """Step 13 is spoiled on the last replica: the run leaves out what followed step 10."""
    every = {"checkpoint_every": 5, "on_divergence": "roll-back", "spoiled": [12]}
    for process in start_two(tmp_path, every):
        code, _, errors = ended(process)
        assert code == 0, errors[-3000:]
        assert "not finite at step 13: training goes on from step 10" in errors
    assert all(np.isfinite(value).all() for value in weights(tmp_path / "1"))


@pytest.mark.slow
def test_all_replicas_pass_over_an_update_that_one_alone_cannot_make(tmp_path):
    settings = {"precision": "mixed_float16", "spoiled": [12], "rate": 1e-3, "log_every": 20}
    mirrored = start(tmp_path / "mirrored", {"strategy": "mirrored", "devices": 2, **settings})
    succeed(mirrored, *start_two(tmp_path / "workers", settings))
    for kind in ("mirrored", "workers"):
        (line, _) = read_metrics(tmp_path / kind / "1/metrics.jsonl")
        assert line["skipped_updates"] == 1
        assert all(np.isfinite(value).all() for value in weights(tmp_path / kind / "1"))


@pytest.mark.slow
def test_two_workers_at_the_command_line(tmp_path):
    data = make_data(tmp_path, shards=3)
    BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    ).to_json(tmp_path / "config.json")

    def pretrain(first, second):
        ports = free_ports(2)
        command = [
            *("-c", "from keras_bert_ref.cli import main; main()", "pretrain"),
            *("--data", data, "--out", tmp_path / "run", "--batch-size", 8),
            *("--config", tmp_path / "config.json", "--steps", 4, "--worker-timeout", 120),
            *("--long-data", data, "--long-steps", 2),
        ]
        pair = (
            start_python(*command, *more, worker=number, ports=ports)
            for number, more in enumerate((first, second))
        )
        return [ended(process) for process in list(pair)]

    (code, output, errors), (other_code, other_output, other_errors) = pretrain([], [])
    assert (code, other_code) == (0, 0), errors + other_errors
    assert "2 devices of 2 workers" in output and "masked_lm_loss" in output
    assert "the first worker shows progress" in other_output and "loss" not in other_output
    model = BertPretrainer.from_pretrained(tmp_path / "run" / "model")
    assert model.tokenizer.vocab_size == 9

    # Workers that differ from each other, also in what decides only when they meet.
    (tmp_path / "other").mkdir()
    other_data = make_data(tmp_path / "other", shards=3, seed=1)
    for option, value, name in (
        ("--learning-rate", 3, "learning_rate"),
        ("--evaluate-every", 3, "evaluate"),
        ("--data", other_data, "data is"),
        ("--out", tmp_path / "elsewhere", "the last checkpoint is 4 in the first and 0 in that"),
    ):
        for code, _, errors in pretrain([], [option, value]):
            assert code == 2 and "the workers differ" in errors and name in errors, errors
    # Workers that agree, but not with the run that is there: only the first one reads it.
    (code, _, errors), (other_code, _, other_errors) = pretrain(*[["--learning-rate", 3]] * 2)
    assert code == 1 and "holds a run with other settings" in errors
    assert other_code == 1 and "worker 0 ended by CheckpointError" in other_errors, other_errors


def test_an_unreachable_worker_is_named(monkeypatch):
    here, there = free_ports(2)
    cluster = Cluster((f"localhost:{here}", f"localhost:{there}"), 0)
    began = time.monotonic()
    with pytest.raises(WorkerError, match=f"no answer from worker 1 .localhost:{there}."):
        cluster.wait(1)
    assert time.monotonic() - began < 10
    with socket.socket() as taken:
        taken.bind(("", here))
        taken.listen()
        with pytest.raises(WorkerError, match="cannot listen at localhost:"):
            cluster.wait(1)


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_ends_after_it_answered_is_not_waited_for_without_end(number):
    code = "from keras_bert_ref.strategies import make_strategy\n"
    code += "make_strategy('multi-worker', timeout=8)"
    ports = free_ports(2)
    with socket.create_server(("localhost", ports[1 - number])) as answering:
        process = start_python("-c", code, worker=number, ports=ports)
        answering.settimeout(120)
        answering.accept()[0].close()
    code, _, errors = ended(process, seconds=120)
    assert code == -signal.SIGKILL
    assert "has not found all workers, though each has answered" in errors


def test_ctrl_c_does_not_end_the_watch_over_tensorflows_start():
    code = """
import signal, time
from keras_bert_ref.strategies import _ending_after
signal.signal(signal.SIGINT, lambda *_: None)  # as in a call that lets no Python run
with _ending_after(4, "too long"):
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = ended(process, seconds=60)
    assert code == -signal.SIGKILL
    assert "WorkerError: too long" in errors


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is no JSON"),
        ("[]", "lacks cluster or task"),
        ('{"cluster": {"worker": ["a:1"]}}', "lacks cluster or task"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {}}', "has ps"),
        ('{"cluster": {"worker": ["a"]}, "task": {}}', "not host:port"),
        ('{"cluster": {"worker": "a:1"}, "task": {}}', "not host:port"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {}}', "twice"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "task"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}', "task"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "0"}}', "task"),
    ],
)
def test_tf_config_that_is_wrong(monkeypatch, text, fault):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError, match=f"TF_CONFIG.*{fault}"):
        make_strategy("multi-worker")


def test_tf_config_names_the_chief_first(monkeypatch):
    cluster = {"worker": ["a:1", "b:2"], "chief": ["c:3"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert Cluster.from_environment() == Cluster(("c:3", "a:1", "b:2"), 2)
    monkeypatch.delenv("TF_CONFIG")
    assert Cluster.from_environment() is None
    with pytest.raises(ConfigError, match="needs TF_CONFIG"):
        make_strategy("multi-worker")


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises(ConfigError, match="timeout of workers must be above 0"):
        make_strategy(timeout=timeout)


def test_a_tpu_that_is_not_there():
    with pytest.raises(ConfigError, match="there is no TPU"):
        make_strategy("tpu")
    with pytest.raises(ConfigError, match="leave one of them out"):
        make_strategy("mirrored", tpu="local")
