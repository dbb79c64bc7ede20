import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from model_checks import assert_weights_equal, dataset_of, floats, loss_of, values_of
from numpy_bert import NumpyBert, cross_entropy, random_weights
from small_bert import BATCH, CONFIG, LENGTH, encoder_features, set_weights
from task_batches import CHOICES, KINDS, MODELS, NAMES, TAGS, task_batch

from keras_bert_ref import (
    BertAdamW,
    BertClassifier,
    BertEncoder,
    BertMultipleChoice,
    BertPretrainer,
    BertSpanLabeler,
    BertTagger,
)
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError

SHALLOW = dataclasses.replace(CONFIG, num_hidden_layers=1)  # the encoder has tests of its own

each_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind, config=SHALLOW, optimizer=None, **options):
    """Returns a compiled model and its random weights by path."""
    model = MODELS[kind](config, **options)
    weights = random_weights(model.trainable_variables)
    set_weights(model, weights)
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.1))
    return model, weights


def numpy_outputs(kind, config, weights, features):
    bert = NumpyBert(config, weights)
    if kind == "choice":
        rows = {name: x.reshape(-1, x.shape[-1]) for name, x in features.items()}
        scores = bert.dense("choice/output", bert.encode(rows)["pooled_output"])
        return {"logits": scores.reshape(features["input_ids"].shape[:2])}
    encoded = bert.encode(features)
    if kind == "span":
        logits = bert.dense("span/output", encoded["sequence_output"])
        logits = np.where(features["input_mask"][:, :, None] == 1, logits, -1e4)
        return {"start_logits": logits[:, :, 0], "end_logits": logits[:, :, 1]}
    if kind == "tagger":
        return {"logits": bert.dense("tagger/output", encoded["sequence_output"])}
    logits = bert.dense("classifier/output", encoded["pooled_output"])
    return {"logits": logits} if kind == "classifier" else {"scores": logits[:, 0]}


def numpy_sums(kind, outputs, labels):
    """Returns the number of scored labels, the sum of their losses, and how many are right."""
    if kind == "regression":
        return BATCH, ((outputs["scores"] - labels["targets"]) ** 2).sum(), None
    if kind == "span":
        pairs = [(labels[f"{end}_positions"], outputs[f"{end}_logits"]) for end in ("start", "end")]
    else:
        pairs = [(labels["label_ids"], outputs["logits"])]
    scored = np.all([ids >= 0 for ids, _ in pairs], axis=0)
    losses = [cross_entropy(ids[scored], logits[scored]) for ids, logits in pairs]
    right = np.all([logits[scored].argmax(-1) == ids[scored] for ids, logits in pairs], axis=0)
    return scored.sum(), np.mean(losses, axis=0).sum(), right.sum()


def numpy_metrics(kind, outputs, labels):
    number, loss, right = numpy_sums(kind, outputs, labels)
    metrics = {"loss": loss / number}
    return metrics if right is None else {**metrics, "accuracy": right / number}


HEADS = {
    "classifier": ("classifier", len(NAMES)),
    "regression": ("classifier", 1),
    "span": ("span", 2),
    "choice": ("choice", 1),
    "tagger": ("tagger", len(TAGS)),
}

SHAPES = {
    "classifier": {"logits": (BATCH, len(NAMES))},
    "regression": {"scores": (BATCH,)},
    "span": {"start_logits": (BATCH, LENGTH), "end_logits": (BATCH, LENGTH)},
    "choice": {"logits": (BATCH, CHOICES)},
    "tagger": {"logits": (BATCH, LENGTH, len(TAGS))},
}


@each_kind
def test_outputs_equal_numpy_float64(kind):
    model, weights = build(kind)
    features, _ = task_batch(kind)
    given, expected = model(features), numpy_outputs(kind, SHALLOW, weights, features)
    assert {name: tuple(x.shape) for name, x in given.items()} == SHAPES[kind]
    for name, values in expected.items():
        assert given[name].dtype == tf.float32
        np.testing.assert_allclose(given[name], values, rtol=0, atol=2e-5)


