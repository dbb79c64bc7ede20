"""What a SavedModel answers is what the library answers in Python."""

import numpy as np
import pytest
from served_models import LENGTH, Answering, ask, decoded, model_of, texts
from small_bert import CONFIG

from keras_bert_ref import FeatureExtractor, ScalarMix, WordPieceTokenizer, fill_mask
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.pretrained import TaskDescription
from keras_bert_ref.tasks.registry import make_task

WINDOWS = {"max_length": LENGTH, "doc_stride": 5, "max_query_length": 7}
TEXTS, OTHERS = texts(60, seed=1), texts(60, seed=2)[::-1]


@pytest.fixture(scope="module")
def made():
    """Returns a function: kind → (model, what answers for it)."""
    cache = {}

    def make(kind, **options):
        if kind == "span":
            options.setdefault("task", make_task("squad-1.1", **WINDOWS))
        key = (kind, *options.items())
        if key not in cache:
            model = model_of(kind)
            cache[key] = model, Answering(model, **options)
        return cache[key]

    return make


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["encoder", "left to right", "classifier", "regression", "span"])
def test_ids_are_answered_as_by_the_model(made, kind):
    model, served = made(kind)
    random = np.random.default_rng(0)
    for batch, length in ((1, 1), (3, 7), (5, LENGTH)):
        real = random.integers(1, length, (batch, 1), endpoint=True)
        mask = (np.arange(length) < real).astype(np.int32)
        features = {
            "input_ids": random.integers(0, CONFIG.vocab_size, (batch, length)) * mask,
            "input_mask": mask,
            "segment_ids": mask * (np.arange(length) > 3),
        }
        features = {name: x.astype(np.int32) for name, x in features.items()}
        answer = ask(served, "serving_default", **features)
        outputs = model({name: tf.constant(x) for name, x in features.items()}, training=False)
        for name, value in outputs.items():
            assert_close(answer[name], value)


