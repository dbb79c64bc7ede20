"""Several sequences in a row: to be the same as each in a row of its own."""

import dataclasses

import numpy as np
import pytest
from model_checks import assert_weights_equal, dataset_of, floats, loss_of, values_of
from numpy_bert import NumpyBert, random_weights
from small_bert import BATCH, CONFIG, encoder_features, pretraining_batch, set_weights

from keras_bert_ref import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    FeatureExtractor,
    export_saved_model,
)
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError
from tfrecords.packing import merge, pack
from tfrecords.settings import InstanceSettings

SHALLOW = dataclasses.replace(CONFIG, num_hidden_layers=2)
PLACES = 4
ROOM = 16  # of the sequences of up to 7 pieces that `small_bert` makes
SETTINGS = InstanceSettings(
    max_seq_length=ROOM, max_predictions_per_seq=3, masked_lm_prob=0.5, sequences_per_row=3
)


def packed(features, labels):
    """Returns (features, labels) in rows of several sequences, and which are where [R, 3]."""
    columns = {
        **features,
        **labels,
        "next_sentence_labels": labels["next_sentence_labels"][:, None],
    }
    lengths = features["input_mask"].sum(axis=1)
    rows = pack(lengths, ROOM, SETTINGS.sequences_per_row)
    order = rows[rows >= 0]
    merged = merge({k: v[order] for k, v in columns.items()}, lengths[order], rows, SETTINGS, 0)
    # As the reader does: the model has a place more than the rows.
    found = np.pad(merged["next_sentence_labels"], [(0, 0), (0, PLACES - rows.shape[1])])
    used = np.arange(PLACES) < merged["input_mask"].max(axis=1, keepdims=True)
    merged["next_sentence_labels"] = np.where(used, found, -1)
    return (
        {name: merged[name] for name in features},
        {name: merged[name].astype(labels[name].dtype) for name in labels},
        rows,
    )


def build(sequences_per_row, seed=0, optimizer=None, attention="bidirectional", **options):
    encoder = BertEncoder(
        SHALLOW, sequences_per_row=sequences_per_row, attention=attention, **options
    )
    model = BertPretrainer(encoder)
    set_weights(model, random_weights(model.trainable_variables, seed, 0.3))
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.1, global_clipnorm=0.5))
    return model


def test_the_batch_is_worth_packing():
    features, _, rows = packed(*pretraining_batch())
    assert len(rows) < BATCH / 2
    assert features["input_mask"].max() == 3 and (features["input_mask"] == 0).any()


@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_every_sequence_is_encoded_as_if_alone(attention):
    options = {"hidden_states": True, "attentions": True, "attention": attention}
    encoder = BertEncoder(CONFIG, sequences_per_row=PLACES, **options)
    weights = random_weights(encoder.trainable_variables)
    set_weights(encoder, weights)
    features, labels = pretraining_batch()
    numpy_bert = NumpyBert(CONFIG, weights, attention == "left_to_right")
    expected = numpy_bert.encode(features)
    merged, _, rows = packed(features, labels)
    merged.pop("masked_lm_positions")
    given = {name: x.numpy() for name, x in encoder(merged).items()}
    assert given["pooled_output"].shape == (len(rows), PLACES, CONFIG.hidden_size)
    for row, place in zip(*np.nonzero(rows >= 0), strict=True):
        sequence, length = rows[row, place], features["input_mask"][rows[row, place]].sum()
        (at,) = np.nonzero(merged["input_mask"][row] == place + 1)
        assert len(at) == length
        pairs = [
            (given["sequence_output"][row, at], expected["sequence_output"][sequence, :length]),
            (given["pooled_output"][row, place], expected["pooled_output"][sequence]),
            (given["hidden_states"][row][:, at], expected["hidden_states"][sequence][:, :length]),
            (
                given["attentions"][row][..., at, :][..., at],
                expected["attentions"][sequence][..., :length, :length],
            ),
        ]
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5)
        # Nothing is seen of any other.
        others = np.setdiff1d(np.arange(ROOM), at)
        assert not given["attentions"][row][..., at, :][..., others].any()