@each_kind
def test_loss_and_metrics_equal_numpy_float64(kind):
    model, weights = build(kind)
    features, labels = task_batch(kind)
    outputs = numpy_outputs(kind, SHALLOW, weights, features)
    expected = numpy_metrics(kind, outputs, labels)
    given = floats(model.test_step((features, labels)))
    assert given == pytest.approx(expected, abs=2e-5)
    assert float(loss_of(model, features, labels)) == pytest.approx(expected["loss"], abs=2e-5)
    model.reset_metrics()
    assert floats(model.train_step((features, labels))) == pytest.approx(expected, abs=2e-5)


@each_kind
def test_evaluate_counts_labels_not_batches(kind):
    model, weights = build(kind)
    batches = [task_batch(kind, 1), task_batch(kind, 2, length=9)]
    sums = [
        numpy_sums(kind, numpy_outputs(kind, SHALLOW, weights, features), labels)
        for features, labels in batches
    ]
    given = model.evaluate(dataset_of(batches), verbose=0, return_dict=True)
    number, loss = (sum(s[i] for s in sums) for i in range(2))
    assert given["loss"] == pytest.approx(loss / number, abs=2e-5)
    if kind == "regression":
        assert set(given) == {"loss"}
    else:
        assert given["accuracy"] == pytest.approx(sum(s[2] for s in sums) / number, abs=1e-6)


@each_kind
def test_gradients_equal_finite_differences_of_numpy(kind):
    model, weights = build(kind)
    features, labels = task_batch(kind)
    with tf.GradientTape() as tape:
        loss = loss_of(model, features, labels)
    gradients = tape.gradient(loss, model.trainable_variables)

    def loss_at(path, values):
        outputs = numpy_outputs(kind, SHALLOW, {**weights, path: values}, features)
        return numpy_metrics(kind, outputs, labels)["loss"]

    checked = 0
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        path, at = variable.path, weights[variable.path]
        # Of the encoder, what is nearest to the head and what is farthest from it.
        if path.startswith("layer_") or path.startswith("embeddings/LayerNorm"):
            continue
        gradient = tf.convert_to_tensor(gradient).numpy().astype(np.float64)
        norm = np.linalg.norm(gradient)
        if path in ("choice/output/bias", "span/output/bias"):  # move all logits alike
            assert norm < 1e-6
            continue
        step = 1e-5 * gradient / norm
        slope = (loss_at(path, at + step) - loss_at(path, at - step)) / 2e-5
        assert norm == pytest.approx(slope, rel=2e-4), path
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("kind", ["classifier", "span", "choice", "tagger"])
def test_negative_labels_are_not_scored(kind):
    updated = []
    for ignored in (-1, -100):
        model, weights = build(kind)
        features, labels = task_batch(kind)
        assert all((x < 0).any() for x in labels.values())
        labels = {name: np.where(x < 0, ignored, x) for name, x in labels.items()}
        results = floats(model.train_step((features, labels)))
        updated.append((results, values_of(model)))
    assert updated[0][0] == updated[1][0]
    assert_weights_equal(updated[1][1], updated[0][1], 0)

    model, weights = build(kind)
    labels = {name: np.full_like(x, -1) for name, x in labels.items()}
    assert floats(model.train_step((features, labels))) == {"loss": 0, "accuracy": 0}
    assert_weights_equal(values_of(model), weights, 0)


def test_a_span_with_one_negative_end_is_not_scored():
    model, _ = build("span")
    features, labels = task_batch("span")
    model.reset_metrics()
    expected = floats(model.test_step((features, labels)))
    features = {name: np.concatenate([x, x[:2]]) for name, x in features.items()}
    labels = {
        "start_positions": np.append(labels["start_positions"], np.int32([-1, 0])),
        "end_positions": np.append(labels["end_positions"], np.int32([1, -1])),
    }
    model.reset_metrics()
    assert floats(model.test_step((features, labels))) == pytest.approx(expected, rel=1e-6)


