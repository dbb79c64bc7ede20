"""Hugging Face folders: `config.json` and safetensors, in and out."""

import json
from pathlib import Path

from keras_bert_ref.checkpoints.checkpoint import (
    Checkpoint,
    Stored,
    gather,
    placeholder_labels,
)
from keras_bert_ref.checkpoints.names import variables_by_name
from keras_bert_ref.checkpoints.own import Description
from keras_bert_ref.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from keras_bert_ref.checkpoints.tokenizer_files import find_tokenizer
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError, CheckpointWarning
from keras_bert_ref.files import read_json, replace_text
from keras_bert_ref.pretrained import encoder_of

CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# The class that transformers would load it with → the head that it has, as our parts call it.
_HEADS = {
    "BertForSequenceClassification": "classifier",
    "BertForMultipleChoice": "choice",
    "BertForTokenClassification": "tagger",
}
_ARCHITECTURES = {
    None: "BertModel",
    "span": "BertForQuestionAnswering",
    **{head: name for name, head in _HEADS.items()},
}
# The architectures of transformers that have a pooler.
_POOLED = {
    "BertModel",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
}
# Older files name the parameters of a layer normalization as TensorFlow does.
_OLD_LEAVES = {".weight": ".gamma", ".bias": ".beta"}
# Copies of other tensors, and constants.
_COPIES = {
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
    "bert.embeddings.token_type_ids",
}
# Settings by which a BERT of transformers may be another model than ours, and what they must be.
_FIXED = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "is_encoder_decoder": False,
}


def weights_file(folder):
    """Returns the weights of a Hugging Face folder: one file, or the index of several; or None."""
    for name in (_WEIGHTS, _INDEX):
        if (folder / name).is_file():
            return folder / name
    return None


def refuse_pickle(folder):
    """Raises CheckpointError if a folder has its weights only as a pickle, and says what to do."""
    for path in sorted(folder.glob("pytorch_model*.bin")):
        raise CheckpointError(
            f"{path} is a pickle, which can run any program when it is opened, so it is not. "
            "Convert it once, where PyTorch is installed:\n"
            "  import torch, safetensors.torch\n"
            f"  safetensors.torch.save_file({{k: v.clone() for k, v in torch.load({str(path)!r}, "
            f"weights_only=True).items()}}, {str(folder / _WEIGHTS)!r})"
        )


def open_hugging_face(folder, head=None):
    """Opens a Hugging Face folder; for `head` see `open_checkpoint`."""
    folder = Path(folder)
    settings = read_json(folder / CONFIG)
    config = _bert_config(settings, folder / CONFIG)
    tensors = SafetensorsFile(weights_file(folder))
    stored = {}
    for name in tensors.shapes:
        if stored.setdefault(_with_prefix(name), name) != name:
            raise CheckpointError(
                f"{tensors.path} holds both {_with_prefix(name)} and {name.removeprefix('bert.')}: "
                "it is two models in one"
            )
    labels = _labels(settings, tensors.shapes, folder / CONFIG)

    def find(name):
        found = next((n for n in _spellings(name.hf) if n in stored), None)
        if found is None:
            return None
        if name.own == "masked_lm/output_bias":
            _check_tied(tensors, stored, folder)
        stored_shape = name.shape[::-1] if name.hf_transposed else name.shape
        return Stored(tensors, stored[found], name.shape, stored_shape, name.hf_transposed)

    parts = dict.fromkeys(("encoder", "pooler", "masked_lm", "next_sentence", "span"), 1)
    if head := _classifying_head(settings, stored, labels, head):
        parts[head] = len(labels) if labels else 1
    copies = {stored[name] for name in _COPIES if name in stored}
    return Checkpoint(
        where=folder,
        format="Hugging Face",
        config=config,
        tokenizer=find_tokenizer(folder),
        attention="left_to_right" if settings.get("is_decoder") else "bidirectional",
        labels=labels,
        dropout=_dropout(settings, config, folder / CONFIG),
        **gather(folder, config, tensors, parts, find, "hf", copies.__contains__),
    )


def _bert_config(settings, path):
    kind = settings.get("model_type", "bert")
    if kind != "bert":
        raise CheckpointError(f"{path} describes a model of the type {kind!r}, not a BERT")
    for name, value in _FIXED.items():
        if settings.get(name) not in (None, value):
            raise CheckpointError(
                f"{path} sets {name} to {settings[name]!r}: the BERT of the paper has {value!r}"
            )
    if settings.get("is_decoder", False) not in (None, False, True):
        raise CheckpointError(
            f"{path}: is_decoder is {settings['is_decoder']!r}, not true or false"
        )
    if "vocab_size" not in settings:
        raise CheckpointError(f"{path} is not a BERT configuration: it has no vocab_size")
    known = BertConfig.__dataclass_fields__
    return BertConfig.from_dict({k: v for k, v in settings.items() if k in known}, where=str(path))


def _dropout(settings, config, path):
    rate = settings.get("classifier_dropout")
    if rate is None:
        return config.hidden_dropout_prob
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise CheckpointError(f"{path}: classifier_dropout is {rate!r}, not a number in [0, 1)")
    return float(rate)


def _with_prefix(name):
    """Returns a tensor's name with the `bert.` that files of a bare encoder leave out."""
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        return f"bert.{name}"
    return name


