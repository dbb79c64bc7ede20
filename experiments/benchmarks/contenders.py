"""Runs a contender of a benchmark in a process of its own."""

import json
import subprocess
import sys


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