def test_a_span_depends_on_padding_in_no_way():
    model, _ = build("span")
    features, labels = task_batch("span")
    longer = {name: np.pad(x, [(0, 0), (0, 9)]) for name, x in features.items()}
    outputs, losses, gradients = [], [], []
    for inputs in (features, longer):
        with tf.GradientTape() as tape:
            losses.append(loss_of(model, inputs, labels))
        gradients.append(tape.gradient(losses[-1], model.trainable_variables))
        outputs.append(model(inputs))
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-6)
    for one, two in zip(*gradients, strict=True):
        # The position table has a row of gradients for each position that is read, or padded.
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    for name in ("start_logits", "end_logits"):
        one, two = (tf.nn.softmax(x[name]).numpy() for x in outputs)
        np.testing.assert_allclose(two[:, :LENGTH], one, rtol=0, atol=1e-6)
        assert (two[:, LENGTH:] == 0).all()
        assert (two[longer["input_mask"] == 0] == 0).all()
        assert (one.argmax(-1) == two.argmax(-1)).all()


def test_a_row_of_nothing_but_padding_has_finite_span_logits():
    model, _ = build("span")
    features, labels = task_batch("span")
    features["input_mask"][3:5] = 0
    assert np.isfinite(float(loss_of(model, features, labels)))


def rows(batch, start, stop):
    return tf.nest.map_structure(lambda x: x[start:stop], batch)


@each_kind
def test_micro_batches_give_the_update_of_the_whole_batch(kind):
    batch = task_batch(kind, batch=12)
    if kind != "regression":
        for ids in batch[1].values():
            ids[3:6] = -1  # one micro-batch of four has nothing to learn from
    updated = []
    for number in (1, 2, 4):
        model, _ = build(kind, SHALLOW, keras.optimizers.SGD(0.1, global_clipnorm=0.5))
        size = 12 // number
        parts = [rows(batch, i * size, (i + 1) * size) for i in range(number)]
        results = model.train_on_micro_batches(parts)
        updated.append((values_of(model), floats(results)))
        assert int(model.optimizer.iterations) == 1
    for after, results in updated[1:]:
        assert_weights_equal(after, updated[0][0], 1e-6)
        assert results == pytest.approx(updated[0][1], rel=1e-5)


ENVIRONMENT = {"PYTHONPATH": ":".join(path for path in sys.path if path)}

TWO_DEVICES = """
import dataclasses
import sys
import numpy as np
from keras_bert_ref._tensorflow import tf

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from keras_bert_ref import BertAdamW
from numpy_bert import random_weights
from small_bert import CONFIG, set_weights
from task_batches import MODELS, task_batch

config = dataclasses.replace(CONFIG, num_hidden_layers=1)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def build(kind):
    model = MODELS[kind](config)
    set_weights(model, random_weights(model.trainable_variables, width=0.1))
    model.compile(optimizer=BertAdamW(1e-2, clip_norm=0.5, epsilon=1e-3))
    return model

for kind in sys.argv[2:]:
    features, labels = task_batch(kind, batch=13)  # of the last batch one replica gets nothing
    if kind != "regression":
        for ids in labels.values():
            ids[:3] = -1  # the replicas' shares differ much
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(6)
    one = build(kind)
    for batch in data:
        results = one.train_step(batch)
    with strategy.scope():
        two = build(kind)
    logs = two.fit(data, verbose=0).history
    for name, model, metrics in (("one", one, results), ("two", two, logs)):
        values = {v.path: v.numpy() for v in model.trainable_variables}
        metrics = {f"metric/{key}": np.ravel(value) for key, value in metrics.items()}
        np.savez(f"{sys.argv[1]}/{kind}_{name}.npz", **values, **metrics)
"""


