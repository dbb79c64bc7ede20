import json
import re

import numpy as np
import pytest
import typer
from small_data import make_data
from typer.testing import CliRunner

from experiments.kill_and_resume import compare, main


@pytest.mark.slow
def test_a_run_killed_three_times_ends_with_the_same_bits(tmp_path):
    app = typer.Typer()
    app.command()(main)
    arguments = [make_data(tmp_path), "--out", tmp_path / "runs", "--kills", 3, "--steps", 60]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert "nothing, to the bit" in result.output
    found = re.search(r"after each: ([\d, ]+) of 60", result.output)[1]
    assert any(0 < int(step) < 60 for step in found.split(",")), found
    metrics = (tmp_path / "runs/killed/metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["step"] == 60


def test_what_differs_is_named():
    one = {"a": np.ones(2), "b": np.ones(3)}
    other = {"a": np.ones(2), "b": np.array([1, 1, 1 + 1e-9]), "c": np.ones(1)}
    assert compare((one, []), (other, [1])) == ["b", "c", "metrics.jsonl"]
