"""Runs SavedModels in TensorFlow's C++ loader, without Python: the program answer.c."""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from keras_bert_ref._tensorflow import tf

SOURCE = Path(__file__).parent / "keras_bert_ref" / "serving" / "answer.c"


def build(folder):
    """Compiles the program; returns its path, or skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library, program = Path(tf.__file__).parent, Path(folder, "answer")
    command = [compiler, "-O1", "-Wall", "-Werror", str(SOURCE), "-o", str(program)]
    command += [f"-I{library / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
    command += ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    subprocess.run(command, check=True)
    return program


class Loader:
    """A SavedModel and the program that answers for it."""

    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        saved = saved_model_pb2.SavedModel.FromString((self.folder / "saved_model.pb").read_bytes())
        (meta,) = saved.meta_graphs
        self.graph, self.signatures = meta.graph_def, meta.signature_def

    def answers(self, requests, folder):
        """Returns what each of (signature, input name → array) is answered, or its error, a string.

        Args:
            requests: a list.
            folder: for the files.
        """
        given, found = Path(folder, "requests"), Path(folder, "answers")
        given.write_bytes(self._written(requests))
        subprocess.run([self.program, self.folder, given, found], check=True, capture_output=True)
        content = _Reader(found.read_bytes())
        answers = []
        for signature, _ in requests:
            names = sorted(self.signatures[signature].outputs)
            answer = {}
            for name in names:
                value = content.tensor()
                if isinstance(value, str):
                    answer = value
                    break
                answer[name] = value
            answers.append(answer)
        return answers

    def _written(self, requests):
        parts = [struct.pack("<i", len(requests))]
        for signature, inputs in requests:
            definition = self.signatures[signature]
            parts.append(struct.pack("<i", len(inputs)))
            for name, value in inputs.items():
                parts += [_place(definition.inputs[name].name), _tensor(np.asarray(value))]
            parts.append(struct.pack("<i", len(definition.outputs)))
            parts += [_place(definition.outputs[name].name) for name in sorted(definition.outputs)]
        return b"".join(parts)


def _place(name):
    operation, index = name.split(":")
    return struct.pack("<i", len(operation)) + operation.encode() + struct.pack("<i", int(index))


def _tensor(value):
    strings = value.dtype.kind in "SUO"
    dtype = tf.string if strings else tf.as_dtype(value.dtype)
    head = struct.pack("<ii", dtype.as_datatype_enum, value.ndim)
    head += struct.pack(f"<{value.ndim}q", *value.shape)
    if not strings:
        return head + np.ascontiguousarray(value).tobytes()
    flat = [one if isinstance(one, bytes) else str(one).encode() for one in value.ravel()]
    return head + b"".join(struct.pack("<q", len(one)) + one for one in flat)


class _Reader:
    def __init__(self, content):
        self.content, self.at = content, 0

    def numbers(self, form):
        found = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def bytes(self, size):
        self.at += size
        return self.content[self.at - size : self.at]

    def tensor(self):
        """Returns an array, or the message of an error."""
        (kind,) = self.numbers("i")
        if kind < 0:
            return self.bytes(*self.numbers("i")).decode()
        dtype = tf.as_dtype(kind)
        (rank,) = self.numbers("i")
        shape = self.numbers(f"{rank}q")
        count = int(np.prod(shape))
        if dtype == tf.string:
            flat = [self.bytes(*self.numbers("q")) for _ in range(count)]
            value = np.empty(count, object)
            value[:] = flat
        else:
            kind = dtype.as_numpy_dtype
            value = np.frombuffer(self.bytes(count * dtype.size), kind)
        return value.reshape(shape)