@pytest.mark.slow
def test_fit_on_two_devices_equals_one(tmp_path):
    kinds = ("regression", "choice", "tagger")  # the three forms of loss weights and inputs
    subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, str(tmp_path), *kinds], check=True, env=ENVIRONMENT
    )
    for kind in kinds:
        one, two = (np.load(tmp_path / f"{kind}_{name}.npz") for name in ("one", "two"))
        assert set(one) == set(two)
        for name in one:
            np.testing.assert_allclose(
                two[name], one[name], rtol=1e-5, atol=1e-5, err_msg=f"{kind} {name}"
            )


@each_kind
def test_learns_in_bfloat16_with_dropout(kind):
    keras.utils.set_random_seed(1)
    config = dataclasses.replace(SHALLOW, hidden_dropout_prob=0.1)
    model = MODELS[kind](config, dropout=0.1, dtype="mixed_bfloat16")
    model.compile(optimizer=BertAdamW(3e-3))
    batch = task_batch(kind)
    losses = []
    for _ in range(15):
        model.reset_metrics()
        losses.append(float(model.train_step(batch)["loss"]))
    # The lowest: at this rate and with dropout, single steps overshoot.
    assert min(losses) < 0.5 * losses[0]
    assert all(v.dtype == "float32" for v in model.trainable_variables)


