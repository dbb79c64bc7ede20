"""A disk that is really full: a file system of a few megabytes."""

import subprocess

import numpy as np
import pytest

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import OutputError
from keras_bert_ref.training_state import TrainingState


@pytest.fixture
def disk(tmp_path):
    """Returns a folder with room for 3 MB, and a function that gives it more."""

    def mount(*options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    try:
        made = mount("size=3m")
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted: {made.stderr.strip()}")
    yield tmp_path, lambda: mount("remount", "size=9m")
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_checkpoints_before_a_full_disk_stay_and_training_goes_on(disk):
    folder, enlarge = disk
    values = tf.Variable(np.random.default_rng(0).random(500_000, dtype=np.float32))  # 2 MB
    state = TrainingState(folder / "checkpoints", keep=3, values=values)
    first = values.numpy()
    state.save(1)
    state.wait()
    values.assign(values + 1)
    state.save(2)
    with pytest.raises(
        OutputError, match=r"the checkpoint of step 2 cannot be written.*No space left"
    ) as caught:
        state.wait()
    assert "function_node" not in str(caught.value)
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["checkpoint", "step-1.data-00000-of-00001", "step-1.index"]
    second = values.numpy()
    assert state.restore()
    assert np.array_equal(values, first)
    assert not enlarge().returncode
    values.assign(second)
    state.save(2)
    state.wait()
    values.assign(first)
    assert state.restore()
    assert np.array_equal(values, second)