def _spellings(name):
    """Yields the names that a tensor may go by."""
    yield name
    for leaf, old in _OLD_LEAVES.items():
        if name.endswith(f"LayerNorm{leaf}"):
            yield name.removesuffix(leaf) + old
    if name == "cls.predictions.bias":
        yield "cls.predictions.decoder.bias"


def _classifying_head(settings, stored, labels, head):
    """Returns which of our heads the tensors `classifier.*` are, or None."""
    if "classifier.weight" not in stored:
        return None
    # Several yes-or-no labels, or several numbers, are none of ours: such a head stays unread.
    kind = settings.get("problem_type")
    if kind == "multi_label_classification" or (kind == "regression" and labels):
        return None
    architectures = settings.get("architectures")
    if isinstance(architectures, list):
        for name in architectures:
            if isinstance(name, str) and name in _HEADS:
                return _HEADS[name]
    if head in _HEADS.values():
        return head
    return "classifier" if "bert.pooler.dense.weight" in stored else "tagger"


def _labels(settings, shapes, path):
    """Returns the names of the labels in the order of their ids; None for a regression."""
    rows = next(iter(shapes.get("classifier.weight", ())), 2)
    labels = settings.get("id2label")
    if labels is None:
        return placeholder_labels(rows)
    try:
        by_id = {int(n): str(label) for n, label in labels.items()}
        if sorted(by_id) != list(range(len(by_id))):
            raise ValueError
    except (AttributeError, ValueError, TypeError):
        raise CheckpointError(f"{path}: id2label is {labels!r}, not a label for 0, 1, …") from None
    found = tuple(by_id[n] for n in range(len(by_id)))
    if len(set(found)) < len(found):
        CheckpointWarning.issue(
            f"{path} gives two labels one name: they are called LABEL_0, LABEL_1, … instead"
        )
        return placeholder_labels(len(found))
    return found if len(found) > 1 else None


def _check_tied(tensors, stored, folder):
    """Makes sure that what is stored twice is the same."""
    for one, other, what in (
        (
            "cls.predictions.decoder.weight",
            "bert.embeddings.word_embeddings.weight",
            "the word embeddings; BERT's decoder is tied to them",
        ),
        ("cls.predictions.decoder.bias", "cls.predictions.bias", "cls.predictions.bias"),
    ):
        if one in stored and other in stored:
            one, other = stored[one], stored[other]
            same = tensors.shapes[one] == tensors.shapes[other] and (
                tensors.read(one).tobytes() == tensors.read(other).tobytes()
            )
            if not same:
                raise CheckpointError(f"{folder}: {one} differs from {what}")


def write_hugging_face(model, folder):
    """Writes `config.json` and `model.safetensors` to a folder as transformers expects them.

    A pooler that the architecture has no place for (as in BertForQuestionAnswering) stays behind,
    with a warning.
    """
    folder = Path(folder)
    description = Description.of(model)
    architecture = _architecture(model, description)
    pairs = variables_by_name(model)
    if architecture not in _POOLED and encoder_of(model).pooler is not None:
        pairs = [pair for pair in pairs if not pair[0].own.startswith("pooler/")]
        CheckpointWarning.issue(
            f"transformers' {architecture} has no pooler: this model's, which it does not use, is "
            "not written"
        )
    elif architecture in _POOLED and encoder_of(model).pooler is None:
        CheckpointWarning.issue(
            f"this model has no pooler: transformers' {architecture} will start one afresh"
        )
    prefix = "bert." if architecture == "BertModel" else ""  # a bare encoder goes without

    def value(name, variable):
        return lambda: variable.numpy().T if name.hf_transposed else variable.numpy()

    write_safetensors(
        folder / _WEIGHTS,
        {
            name.hf.removeprefix(prefix): (
                name.shape[::-1] if name.hf_transposed else name.shape,
                value(name, variable),
            )
            for name, variable in pairs
        },
        {"format": "pt"},
    )
    settings = _settings(model, architecture, description)
    replace_text(folder / CONFIG, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _architecture(model, description):
    if description.head != "masked_lm":
        return _ARCHITECTURES[description.head]
    if model.next_sentence:
        return "BertForPreTraining"
    return "BertForMaskedLM" if description.attention == "bidirectional" else "BertLMHeadModel"


def _settings(model, architecture, description):
    config = encoder_of(model).config.to_dict()
    if config["hidden_act"] == "gelu_tanh":
        config["hidden_act"] = "gelu_pytorch_tanh"
    settings = {
        "architectures": [architecture],
        "model_type": "bert",
        **config,
        "position_embedding_type": "absolute",
        "pad_token_id": model.tokenizer.pad_id if model.tokenizer else 0,
        "tie_word_embeddings": True,
        "is_decoder": description.attention == "left_to_right",
    }
    if description.dropout is not None:
        settings["classifier_dropout"] = description.dropout
    if description.head in ("classifier", "tagger"):
        labels = description.labels or placeholder_labels(2)[:1]
        settings["id2label"] = {str(n): label for n, label in enumerate(labels)}
        settings["label2id"] = {label: n for n, label in enumerate(labels)}
        if description.head == "classifier":
            settings["problem_type"] = (
                "single_label_classification" if description.labels else "regression"
            )
    return settings
