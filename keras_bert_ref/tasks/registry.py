"""Tasks by name: the paper's, and those in a user's own files."""

import dataclasses
import difflib
import importlib
import importlib.util
import sys
from pathlib import Path

from keras_bert_ref.errors import BertError, ConfigError, InputError
from keras_bert_ref.files import first_line
from keras_bert_ref.pretrained import TaskDescription
from keras_bert_ref.tasks.contract import Task

# name → module, class. A module is imported when one of its tasks is asked for.
TASKS = {
    "cola": ("glue", "Cola"),
    "sst-2": ("glue", "Sst2"),
    "mrpc": ("glue", "Mrpc"),
    "sts-b": ("glue", "StsB"),
    "qqp": ("glue", "Qqp"),
    "mnli": ("glue", "Mnli"),
    "qnli": ("glue", "Qnli"),
    "rte": ("glue", "Rte"),
    "wnli": ("glue", "Wnli"),
    "squad-1.1": ("squad", "Squad"),
    "squad-2.0": ("squad", "Squad2"),
    "swag": ("swag", "Swag"),
    "codah": ("swag", "Codah"),
    "conll-2003": ("ner", "Conll2003"),
    "classification": ("classification", "TextClassification"),
    "regression": ("classification", "TextRegression"),
}


def make_task(name, /, **settings):
    """Returns a task.

    Args:
        name: one of `TASKS`, or "file.py:Class" for a subclass of `Task` in a file.
        **settings: fields of the task that are to differ from their defaults.

    Raises:
        ConfigError: there is no such task or setting, or a setting is impossible.
    """
    kind = _from_file(name) if ".py:" in name else _built_in(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in settings:
        if key not in fields:
            raise ConfigError(f"{name} has no setting {key!r}; it has {', '.join(fields)}")
    return kind(**settings)


def describe(task, name=None):
    """Returns the `TaskDescription` of a task.

    Args:
        task: a `Task`.
        name: what `make_task` took; None for the task's own name. Of a file its folder is left out.
    """
    return TaskDescription(Path(name).name if name else task.name, dataclasses.asdict(task))


def task_of(model, /, **settings):
    """Returns the task that a model was fine-tuned for.

    Args:
        model: a model, or an open `Checkpoint`.
        **settings: fields that are to differ from what is stored.

    Raises:
        ConfigError: it is not known, or not one of this library's: a file that a checkpoint names
            is never run.
    """
    found = model.task
    if found is None:
        raise ConfigError("the model does not say what it was fine-tuned for: name the task")
    if found.name not in TASKS:
        raise ConfigError(f"the model was fine-tuned for {found.name!r}: name that task's file")
    return make_task(found.name, **{**found.settings, **settings})


def read_split(task, data, split):
    """Returns the examples of a split.

    Args:
        task: a `Task`.
        data: the folder of the task's files, or "tfds:name" for a data set of tensorflow-datasets.
        split: "train", "dev", "test", or another that the task has.

    Raises:
        InputError: there is no such split, or it cannot be read.
    """
    if str(data).startswith("tfds:"):
        from keras_bert_ref.tasks.tfds import read_tfds

        return read_tfds(task, str(data).removeprefix("tfds:"), split)
    if split not in task.files:
        raise InputError(f"{task.name} has no split {split!r}; it has {', '.join(task.files)}")
    folder, name = Path(data), task.files[split]
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: it should hold {name}")
    try:
        return task.read(folder / name, split)
    except BertError:
        raise
    except Exception as error:  # whatever a user's own task raises
        raise InputError(
            f"{folder / name} cannot be read by {type(task).__name__}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error


def _built_in(name):
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" (do you mean {near[0]}?)" if near else ""
        raise ConfigError(
            f"there is no task {name!r}{hint}: tasks are {', '.join(TASKS)}, or file.py:Class"
        )
    module, kind = TASKS[name]
    return getattr(importlib.import_module(f"keras_bert_ref.tasks.{module}"), kind)


def _from_file(name):
    path, _, wanted = name.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"{path} is no file: a task of your own is named file.py:Class")
    # Under a name of its own; dataclasses look for their module there.
    spec = importlib.util.spec_from_file_location(f"task_file_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's own code raises
        raise ConfigError(
            f"{path} cannot be run: {type(error).__name__}: {first_line(error)}"
        ) from None
    kind = getattr(module, wanted, None)
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ConfigError(f"{path} has no class {wanted!r} that is a keras_bert_ref.tasks.Task")
    return kind
