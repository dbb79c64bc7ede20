"""Data sets of tensorflow-datasets, with made-up rows: nothing is downloaded."""

import builtins
import importlib.util
import logging

import numpy as np
import pytest

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.tasks.conll import Sentence
from keras_bert_ref.tasks.glue import GLUE
from keras_bert_ref.tasks.registry import make_task, read_split

if importlib.util.find_spec("tensorflow_datasets") is None:
    pytest.skip("tensorflow-datasets is not installed", allow_module_level=True)


def rows_of(rows):
    """Returns what `mock_data` takes to give rows, dicts of NumPy values."""

    def dataset(self, split, **_):
        from keras_bert_ref._tensorflow import tf

        signature = self.info.features.get_tensor_spec()
        return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=signature)

    return dataset


@pytest.fixture
def mocked():
    """Returns a function that reads a split with these rows instead of the data set's."""
    import keras_bert_ref._tensorflow  # noqa: F401

    tfds = pytest.importorskip("tensorflow_datasets")

    def read(task, name, split, rows=None):
        function = rows and rows_of(rows)
        with tfds.testing.mock_data(num_examples=5, as_dataset_fn=function):
            return read_split(make_task(task), f"tfds:{name}", split)

    return read


def test_classes_have_the_names_of_glues_files(mocked):
    rows = [
        {"idx": idx, "label": label, "sentence1": f"é{idx}".encode(), "sentence2": b"b"}
        for idx, label in ((1, 1), (0, 0))
    ]
    first, second = mocked("mrpc", "glue/mrpc", "dev", rows)
    assert (first.text, first.pair, first.label) == ("é0", "b", "not_equivalent")
    assert (second.text, second.label) == ("é1", "equivalent")
    assert {example.label for example in mocked("mrpc", "glue/mrpc", "test")} == {None}


@pytest.mark.parametrize(
    "kind", [kind for kind in GLUE if kind.words], ids=[kind.name for kind in GLUE if kind.words]
)
def test_glues_classes_and_texts_are_all_known(mocked, kind):
    for split in ("train", "test"):
        examples = mocked(kind.name, f"glue/{kind.name.replace('-', '')}", split)
        assert len(examples) == 5
        known = {example.label for example in examples}
        assert known <= set(kind().labels([])) if split == "train" else known == {None}
        assert all(example.text for example in examples)


@pytest.mark.parametrize("split", ["train", "dev", "dev-mm"])
def test_mnli(mocked, split):
    rows = [{"idx": 0, "label": 2, "premise": b"p", "hypothesis": b"h"}]
    (example,) = mocked("mnli", "glue/mnli", split, rows)
    assert (example.text, example.pair, example.label) == ("p", "h", "contradiction")


def test_numbers_are_pythons(mocked):
    rows = [{"idx": 0, "label": np.float32(3.5), "sentence1": b"a", "sentence2": b"b"}]
    (example,) = mocked("sts-b", "glue/stsb", "dev", rows)
    assert (type(example.label), example.label) == (float, 3.5)


def test_conll(mocked):
    rows = [
        {"tokens": [b"Oslo", b"Paris", b"is"], "ner": [5, 5, 0], "pos": [1] * 3, "chunks": [2] * 3}
    ]
    assert mocked("conll-2003", "conll2003", "test", rows) == [
        Sentence(("Oslo", "Paris", "is"), ("B-LOC", "B-LOC", "O"))
    ]


def test_squad(mocked):
    row = {"id": b"7", "title": b"t", "context": b"The sky is blue.", "question": b"What is it?"}
    answers = {"text": [b"blue", b"is blue"], "answer_start": [11, 8]}
    (example,) = mocked("squad-1.1", "squad", "dev", [{**row, "answers": answers}])
    assert (example.id, example.question, example.context) == (
        "7",
        "What is it?",
        "The sky is blue.",
    )
    assert example.answers == (("blue", 11), ("is blue", 8))
    none = {"text": [], "answer_start": []}
    row |= {"answers": none, "plausible_answers": answers, "is_impossible": True}
    (example,) = mocked("squad-2.0", "squad/v2.0", "dev", [row])
    assert (example.answers, example.impossible) == ((), True)


@pytest.mark.parametrize(
    "task, name, split, message",
    [
        ("mrpc", "nonsense", "train", "tfds:nonsense: tensorflow-datasets has no such data set"),
        (
            "mrpc",
            "glue/nonsense",
            "train",
            "tfds:glue/nonsense cannot be read: Failed to construct",
        ),
        ("mrpc", "", "train", "tfds: cannot be read"),
        ("mrpc", "glue/qqp", "train", "tfds:glue/qqp has no 'sentence1', which mrpc reads; it has"),
        ("mrpc", "squad", "train", "tfds:squad has no 'idx', which mrpc reads; it has id, title"),
        ("conll-2003", "glue/mrpc", "dev", "tfds:glue/mrpc has no 'tokens', which conll-2003"),
        ("mnli", "glue/mnli", "ax", "mnli has no split 'ax' in tensorflow-datasets; it has train"),
    ],
)
def test_what_cannot_be_read_is_named(mocked, task, name, split, message):
    with pytest.raises(InputError, match=message) as caught:
        mocked(task, name, split)
    assert "\n" not in str(caught.value)


def test_tasks_that_do_not_read_it(mocked):
    with pytest.raises(ConfigError, match="swag does not read tensorflow-datasets"):
        mocked("swag", "glue/mrpc", "train")


def test_no_network(mocked, monkeypatch):
    import tensorflow_datasets as tfds

    def load(*_, **__):
        raise ConnectionError("no host\nfound")

    monkeypatch.setattr(tfds, "load", load)
    message = r"tfds:glue/rte is not on this machine and .*: ConnectionError: no host$"
    with pytest.raises(InputError, match=message):
        mocked("rte", "glue/rte", "dev")


def test_damaged_files(mocked):
    def broken():
        yield {"idx": 0, "label": 0, "sentence1": b"a", "sentence2": b"\xff"}

    with pytest.raises(InputError, match="tfds:glue/rte is damaged: 'utf-8' codec"):
        mocked("rte", "glue/rte", "dev", list(broken()))


def test_without_tensorflow_datasets(monkeypatch):
    real = builtins.__import__

    def absent(name, *arguments, **options):
        if name == "tensorflow_datasets":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ConfigError, match=r"pip install 'keras-bert-ref\[tfds\]'"):
        read_split(make_task("rte"), "tfds:glue/rte", "dev")


def test_it_is_quiet(mocked, capfd):
    level = logging.getLogger("absl").level
    mocked("sts-b", "glue/stsb", "train")
    assert logging.getLogger("absl").level == level
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
