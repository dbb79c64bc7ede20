"""Features equal to the encoder's hidden states, whatever the batches, windows and poolings."""

import dataclasses
import json
import random

import numpy as np
import pytest
from checkpoint_models import make
from shared_data import minilm, shared
from small_bert import CONFIG

from keras_bert_ref import BertEncoder, FeatureExtractor, ScalarMix
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import CheckpointError, ConfigError, InputError, TruncationWarning
from keras_bert_ref.features.frozen import FrozenEncoder
from keras_bert_ref.features.windows import prepare

TEXTS = [
    "abc word7 d",
    ("a b c", "word9 z"),
    ["abc", "word3", "x"],
    "",
    "  \t ",
    "word1",
    ("", ""),
    "q r s t u v w",
]


@pytest.fixture(scope="module")
def model():
    return make("encoder", hidden_states=True)


def encoding_of(model, value):
    if isinstance(value, list):
        return model.tokenizer.encode_words(value)
    return model.tokenizer.encode(*([value] if isinstance(value, str) else value))


def states_of(model, value):
    """Returns [n, L+1, H], one input at a time, and the pooled output."""
    encoding = encoding_of(model, value)
    names = ("input_ids", "input_mask", "segment_ids")
    outputs = model({name: tf.constant([getattr(encoding, name)]) for name in names})
    states = outputs["hidden_states"].numpy()[0].swapaxes(0, 1)
    return states, outputs["pooled_output"].numpy()[0]


@pytest.mark.parametrize("tokens_per_batch", [1, 40, 4096])
def test_pieces_are_the_hidden_states(model, tokens_per_batch):
    extractor = FeatureExtractor(
        model,
        layers="all",
        combine="stack",
        pooling="pieces",
        tokens_per_batch=tokens_per_batch,
    )
    found = extractor.extract(TEXTS, return_tokens=True)
    for value, features in zip(TEXTS, found, strict=True):
        states, _ = states_of(model, value)
        np.testing.assert_allclose(features.values, states, atol=2e-5)
        encoding = encoding_of(model, value)
        assert features.tokens == encoding.tokens
        assert features.offsets == encoding.offsets
        assert features.word_ids == encoding.word_ids
        assert features.values.dtype == np.float32


@pytest.mark.parametrize("specials", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "mean_max", "pooler"])
def test_texts_are_pooled_layer_by_layer(model, pooling, specials):
    layers = (-1, 0, 3)
    extractor = FeatureExtractor(model, layers=layers, pooling=pooling, specials=specials)
    found = extractor.extract(TEXTS)
    assert found.shape == (len(TEXTS), extractor.size)
    for value, vector in zip(TEXTS, found, strict=True):
        states, pooled = states_of(model, value)
        states = states[:, [5, 0, 3]]
        if not specials and pooling != "cls":
            states = states[[span is not None for span in encoding_of(model, value).offsets]]
        if len(states) == 0:
            states = np.zeros((1, 3, 32))
        expected = {
            "cls": lambda s: s[0],
            "mean": lambda s: s.mean(0),
            "max": lambda s: s.max(0),
            "mean_max": lambda s: np.concatenate([s.mean(0), s.max(0)], -1),
            "pooler": lambda s, pooled=pooled: pooled,
        }[pooling](states)
        np.testing.assert_allclose(vector, expected.ravel(), atol=2e-5)


@pytest.mark.parametrize("combine", ["concat", "sum", "mean", "stack"])
def test_layers_are_combined(model, combine):
    found = FeatureExtractor(model, layers="last4", combine=combine).extract(TEXTS[:2])
    for value, vector in zip(TEXTS, found, strict=False):
        states = states_of(model, value)[0].mean(0)[2:]
        expected = {
            "concat": states.ravel(),
            "sum": states.sum(0),
            "mean": states.mean(0),
            "stack": states,
        }[combine]
        np.testing.assert_allclose(vector, expected, atol=2e-5)


