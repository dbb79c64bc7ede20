"""Runs the contenders of a benchmark in processes of their own, and compares them."""

import importlib.util
import json
import statistics
import subprocess
import sys


def installed(ours, peers):
    """Returns name → program of this library and of the peers that are there.

    Args:
        ours: this library's program.
        peers: name → (the module that it takes, program).
    """
    found = {
        name: program
        for name, (module, program) in peers.items()
        if importlib.util.find_spec(module)
    }
    return {"this library": ours, **found}


def run(program, *arguments):
    """Returns what the last line that a program prints is, as JSON.

    Args:
        program: Python source.
        *arguments: its `sys.argv[1:]`.
    """
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def ratio(rates, others):
    """Returns the median, over turns, of one contender's rate by another's of the same turn."""
    return statistics.median(a / b for a, b in zip(rates, others, strict=True))
