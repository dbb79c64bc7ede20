"""The name table against the index files of two released checkpoints, and against models."""

import pytest
from shared_data import shared

from keras_bert_ref.checkpoints.names import names
from keras_bert_ref.checkpoints.tensor_bundle import TensorBundle
from keras_bert_ref.config import BertConfig

RELEASED = ("encoder", "pooler", "masked_lm", "next_sentence")


@pytest.mark.parametrize(
    ("folder", "tensors"),
    [("bert_tiny_L-2_H-128", 46), ("chinese_L-12_H-768", 206)],
)
def test_every_name_and_shape_of_a_released_checkpoint_is_in_the_table(folder, tensors):
    folder = shared("data/checkpoints/tf1_google_index_only") / folder
    config = BertConfig.from_json(folder / "bert_config.json")
    stored = TensorBundle(folder / "bert_model.ckpt").shapes
    table = {
        name.tf1: name.shape[::-1] if name.tf1_transposed else name.shape
        for part in RELEASED
        for name in names(config, part)
    }
    assert table == stored
    assert len(stored) == tensors


def test_the_table_gives_no_name_twice():
    config = BertConfig.from_name("tiny")
    for kind in ("own", "tf1", "hf"):
        found = [getattr(n, kind) for part in (*RELEASED, "span") for n in names(config, part)]
        assert len(found) == len(set(found))


def test_a_head_has_its_own_number_of_outputs():
    config = BertConfig.from_name("tiny")
    assert [n.shape for n in names(config, "tagger", 9)] == [(128, 9), (9,)]
    assert [n.shape for n in names(config, "choice", 9)] == [(128, 1), (1,)]
