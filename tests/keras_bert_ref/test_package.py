import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_bert_ref
from keras_bert_ref import errors
from keras_bert_ref.errors import InputWarning
from keras_bert_ref.tasks import make_task

PACKAGE = Path(keras_bert_ref.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def python(program, **environment):
    """Runs `program` in a fresh interpreter that finds the package under test."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_"))},
        "PYTHONPATH": str(PACKAGE.parent),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )


def test_importing_the_package_is_quick_and_loads_nothing_heavy():
    program = """
import sys, time
start = time.process_time()
import keras_bert_ref
keras_bert_ref.BertConfig.from_name("base"), keras_bert_ref.BertError
print(time.process_time() - start)
print(sorted({m.split(".")[0] for m in sys.modules} & set(
    "tensorflow keras tensorflow_text numpy scipy sklearn h5py typer rich tfrecords".split()
)))
"""
    done = python(program)
    assert done.stderr == ""
    seconds, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 0.2


def test_importing_the_encoder_prints_nothing():
    done = python("from keras_bert_ref import BertConfig, BertEncoder, BertPretrainer, BertAdamW")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("backend", ["jax", "torch", "numpy"])
def test_another_keras_backend_is_refused(backend):
    program = """
from keras_bert_ref.errors import ConfigError
try:
    from keras_bert_ref import BertEncoder
except ConfigError as error:
    print(error)
"""
    done = python(program, KERAS_BACKEND=backend)
    assert done.stderr == ""
    assert f"KERAS_BACKEND is '{backend}'" in done.stdout
    assert "tensorflow" in done.stdout


def test_every_public_name_resolves():
    assert keras_bert_ref.__all__ == sorted(set(keras_bert_ref.__all__))
    for name in keras_bert_ref.__all__:
        value = getattr(keras_bert_ref, name)
        assert value.__name__ == name
        assert value.__doc__, name
        assert name in dir(keras_bert_ref)
    with pytest.raises(AttributeError, match="BertEncodr"):
        keras_bert_ref.BertEncodr  # noqa: B018


def test_every_error_is_of_this_library_and_a_built_in_one():
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    warnings = [c for c in classes if issubclass(c, UserWarning)]
    assert all(issubclass(c, errors.BertWarning) for c in warnings)
    classes = [c for c in classes if c not in warnings]
    assert len(classes) > 5
    for one in classes:
        assert issubclass(one, errors.BertError)
        assert one is errors.BertError or len(one.__bases__) == 2


def imported(path):
    """Returns the names of the modules that the file imports, with the line of each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield node.module, node.lineno


def name_of(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_library_imports_neither_tfrecords_nor_experiments(path):
    if path.parent.name == "cli":  # the command line is outermost
        return
    for module, line in imported(path):
        assert module.split(".")[0] not in {"tfrecords", "experiments"}, f"{path}:{line}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_tensorflow_is_imported_in_one_place(path):
    # The second runs in a process of its own, where this library is not loaded.
    if name_of(path) in ("_tensorflow.py", "serving/check.py"):
        return
    for module, line in imported(path):
        assert module.split(".")[0] not in {"tensorflow", "keras"}, f"{path}:{line}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_the_version_is_that_of_the_metadata():
    metadata = importlib.import_module("importlib.metadata")
    assert keras_bert_ref.__version__ == metadata.version("keras-bert-ref")


def test_a_warning_points_at_the_line_that_called_this_library(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("question1\tquestion2\tis_duplicate\na\tb\t1\nx\ty\n")
    with pytest.warns(InputWarning, match="broken lines passed over: 1") as found:
        make_task("qqp").read(path, "train")
    assert found[0].filename == __file__