def test_an_encoder_says_which_pieces_states_belong_to(made):
    model, served = made("encoder")
    answer = ask(served, "serving_text_pairs", texts=TEXTS, pairs=OTHERS)
    for n, pair in enumerate(zip(TEXTS, OTHERS, strict=True)):
        encoding = model.tokenizer.encode(*pair, max_length=LENGTH)
        count = len(encoding.tokens)
        assert decoded(answer["tokens"][n, :count]) == encoding.tokens
        assert answer["input_mask"][n].sum() == count
        features = {
            name: tf.constant([getattr(encoding, name)])
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        outputs = model(features, training=False)
        assert_close(answer["sequence_output"][n, :count], outputs["sequence_output"][0])
        assert_close(answer["pooled_output"][n], outputs["pooled_output"][0])


@pytest.mark.parametrize("paired", [False, True])
def test_classes_of_texts(made, paired):
    model, served = made("classifier")
    task = make_task("classification", max_length=LENGTH)
    if paired:
        expected = task.predict(model, list(zip(TEXTS, OTHERS, strict=True)))
        answer = ask(served, "serving_text_pairs", texts=TEXTS, pairs=OTHERS)
    else:
        expected = task.predict(model, TEXTS)
        answer = ask(served, "serving_text", texts=TEXTS)
    assert decoded(answer["label"]) == [one["label"] for one in expected]
    assert len(set(decoded(answer["label"]))) > 1
    assert decoded(answer["labels"]) == [list(model.labels)] * len(TEXTS)
    assert_close(answer["probabilities"], [list(one["probabilities"].values()) for one in expected])


def test_numbers_of_texts(made):
    model, served = made("regression")
    expected = make_task("regression", max_length=LENGTH).predict(model, TEXTS)
    answer = ask(served, "serving_text", texts=TEXTS)
    assert_close(answer["scores"], [one["score"] for one in expected])


def test_the_best_of_several_choices(made):
    model, served = made("choice")
    choices = [[OTHERS[n], TEXTS[n - 1], OTHERS[n - 2]] for n in range(len(TEXTS))]
    values = [{"context": a, "choices": b} for a, b in zip(TEXTS, choices, strict=True)]
    expected = make_task("swag", max_length=LENGTH).predict(model, values)
    answer = ask(served, "serving_text", texts=TEXTS, choices=choices)
    assert answer["choice"].tolist() == [one["choice"] for one in expected]
    assert_close(answer["probabilities"], [one["probabilities"] for one in expected])


def test_tags_of_words(made):
    model, served = made("tagger")
    sentences = [text for text in TEXTS if text.split()]
    expected = make_task("conll-2003", max_length=LENGTH).predict(model, sentences)
    answer = ask(served, "serving_text", texts=sentences)
    cut = 0
    for n, (text, one) in enumerate(zip(sentences, expected, strict=True)):
        words = text.split()
        found = decoded(answer["words"][n])
        assert found[: len(words)] == words and not any(found[len(words) :])
        if len(model.tokenizer.encode_words(words).tokens) > LENGTH:
            cut += 1  # read in parts, of which Python shows the model neighbours too, see `words`
            assert all(decoded(answer["tags"][n])[: len(words)])
        else:
            assert decoded(answer["tags"][n])[: len(words)] == one["tags"]
        assert_close(answer["probabilities"][n, : len(words)].sum(-1), 1)
        assert not any(decoded(answer["tags"][n])[len(words) :])
    assert 5 < cut < len(sentences) - 5


def test_long_sentences_are_read_in_parts(made):
    model, served = made("tagger")
    words = "ab c " * 20 + "abcdefgh" * 4 + " é a" * 5  # a word that is longer than a row too
    answer = ask(served, "serving_text", texts=["a", words])
    parts, part, size = [], [], 0
    for word in words.split():
        pieces = min(len(model.tokenizer.token_ids(word)), LENGTH - 2)
        if size + pieces > LENGTH - 2:
            parts.append(part)
            part, size = [], 0
        part.append(word)
        size += pieces
    task = make_task("conll-2003", max_length=LENGTH)
    tags = [one["tags"] for one in task.predict(model, [" ".join(p) for p in [*parts, part]])]
    assert len(parts) > 3
    assert decoded(answer["tags"][1]) == [tag for one in tags for tag in one]


@pytest.mark.parametrize("name", ["squad-1.1", "squad-2.0"])
@pytest.mark.parametrize("n_best", [20, 1])
def test_answers_to_questions(made, name, n_best):
    settings = {**WINDOWS, "n_best": n_best}
    if name == "squad-2.0":
        settings["null_threshold"] = 1.0
    task = make_task(name, **settings, max_answer_length=4)
    model, served = made("span", task=task)
    pairs = [pair for pair in zip(OTHERS, TEXTS, strict=True) if pair[1].strip()]
    questions, contexts = zip(*pairs, ("ab", "\u200b"), strict=True)  # the last is of no piece
    expected = task.predict(model, list(zip(questions, contexts, strict=True)))
    answer = ask(served, "serving_text", questions=questions, contexts=contexts)
    assert decoded(answer["answer"]) == [one["answer"] for one in expected]
    assert len(set(decoded(answer["answer"]))) > 10
    for side in ("start", "end"):
        wanted = [-1 if one[side] is None else one[side] for one in expected]
        assert answer[side].tolist() == wanted
    best = [
        next((n for n in one["nbest"] if n["text"]), {"start_logit": 0, "end_logit": 0})
        for one in expected
    ]
    assert_close(answer["score"], [one["start_logit"] + one["end_logit"] for one in best])
    if name == "squad-2.0":
        assert_close(answer["null_odds"], [one["null_odds"] for one in expected])
        assert 0 < sum(one["answer"] == "" for one in expected) < len(expected) - 1


def test_more_windows_than_are_read_at_once(made):
    task = make_task("squad-1.1", max_length=LENGTH, doc_stride=1, max_query_length=7)
    model, served = made("span", task=task)
    contexts = ["ab cd e" * 9, "a", "gh f. e" * 11]
    expected = task.predict(model, [("ab", context) for context in contexts])
    answer = ask(served, "serving_text", questions=["ab"] * 3, contexts=contexts)
    assert decoded(answer["answer"]) == [one["answer"] for one in expected]


def test_pieces_behind_masks(made):
    model, served = made("pretrainer", top=3)
    given = ["ab [MASK] c[MASK].", "nothing", "[MASK]", "[MASK]" * 30]
    answer = ask(served, "serving_text", texts=given)
    assert answer["positions"].tolist()[:3] == [
        [3, 5, *[-1] * 20],
        [-1] * 22,
        [1, *[-1] * 21],
    ]
    for n in (0, 2):
        for m, guesses in enumerate(fill_mask(model, given[n], top=3)):
            pieces, shares = zip(*guesses, strict=True)
            assert decoded(answer["pieces"][n, m]) == list(pieces)
            assert_close(answer["probabilities"][n, m], shares)
    assert not answer["probabilities"][1].any() and not any(decoded(answer["pieces"][1])[0])
    assert_close(answer["next_sentence_probabilities"].sum(-1), 1)


MIX = ScalarMix()
MIX.build((None, 2, 2 * CONFIG.hidden_size))
MIX.layer_weights.assign([0.3, -0.5])


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "mean"},
        {"pooling": "mean", "specials": False, "combine": "sum", "normalize": True},
        {"pooling": "max", "specials": False, "combine": "mean"},
        {"pooling": "mean_max", "combine": MIX},
        {"pooling": "cls", "combine": "stack"},
        {"pooling": "pooler"},
        {"pooling": "pieces"},
        {"pooling": "pieces", "specials": False, "combine": "stack"},
        {"pooling": "first_piece", "normalize": True},
        {"pooling": "last_piece"},
        {"pooling": "mean_piece", "combine": "mean"},
    ],
    ids=lambda options: "-".join(str(getattr(x, "name", x)) for x in options.values()),
)
def test_features_are_the_extractors(options):
    extractor = FeatureExtractor(model_of("encoder"), layers=[1, -1], **options)
    served = Answering(extractor)
    with pytest.warns(UserWarning, match="were cut"):
        expected = extractor.extract(list(zip(TEXTS, OTHERS, strict=True)))
    answer = ask(served, "serving_text_pairs", texts=TEXTS, pairs=OTHERS)
    for n, vectors in enumerate(expected):
        found = answer["features"][n]
        if "lengths" in answer:
            assert answer["lengths"][n] == len(vectors)
            assert not found[len(vectors) :].any()
            found = found[: len(vectors)]
        assert_close(found, vectors)


