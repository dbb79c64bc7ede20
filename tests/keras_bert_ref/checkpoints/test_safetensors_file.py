"""safetensors in and out: the same bytes for everyone, and no damage that goes unnoticed."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_bert_ref.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from keras_bert_ref.errors import CheckpointError, OutputError

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.float32([1, np.nan, -np.inf]),
    "empty": np.zeros((0, 2), np.float32),
}


def write(path, tensors):
    write_safetensors(
        path, {n: (v.shape, lambda v=v: v) for n, v in tensors.items()}, {"format": "pt"}
    )
    return path


def test_others_read_what_is_written(tmp_path):
    path = write(tmp_path / "x.safetensors", TENSORS)
    found = safetensors.numpy.load_file(path)
    assert set(found) == set(TENSORS)
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(found[name], value)
    ours = SafetensorsFile(path)
    assert ours.shapes == {name: value.shape for name, value in TENSORS.items()}
    np.testing.assert_array_equal(ours.read("a"), TENSORS["a"])
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_what_others_write_is_read(tmp_path):
    tensors = {
        "half": np.float16([1.5]),
        "brain": np.asarray([2.5], ml_dtypes.bfloat16),
        "double": np.float64([[3.5]]),
        "ids": np.arange(3),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors")
    ours = SafetensorsFile(tmp_path / "x.safetensors")
    assert ours.dtypes == {
        "half": "float16",
        "brain": "bfloat16",
        "double": "float64",
        "ids": "i64",
    }
    for name in ("half", "brain", "double"):
        assert ours.read(name) == tensors[name]


def test_no_flipped_bit_changes_what_is_read(tmp_path):
    path = write(tmp_path / "x.safetensors", TENSORS)
    content = path.read_bytes()
    noticed = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            file = SafetensorsFile(path)
            for name, value in TENSORS.items():
                if file.shapes.get(name) == value.shape and file.dtypes[name] == "float32":
                    np.testing.assert_array_equal(file.read(name), value)
        except CheckpointError as error:
            assert str(path) in str(error)
            noticed += 1
    assert noticed > 0.6 * len(content)
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="fetch it again"):
            SafetensorsFile(path)


def test_shards_are_joined(tmp_path):
    write(tmp_path / "one.safetensors", {"a": TENSORS["a"]})
    write(tmp_path / "two.safetensors", {"b": TENSORS["b"]})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    file = SafetensorsFile(index)
    assert set(file.shapes) == {"a", "b"}
    np.testing.assert_array_equal(file.read("b"), TENSORS["b"])
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors cannot be read: No such file"):
        SafetensorsFile(index)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "..", "/etc/passwd", "sub/x.safetensors", "", 3]
)
def test_an_index_cannot_leave_its_folder(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="must lie beside their index"):
        SafetensorsFile(index)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', "\xff", '"x"'])
def test_a_damaged_index_is_named(tmp_path, content):
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content.encode("latin-1"))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors\.index\.json is (no index|damaged)"
    ):
        SafetensorsFile(index)


def test_a_failed_write_leaves_the_older_file(tmp_path):
    path = write(tmp_path / "x.safetensors", TENSORS)
    content = path.read_bytes()

    def fails():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(path, {"a": ((1,), fails)}, {})
    assert path.read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OutputError, match="cannot be written"):
        write(tmp_path / "absent" / "x.safetensors", TENSORS)