def test_words_have_their_first_last_and_mean_piece(model):
    words = ["abc", "word3", "x", "ü", "de"]
    states = states_of(model, words)[0][:, 5]
    word_ids = np.array(
        [-1 if w is None else w for w in model.tokenizer.encode_words(words).word_ids]
    )
    for pooling, choose in (
        ("first_piece", lambda s: s[0]),
        ("last_piece", lambda s: s[-1]),
        ("mean_piece", lambda s: s.mean(0)),
    ):
        (found,) = FeatureExtractor(model, layers=-1, pooling=pooling).extract([words])
        expected = np.stack([choose(states[word_ids == n]) for n in range(len(words))])
        np.testing.assert_allclose(found, expected, atol=2e-5)
    pair, empty = FeatureExtractor(model, layers=-1, pooling="first_piece").extract(
        [("abc d", "e"), ""]
    )
    assert pair.shape == (3, 32)  # both texts count their words from 0
    assert empty.shape == (0, 32)


def test_tokens_line_up_with_what_is_kept(model):
    extractor = FeatureExtractor(model, layers=-1, pooling="pieces", specials=False)
    for value, found in zip(TEXTS, extractor.extract(TEXTS, return_tokens=True), strict=True):
        assert len(found.values) == len(found.tokens) == len(found.offsets) == len(found.word_ids)
        assert found.tokens == encoding_of(model, value).tokens[1:-1] or isinstance(value, tuple)
        assert not {"[CLS]", "[SEP]"} & set(found.tokens)


def test_shapes_are_few(model, monkeypatch):
    shapes, run = set(), FrozenEncoder._run
    monkeypatch.setattr(
        FrozenEncoder,
        "_run",
        lambda self, wanted, arrays: (
            shapes.add(arrays["input_ids"].shape) or run(self, wanted, arrays)
        ),
    )
    extractor = FeatureExtractor(model, tokens_per_batch=128)
    for count in range(1, 60):
        assert len(extractor.extract(["a b c"] * count)) == count
    assert {rows for rows, _ in shapes} == {1, 2, 4, 8, 16}


def test_long_texts_are_cut_with_a_count(model):
    extractor = FeatureExtractor(model, layers=-1, max_length=6)
    texts = ["a b c d e f g", "a", "a b c d"]
    with pytest.warns(TruncationWarning, match="1 of the texts have more than 6 pieces"):
        found = extractor.extract(texts)
    assert extractor.truncated == 1
    np.testing.assert_allclose(found[0], states_of(model, "a b c d")[0][:, 5].mean(0), atol=2e-5)
    extractor.extract(["a"])
    assert extractor.truncated == 0


@pytest.mark.parametrize("value", ["a b c d e f g h i j k l m n o p q r s t u v w x y z", None])
@pytest.mark.parametrize("stride", [1, 3, 7, None])
def test_windows_slide_over_long_texts(model, value, stride):
    value = value or ("word1 word2", " ".join("abcdefghijklmnopqrstuvwxyz"))
    head = 1 if isinstance(value, str) else 4
    extractor = FeatureExtractor(
        model, layers=-1, pooling="pieces", max_length=12, overflow="slide", stride=stride
    )
    (found,) = extractor.extract([value], return_tokens=True)
    encoding = encoding_of(model, value)
    assert found.tokens == encoding.tokens
    assert extractor.truncated == 0
    length, room = len(encoding.tokens), 12 - head - 1
    step = stride or 6
    # Each piece is read in the window in which it has most context, the first of equals.
    body = list(range(head, length - 1))
    starts = [s for s in range(head, length, step) if s == head or s - step + room < length - 1]
    for place in body:
        best = max(
            (s for s in starts if s <= place < s + room),
            key=lambda s: (
                min(place - s, min(s + room, length - 1) - 1 - place)
                + 0.01 * (min(s + room, length - 1) - s),
                -s,
            ),
        )
        window = [*range(head), *range(best, min(best + room, length - 1)), length - 1]
        ids = tf.constant([[encoding.input_ids[n] for n in window]])
        segments = tf.constant([[encoding.segment_ids[n] for n in window]])
        features = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": segments}
        expected = model(features)["sequence_output"].numpy()[0][window.index(place)]
        np.testing.assert_allclose(found.values[place], expected, atol=2e-5)
    # Pooled texts are made of the same pieces.
    pooled = FeatureExtractor(
        model, layers=-1, pooling="mean", max_length=12, overflow="slide", stride=stride
    )
    np.testing.assert_allclose(pooled.extract([value])[0], found.values.mean(0), atol=2e-5)


