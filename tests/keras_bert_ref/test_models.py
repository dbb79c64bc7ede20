import dataclasses
import subprocess
import sys
import warnings

import numpy as np
import pytest
from model_checks import assert_weights_equal, dataset_of, floats, loss_of, values_of
from numpy_bert import NumpyBert, cross_entropy, random_weights
from small_bert import BATCH, CONFIG, PREDICTIONS, pretraining_batch, set_weights

from keras_bert_ref import BertAdamW, BertConfig, BertEncoder, BertPretrainer, WarmupLinear
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError

SHALLOW = dataclasses.replace(CONFIG, num_hidden_layers=2)
SHALLOWEST = dataclasses.replace(CONFIG, num_hidden_layers=1)  # where tracing is most of the time


def build(config=SHALLOW, seed=0, width=0.3, optimizer=None, **options):
    """Returns a compiled pretrainer and its random weights by path."""
    model = BertPretrainer(config, **options)
    weights = random_weights(model.trainable_variables, seed, width)
    set_weights(model, weights)
    model.compile(optimizer=optimizer or BertAdamW(1e-3))
    return model, weights


def numpy_metrics(config, weights, batches):
    """Returns what `evaluate` should: means over the pieces and rows of all `batches` together."""
    bert, sums = NumpyBert(config, weights), np.zeros(6)
    for features, labels in batches:
        masked_lm, next_sentence = bert.pretraining_logits(features)
        ids, w = labels["masked_lm_ids"], labels["masked_lm_weights"]
        order = labels["next_sentence_labels"]
        sums += (
            w.sum(),
            (w * cross_entropy(ids, masked_lm)).sum(),
            (w * (masked_lm.argmax(-1) == ids)).sum(),
            order.size,
            cross_entropy(order, next_sentence).sum(),
            (next_sentence.argmax(-1) == order).sum(),
        )
    pieces, loss, right, rows, order_loss, order_right = sums
    return {
        "loss": loss / pieces + order_loss / rows,
        "masked_lm_loss": loss / pieces,
        "perplexity": np.exp(loss / pieces),
        "masked_lm_accuracy": right / pieces,
        "next_sentence_loss": order_loss / rows,
        "next_sentence_accuracy": order_right / rows,
    }


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh"])
def test_logits_equal_numpy_float64(act):
    config = dataclasses.replace(CONFIG, hidden_act=act)
    model, weights = build(config, width=0.1)
    features, _ = pretraining_batch()
    masked_lm, next_sentence = NumpyBert(config, weights).pretraining_logits(features)
    given = model(features)
    assert given["masked_lm_logits"].shape == (BATCH, PREDICTIONS, 99)
    assert given["next_sentence_logits"].shape == (BATCH, 2)
    np.testing.assert_allclose(given["masked_lm_logits"], masked_lm, rtol=0, atol=2e-5)
    np.testing.assert_allclose(given["next_sentence_logits"], next_sentence, rtol=0, atol=2e-5)


def test_loss_is_the_papers():
    model, weights = build()
    features, labels = pretraining_batch()
    expected = sum(NumpyBert(SHALLOW, weights).pretraining_losses(features, labels))
    assert float(loss_of(model, features, labels)) == pytest.approx(expected, rel=1e-5)


def test_unused_slots_change_neither_loss_nor_gradient():
    model, _ = build()
    features, labels = pretraining_batch()
    unused = (labels["masked_lm_weights"] == 0).astype(np.int32)
    assert unused.any()
    other_features = {
        **features,
        "masked_lm_positions": features["masked_lm_positions"] + 6 * unused,
    }
    other_labels = {**labels, "masked_lm_ids": labels["masked_lm_ids"] + 77 * unused}
    results = []
    for x, y in ((features, labels), (other_features, other_labels)):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        results.append((loss, tape.gradient(loss, model.trainable_variables)))
    assert float(results[0][0]) == pytest.approx(float(results[1][0]), rel=1e-6)
    for one, two in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)


