"""TensorFlow checkpoints read without TensorFlow: equal values, and every damage noticed."""

import numpy as np
import pytest

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.checkpoints.tensor_bundle import TensorBundle, bundles, latest
from keras_bert_ref.errors import CheckpointError

TENSORS = {
    "a/float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/half": np.arange(4, dtype=np.float16),
    "b/long": np.int64(7),
    "b/empty": np.zeros((0, 3), np.float32),
    "b/wide": np.arange(300, dtype=np.float64).reshape(3, 100),
    "c/int": np.arange(3, dtype=np.int32),
}


def save(prefix, tensors):
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )
    return prefix


def test_it_reads_what_tensorflow_wrote(tmp_path):
    many = {f"n/{n:04}/with/a/long/name": np.float32([n]) for n in range(500)}  # several blocks
    bundle = TensorBundle(save(tmp_path / "x.ckpt", TENSORS | many | {"s": np.array("text")}))
    assert set(bundle.shapes) == {*TENSORS, *many, "s"}
    for name, value in (TENSORS | many).items():
        found = bundle.read(name)
        assert found.dtype == value.dtype
        assert bundle.dtypes[name] == value.dtype.name
        assert bundle.shapes[name] == value.shape
        np.testing.assert_array_equal(found, value)
    with pytest.raises(CheckpointError, match="tensor s does not hold numbers"):
        bundle.read("s")


def test_it_reads_bfloat16(tmp_path):
    value = tf.constant([1.5, -2.25], tf.bfloat16)
    bundle = TensorBundle(save(tmp_path / "x", {"v": value}))
    assert bundle.dtypes == {"v": "bfloat16"}
    assert bundle.read("v").astype(np.float32).tolist() == [1.5, -2.25]


def test_a_damaged_tensor_is_named(tmp_path):
    bundle = TensorBundle(save(tmp_path / "x.ckpt", TENSORS))
    data = tmp_path / "x.ckpt.data-00000-of-00001"
    content = data.read_bytes()
    place = content.index(TENSORS["a/float"].tobytes())
    data.write_bytes(content[:place] + b"\x01" + content[place + 1 :])
    with pytest.raises(CheckpointError, match=r"data-00000-of-00001 is damaged: the tensor a/floa"):
        bundle.read("a/float")
    np.testing.assert_array_equal(bundle.read("b/wide"), TENSORS["b/wide"])
    data.write_bytes(content[:-8])
    with pytest.raises(CheckpointError, match="cut off within the tensor c/int"):
        bundle.read("c/int")
    data.unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        bundle.read("c/int")


def test_every_flipped_bit_of_an_index_is_noticed(tmp_path):
    save(tmp_path / "x", TENSORS)
    index = tmp_path / "x.index"
    content = index.read_bytes()
    whole = TensorBundle(tmp_path / "x")
    unnoticed = []
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        index.write_bytes(damaged)
        try:
            again = TensorBundle(tmp_path / "x")
        except CheckpointError as error:
            assert str(index) in str(error)
        else:
            assert again._entries == whole._entries
            unnoticed.append(place)
    # All but what the footer is padded with, in front of the eight bytes that end it.
    assert all(-48 <= place - len(content) < -8 for place in unnoticed)
    for size in range(0, len(content), 7):
        index.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="cut off"):
            TensorBundle(tmp_path / "x")


def test_finding_checkpoints(tmp_path):
    for name in ("model.ckpt-100", "model.ckpt-200"):
        save(tmp_path / name, {"v": np.float32(1)})
    assert [prefix.name for prefix in bundles(tmp_path)] == ["model.ckpt-100", "model.ckpt-200"]
    assert latest(tmp_path) is None
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/gone/model.ckpt-200"\nall_model_checkpoint_paths: "x"\n'
    )
    assert latest(tmp_path) == tmp_path / "model.ckpt-200"