@pytest.mark.parametrize(
    ("value", "max_length", "stride"),
    [("a " * 60, 16, 16), ("a " * 60, 16, 15), (("a " * 40, "b " * 100), 64, 32), ("a " * 9, 3, 3)],
)
def test_no_piece_falls_between_two_windows(value, max_length, stride):
    """A stride longer than what a window has left beside the rest is cut to that."""
    value = tuple(map(str.strip, value)) if isinstance(value, tuple) else value.strip()
    item = prepare(value, make("encoder").tokenizer, max_length, stride)
    owners = np.zeros(len(item.special), int)
    for window in item.windows:
        assert len(window.places) <= max_length
        np.add.at(owners, window.places[window.owned], 1)
    assert (owners == 1).all()


def test_every_position_of_the_encoder_is_used():
    config = dataclasses.replace(CONFIG, max_position_embeddings=19)
    encoder = BertEncoder(config)
    encoder.tokenizer = make("encoder").tokenizer
    text = " ".join("abcdefghijklmnopq")  # 17 pieces and two specials
    for pooling in ("mean", "pieces"):
        extractor = FeatureExtractor(encoder, pooling=pooling)
        assert np.isfinite(extractor.extract([text])[0]).all()
        assert extractor.truncated == 0


def test_a_first_text_that_leaves_no_room_is_said(model):
    extractor = FeatureExtractor(model, max_length=8, overflow="slide")
    with pytest.raises(ConfigError, match=r"row 1: .* leaves the second no room"):
        extractor.extract(["a", ("a b c d e f g h", "x y z")])


def test_a_megabyte_of_text(model):
    text = "abc word7 " * 100_000
    with pytest.warns(TruncationWarning):
        assert np.isfinite(FeatureExtractor(model).extract([text])).all()


def test_vectors_of_length_one(model):
    found = FeatureExtractor(model, normalize=True).extract(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_order_and_duplicates_survive_batching(model):
    rng = random.Random(0)
    texts = [" ".join(rng.choices("abcdefgh", k=rng.randrange(9))) for _ in range(200)]
    extractor = FeatureExtractor(model, tokens_per_batch=64)
    found = extractor.extract(texts)
    order = list(range(200))
    rng.shuffle(order)
    np.testing.assert_allclose(
        extractor.extract([texts[n] for n in order]), found[order], atol=1e-5
    )


def test_a_stream_of_unknown_length(model):
    extractor = FeatureExtractor(model, layers=-1)
    stream = extractor.stream(text for text in TEXTS if isinstance(text, str))
    expected = extractor.extract([text for text in TEXTS if isinstance(text, str)])
    np.testing.assert_allclose(np.stack(list(stream)), expected, atol=1e-6)
    assert extractor.extract([]).shape == (0, 32)
    assert list(extractor.stream([])) == []


@pytest.mark.parametrize("bad", [None, float("nan"), 3, b"bytes", ("a", "b", "c"), ["a", None]])
def test_rows_of_another_kind_are_named(model, bad):
    extractor = FeatureExtractor(model)
    with pytest.raises(InputError, match=r"row 1 is .*; row 3 is "):
        extractor.extract(["a", bad, "b", bad])
    results = []
    with pytest.raises(InputError, match="row 2 is "):
        for vector in extractor.stream(iter(["a", "b", bad, "c"])):
            results.append(vector)
    assert len(results) == 2
    with pytest.raises(InputError, match="one string"):
        extractor.extract("a text")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 6}, r"layer 6 is none .* 0 \(the embeddings\) to 5, or from the end -1 to -6"),
        ({"layers": -7}, "layer -7 is none"),
        ({"layers": "last5"}, "'last4' or 'all', not 'last5'"),
        ({"layers": (1.5,)}, "must be whole numbers"),
        ({"layers": ()}, "names no layer"),
        ({"combine": "product"}, "combine 'product' is unknown"),
        ({"pooling": "median"}, "pooling 'median' is unknown"),
        ({"overflow": "wrap"}, "overflow 'wrap' is unknown"),
        ({"max_length": 17}, "max_length must be a whole number from 3 to 16, not 17"),
        ({"stride": 3}, "stride is for overflow='slide'"),
        ({"overflow": "slide", "stride": 0}, "stride must be a whole number from 1"),
    ],
)
def test_options_that_do_not_fit(model, options, message):
    with pytest.raises(ConfigError, match=message):
        FeatureExtractor(model, **options)


