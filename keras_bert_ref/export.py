"""SavedModels for TensorFlow Serving: ids in or text in, and nothing of Python needed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import CheckpointWarning, ConfigError, ExportError, OutputError
from keras_bert_ref.files import check_free, first_line, replacing_folder, writing
from keras_bert_ref.pretrained import encoder_of
from keras_bert_ref.serving.computation import Computation
from keras_bert_ref.serving.inputs import INPUTS
from keras_bert_ref.serving.signatures import served_for, signatures
from keras_bert_ref.serving.warmup import PLACE, write_warmup

# What may be found in a folder that is overwritten.
_FILES = {"saved_model.pb", "fingerprint.pb", "variables", "assets", Path(PLACE).parent.name}

_CHECK = Path(__file__).parent / "serving" / "check.py"
# How far a number may be from the live model's, as a share of the largest (or of 1).
_TOLERANCE = {"float32": 1e-4, "mixed_bfloat16": 0.1, "mixed_float16": 0.02}
# What is chosen by numbers: in lower precision it may be another where two are nearly equal.
_CHOSEN = {"label", "tags", "choice", "pieces", "answer", "start", "end"}
_NO_SCALE = 1e5  # from here on numbers stand for infinity, and say nothing about the size of others


def export_saved_model(
    model, folder, *, freeze=True, max_length=None, task=None, top=None, overwrite=False
):
    """Writes a SavedModel whose signatures take ids, or text, and return all a client needs.

    - `serving_default` takes `input_ids`, `input_mask` and `segment_ids`, int32 [B, S] ([B, N, S]
      of a multiple choice), of any size.
    - `serving_text` takes strings: `texts` [B]; `questions` and `contexts` [B] of a
      `BertSpanLabeler`; `texts` [B] and `choices` [B, N] of a `BertMultipleChoice`.
    - `serving_text_pairs` takes `texts` and `pairs` [B], of all models that read one or two texts.
    - `tokenize` takes `texts` [B]; returns `ids`, `tokens`, `starts` and `ends` [B, P] (characters)
      and `lengths` [B].

    What they return, docs/serving.md says for each kind of model. All of it is computed by core
    TensorFlow operations, so the folder can be moved and read anywhere. It is loaded and compared
    with the live model in a process of its own before it appears under its name.

    Args:
        model: an encoder or a task model, with its tokenizer; or a `FeatureExtractor`.
        folder: the folder to make; for TensorFlow Serving its last part is a number, the version.
        freeze: whether weights become constants of the graph, which is faster on CPU. Otherwise
            they are variables.
        max_length: the most pieces of a text or pair, specials included; None for the task's, or
            what the encoder reads at most.
        task: a `Task`, or the name of one; None for what the model was fine-tuned for. It says how
            a span labeler divides contexts and finds answers, and how long texts may be.
        top: of a `BertPretrainer`, the pieces to return for each [MASK]; None for 5.
        overwrite: whether a SavedModel found there is replaced.

    Returns:
        Signature → (inputs, outputs), each a dict of name → `tf.TensorSpec`.

    Raises:
        ConfigError: a setting is impossible, the model takes several sequences to a row, or its
            tokenizer is of a kind that a `TextLayer` cannot be.
        ExportError: the SavedModel does not compute what the model does.
        OutputError: the folder is in use, or cannot be written.
    """
    if getattr(encoder_of(model), "sequences_per_row", 1) > 1:
        raise ConfigError(
            "the model takes several sequences to a row, a server's texts have one each: save it "
            "with save_pretrained, and export what from_pretrained makes of it"
        )
    folder = check_place(folder, overwrite)
    one = served_for(model, max_length, task, top)
    compute = Computation(one.compute, one.inputs, freeze)
    functions = {
        name: _function(specs, respond)
        for name, (specs, respond) in signatures(one, compute).items()
    }
    requests = _requests(one, functions)
    with replacing_folder(folder, _FILES, overwrite) as part:
        module = tf.Module()
        module.functions, module.weights = functions, compute.variables
        with writing(folder):
            try:
                tf.saved_model.save(module, str(part), signatures=functions)
                write_warmup(part, folder.parent.name, requests.items())
            except tf.errors.OpError as error:  # the disk is full, for one
                raise OutputError(f"{folder} cannot be written: {first_line(error)}") from None
        found = answers_in_a_fresh_process(part, requests)
        precision = encoder_of(model).dtype_policy.name
        _compare(found, _live(one, compute, requests, precision), precision)
    if one.tokenizer is None:
        CheckpointWarning.issue(
            f"{folder} takes no text: set the model's `tokenizer` before it is exported"
        )
    return {
        name: (
            {spec.name: spec for spec in function.input_signature},
            {
                key: tf.TensorSpec(x.shape, x.dtype, key)
                for key, x in function.get_concrete_function().structured_outputs.items()
            },
        )
        for name, function in functions.items()
    }


def check_place(folder, overwrite):
    """Returns the place of a folder that may be written; see `files.check_free`."""
    folder = check_free(folder, _FILES, overwrite)
    if set("*?[") & set(str(folder)):
        raise OutputError(
            f"{folder}: TensorFlow cannot read a SavedModel from a path that has *, ? or ["
        )
    return folder


def _function(specs, respond):
    """Returns a `tf.function` of the inputs that the specs name."""
    signature = [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in specs.items()]
    return tf.function(lambda *values: respond(*values), input_signature=signature, autograph=False)


def _requests(one, functions):
    """Returns signature → input name → array: what the model is tried with and warmed up by."""
    random = np.random.default_rng(0)
    size = min(12, one.config.max_position_embeddings)
    lengths, columns = np.array([size, size // 2 + 1, 1]), np.arange(size)
    shape = (3, size) if one.axes == 2 else (3, 2, size)
    mask = (columns < lengths[:, None]).astype(np.int32)
    mask = np.broadcast_to(mask if one.axes == 2 else mask[:, None], shape)
    ids = random.integers(0, one.config.vocab_size, shape, np.int32) * mask
    if one.tokenizer is not None:
        ids = np.where((columns == size // 4) & (mask > 0), one.tokenizer.mask_id, ids)
    segments = ((columns > size // 2) & (mask > 0)).astype(np.int32)
    segments = np.minimum(segments, one.config.type_vocab_size - 1)
    requests = {"serving_default": dict(zip(INPUTS, (ids, mask, segments), strict=True))}
    long = b"It is [MASK] that Mr. O'Neill paid 3.50 euros in Besan\xc3\xa7on. " * 12
    texts = [b"A short text.", long, b"", b"\xe6\x9d\xb1\xe4\xba\xac, and \xff, no UTF-8"]
    values = {
        "texts": np.array(texts, "S"),
        "pairs": np.array(texts[::-1], "S"),
        "questions": np.array([b"Who paid?"] * 4, "S"),
        "contexts": np.array(texts, "S"),
        "choices": np.array([texts[:2], texts[1:3], texts[2:], texts[:2]], "S"),
    }
    for name, function in functions.items():
        if name != "serving_default":
            requests[name] = {spec.name: values[spec.name] for spec in function.input_signature}
    return requests


def _live(one, compute, requests, precision):
    """Returns what the model itself answers: "signature/output" → array.

    In float32 it is computed operation by operation, with nothing of TensorFlow's rewriting of
    graphs. In lower precision that would round where a rewritten graph does not, as with oneDNN's
    kernels in bfloat16, until numbers have little in common.
    """

    def live(features):
        return one.compute(features)

    live.outputs = compute.outputs
    found = {}
    for name, (_, respond) in signatures(one, live).items():
        if precision != "float32":
            respond = tf.function(respond, autograph=False)
        with tf.device("CPU:0"):  # where the other process computes
            answers = respond(*map(tf.constant, requests[name].values()))
        found |= {f"{name}/{key}": np.asarray(value) for key, value in answers.items()}
    return found


def answers_in_a_fresh_process(folder, requests):
    """Returns what a SavedModel answers where this library is not loaded; see `_live`."""
    cases = {f"{name}/{key}": x for name, one in requests.items() for key, x in one.items()}
    with tempfile.TemporaryDirectory() as place:
        given, results = Path(place, "cases.npz"), Path(place, "results.npz")
        np.savez(given, **cases)
        command = [sys.executable, "-P", str(_CHECK), str(folder), str(given), str(results)]
        # A GPU is this process's own: its memory is taken.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
        if ran.returncode:
            ended = f"the process that tried it ended with {ran.returncode} (is memory short?)"
            lines = ran.stderr.strip().splitlines() or [ended]
            raise ExportError(f"the SavedModel cannot be used, nothing was written: {lines[-1]}")
        with np.load(results) as arrays:
            return dict(arrays)


def _compare(found, expected, precision):
    """Raises ExportError if a SavedModel does not compute what the model does."""
    for key, value in expected.items():
        value = value.astype("S") if value.dtype == object else value
        if not _near(value, found[key], precision, key.split("/")[1]):
            raise ExportError(
                f"the SavedModel differs from the model in {key}: nothing was written. Please "
                "report this as a fault of the library."
            )


def _near(expected, found, precision, name):
    """Returns whether an output is what the model's is, as far as its precision goes."""
    if expected.shape != found.shape or expected.dtype.kind != found.dtype.kind:
        return False
    if expected.dtype.kind == "f":
        size = np.abs(expected)
        bound = _TOLERANCE[precision] * np.maximum(size, size[size < _NO_SCALE].max(initial=1))
        return (np.abs(expected - found) <= bound).all()
    # Among all pieces of a vocabulary there are nearly equal ones in any precision.
    if name in _CHOSEN and (precision != "float32" or name == "pieces"):
        return True
    return np.array_equal(expected, found)
