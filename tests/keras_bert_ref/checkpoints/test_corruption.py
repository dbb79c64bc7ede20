"""Checkpoints damaged in every way: each ends in an error of ours, or in the weights it had."""

import json
import random
import shutil

import numpy as np
import pytest
import safetensors.numpy
from checkpoint_models import make

from keras_bert_ref import load_pretrained
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.checkpoints.opening import open_checkpoint
from keras_bert_ref.errors import BertError, ConfigError

FORMATS = ("own", "hf", "tf1")
WEIGHTS = {
    "own": ("model.safetensors",),
    "hf": ("model.safetensors",),
    "tf1": ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"),
}
OF_EACH = 500


def flip(folder, format, rng):
    """Flips one bit of the weights."""
    path = folder / rng.choice(WEIGHTS[format])
    content = bytearray(path.read_bytes())
    # Headers are a small part of the file and the more interesting one.
    end = len(content) if rng.random() < 0.5 else min(len(content), 8000)
    content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def overwrite(folder, format, rng):
    """Puts random bytes into the weights."""
    path = folder / rng.choice(WEIGHTS[format])
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place : place + 40] = rng.randbytes(40)
    path.write_bytes(content)


def truncate(folder, format, rng):
    """Cuts any of the files off."""
    path = rng.choice(sorted(folder.iterdir()))
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def lengthen(folder, format, rng):
    """Appends bytes to the weights."""
    path = folder / rng.choice(WEIGHTS[format])
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 100)))


def rename_file(folder, format, rng):
    """Takes any of the files away."""
    path = rng.choice(sorted(folder.iterdir()))
    path.rename(path.with_name(f"{path.name}.part"))


def swap_files(folder, format, rng):
    """Exchanges two files."""
    one, other = rng.sample(sorted(folder.iterdir()), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def tensors_of(folder, format):
    if format != "tf1":
        return safetensors.numpy.load_file(folder / "model.safetensors")
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write_tensors(folder, format, tensors):
    if format != "tf1":
        safetensors.numpy.save_file(
            {name: np.ascontiguousarray(value) for name, value in tensors.items()},
            folder / "model.safetensors",
        )
        return
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )


def rename_tensor(folder, format, rng):
    """Gives a tensor another name."""
    tensors = tensors_of(folder, format)
    name = rng.choice(sorted(tensors))
    place = rng.randrange(len(name))
    tensors[f"{name[:place]}x{name[place + 1 :]}x"] = tensors.pop(name)
    write_tensors(folder, format, tensors)


def reshape_tensor(folder, format, rng):
    """Gives a tensor another shape, of as many values or not."""
    tensors = tensors_of(folder, format)
    name = rng.choice(sorted(n for n, value in tensors.items() if value.size > 2))
    value = tensors[name]
    square = value.ndim == 2 and value.shape[0] == value.shape[1]
    if rng.random() < 0.5 or square or value.ndim == 1:
        tensors[name] = value[:-1]
    else:
        tensors[name] = value.T
    write_tensors(folder, format, tensors)


def change_type(folder, format, rng):
    """Makes a tensor one of integers."""
    tensors = tensors_of(folder, format)
    name = rng.choice(sorted(tensors))
    tensors[name] = tensors[name].astype(rng.choice([np.int32, np.int64]))
    write_tensors(folder, format, tensors)


def change_size(folder, format, rng):
    """Changes a size in the configuration."""
    path = folder / ("config.json" if format == "hf" else "bert_config.json")
    settings = json.loads(path.read_text())
    sizes = [name for name in settings if name.endswith(("_size", "_embeddings", "_layers"))]
    name = rng.choice([name for name in sizes if type(settings[name]) is int])
    settings[name] = rng.choice([settings[name] + 4, 0, -1, "12", None, 1.5, [], 10**12])
    path.write_text(json.dumps(settings))


ODD = (None, [], {}, "x", 3, -1, 0.5, True, 10**400, float("inf"), [["x"]], {"a": [1]}, "\0")


def change_json(folder, format, rng):
    """Puts an odd value at any key of a JSON file."""
    path = rng.choice(sorted(folder.glob("*.json")))
    settings = json.loads(path.read_text())
    settings[rng.choice(sorted(settings))] = rng.choice(ODD)
    path.write_text(json.dumps(settings))


def nest_json(folder, format, rng):
    """Makes a JSON file a hundred thousand brackets."""
    rng.choice(sorted(folder.glob("*.json"))).write_text("[" * 100_000)


DAMAGES = (
    *(flip, flip, flip, overwrite, truncate, lengthen, rename_file, swap_files),
    *(rename_tensor, reshape_tensor, change_type, change_size, change_json, nest_json),
)


def values(checkpoint):
    return {path: stored.read() for path, stored in checkpoint.weights.items()}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_damage_never_goes_unnoticed(format, tmp_path):
    make("pretrainer").save_pretrained(tmp_path / "whole", format=format)
    whole = values(open_checkpoint(tmp_path / "whole"))
    rng = random.Random(format)
    errors, harmless = 0, []
    for number in range(OF_EACH):
        damage = DAMAGES[number % len(DAMAGES)]
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder, format, rng)
        try:
            checkpoint = open_checkpoint(folder)
            found = values(checkpoint)
        except BertError as error:
            errors += 1
            assert len(str(error)) > 20
            assert str(folder) in str(error) or isinstance(error, ConfigError), str(error)
        else:
            for path, value in found.items():
                np.testing.assert_array_equal(value, whole[path], err_msg=damage.__name__)
            # Whatever is not there is either said or has no part in the model.
            lacks = set(whole) - set(found)
            assert not any(path.startswith(("embeddings", "layer")) for path in lacks)
            harmless.append((damage.__name__, sorted(lacks), checkpoint.tokenizer is None))
        shutil.rmtree(folder)
    assert errors + len(harmless) == OF_EACH
    # What may pass: padding, metadata, bytes behind the end, a head or a vocabulary gone missing.
    assert errors > 0.8 * OF_EACH, harmless


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
def test_a_damaged_checkpoint_makes_no_model(format, tmp_path):
    make("classifier").save_pretrained(tmp_path / "whole", format=format)
    rng = random.Random(1)
    for damage in dict.fromkeys(DAMAGES):
        folder = tmp_path / damage.__name__
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder, format, rng)
        try:
            model = load_pretrained(folder)
        except BertError:
            continue
        assert model.load_report.initialized == ()
