"""Hugging Face folders: `config.json` and safetensors, in and out."""

import json
from pathlib import Path

from keras_bert_ref.checkpoints.checkpoint import (
    Checkpoint,
    Stored,
    check_layers,
    check_whole,
    placeholder_labels,
)
from keras_bert_ref.checkpoints.names import names, variables_by_name
from keras_bert_ref.checkpoints.own import Description
from keras_bert_ref.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from keras_bert_ref.checkpoints.tokenizer_files import find_tokenizer
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.files import read_json, replace_text

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
    check_layers(config, tensors)
    stored = {_with_prefix(name): name for name in tensors.shapes}
    architecture = (settings.get("architectures") or [None])[0]
    head = _HEADS.get(architecture, head)
    labels = _labels(settings)

    weights, used = {}, set()
    for part in _parts(stored, head, settings):
        for name in names(config, part, len(labels) if labels else 1):
            found = next((n for n in _spellings(name.hf) if n in stored), None)
            if found is not None:
                used.add(found)
                weights[name.own] = Stored(
                    tensors,
                    stored[found],
                    name.shape,
                    name.shape[::-1] if name.hf_transposed else name.shape,
                    name.hf_transposed,
                )
    check_whole(folder, config, weights, "hf")
    _check_tied(tensors, stored, weights, folder)
    dropout = settings.get("classifier_dropout")
    return Checkpoint(
        where=folder,
        format="Hugging Face",
        config=config,
        weights=weights,
        ignored=tuple(stored[n] for n in stored if n not in used and n not in _COPIES),
        tokenizer=find_tokenizer(folder),
        attention="left_to_right" if settings.get("is_decoder") else "bidirectional",
        labels=labels,
        dropout=config.hidden_dropout_prob if dropout is None else float(dropout),
    )


def _bert_config(settings, path):
    kind = settings.get("model_type", "bert")
    if kind != "bert":
        raise CheckpointError(f"{path} describes a model of the type {kind!r}, not a BERT")
    for name, value in _FIXED.items():
        if settings.get(name, value) != value:
            raise CheckpointError(
                f"{path} sets {name} to {settings[name]!r}: the BERT of the paper has {value!r}"
            )
    if "vocab_size" not in settings:
        raise CheckpointError(f"{path} is not a BERT configuration: it has no vocab_size")
    known = BertConfig.__dataclass_fields__
    return BertConfig.from_dict({k: v for k, v in settings.items() if k in known}, where=str(path))


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


def _parts(stored, head, settings):
    parts = ["encoder", "pooler", "masked_lm", "next_sentence", "span"]
    # A head of independent yes-or-no labels is none of ours: it stays unread, and is reported.
    several = settings.get("problem_type") == "multi_label_classification"
    if "classifier.weight" in stored and not several:
        parts.append(head if head in _HEADS.values() else "classifier")
    return parts


def _labels(settings):
    """Returns the names of the labels in the order of their ids; None for a regression."""
    names_by_id = settings.get("id2label")
    if names_by_id is None:
        return placeholder_labels(int(settings.get("num_labels", 2)))
    try:
        labels = {int(n): str(label) for n, label in names_by_id.items()}
        if sorted(labels) != list(range(len(labels))):
            raise ValueError
    except (AttributeError, ValueError):
        raise CheckpointError(f"id2label is {names_by_id!r}, not a label for 0, 1, …") from None
    return tuple(labels[n] for n in range(len(labels))) if len(labels) > 1 else None


def _check_tied(tensors, stored, weights, folder):
    """Makes sure that a decoder stored beside the word embeddings is the same matrix."""
    decoder = stored.get("cls.predictions.decoder.weight")
    if decoder is None or "masked_lm/output_bias" not in weights:
        return
    table = weights["embeddings/word_embeddings"]
    same = tensors.shapes[decoder] == table.stored_shape and (
        tensors.read(decoder).tobytes() == tensors.read(table.name).tobytes()
    )
    if not same:
        raise CheckpointError(
            f"{folder}: {decoder} differs from the word embeddings; BERT's decoder is tied to them"
        )


def write_hugging_face(model, folder):
    """Writes `config.json` and `model.safetensors` to a folder as transformers expects them.

    A pooler that the architecture has no place for (as in BertForQuestionAnswering) stays behind.
    """
    folder = Path(folder)
    description = Description.of(model)
    architecture = _architecture(model, description)
    pairs = [
        (name, variable)
        for name, variable in variables_by_name(model)
        if architecture in _POOLED or not name.own.startswith("pooler/")
    ]
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
    config = getattr(model, "encoder", model).config.to_dict()
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
