"""SavedModels as files: whole, checked, and read by TensorFlow's own loader."""

import dataclasses
import threading

import checkpoint_models
import numpy as np
import pytest
import tensorflow_loader
from command_line import run_command
from served_models import (
    LENGTH,
    Answering,
    answers_in_this_process,
    ask,
    decoded,
    exported,
    in_this_process,
    model_of,
    texts,
)
from shared_data import minilm
from small_bert import CONFIG

from keras_bert_ref import (
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    FeatureExtractor,
    WordPieceTokenizer,
    export,
    export_saved_model,
)
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import (
    CheckpointWarning,
    ConfigError,
    ExportError,
    OutputError,
)
from keras_bert_ref.pretrained import TaskDescription
from keras_bert_ref.serving import computation
from keras_bert_ref.serving.warmup import PLACE
from keras_bert_ref.tasks.registry import make_task

TEXTS, OTHERS = texts(30, seed=1), texts(30, seed=2)[::-1]
KINDS = ["classifier", "regression", "span", "choice", "tagger", "pretrainer", "encoder"]
SPANS = make_task("squad-2.0", max_length=LENGTH, doc_stride=5, max_query_length=7)

# All of core TensorFlow; none is tensorflow-text's. SavedModels of these kinds were loaded and
# asked in TensorFlow 2.12.1, by hand: add only what that release has.
ALLOWED = """
    AddN AddV2 All Any ArgMax Assert BatchMatMulV2 BiasAdd BroadcastTo Cast ConcatV2 Const Cumsum
    DenseBincount EnsureShape Equal Erfc ExpandDims Fill FloorDiv FloorMod GatherNd GatherV2 Greater
    GreaterEqual Identity IsFinite Less LessEqual LogicalAnd LogicalNot LogicalOr LowerBound MatMul
    Max Maximum Mean Min Minimum Mul Neg NoOp NotEqual OneHot OnesLike Pack PartitionedCall
    Placeholder Prod RaggedGather RaggedTensorToTensor Range ReadVariableOp RealDiv Reshape
    ReverseV2 Rsqrt SegmentMax SegmentMean SegmentMin SegmentSum Select SelectV2 Shape Size Softmax
    Sqrt Square Squeeze StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch
    StaticRegexReplace StridedSlice StringJoin StringSplitV2 Sub Substr Sum Tanh TensorListConcatV2
    TensorListReserve TensorListSetItem TensorScatterUpdate Tile TopKV2 Transpose UnicodeDecode
    UnicodeTranscode Unpack UnsortedSegmentMax UnsortedSegmentMin UpperBound VarHandleOp Where While
    ZerosLike
"""
# What writes and restores a SavedModel's variables.
SAVER = """
    AssignVariableOp DisableCopyOnRead MergeV2Checkpoints RestoreV2 SaveV2 ShardedFilename
"""


def options_of(kind):
    return {"task": SPANS} if kind == "span" else {}


def requests_for(signatures):
    """Returns requests of several sizes for each signature: (name, input name → array)."""
    random = np.random.default_rng(0)
    values = {
        "texts": TEXTS,
        "pairs": OTHERS,
        "questions": OTHERS,
        "contexts": TEXTS,
        "choices": [[a, b, a + b] for a, b in zip(TEXTS, OTHERS, strict=True)],
    }
    requests = []
    for name, definition in signatures.items():
        if name.startswith("__"):
            continue
        for count in (1, len(TEXTS)):
            if name == "serving_default":
                axes = len(definition.inputs["input_ids"].tensor_shape.dim)
                shape = (count, 9) if axes == 2 else (count, 3, 9)
                mask = np.arange(9) < random.integers(1, 9, (*shape[:-1], 1), endpoint=True)
                ids = random.integers(0, CONFIG.vocab_size, shape) * mask
                ids[..., :1] = 4  # [MASK]
                inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": mask & (ids > 50)}
                inputs = {key: x.astype(np.int32) for key, x in inputs.items()}
            else:
                inputs = {key: np.array(values[key][-count:]) for key in definition.inputs}
            requests.append((name, inputs))
    return requests