@pytest.mark.parametrize("pooling", ["mean", "pieces", "last_piece"])
def test_specials_are_told_by_their_places(pooling):
    model = model_of("encoder")
    kept = ("[SEP]", "[CLS]", "[MASK]")
    model.tokenizer = WordPieceTokenizer(model.tokenizer.vocabulary, never_split=kept)
    extractor = FeatureExtractor(model, layers=-1, pooling=pooling, specials=False)
    given = ["a [SEP] b", "[CLS][CLS]", "", "[SEP]"]
    answer = ask(Answering(extractor), "serving_text_pairs", texts=given, pairs=given[::-1])
    expected = extractor.extract(list(zip(given, given[::-1], strict=True)))
    for n, vectors in enumerate(expected):
        found = answer["features"][n]
        assert_close(found[: answer["lengths"][n]] if "lengths" in answer else found, vectors)


def test_the_length_of_a_task_of_ones_own():
    model = model_of("classifier")
    model.task = TaskDescription("mine.py:Mine", {"max_length": 9})
    states = ask(Answering(model), "serving_text", texts=["a b c d e f g h i", "a b c d e f g"])
    assert_close(states["logits"][0], states["logits"][1])


def test_pieces_and_where_they_come_from(made):
    model, served = made("classifier")
    answer = ask(served, "tokenize", texts=TEXTS)
    for n, text in enumerate(TEXTS):
        encoding = model.tokenizer.encode(text)
        count = answer["lengths"][n]
        assert answer["ids"][n, :count].tolist() == encoding.input_ids[1:-1]
        assert decoded(answer["tokens"][n, :count]) == encoding.tokens[1:-1]
        spans = zip(answer["starts"][n, :count], answer["ends"][n, :count], strict=True)
        assert list(spans) == encoding.offsets[1:-1]
        assert (answer["starts"][n, count:] == -1).all()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("encoder", ["texts"]),
        ("classifier", ["texts", "pairs"]),
        ("tagger", ["texts"]),
        ("span", ["questions", "contexts"]),
        ("pretrainer", ["texts"]),
    ],
)
def test_requests_in_one_batch_are_answered_as_alone(made, kind, names):
    _, served = made(kind)
    signature = "serving_text_pairs" if "pairs" in names else "serving_text"
    values = dict(zip(names, (TEXTS[::6], OTHERS[::6]), strict=False))
    together = ask(served, signature, **values)
    for n in range(len(TEXTS[::6])):
        alone = ask(served, signature, **{name: value[n : n + 1] for name, value in values.items()})
        for name, value in alone.items():
            same = tuple(slice(size) for size in value.shape[1:])
            part = together[name][(slice(n, n + 1), *same)]
            if value.dtype.kind == "f":
                assert_close(part, value)
            else:
                np.testing.assert_array_equal(part, value)
