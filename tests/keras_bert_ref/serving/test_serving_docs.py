"""docs/serving.md says what is true: its table, its requests, its program."""

import collections
import concurrent.futures
import json
import re
from pathlib import Path

import numpy as np
import pytest
from checkpoint_models import make
from served_models import Answering, ask, exported

from keras_bert_ref import FeatureExtractor
from keras_bert_ref._tensorflow import tf
from keras_bert_ref.cli.export import example_request
from keras_bert_ref.serving.computation import Computation
from keras_bert_ref.serving.signatures import served_for, signatures
from keras_bert_ref.tasks.registry import make_task

DOCS = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
SPANS = make_task("squad-2.0", max_length=16, doc_stride=5, max_query_length=7)


def model_of(kind):
    if kind == "features":
        return FeatureExtractor(make("encoder"), layers=-1, pooling="first_piece")
    return make(kind)


def rows_of_the_table():
    rows = collections.defaultdict(dict)
    for kind, text, outputs in re.findall(r"^\| (\w+) \| (\w+[^|]*) \| ([^|]+) \|$", DOCS, re.M):
        name, _, inputs = text.partition(": ")
        rows[kind][name] = inputs.split(", ") if inputs else None, outputs.split(", ")
    del rows["model"]
    return rows


TABLE = rows_of_the_table()


@pytest.mark.parametrize("kind", [kind for kind in TABLE if kind != "all"])
def test_the_table(kind):
    one = served_for(model_of(kind), None, SPANS if kind == "span" else None, None)
    found = signatures(one, Computation(one.compute, one.inputs, freeze=False))
    assert found.keys() - {"serving_text_pairs"} == {*TABLE[kind], *TABLE["all"]}
    answering = Answering(model_of(kind), task=SPANS if kind == "span" else None)
    for name, (inputs, outputs) in {**TABLE[kind], **TABLE["all"]}.items():
        specs, _ = found[name]
        if name == "serving_default":
            values = [tf.ones([1] * spec.shape.rank, tf.int32) for spec in specs.values()]
            inputs = ["input_ids", "input_mask", "segment_ids"]
        else:
            values = [tf.fill([1] * spec.shape.rank, "a b") for spec in specs.values()]
            inputs = inputs or ["texts"]
            assert ("serving_text_pairs" in found) == (TABLE[kind]["serving_text"][0] is None)
        assert list(specs) == inputs
        assert sorted(ask(answering, name, **dict(zip(specs, values, strict=True)))) == outputs


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory):
    model = make("classifier")
    return exported(model, tmp_path_factory.mktemp("mrpc") / "1")


def tensors_of(request, model):
    """Returns the signature and the inputs of a REST request, as Serving's row format has them."""
    signature = request.get("signature_name", "serving_default")
    _, inputs = model.signatures[signature].structured_input_signature
    rows = [
        one if isinstance(one, dict) else {next(iter(inputs)): one} for one in request["instances"]
    ]
    return signature, {
        name: tf.constant([row[name] for row in rows], spec.dtype) for name, spec in inputs.items()
    }


def test_requests_in_json(mrpc):
    requests = [json.loads(text) for text in re.findall(r"predict -d '(.*?)'", DOCS, re.S)]
    assert [request.get("signature_name") for request in requests] == ["serving_text_pairs", None]
    for request in requests:
        signature, inputs = tensors_of(request, mrpc)
        if signature == "serving_default":  # a tiny model has few pieces
            inputs["input_ids"] %= 99
        answer = ask(mrpc, signature, **inputs)
        (shown,) = json.loads(re.search(r"```json\n(.*?)```", DOCS, re.S)[1])["predictions"]
        assert answer.keys() == shown.keys()


def test_what_no_server_may_be_told():
    # Serving fills up inputs with their first element: a mask with ones.
    (batching,) = re.findall(r"`batching.txt`:\n\n```\n(.*?)```", DOCS, re.S)
    assert "pad_variable_length_inputs" not in batching


@pytest.mark.filterwarnings("ignore::keras_bert_ref.errors.CheckpointWarning")
@pytest.mark.parametrize("kind", ["span", "choice", "tagger", "choice of ids"])
def test_the_example_that_the_command_prints(tmp_path, kind):
    options = {"task": SPANS} if kind == "span" else {}
    one = make(kind.split()[0])
    if kind == "choice of ids":
        one.tokenizer = None
    model = exported(one, tmp_path / "1", **options)
    found = {
        name: (one.structured_input_signature[1], one.structured_outputs)
        for name, one in model.signatures.items()
    }
    signature, inputs = tensors_of(example_request(found), model)
    assert signature == ("serving_default" if "ids" in kind else "serving_text")
    assert all(len(value) == 1 for value in ask(model, signature, **inputs).values())


def test_the_program_for_grpc(mrpc, capsys):
    """A server answers its `PredictRequest`s as TensorFlow Serving would."""
    grpc = pytest.importorskip("grpc")
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    service_grpc = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")

    class Service(service_grpc.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802
            assert request.model_spec.name == "mrpc"
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            response = predict_pb2.PredictResponse()
            for name, value in ask(mrpc, request.model_spec.signature_name, **inputs).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            return response

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    service_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        (program,) = re.findall(r"```python\n(.*?)```", DOCS, re.S)
        names = {}
        exec(program.replace("8500", str(port)), names)
    finally:
        server.stop(None)
    expected = ask(mrpc, "serving_text_pairs", texts=["It rained."], pairs=["The weather was wet."])
    for name, value in expected.items():
        np.testing.assert_array_equal(names["answer"][name], value)
    assert str(expected["label"]) in capsys.readouterr().out