def assert_same(found, expected, apart=1e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=0, atol=apart, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return tensorflow_loader.build(tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize("kind", [*KINDS, "features", "variables"])
def test_tensorflows_own_loader_answers_alike(program, tmp_path, kind):
    model = model_of(kind if kind in KINDS else "encoder")
    if kind == "features":
        model = FeatureExtractor(model, layers=[0, -1], pooling="mean_piece")
    made = tmp_path / "made" / "1"
    with in_this_process():
        export_saved_model(model, made, freeze=kind != "variables", **options_of(kind))
    moved = made.rename(tmp_path / "7")  # nothing points back
    loader = tensorflow_loader.Loader(program, moved)
    requests = requests_for(loader.signatures)
    live = Answering(model, **options_of(kind))
    expected = [ask(live, name, **inputs) for name, inputs in requests]
    found = loader.answers(requests, tmp_path)
    assert len(found) >= 6
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)

    graph = loader.graph
    used = {node.op for node in graph.node}
    used |= {node.op for function in graph.library.function for node in function.node_def}
    assert used - set(ALLOWED.split()) - set(SAVER.split()) == set()


def test_the_fresh_process_answers_alike(tmp_path):
    model = model_of("classifier")
    signatures = export_saved_model(model, tmp_path / "1")
    assert list(signatures["serving_text_pairs"][0]) == ["texts", "pairs"]
    assert signatures["serving_text"][1]["label"].dtype == tf.string
    (tmp_path / "1").chmod(0o555)  # it may be read-only
    served = tf.saved_model.load(tmp_path / "1")
    expected = ask(Answering(model), "serving_text", texts=TEXTS)
    assert_same(ask(served, "serving_text", texts=TEXTS), expected)
    (tmp_path / "1").chmod(0o755)


@pytest.mark.parametrize("kind", ["float", "shape", "string", "choice"])
def test_a_saved_model_that_differs_is_not_left(tmp_path, monkeypatch, kind):
    def differing(folder, requests):
        found = answers_in_this_process(folder, requests)
        if kind == "float":
            found["serving_text/probabilities"] = found["serving_text/probabilities"] + 2e-4
        elif kind == "shape":
            found["serving_default/logits"] = found["serving_default/logits"][:1]
        elif kind == "choice":
            found["serving_text/label"][0] = b"other"
        else:
            found["tokenize/tokens"][0, 0] = b"other"
        return found

    monkeypatch.setattr(export, "answers_in_a_fresh_process", differing)
    with pytest.raises(ExportError, match=r"differs from the model in \S+: nothing was written"):
        export_saved_model(model_of("classifier"), tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_one_great_number_does_not_hide_others(tmp_path, monkeypatch):
    def differing(folder, requests):
        found = answers_in_this_process(folder, requests)
        assert found["serving_text/null_odds"].max() == 1e6  # of a text without pieces
        found["serving_text/null_odds"] += 1
        return found

    monkeypatch.setattr(export, "answers_in_a_fresh_process", differing)
    with pytest.raises(ExportError, match="differs from the model in serving_text/null_odds"):
        export_saved_model(model_of("span"), tmp_path / "1", task=SPANS)


def test_what_the_fresh_process_says_is_one_line(tmp_path, monkeypatch):
    served = exported(model_of("regression"), tmp_path / "1")
    assert list(served.signatures)
    wrong = np.array([[CONFIG.vocab_size]], np.int32)
    request = {"input_ids": wrong, "input_mask": wrong * 0, "segment_ids": wrong * 0}
    with pytest.raises(
        ExportError, match=r"written: .*input_ids must be at least 0 and below 99\]$"
    ):
        export.answers_in_a_fresh_process(tmp_path / "1", {"serving_default": request})


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "no space left\nat all")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OutputError, match=r"1 cannot be written: .*no space left$"):
        export_saved_model(model_of("regression"), tmp_path / "a" / "b" / "1")
    assert list(tmp_path.iterdir()) == []  # the folders around it neither


def test_small_encoders_can_be_exported(tmp_path):
    config = dataclasses.replace(
        CONFIG, max_position_embeddings=7, num_hidden_layers=1, type_vocab_size=1
    )
    encoder = BertEncoder(config)
    encoder.tokenizer = checkpoint_models.tokenizer()
    served = exported(encoder, tmp_path / "1")
    assert sorted(served.signatures) == ["serving_default", "serving_text", "tokenize"]
    span = BertSpanLabeler(dataclasses.replace(config, type_vocab_size=2))
    span.tokenizer = encoder.tokenizer
    with pytest.raises(ConfigError, match="a BertSpanLabeler reads pairs"):
        export_saved_model(BertSpanLabeler(config), tmp_path / "2")
    with pytest.raises(ConfigError):  # no room for a question: said so
        export_saved_model(span, tmp_path / "2")
    served = exported(model_of("span"), tmp_path / "2")  # without a task, of 24 positions
    assert ask(served, "serving_text", questions=["ab"], contexts=["ab " * 30])["answer"][0]