@each_kind
def test_a_compiled_step_equals_the_plain_one(kind):
    model, _ = build(kind, SHALLOW)
    batch = tf.nest.map_structure(tf.constant, task_batch(kind))
    results = []
    for step in (model.test_step, tf.function(model.test_step, jit_compile=True)):
        model.reset_metrics()
        results.append(floats(step(batch)))
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_fit_with_dropout_under_jit_compile():
    keras.utils.set_random_seed(1)
    model = MODELS["choice"](SHALLOW, dropout=0.1, dtype="mixed_bfloat16")
    model.compile(optimizer=BertAdamW(3e-3), jit_compile=True)
    batches = tf.data.Dataset.from_tensors(task_batch("choice")).repeat(12)
    history = model.fit(batches, epochs=2, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    assert history["loss"][1] < 0.5 * history["loss"][0]


RELOAD = """
import sys
import numpy as np
import keras_bert_ref.models
from keras_bert_ref._tensorflow import keras
from task_batches import KINDS, task_batch
for path in sys.argv[1:]:
    model = keras.saving.load_model(path)
    kind = path.split("/")[-1].split("-")[0]
    outputs = model(task_batch(kind)[0])
    np.savez(path + ".npz", **{name: x.numpy() for name, x in outputs.items()})
"""


def test_saved_models_are_equal_bit_for_bit_in_a_fresh_process(tmp_path):
    expected = {}
    for kind in KINDS:
        for policy in ("float32", "mixed_bfloat16"):
            model, _ = build(kind, SHALLOW, dtype=policy)
            path = str(tmp_path / f"{kind}-{policy}.keras")
            model.save(path)
            expected[path] = model(task_batch(kind)[0])
    subprocess.run([sys.executable, "-c", RELOAD, *expected], check=True, env=ENVIRONMENT)
    for path, outputs in expected.items():
        given = np.load(path + ".npz")
        assert set(given) == set(outputs)
        for name, values in outputs.items():
            np.testing.assert_array_equal(given[name], values, err_msg=path)


@each_kind
def test_the_configuration_is_plain_json_and_complete(kind):
    model = MODELS[kind](SHALLOW, dropout=0.25, dtype="mixed_float16", name="mine")
    config = json.loads(json.dumps(model.get_config()))
    again = type(model).from_config(config)
    assert again.get_config() == model.get_config() == config
    assert (again.name, again.dtype_policy.name) == ("mine", "mixed_float16")
    assert again.encoder.config == SHALLOW
    if kind != "span":
        assert again.dropout == 0.25
    if kind in ("classifier", "tagger"):
        assert type(again.labels) is tuple
        assert again.labels == {"classifier": NAMES, "tagger": TAGS}[kind]


def test_training_goes_on_after_reloading_as_if_nothing_had_happened(tmp_path):
    model, _ = build("tagger", SHALLOW, BertAdamW(1e-3))
    model.train_step(task_batch("tagger"))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.labels == TAGS
    for one in (model, again):
        one.reset_metrics()
    results = [floats(one.train_step(task_batch("tagger", 7))) for one in (again, model)]
    assert results[0] == results[1]
    assert_weights_equal(values_of(again), values_of(model), 0)


@pytest.mark.parametrize("kind", ["classifier", "regression", "choice", "tagger"])
def test_dropout_is_for_training(kind):
    model, weights = build(kind, dropout=0.25)
    features, _ = task_batch(kind)
    [name] = model.output
    plain, one, two = (model(features, training=t)[name] for t in (False, True, True))
    assert np.abs(one - two).max() > 1e-2
    np.testing.assert_array_equal(plain, model(features)[name])
    # Nothing else drops anything here: what the head reads is multiplied by 0 or by 4/3.
    head = getattr(model, HEADS[kind][0])
    kernel = weights[f"{HEADS[kind][0]}/output/kernel"]
    head.output_dense.kernel.assign(np.eye(32, kernel.shape[1]))
    head.output_dense.bias.assign(np.zeros(kernel.shape[1]))
    read, dropped = (model(features, training=t)[name].numpy() for t in (False, True))
    kept = np.isclose(dropped, read * 4 / 3, rtol=1e-4, atol=1e-5)
    assert (kept | (dropped == 0)).all()
    assert 0.5 < kept.mean() < 1


@each_kind
def test_variables_and_their_paths(kind):
    name, units = HEADS[kind]
    pooler = kind not in ("span", "tagger")
    encoder = BertEncoder(SHALLOW, pooler=pooler)
    expected = {v.path: tuple(v.shape) for v in encoder.trainable_variables}
    expected |= {f"{name}/output/kernel": (32, units), f"{name}/output/bias": (units,)}
    model = MODELS[kind](SHALLOW)
    assert {v.path: tuple(v.shape) for v in model.trainable_variables} == expected
    assert len(model.trainable_variables) == len(expected)
    assert (model.encoder.pooler is not None) == pooler


@pytest.mark.parametrize("kind", ["span", "tagger"])
def test_a_pooler_that_is_not_read_is_left_as_it_is(kind):
    encoder = BertEncoder(SHALLOW)
    model, _ = build(kind, encoder, optimizer=BertAdamW(1e-2))
    assert model.encoder is encoder
    before = values_of(model)
    model.train_step(task_batch(kind))
    after = values_of(model)
    assert (after["pooler/kernel"] == before["pooler/kernel"]).all()
    assert np.abs(after[f"{kind}/output/kernel"] - before[f"{kind}/output/kernel"]).max() > 1e-4


def test_a_frozen_encoder_stays_as_it_is():
    encoder = BertEncoder(SHALLOW)
    encoder.trainable = False
    model, _ = build("classifier", encoder)
    assert set(values_of(model)) == {"classifier/output/kernel", "classifier/output/bias"}
    before = [v.numpy() for v in encoder.weights]
    head = values_of(model)["classifier/output/kernel"]
    model.train_step(task_batch("classifier"))
    for one, two in zip(before, encoder.weights, strict=True):
        np.testing.assert_array_equal(one, two)
    assert np.abs(values_of(model)["classifier/output/kernel"] - head).max() > 1e-4


def test_any_number_of_choices():
    model, weights = build("choice")
    for choices in (1, 2, 6):
        features = encoder_features(batch=5 * choices, length=8)
        features = {name: x.reshape(5, choices, 8) for name, x in features.items()}
        expected = numpy_outputs("choice", SHALLOW, weights, features)["logits"]
        np.testing.assert_allclose(model(features)["logits"], expected, rtol=0, atol=2e-5)


@each_kind
def test_predict_over_batches_of_different_lengths(kind):
    model, _ = build(kind)
    batches = [task_batch(kind, 1)[0], task_batch(kind, 2, length=9)[0]]
    given = model.predict(dataset_of(batches), verbose=0)
    for name, values in given.items():
        expected = [row for features in batches for row in model(features)[name].numpy()]
        ragged = kind in ("span", "tagger")  # what Keras makes of batches that differ in S
        assert isinstance(values, tf.RaggedTensor) == ragged
        assert len(expected) == 2 * BATCH
        for value, row in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, row, rtol=0, atol=2e-5)


