"""Which `Served` serves a model, and its signatures."""

import dataclasses

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.features.extractor import FeatureExtractor
from keras_bert_ref.pretrained import Pretrained, encoder_of
from keras_bert_ref.serving import served
from keras_bert_ref.serving.features import ServedFeatures
from keras_bert_ref.serving.inputs import INPUTS, checked
from keras_bert_ref.tasks.registry import TASKS, make_task, task_of
from keras_bert_ref.tasks.squad import Squad


def served_for(model, max_length, task, top):
    """Returns the `Served` for a model or a `FeatureExtractor`; see `export.export_saved_model`."""
    if isinstance(model, FeatureExtractor):
        if max_length is not None:
            raise ConfigError("max_length is the extractor's: set it there")
        if task is not None or top is not None:
            raise ConfigError("task and top are of models, not of a FeatureExtractor")
        return ServedFeatures(model)
    if not isinstance(model, Pretrained):
        raise ConfigError(
            "what is exported must be an encoder, a task model or a FeatureExtractor, not "
            f"{type(model).__name__}"
        )
    task = _task(model, task)
    if top is not None and model.head != "masked_lm":
        raise ConfigError("top is of a BertPretrainer: other models have no [MASK] to fill")
    config = encoder_of(model).config
    longest = config.max_position_embeddings
    if config.type_vocab_size < 2 and model.head in ("span", "choice"):
        raise ConfigError(
            f"a {type(model).__name__} reads pairs of texts, but type_vocab_size of its encoder is "
            f"{config.type_vocab_size}"
        )
    if model.head == "span":
        task = task or _squad(longest)
        if max_length is not None:
            task = dataclasses.replace(task, max_length=max_length)
        max_length = task.max_length
    elif max_length is None:
        settings = model.task.settings if model.task else {}
        usual = task.max_length if task else settings.get("max_length", longest)
        max_length = min(usual, longest)
    if max_length > longest:
        raise ConfigError(f"max_length {max_length} is above the {longest} that the model reads")
    if max_length < 3:
        raise ConfigError(f"max_length {max_length} has no room for a piece: it is at least 3")
    if model.head == "span":
        return served.ServedSpanLabeler(model, task)
    if model.head == "masked_lm":
        return served.ServedPretrainer(model, max_length, 5 if top is None else top)
    kinds = {
        "classifier": served.ServedClassifier,
        "choice": served.ServedMultipleChoice,
        "tagger": served.ServedTagger,
        None: served.ServedEncoder,
    }
    return kinds[model.head](model, max_length)


def _task(model, task):
    """Returns the task that a model is served for; None if it need not be known.

    Raises:
        ConfigError: it is of another kind of model, or a span labeler's is not known.
    """
    if isinstance(task, str):
        task = make_task(task)
    # What a span labeler answers depends on it, so that one must not be guessed.
    known = model.task is not None and (model.task.name in TASKS or model.head == "span")
    if task is None and known:
        task = task_of(model)
    if task is not None and task.model != type(model).__name__:
        raise ConfigError(f"{task.name} is no task of a {type(model).__name__}")
    return task


def _squad(longest):
    """Returns the task for a span labeler that does not say one, for rows of so many pieces."""
    usual = Squad.__dataclass_fields__
    most, stride, question = (
        usual[name].default for name in ("max_length", "doc_stride", "max_query_length")
    )
    if longest >= most:
        return Squad()
    share = longest / most
    return Squad(longest, doc_stride=int(stride * share), max_query_length=int(question * share))


def signatures(one, compute):
    """Returns name → (input name → `tf.TensorSpec`, a function of the inputs in this order).

    Args:
        one: a `Served`.
        compute: what computes, a `Computation` or its like.
    """

    def respond_to_ids(*values):
        features = one.prepared(checked(dict(zip(INPUTS, values, strict=True)), one.config))
        return one.answer(features, compute(features))

    found = {"serving_default": ({spec.name: spec for spec in one.inputs[:3]}, respond_to_ids)}
    if one.text is not None:
        found |= one.text_signatures(compute)
        if one.config.type_vocab_size < 2:
            found.pop("serving_text_pairs", None)
        found["tokenize"] = ({"texts": served.TEXTS}, lambda texts: _tokenized(one, texts))
    return found


def _tokenized(one, texts):
    """Returns what `TextLayer.tokenize` does, filled up to the longest."""
    pieces = one.text.tokenize(texts)
    fill = {"ids": one.tokenizer.pad_id, "tokens": "", "starts": -1, "ends": -1}
    padded = {name: pieces[name].to_tensor(value) for name, value in fill.items()}
    return {**padded, "lengths": tf.cast(pieces["ids"].row_lengths(), tf.int32)}