def test_an_encoder_for_several_reads_rows_of_one():
    encoder = BertEncoder(CONFIG, sequences_per_row=PLACES)
    plain = BertEncoder(CONFIG)
    for one, other in zip(encoder.weights, plain.weights, strict=True):
        other.assign(one)
    features = encoder_features()
    real = features["input_mask"] > 0
    ours, theirs = encoder(features), plain(features)
    np.testing.assert_allclose(
        ours["sequence_output"][real], theirs["sequence_output"][real], rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        ours["pooled_output"][:, 0], theirs["pooled_output"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_packed_and_unpacked_rows_give_the_same_loss_and_gradients(attention):
    results = []
    for places in (1, PLACES):
        features, labels = pretraining_batch()
        if places > 1:
            features, labels, _ = packed(features, labels)
        model = build(places, attention=attention)
        with tf.GradientTape() as tape:
            loss = loss_of(model, features, labels)
        results.append((float(loss), tape.gradient(loss, model.trainable_variables)))
    (loss, gradients), (packed_loss, packed_gradients) = results
    assert packed_loss == pytest.approx(loss, rel=1e-6)
    for variable, one, two in zip(
        model.trainable_variables, gradients, packed_gradients, strict=True
    ):
        tolerance = 1e-5 * float(tf.reduce_max(tf.abs(one))) + 1e-7
        np.testing.assert_allclose(two, one, rtol=0, atol=tolerance, err_msg=variable.path)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_training_step_of_packed_rows_is_that_of_the_others(jit_compile):
    features, labels = pretraining_batch()
    plain, model = build(1), build(PLACES)
    expected = floats(plain.train_step((features, labels)))
    step = tf.function(model.train_step, jit_compile=jit_compile)
    merged, merged_labels, _ = packed(features, labels)
    batch = tf.nest.map_structure(tf.constant, (merged, merged_labels))
    assert floats(step(batch)) == pytest.approx(expected, rel=1e-5)
    assert_weights_equal(values_of(model), values_of(plain), 1e-5)

    # In micro-batches of rows that hold more sequences and fewer.
    model = build(PLACES)
    parts = [tf.nest.map_structure(lambda x, s=s: x[s], batch) for s in (slice(0, 2), slice(2, 99))]
    model.train_on_micro_batches(parts)
    assert_weights_equal(values_of(model), values_of(plain), 1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_packed_rows_in_lower_precision(policy):
    """Near the loss of float32, and nothing of another sequence comes through."""
    features, labels, _ = packed(*pretraining_batch())
    exact = float(loss_of(build(PLACES), features, labels))
    model = build(PLACES, dtype=policy)
    assert float(loss_of(model, features, labels)) == pytest.approx(exact, rel=0.02)
    before = model(features)["masked_lm_logits"].numpy()
    second = features["input_mask"] == 2
    changed = {**features, "input_ids": np.where(second, 5, features["input_ids"])}
    after = model(changed)["masked_lm_logits"].numpy()
    of_second = np.take_along_axis(second, features["masked_lm_positions"], axis=1)
    np.testing.assert_array_equal(after[~of_second], before[~of_second])
    assert (after[of_second] != before[of_second]).any()


def test_metrics_of_packed_rows_are_those_of_the_others():
    batches = [pretraining_batch(seed) for seed in range(3)]
    plain, model = build(1), build(PLACES)
    expected = plain.evaluate(dataset_of(batches), return_dict=True, verbose=0)
    merged = [packed(*batch)[:2] for batch in batches]
    given = model.evaluate(dataset_of(merged), return_dict=True, verbose=0)
    assert given == pytest.approx(expected, rel=1e-5)


def test_packed_rows_without_next_sentence_prediction():
    model = BertPretrainer(
        BertEncoder(SHALLOW, sequences_per_row=PLACES, pooler=False), next_sentence=False
    )
    plain = BertPretrainer(SHALLOW, next_sentence=False)
    for one, other in zip(model.weights, plain.weights, strict=True):
        other.assign(one)
    features, labels = pretraining_batch()
    merged, merged_labels, _ = packed(features, labels)
    assert float(loss_of(model, merged, merged_labels)) == pytest.approx(
        float(loss_of(plain, features, labels)), rel=1e-6
    )


def test_what_is_learned_in_packed_rows_is_an_ordinary_model(tmp_path):
    model = build(PLACES)
    features, labels, _ = packed(*pretraining_batch())
    model.save_pretrained(tmp_path / "model")
    plain = BertPretrainer.from_pretrained(tmp_path / "model", strict=True)
    assert plain.encoder.sequences_per_row == 1
    again = BertPretrainer.from_pretrained(tmp_path / "model", sequences_per_row=PLACES)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = float(loss_of(model, features, labels))
    for other in (again, reloaded):
        assert other.encoder.sequences_per_row == PLACES
        assert float(loss_of(other, features, labels)) == expected
    assert float(loss_of(plain, *pretraining_batch())) == pytest.approx(expected, rel=1e-6)


def test_what_does_not_fit_together_is_named(tmp_path):
    features, labels, _ = packed(*pretraining_batch())
    with pytest.raises(ConfigError, match=r"shape \(\d, 4\), the model's encoder takes 1 to a row"):
        build(1).train_step((features, labels))
    with pytest.raises(ConfigError, match="encoder takes 4 to a row"):
        build(PLACES).train_step(pretraining_batch())
    model = BertPretrainer(SHALLOW, next_sentence=False)
    with pytest.raises(ConfigError, match="the model's encoder takes 1 to a row"):
        loss_of(model, features, labels)
    encoder = BertEncoder(SHALLOW, sequences_per_row=2)
    with pytest.raises(ConfigError, match="export what from_pretrained makes of it"):
        export_saved_model(BertPretrainer(encoder), tmp_path / "served" / "1")
    assert not (tmp_path / "served").exists()
    with pytest.raises(ConfigError, match="takes 2 sequences to a row, which is for pretraining"):
        BertClassifier(encoder, ["a", "b"])
    for value in (0, -1, True, 1.5, "2"):
        with pytest.raises(ConfigError, match="sequences_per_row must be a whole number"):
            BertEncoder(SHALLOW, sequences_per_row=value)


def test_features_of_an_encoder_for_several_are_those_of_one():
    """A text is a row of its own, whatever the encoder was trained on."""
    from keras_bert_ref.tokenization import WordPieceTokenizer
    from keras_bert_ref.vocabulary import SPECIAL_PIECES

    encoder = BertEncoder(CONFIG, sequences_per_row=PLACES)
    plain = BertEncoder(CONFIG)
    for one, other in zip(encoder.weights, plain.weights, strict=True):
        other.assign(one)
    texts = ["a b c", "d", "e f g a b"]
    for model in (encoder, plain):
        model.tokenizer = WordPieceTokenizer([*SPECIAL_PIECES, *"abcdefg"])
    for pooling in ("mean", "pooler"):
        ours, theirs = (
            FeatureExtractor(model, layers=-1, pooling=pooling).extract(texts)
            for model in (encoder, plain)
        )
        np.testing.assert_array_equal(ours, theirs)