def test_odd_places(tmp_path, monkeypatch):
    model = model_of("regression")
    with pytest.raises(OutputError, match=r"cannot read a SavedModel .* \*, \? or \["):
        export_saved_model(model, tmp_path / "a[1]" / "1")
    with pytest.raises(OutputError, match="cannot be written"):
        export_saved_model(model, str(tmp_path / "\udcff"))
    exported(model, tmp_path / "a ü" / "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with in_this_process():
        export_saved_model(model, "~/letters/1")
    (record, *_) = tf.data.TFRecordDataset(str(tmp_path / "home" / "letters" / "1" / PLACE))
    assert b"letters" in record.numpy()


def test_a_saved_model_that_cannot_be_loaded_is_not_left(tmp_path, monkeypatch):
    script = tmp_path / "check.py"
    script.write_text("raise SystemExit('no such operation')")
    monkeypatch.setattr(export, "_CHECK", script)
    with pytest.raises(ExportError, match="cannot be used, nothing was written: no such operation"):
        export_saved_model(model_of("regression"), tmp_path / "1")
    assert list(tmp_path.iterdir()) == [script]


def test_what_is_in_the_way(tmp_path):
    model = model_of("regression")
    exported(model, tmp_path / "1")
    with pytest.raises(OutputError, match="exists: choose another folder, or allow"):
        export_saved_model(model, tmp_path / "1")
    exported(model, tmp_path / "1", overwrite=True)
    (tmp_path / "1" / "mine.txt").write_text("kept")
    with pytest.raises(OutputError, match=r"in use and holds mine\.txt"):
        export_saved_model(model, tmp_path / "1", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]


def test_without_a_tokenizer_only_ids_are_taken(tmp_path):
    model = model_of("classifier")
    model.tokenizer = None
    with in_this_process(), pytest.warns(CheckpointWarning, match="1 takes no text: set"):
        signatures = export_saved_model(model, tmp_path / "1")
    assert list(signatures) == ["serving_default"]


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    encoder = model_of("encoder")

    def refused(model, message, **options):
        with pytest.raises(ConfigError, match=message):
            export_saved_model(model, tmp_path / "1", **options)

    refused("run/model", "must be an encoder, a task model or a FeatureExtractor, not str")
    refused(encoder, "max_length 25 is above the 24", max_length=25)
    refused(encoder, "max_length 1 has no room", max_length=1)
    refused(encoder, "top is of a BertPretrainer", top=5)
    span = model_of("span")
    refused(span, "cola is no task of a BertSpanLabeler", task="cola")
    refused(model_of("classifier"), "squad-1.1 is no task of a BertClassifier", task="squad-1.1")
    span.task = TaskDescription("mine.py:Mine", {"max_length": 20})
    refused(span, "'mine.py:Mine': name that task's file")
    refused(model_of("tagger"), "max_length 2 has no room for a piece", max_length=2)
    refused(model_of("pretrainer"), "top must be from 1 to 99, not 0", top=0)
    added = model_of("encoder")
    added.tokenizer = WordPieceTokenizer([*added.tokenizer.vocabulary, "<e>"], never_split="<e>")
    refused(added, "'<e>'; to serve ids alone, set the tokenizer to None")
    masked_lm = model_of("masked_lm")
    masked_lm.tokenizer = None
    refused(masked_lm, "is served with its tokenizer")
    extractor = FeatureExtractor(encoder, layers=-1)
    refused(extractor, "max_length is the extractor's", max_length=9)
    refused(extractor, "task and top are of models", top=3)
    monkeypatch.setattr(computation, "_LARGEST", 9999)
    refused(encoder, "cannot be constants of a graph", freeze=True)
    refused(FeatureExtractor(encoder, layers=-1, overflow="slide"), "overflow='slide' cannot be")
    refused(
        FeatureExtractor(encoder, layers=-1, combine=lambda states: states[..., 0, :]),
        "combine must be a name or a Keras layer",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_in_lower_precision(tmp_path, precision):
    model = model_of("encoder")
    model.save_pretrained(tmp_path / "model")
    model = BertEncoder.from_pretrained(tmp_path / "model", dtype=precision)
    served = exported(model, tmp_path / "1")
    answer = ask(served, "serving_text", texts=TEXTS)
    expected = ask(Answering(model), "serving_text", texts=TEXTS)
    assert answer["pooled_output"].dtype == np.float32
    np.testing.assert_allclose(answer["pooled_output"], expected["pooled_output"], atol=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
@pytest.mark.parametrize("kind", [*KINDS, "features"])
def test_real_weights_in_tensorflows_own_loader(program, tmp_path, kind):
    """Thousands of texts: python -m experiments.served_texts."""
    model_class, arguments = checkpoint_models.KINDS[kind if kind in KINDS else "encoder"]
    if kind == "pretrainer":
        # The released weights have no such head, and a new one may have two pieces so close to each
        # other that rounding decides their order. Of this one the nearest are 0.16 % apart.
        keras.utils.set_random_seed(0)
        encoder = BertEncoder.from_pretrained(minilm())
        model = BertPretrainer(encoder)
        model.tokenizer = encoder.tokenizer
    else:
        labels = {"labels": None} if kind == "regression" else {}
        model = model_class.from_pretrained(minilm(), **arguments, **labels)
    if kind == "features":
        model = FeatureExtractor(model, pooling="mean_max", max_length=64)
    options = {} if kind == "features" else {"max_length": 64}
    if kind == "span":
        options["task"] = make_task("squad-2.0", doc_stride=20, max_query_length=30, max_length=64)
    with in_this_process():
        export_saved_model(model, tmp_path / "1", **options)
    loader = tensorflow_loader.Loader(program, tmp_path / "1")
    context = "BERT was made at Google. It reads [MASK] from both sides at once. " * 6
    texts = [context, "Zürich, naïve café — 東京.", "Where was BERT made?", ""]
    values = {
        "texts": texts,
        "pairs": texts[::-1],
        "questions": texts[2:] * 2,
        "contexts": texts,
        "choices": [texts[:2], texts[1:3], texts[2:], texts[::3]],
    }
    requests = [
        (name, {key: values[key] for key in definition.inputs})
        for name, definition in loader.signatures.items()
        if not name.startswith("__") and name != "serving_default"
    ]
    live = Answering(model, **options)
    for (name, inputs), found in zip(requests, loader.answers(requests, tmp_path), strict=True):
        # Hidden states are of numbers up to 10, and kernels add up in orders of their own.
        states = kind in ("encoder", "features")
        assert_same(found, ask(live, name, **inputs), apart=1e-4 if states else 1e-5)


# Requests that are no good, and those after them


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Returns kind → a loaded SavedModel, made once."""
    made = {}

    def serve(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("served") / "1"
            made[kind] = exported(model_of(kind), folder, **options_of(kind))
        return made[kind]

    return serve


@pytest.mark.parametrize(
    ("message", "ids", "mask", "segments"),
    [
        ("input_ids must be at least 0 and below 99", [[99]], [[1]], [[0]]),
        ("input_ids must be at least 0 and below 99", [[-1]], [[1]], [[0]]),
        ("segment_ids must be at least 0 and below 2", [[1]], [[1]], [[2]]),
        ("input_mask must have the shape of input_ids", [[1, 2]], [[1]], [[0, 0]]),
        ("input_mask must have the shape of input_ids", [[1], [2]], [[1]], [[0], [0]]),
        ("segment_ids must have the shape of input_ids", [[1]], [[1]], [[0], [0]]),
        ("at most 24 pieces a row, not", [[1] * 25], [[1] * 25], [[0] * 25]),
        ("input_ids must have a piece a row", [[]], [[]], [[]]),
    ],
)
def test_ids_that_are_wrong(served, message, ids, mask, segments):
    model = served("classifier")

    def answer(*values):
        values = [np.array(value, np.int32) for value in values]
        names = ("input_ids", "input_mask", "segment_ids")
        return ask(model, "serving_default", **dict(zip(names, values, strict=True)))

    before = answer([[5, 6]], [[1, 1]], [[0, 1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        answer(ids, mask, segments)
    assert_same(answer([[5, 6]], [[1, 1]], [[0, 1]]), before)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_an_empty_answer(served, kind):
    model = served(kind)
    for name, signature in model.signatures.items():
        _, inputs = signature.structured_input_signature
        empty = {
            key: tf.zeros([0 if n == 0 else 3 for n in range(spec.shape.rank)], tf.int32)
            for key, spec in inputs.items()
        }
        empty = {
            key: tf.strings.as_string(x) if inputs[key].dtype == tf.string else x
            for key, x in empty.items()
        }
        for key, value in ask(model, name, **empty).items():
            assert value.shape[0] == 0, (name, key)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_texts_have_a_defined_answer(served, kind):
    model = served(kind)
    odd = np.array([b"", b" \t\n", b"\xff\xfe", b"a\xffb", b"a\0b", b"ab " * 30], object)
    plain = np.array(["ab c", "d"], object)
    for name, signature in model.signatures.items():
        _, inputs = signature.structured_input_signature
        if "input_ids" in inputs:
            continue

        def given(values, inputs=inputs):
            pairs = np.stack([values, values], 1)
            return {key: pairs if key == "choices" else values for key in inputs}

        before = ask(model, name, **given(plain))
        for key, value in ask(model, name, **given(odd)).items():
            assert value.shape[0] == len(odd), (name, key)
            if value.dtype.kind == "f":
                assert np.isfinite(value).all(), (name, key)
        assert_same(ask(model, name, **given(plain)), before)


def test_counts_that_do_not_fit(served):
    for kind, name, inputs in (
        ("classifier", "serving_text_pairs", ("texts", "pairs")),
        ("span", "serving_text", ("questions", "contexts")),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            ask(served(kind), name, **{inputs[0]: ["a", "b"], inputs[1]: ["a", "b", "c"]})
    with pytest.raises(tf.errors.InvalidArgumentError):
        ask(served("choice"), "serving_text", texts=["a", "b"], choices=[["a", "b"]] * 3)


@pytest.mark.slow
def test_ten_megabytes_are_answered(served):
    long = b"ab cde. " * (10 << 17)
    answer = ask(served("classifier"), "serving_text", texts=[long, b"ab"])
    cut = ask(served("classifier"), "serving_text", texts=[long[:1000], b"ab"])
    assert_same(answer, cut)


@pytest.mark.slow
def test_many_threads_at_once(served):
    model = served("classifier")
    lists = [TEXTS[n : n + 1 + n % 5] for n in range(25)]
    expected = [ask(model, "serving_text", texts=one) for one in lists]
    faults = []

    def client(seed):
        random = np.random.default_rng(seed)
        try:
            for n in random.integers(len(lists), size=60):
                assert_same(ask(model, "serving_text", texts=lists[n]), expected[n])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=client, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


# What TensorFlow Serving reads


def test_warmup_requests_are_those_that_serving_reads(tmp_path):
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    served = exported(model_of("classifier"), tmp_path / "letters" / "1")
    records = tf.data.TFRecordDataset(str(tmp_path / "letters" / "1" / PLACE))
    seen = []
    for record in records:
        log = logs.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        assert request.model_spec.name == "letters"
        seen.append(request.model_spec.signature_name)
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        assert ask(served, seen[-1], **inputs)
    assert seen == ["serving_default", "serving_text", "serving_text_pairs", "tokenize"]


def test_the_command(tmp_path, monkeypatch, capsys):
    model_of("classifier").save_pretrained(tmp_path / "model")
    out = tmp_path / "letters" / "1"
    with in_this_process():
        code, printed, _ = run_command(
            monkeypatch, capsys, "export", tmp_path / "model", "--out", out, "--max-length", 9
        )
        assert code == 0
        assert (
            "v1/models/letters:predict" in printed and '"signature_name": "serving_text"' in printed
        )
        served = tf.saved_model.load(out)
        answer = ask(served, "serving_text", texts=["a b c d e f g h i j k"])
        assert decoded(answer["label"])[0] in checkpoint_models.LABELS
        arguments = ["export", tmp_path / "model", "--out", tmp_path / "features" / "1"]
        code, *_ = run_command(
            monkeypatch, capsys, *arguments, "--pooling", "mean", "--layers", "-1,1", "--variables"
        )
        assert code == 0
        served = tf.saved_model.load(tmp_path / "features" / "1")
        assert ask(served, "serving_text", texts=["a"])["features"].shape == (1, 64)
    code, _, errors = run_command(monkeypatch, capsys, "export", tmp_path / "model", "--out", out)
    assert code == 1 and "exists: choose" in errors
    code, _, errors = run_command(monkeypatch, capsys, *arguments, "--layers", "1")
    assert code == 2 and "need --pooling" in errors