@pytest.mark.parametrize("model", [BertClassifier, BertTagger])
@pytest.mark.parametrize(
    "labels", ["yes", ["yes"], [], [0, 1], {"no", "yes"}, {"no": 0, "yes": 1}, 2, ["no", None]]
)
def test_labels_must_be_a_list_of_names(model, labels):
    with pytest.raises(ConfigError, match="labels must be a list of at least two names"):
        model(SHALLOW, labels)


@pytest.mark.parametrize("model", [BertClassifier, BertTagger])
def test_labels_must_differ(model):
    with pytest.raises(ConfigError, match="'no' comes twice"):
        model(SHALLOW, ["no", "yes", "no"])


def test_a_tagger_needs_labels():
    with pytest.raises(ConfigError, match="labels"):
        BertTagger(SHALLOW, None)


@pytest.mark.parametrize("kind", ["classifier", "regression", "choice", "tagger"])
@pytest.mark.parametrize("rate", [1, -0.1, "0.1", None, True, float("nan")])
def test_dropout_must_be_a_rate(kind, rate):
    with pytest.raises(ConfigError, match=r"dropout must be in \[0, 1\)"):
        MODELS[kind](SHALLOW, dropout=rate)


@each_kind
def test_only_an_encoder_or_a_configuration_will_do(kind):
    for wrong in ("tiny", SHALLOW.to_dict(), None, keras.Sequential()):
        with pytest.raises(ConfigError, match="BertEncoder or a BertConfig"):
            MODELS[kind](wrong)


def test_models_that_read_the_pooler_refuse_an_encoder_without():
    encoder = BertEncoder(SHALLOW, pooler=False)
    for model in (
        lambda: BertClassifier(encoder, NAMES),
        lambda: BertClassifier(encoder),
        lambda: BertMultipleChoice(encoder),
        lambda: BertPretrainer(encoder),
    ):
        with pytest.raises(ConfigError, match="pooler=True"):
            model()
    (
        BertSpanLabeler(encoder),
        BertTagger(encoder, TAGS),
        BertPretrainer(encoder, next_sentence=False),
    )
    assert BertPretrainer(SHALLOW, next_sentence=False).encoder.pooler is None


@each_kind
def test_a_missing_label_is_named(kind):
    model, _ = build(kind, SHALLOW)
    features, labels = task_batch(kind)
    name, _ = labels.popitem()
    with pytest.raises(ConfigError, match=name):
        model.train_step((features, labels))


def test_a_target_that_is_nan_is_not_scored():
    features, labels = task_batch("regression")
    targets = labels["targets"].copy()
    targets[[0, 5]] = np.nan
    kept = np.isfinite(targets)
    results, weights = [], []
    for chosen, values in ((slice(None), targets), (kept, targets[kept])):
        keras.utils.set_random_seed(0)
        model = MODELS["regression"](CONFIG)
        model.compile(optimizer=BertAdamW(1e-3))
        part = {name: x[chosen] for name, x in features.items()}
        results.append(float(model.train_step((part, {"targets": values}))["loss"]))
        weights.append(values_of(model))
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    assert_weights_equal(*weights, 1e-5)


def test_targets_of_another_shape_are_refused():
    model, _ = build("regression", SHALLOW)
    features, labels = task_batch("regression")
    with pytest.raises(ConfigError, match=r"targets must be of shape \[B\], not \(13, 1\)"):
        model.train_step((features, {"targets": labels["targets"][:, None]}))
