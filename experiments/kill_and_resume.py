"""A pretraining run that is killed again and again ends with the bits of one that is not.

    python -m experiments.kill_and_resume DATA --out runs/killed

DATA is a folder that create-data made. A small model is trained on it twice: at one go, and with
SIGKILL at random moments: while the process starts, trains, or writes a checkpoint, which it does
every few steps. All that both leave is compared: weights, optimizer, random state, and metrics.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from keras_bert_ref import BertConfig
from keras_bert_ref.run_folder import read_metrics

PROGRAM = "from keras_bert_ref.cli import main; main()"


def start(data, out, config, steps):
    """Starts, or continues, the run at `out`."""
    command = [sys.executable, "-c", PROGRAM, "pretrain", "--data", data, "--out", out]
    options = {
        "config": config,
        "strategy": "one-device",
        "steps": steps,
        "batch-size": 8,
        "learning-rate": 1e-3,
        "checkpoint-every": 5,
        "log-every": 5,  # no rarer than checkpoints: a mean begins anew where a run goes on
        "evaluate-every": steps // 4,
    }
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    """Waits for a run to end well."""
    errors = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}: {errors}")


def last_checkpoint(out):
    """Returns the step of a run's last checkpoint, 0 if it has none."""
    steps = (int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("*.index"))
    return max(steps, default=0)


def wait_for_checkpoint(process, out):
    """Waits until a run has written one more checkpoint, or has ended."""
    before = last_checkpoint(out)
    while process.poll() is None and last_checkpoint(out) == before:
        time.sleep(0.05)


def final_state(out):
    """Returns name → array of the last checkpoint, and the lines of metrics."""
    from keras_bert_ref._tensorflow import tf

    reader = tf.train.load_checkpoint(str(out / "checkpoints"))
    names = [n for n in reader.get_variable_to_shape_map() if n.endswith("VARIABLE_VALUE")]
    # How often a process saved is the one thing that interruptions change.
    state = {name: reader.get_tensor(name) for name in names if "save_counter" not in name}
    return state, read_metrics(out / "metrics.jsonl")


def compare(left, right):
    """Returns the names of what differs."""
    (state, metrics), (other, other_metrics) = left, right
    names = sorted(state.keys() | other.keys())
    differing = [
        name
        for name in names
        if name not in state or name not in other or not np.array_equal(state[name], other[name])
    ]
    return differing + ["metrics.jsonl"] * (metrics != other_metrics)


def main(
    data: Annotated[Path, typer.Argument(help="A folder that create-data made.")],
    out: Annotated[Path, typer.Option(help="The folder of both runs.")],
    kills: Annotated[int, typer.Option(min=1, help="How often the run is killed.")] = 20,
    steps: Annotated[int, typer.Option(min=8, help="Of both runs.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
):
    """Prints what differs between the two runs, and exits with 1 if anything does."""
    console = Console()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    manifest = json.loads((data / "manifest.json").read_text(encoding="utf-8"))
    config = BertConfig(
        vocab_size=manifest["vocabulary"]["size"],
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=manifest["settings"]["max_seq_length"],
    )
    config.to_json(out / "config.json")
    began = time.monotonic()
    process = start(data, out / "whole", out / "config.json", steps)
    wait_for_checkpoint(process, out / "whole")
    starting = time.monotonic() - began
    finish(process)
    training = time.monotonic() - began - starting
    moments = random.Random(seed)
    found = []
    for _ in track(range(kills), description="killing"):
        process = start(data, out / "killed", out / "config.json", steps)
        # One in five while it starts; the others while it trains, spread over the whole run.
        seconds = moments.uniform(0, starting)
        if moments.random() < 0.8:
            wait_for_checkpoint(process, out / "killed")
            seconds = moments.uniform(0, 2 * training / kills)
        time.sleep(seconds)
        process.kill()
        process.wait()
        process.stderr.close()
        found.append(last_checkpoint(out / "killed"))
    finish(start(data, out / "killed", out / "config.json", steps))
    differing = compare(final_state(out / "whole"), final_state(out / "killed"))
    console.print(
        f"at one go: {starting:.0f} s to start, {training:.0f} s to train. {kills} kills, the last "
        f"checkpoint after each: {', '.join(map(str, found))} of {steps}",
        soft_wrap=True,
    )
    console.print(f"different: {', '.join(differing) or 'nothing, to the bit'}")
    if differing:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