def test_a_batch_without_any_masked_position():
    model, weights = build(optimizer=keras.optimizers.SGD(0.1))
    features, labels = pretraining_batch()
    labels["masked_lm_weights"][:] = 0
    masked_lm, next_sentence = NumpyBert(SHALLOW, weights).pretraining_losses(features, labels)
    assert masked_lm == 0
    results = floats(model.train_step((features, labels)))
    assert results["masked_lm_loss"] == 0
    assert results["loss"] == pytest.approx(next_sentence, rel=1e-5)
    after = values_of(model)
    assert all(np.isfinite(values).all() for values in after.values())
    np.testing.assert_array_equal(
        after["masked_lm/transform/kernel"], weights["masked_lm/transform/kernel"]
    )
    assert np.abs(after["pooler/kernel"] - weights["pooler/kernel"]).max() > 1e-4


def test_every_gradient_equals_finite_differences_of_numpy():
    model, weights = build()
    features, labels = pretraining_batch()
    with tf.GradientTape() as tape:
        loss = loss_of(model, features, labels)
    gradients = tape.gradient(loss, model.trainable_variables)

    def loss_at(path, values):
        bert = NumpyBert(SHALLOW, {**weights, path: values})
        return sum(bert.pretraining_losses(features, labels))

    rng = np.random.default_rng(2)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        path, at = variable.path, weights[variable.path]
        gradient = tf.convert_to_tensor(gradient).numpy().astype(np.float64)
        # One random direction touches all entries at once; the steepest one tells the size.
        for direction in (rng.standard_normal(at.shape), gradient):
            norm = np.linalg.norm(direction)
            if norm < 1e-6:  # a key bias moves all scores of a query alike: no gradient
                assert path.endswith("key/bias")
                continue
            step = 1e-5 * direction / norm
            slope = (loss_at(path, at + step) - loss_at(path, at - step)) / 2e-5
            expected = (gradient * direction).sum() / norm
            assert expected == pytest.approx(slope, rel=2e-4, abs=2e-6), path