def test_models_that_cannot_be_used(tmp_path):
    encoder = make("encoder without pooler")
    with pytest.raises(ConfigError, match="has no pooler"):
        FeatureExtractor(encoder, pooling="pooler")
    encoder.tokenizer = None
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        FeatureExtractor(encoder)


def test_a_task_model_and_its_folder_give_the_encoders_features(tmp_path):
    tagger = make("tagger")
    tagger.save_pretrained(tmp_path / "x")
    one, other = (FeatureExtractor(where).extract(TEXTS) for where in (tagger, tmp_path / "x"))
    np.testing.assert_array_equal(one, other)


def test_a_trained_mix_of_layers(model):
    mix = ScalarMix()
    states = FeatureExtractor(model, layers="last4", combine="stack").extract(TEXTS)
    np.testing.assert_allclose(mix(states), states.mean(1), atol=1e-5)
    weights, scale = np.float32([0.3, -1, 2, 0.5]), 1.7
    mix.layer_weights.assign(weights)
    mix.scale.assign(scale)
    shares = np.exp(weights) / np.exp(weights).sum()
    expected = scale * np.einsum("nkh,k->nh", states, shares)
    np.testing.assert_allclose(mix(states), expected, atol=1e-5)
    found = FeatureExtractor(model, layers="last4", combine=mix).extract(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_mix_learns_and_is_saved(tmp_path):
    rng = np.random.default_rng(0)
    states = rng.standard_normal((256, 3, 4)).astype(np.float32)
    inputs = keras.Input((3, 4))
    trained = keras.Model(inputs, ScalarMix()(inputs))
    trained.compile(keras.optimizers.Adam(0.1), "mse")
    trained.fit(states, 2 * states[:, 1], epochs=40, batch_size=64, verbose=0)
    shares = (
        np.exp(trained.layers[-1].layer_weights) / np.exp(trained.layers[-1].layer_weights).sum()
    )
    assert shares[1] > 0.9
    trained.save(tmp_path / "mix.keras")
    again = keras.saving.load_model(tmp_path / "mix.keras")
    np.testing.assert_array_equal(
        again.predict(states, verbose=0), trained.predict(states, verbose=0)
    )


def test_minilm_activations_come_from_the_texts_alone():
    recorded = np.load(shared("expected/activations/minilm_given.npz"))
    texts = json.loads(str(recorded["texts"]))
    extractor = FeatureExtractor(
        minilm(),
        layers="all",
        combine="stack",
        pooling="pieces",
    )
    found = extractor.extract([(a, b) if b is not None else a for a, b in texts])
    for row, states in enumerate(found):
        length = int(recorded["input_mask"][row].sum())
        expected = recorded["hidden_states"][:, row, :length].swapaxes(0, 1)
        np.testing.assert_allclose(states, expected, rtol=0, atol=2e-5)
