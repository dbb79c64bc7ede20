"""A plan's arithmetic, held against models."""

import pytest

from keras_bert_ref import BertConfig, BertPretrainer
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.planning import count_parameters, memory, plan, training_flops

SMALL = BertConfig(
    vocab_size=97,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=52,
    max_position_embeddings=19,
)


def test_parameters_are_those_of_the_model():
    assert count_parameters(SMALL) == BertPretrainer(SMALL).count_params()
    # As published: 110M and 340M (paper, section 3; without the heads 109.5 and 335.1).
    assert count_parameters(BertConfig.from_name("base")) == 110_106_428
    assert count_parameters(BertConfig.from_name("large")) == 336_226_108


def test_operations_are_those_of_the_forward_graph():
    """TensorFlow's own profiler counts the products of matrices of the forward pass."""
    length, predictions, rows = 17, 5, 3
    model = BertPretrainer(SMALL)
    shapes = {"masked_lm_positions": predictions}
    inputs = {key: tf.TensorSpec((rows, shapes.get(key, length)), tf.int32) for key in model.input}
    function = tf.function(lambda x: model(x, training=False)).get_concrete_function(inputs)
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    options["order_by"] = "float_ops"
    options["account_type_regexes"] = [".*MatMul.*"]
    counted = tf.compat.v1.profiler.profile(
        function.graph, cmd="scope", options=options
    ).total_float_ops
    # The segments' product with one-hot rows, and the two columns of the next sentence head.
    small = 2 * rows * (length * SMALL.type_vocab_size + 2) * SMALL.hidden_size
    expected = rows * training_flops(SMALL, length, predictions) / 3 + small
    assert counted == pytest.approx(expected, rel=0.02)


def test_the_paper_s_models():
    base = BertConfig.from_name("base")
    assert training_flops(base, 128, 20) == pytest.approx(69.9e9, rel=1e-3)
    settings = {"steps": 1000, "batch_size": 256, "length": 128, "predictions": 20}
    machine = {"devices": 8, "peak": 1e14, "utilization": 0.5}
    made = plan(base, **settings, **machine)
    assert made.flops == pytest.approx(1000 * 256 * 69.9e9, rel=1e-3)
    assert made.hours == pytest.approx(made.flops / 4e14 / 3600)
    assert made.tokens_per_second * made.hours * 3600 == pytest.approx(1000 * 256 * 128)
    assert made.memory == memory(base, 32, 128, 20, "mixed_bfloat16")
    halved = plan(base, **settings, **machine, micro_batches=2).memory
    assert halved.activations == made.memory.activations / 2
    assert halved.weights == made.memory.weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": 0}, "devices must be above 0"),
        ({"utilization": 1.2}, "at most 1"),
        ({"length": 513}, "max_position_embeddings is 512"),
        ({"devices": 7}, "does not divide into 7 devices"),
        ({"precision": "int8"}, "precision 'int8' is unknown"),
    ],
)
def test_plans_that_cannot_be(change, message):
    settings = {"steps": 1, "batch_size": 256, "length": 128, "predictions": 20}
    machine = {"devices": 8, "peak": 1e14, "utilization": 0.5}
    with pytest.raises(ConfigError, match=message):
        plan(BertConfig.from_name("base"), **{**settings, **machine, **change})