def test_gradients_with_dropout_are_those_of_the_loss_with_the_same_elements_dropped():
    config = dataclasses.replace(
        SHALLOWEST,
        hidden_act="gelu_tanh",
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.3,
    )
    model, _ = build(config, width=0.1)
    batch = tf.nest.map_structure(tf.constant, pretraining_batch())
    next_loss = tf.function(lambda: loss_of(model, *batch))
    seeds = [(v, v.numpy()) for v in model.non_trainable_variables if "seed" in v.path]
    assert len(seeds) == 1 + 3

    def loss():
        for variable, value in seeds:
            variable.assign(value)
        return next_loss()

    with tf.GradientTape() as tape:
        value = loss()
    assert float(loss()) == float(value) != float(next_loss())
    gradients = tape.gradient(value, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        at, gradient = variable.numpy(), tf.convert_to_tensor(gradient).numpy()
        norm = np.linalg.norm(gradient)
        if variable.path.endswith("key/bias"):
            assert norm < 1e-5
            continue
        ends = []
        for sign in (1, -1):
            variable.assign(at + sign * 1e-2 * gradient / norm)
            ends.append(float(loss()))
        variable.assign(at)
        # In float32 the difference of two losses near 5 is exact to about 1e-6.
        assert (ends[0] - ends[1]) / 2e-2 == pytest.approx(norm, rel=1e-2, abs=2e-4), variable.path


def test_the_decoder_is_the_word_table_itself():
    model, _ = build()
    paths = [v.path for v in model.trainable_variables]
    assert len(set(paths)) == len(paths) == 5 + 16 * 2 + 2 + 5 + 2
    assert len({id(v) for v in model.trainable_variables}) == len(paths)
    assert sum(tuple(v.shape) == (99, 32) for v in model.variables) == 1
    assert sum(v.path.startswith("masked_lm/") for v in model.variables) == 5
    features, labels = pretraining_batch()
    with tf.GradientTape() as tape:
        loss = loss_of(model, features, labels)
    table = tf.convert_to_tensor(tape.gradient(loss, model.encoder.embeddings.word_embeddings))
    seen = np.unique(features["input_ids"])
    unseen = np.setdiff1d(np.arange(99), np.append(seen, labels["masked_lm_ids"]))
    # Pieces never read: from the decoder alone.
    assert (np.abs(table.numpy()[unseen]).max(1) > 0).all()
    assert np.abs(table.numpy()[seen]).max() > 3 * np.abs(table.numpy()[unseen]).max()


BATCHES = [
    pretraining_batch(1),
    pretraining_batch(2, batch=5, predictions=3),
    pretraining_batch(3, batch=2, length=9),
]


def test_evaluate_equals_numpy_over_all_batches():
    model, weights = build()
    given = model.evaluate(dataset_of(BATCHES), verbose=0, return_dict=True)
    expected = numpy_metrics(SHALLOW, weights, BATCHES)
    assert set(given) == set(expected)
    for name, value in expected.items():
        assert given[name] == pytest.approx(value, rel=2e-5), name
    again = model.evaluate(dataset_of(BATCHES[1:2]), verbose=0, return_dict=True)
    assert again["loss"] == pytest.approx(
        numpy_metrics(SHALLOW, weights, BATCHES[1:2])["loss"], rel=2e-5
    )


def test_training_metrics_are_those_before_the_update():
    model, weights = build()
    features, labels = pretraining_batch()
    given = floats(model.train_step((features, labels)))
    for name, value in numpy_metrics(SHALLOW, weights, [(features, labels)]).items():
        assert given[name] == pytest.approx(value, rel=2e-5), name


def test_without_next_sentence_prediction():
    model, weights = build(BertEncoder(SHALLOW), next_sentence=False)
    features, labels = pretraining_batch()
    assert set(model.output) == {"masked_lm_logits"}
    assert not [v for v in model.variables if v.path.startswith("next_sentence")]
    del labels["next_sentence_labels"]
    weights.update(
        {f"next_sentence/output/{k}": np.zeros(s) for k, s in (("kernel", (32, 2)), ("bias", 2))}
    )
    labels_of_reference = {**labels, "next_sentence_labels": np.zeros(BATCH, np.int32)}
    expected, _ = NumpyBert(SHALLOW, weights).pretraining_losses(features, labels_of_reference)
    before = values_of(model)
    results = floats(model.train_step((features, labels)))
    assert set(results) == {"loss", "masked_lm_loss", "perplexity", "masked_lm_accuracy"}
    assert results["loss"] == pytest.approx(expected, rel=1e-5)
    after = values_of(model)
    for path in before:  # nothing trains the pooler, so nothing may decay it either
        assert (before[path] == after[path]).all() == path.startswith("pooler"), path


def rows(batch, start, stop):
    return tf.nest.map_structure(lambda x: x[start:stop], batch)


def test_micro_batches_give_the_update_of_the_whole_batch():
    features, labels = pretraining_batch(batch=12)
    labels["masked_lm_weights"][3:6] = 0  # one micro-batch of four has nothing to predict
    labels["masked_lm_weights"][6:] = 1  # others have all slots in use
    updated = []
    for sizes in ([12], [6, 6], [3, 3, 3, 3], [3, 3, 6]):
        # Plain descent: the update is the gradient itself, clipped by the norm of all of it.
        model, _ = build(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.5))
        ends = np.cumsum(sizes)
        results = model.train_on_micro_batches(
            [
                rows((features, labels), end - size, end)
                for size, end in zip(sizes, ends, strict=True)
            ]
        )
        updated.append((values_of(model), floats(results)))
        assert int(model.optimizer.iterations) == 1
    for after, results in updated[1:]:
        assert_weights_equal(after, updated[0][0], 1e-6)
        assert results == pytest.approx(updated[0][1], rel=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_fit_learns_and_survives_saving(tmp_path, policy):
    rate = WarmupLinear(3e-3, steps=100, warmup_steps=5)
    model = BertPretrainer(SHALLOWEST, dtype=policy)
    model.compile(optimizer=BertAdamW(rate, no_decay=("LayerNorm",)))
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    batches = tf.data.Dataset.from_tensors(pretraining_batch()).repeat()
    history = model.fit(batches, steps_per_epoch=15, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0] - 0.3
    assert history["perplexity"][1] == pytest.approx(np.exp(history["masked_lm_loss"][1]), rel=1e-5)
    assert all(v.dtype == "float32" for v in model.trainable_variables)

    model.save(tmp_path / "pretrainer.keras")
    again = keras.saving.load_model(tmp_path / "pretrainer.keras")
    assert isinstance(again, BertPretrainer)
    assert again.dtype_policy.name == again.encoder.dtype_policy.name == policy
    assert again.optimizer.get_config() == model.optimizer.get_config()
    assert isinstance(again.optimizer, type(model.optimizer))
    assert_weights_equal(values_of(again), values_of(model), 0)
    for one, two in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    inner = again.optimizer.inner_optimizer if scaled else again.optimizer
    assert isinstance(inner, BertAdamW)
    assert int(inner.iterations) == 30


def test_training_goes_on_after_reloading_as_if_nothing_had_happened(tmp_path):
    model, _ = build(
        dtype="mixed_float16", width=0.1, optimizer=BertAdamW(WarmupLinear(0.01, 9, 4))
    )
    for seed in range(3):
        model.train_step(pretraining_batch(seed))
    model.save(tmp_path / "pretrainer.keras")
    again = keras.saving.load_model(tmp_path / "pretrainer.keras")
    results = []
    for one in (model, again):
        one.reset_metrics()
        results.append(floats(one.train_step(pretraining_batch(7))))
    assert results[0] == results[1]
    assert_weights_equal(values_of(again), values_of(model), 0)


def test_a_step_that_overflows_is_skipped():
    model, _ = build(dtype="mixed_float16", width=0.1)
    batch = pretraining_batch()
    model.train_step(batch)
    model.optimizer.dynamic_scale.assign(2.0**120)
    before = values_of(model)
    slots = [v.numpy() for v in model.optimizer.inner_optimizer.variables]
    model.train_step(batch)
    assert_weights_equal(values_of(model), before, 0)
    for old, new in zip(slots, model.optimizer.inner_optimizer.variables, strict=True):
        np.testing.assert_array_equal(new.numpy(), old)
    assert float(model.optimizer.dynamic_scale) == 2.0**119
    model.optimizer.dynamic_scale.assign(2.0**10)
    model.train_step(batch)
    assert np.abs(values_of(model)["pooler/kernel"] - before["pooler/kernel"]).max() > 0


def test_the_loss_scale_changes_no_update():
    updates = []
    for policy, scale in (("float32", None), ("mixed_float16", 2.0**6), ("mixed_float16", 2.0**12)):
        model, weights = build(dtype=policy, width=0.1, optimizer=BertAdamW(1e-2, epsilon=1e-3))
        if scale:
            model.optimizer.build(model.trainable_variables)
            model.optimizer.dynamic_scale.assign(scale)
        model.train_step(pretraining_batch())
        after = values_of(model)
        updates.append(np.concatenate([(after[p] - w).ravel() for p, w in weights.items()]))
    for update in updates[1:]:
        cosine = update @ updates[0] / np.linalg.norm(update) / np.linalg.norm(updates[0])
        assert cosine > 0.999
        assert np.linalg.norm(update) == pytest.approx(np.linalg.norm(updates[0]), rel=0.01)


def test_a_compiled_train_step_equals_the_plain_one():
    batches = [pretraining_batch(seed) for seed in range(5)]
    results = []
    for compiled in (False, True):
        model, _ = build(SHALLOWEST, width=0.1)
        step = tf.function(model.train_step, jit_compile=compiled)
        model.optimizer.build(model.trainable_variables)
        losses = []
        for batch in batches:
            losses.append(float(step(tf.nest.map_structure(tf.constant, batch))["loss"]))
        results.append((losses, values_of(model)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    # At most 1e-3 a step and weight; where m/√v is ill-conditioned, rounding decides a little.
    assert_weights_equal(results[1][1], results[0][1], 2e-5)


def test_fit_with_dropout_under_jit_compile():
    config = dataclasses.replace(
        SHALLOWEST, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    model = BertPretrainer(config, dtype="mixed_bfloat16")
    model.compile(optimizer=BertAdamW(3e-3), jit_compile=True)
    batches = tf.data.Dataset.from_tensors(pretraining_batch()).repeat()
    history = model.fit(batches, steps_per_epoch=15, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0] - 0.3


TWO_DEVICES = """
import sys
import warnings
import numpy as np
from keras_bert_ref._tensorflow import keras, tf

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from keras_bert_ref import BertAdamW, BertPretrainer
from numpy_bert import random_weights
from small_bert import CONFIG, pretraining_batch, set_weights
import dataclasses

config = dataclasses.replace(CONFIG, num_hidden_layers=1)
features, labels = pretraining_batch(batch=12 * 3)
labels["masked_lm_weights"][:6] = 0  # the replicas' shares differ much
data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(12)
one, two = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for name, strategy, policy in (
    ("one", one, "float32"),
    ("two", two, "float32"),
    ("two_float16", two, "mixed_float16"),
):
    with strategy.scope():
        model = BertPretrainer(config, dtype=policy)
        set_weights(model, random_weights(model.trainable_variables, width=0.1))
        model.compile(optimizer=BertAdamW(1e-2, clip_norm=0.5, epsilon=1e-3))
    history = model.fit(data, verbose=0).history
    values = {v.path: v.numpy() for v in model.trainable_variables}
    if policy == "float32":
        history["evaluated"] = list(model.evaluate(data, verbose=0, return_dict=True).values())
    metrics = {f"metric/{name}": np.ravel(value) for name, value in history.items()}
    np.savez(f"{sys.argv[1]}/{name}.npz", **values, **metrics)
"""


@pytest.mark.slow
def test_fit_on_two_devices_equals_one(tmp_path):
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", TWO_DEVICES, str(tmp_path)], check=True, env=environment)
    one, two, half = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two", "two_float16"))
    assert set(one) == set(two)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
    # Three steps of about 1e-2: loss scaling works on two devices as well, within its precision.
    for name in half:
        np.testing.assert_allclose(half[name], one[name], rtol=2e-3, atol=2e-3, err_msg=name)


def test_takes_an_encoder_or_a_configuration():
    encoder = BertEncoder(SHALLOW, dtype="mixed_bfloat16", attention="left_to_right")
    model = BertPretrainer(encoder)
    assert model.encoder is encoder
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert BertPretrainer(SHALLOW).encoder.config == SHALLOW
    for wrong in ("tiny", SHALLOW.to_dict(), None, keras.Sequential()):
        with pytest.raises(ConfigError, match="BertEncoder or a BertConfig"):
            BertPretrainer(wrong)


def test_a_base_pretrainer_has_the_originals_variables():
    # 199 of the encoder, five of the masked-LM head, two of next sentence prediction.
    model = BertPretrainer(BertConfig.from_name("tiny", num_hidden_layers=12))
    assert len(model.trainable_variables) == 206


def compiled(**options):
    model = BertPretrainer(SHALLOW, **options)
    model.compile(optimizer=BertAdamW(1e-3))
    return model


def test_metrics_are_exact_when_batches_differ_in_slots():
    model = compiled()
    batches = [pretraining_batch(1), pretraining_batch(2, predictions=4)]
    total = weight = 0
    for features, labels in batches:
        model.reset_metrics()
        loss = float(model.test_step((features, labels))["masked_lm_loss"])
        total += loss * labels["masked_lm_weights"].sum()
        weight += labels["masked_lm_weights"].sum()
    model.reset_metrics()
    for batch in batches:
        result = model.test_step(batch)
    assert float(result["masked_lm_loss"]) == pytest.approx(total / weight, rel=1e-6)


def test_micro_batches_without_next_sentence_prediction():
    model = compiled(next_sentence=False)
    batch = pretraining_batch()
    model.train_on_micro_batches([batch, batch])


def test_without_next_sentence_prediction_keras_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled(next_sentence=False).train_step(pretraining_batch())


def test_train_on_batch_and_test_on_batch():
    features, labels = pretraining_batch()
    model = compiled()
    tested = model.test_on_batch(features, labels, return_dict=True)
    model.reset_metrics()
    trained = model.train_on_batch(features, labels, return_dict=True)
    assert trained["loss"] == pytest.approx(tested["loss"], rel=1e-5)


def test_sample_weights_are_refused():
    features, labels = pretraining_batch()
    with pytest.raises(ConfigError, match="masked_lm_weights"):
        compiled().train_step((features, labels, np.ones(13, np.float32)))


def test_features_without_labels_are_refused():
    features, _ = pretraining_batch()
    with pytest.raises(ConfigError, match="labels"):
        compiled().train_step(features)


def test_a_missing_label_is_named():
    features, labels = pretraining_batch()
    del labels["masked_lm_weights"]
    with pytest.raises(ConfigError, match="masked_lm_weights"):
        compiled().train_step((features, labels))
