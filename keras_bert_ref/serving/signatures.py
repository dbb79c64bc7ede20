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
        return ServedFeatures(model)
    if not isinstance(model, Pretrained):
        raise ConfigError(
            "what is exported must be an encoder, a task model or a FeatureExtractor, not "
            f"{type(model).__name__}"
        )
    task = _task(model, task)
    longest = encoder_of(model).config.max_position_embeddings
    if model.head == "span":
        task = task or Squad()
        if not isinstance(task, Squad):
            raise ConfigError(f"{task.name} is no task of a BertSpanLabeler: name squad-1.1 or 2.0")
        if max_length is not None:
            task = dataclasses.replace(task, max_length=max_length)
        max_length = task.max_length
    elif max_length is None:
        max_length = min(task.max_length, longest) if task else longest
    if max_length > longest:
        raise ConfigError(f"max_length {max_length} is above the {longest} that the model reads")
    if model.head == "span":
        return served.ServedSpanLabeler(model, task)
    if model.head == "masked_lm":
        return served.ServedPretrainer(model, max_length, top)
    kinds = {
        "classifier": served.ServedClassifier,
        "choice": served.ServedMultipleChoice,
        "tagger": served.ServedTagger,
        None: served.ServedEncoder,
    }
    return kinds[model.head](model, max_length)


def _task(model, task):
    if isinstance(task, str):
        return make_task(task)
    if task is None and model.task is not None and model.task.name in TASKS:
        return task_of(model)
    return task


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
        found["tokenize"] = ({"texts": served.TEXTS}, lambda texts: _tokenized(one, texts))
    return found


def _tokenized(one, texts):
    """Returns what `TextLayer.tokenize` does, filled up to the longest."""
    pieces = one.text.tokenize(texts)
    fill = {"ids": one.tokenizer.pad_id, "tokens": "", "starts": -1, "ends": -1}
    padded = {name: pieces[name].to_tensor(value) for name, value in fill.items()}
    return {**padded, "lengths": tf.cast(pieces["ids"].row_lengths(), tf.int32)}
