"""Google's TF1 checkpoints in and out, and the TF2 ones of the Model Garden in."""

import os
import re
from pathlib import Path

from keras_bert_ref.checkpoints import model_garden
from keras_bert_ref.checkpoints.checkpoint import (
    Checkpoint,
    Stored,
    finder,
    gather,
    placeholder_labels,
)
from keras_bert_ref.checkpoints.names import variables_by_name
from keras_bert_ref.checkpoints.own import DESCRIPTION, Description
from keras_bert_ref.checkpoints.tensor_bundle import TensorBundle, bundles, latest
from keras_bert_ref.checkpoints.tokenizer_files import find_tokenizer
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError, OutputError
from keras_bert_ref.files import first_line
from keras_bert_ref.pretrained import encoder_of

PREFIX = "bert_model.ckpt"
_CONFIG = "bert_config.json"
# What training leaves beside the weights: optimizer slots and counters.
_BOOKKEEPING = re.compile(
    r"(/(adam_[mv]|Adam(_1)?|Momentum|lamb_[mv])$)|^(global_step|beta[12]_power)$"
)


def find_prefix(folder):
    """Returns the prefix of the TensorFlow checkpoint in a folder; None if there is none.

    Of several, the one that the folder's `checkpoint` file names as the latest.

    Raises:
        CheckpointError: there are several, and none is named.
    """
    found = bundles(folder)
    if len(found) > 1:
        last = latest(folder)
        if last not in found:
            raise CheckpointError(
                f"{folder} holds {len(found)} checkpoints: name one, such as {found[-1]}"
            )
        return last
    return found[0] if found else None


def open_google(prefix, head=None):
    """Opens a TensorFlow checkpoint by its prefix; for `head` see `open_checkpoint`."""
    folder = prefix.parent
    bundle = TensorBundle(prefix)
    if not (folder / _CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {_CONFIG}: the checkpoint came with one")
    config = BertConfig.from_json(folder / _CONFIG)
    if model_garden.recognise(bundle.shapes):
        return _open_model_garden(prefix, bundle, model_garden.as_computed(config))

    told = {}
    if (folder / DESCRIPTION).is_file():
        description = Description.read(folder)
        head, told = description.head or head, description.options(folder)
    outputs = next(iter(bundle.shapes.get("output_weights", ())), 0)
    parts = dict.fromkeys(("encoder", "pooler", "masked_lm", "next_sentence", "span"), 1)
    if outputs:
        parts[head if head in ("choice", "tagger") else "classifier"] = outputs

    def find(name):
        if name.tf1 not in bundle.shapes:
            return None
        stored_shape = name.shape[::-1] if name.tf1_transposed else name.shape
        return Stored(bundle, name.tf1, name.shape, stored_shape, name.tf1_transposed)

    return Checkpoint(
        where=prefix,
        format="Google TF1",
        config=config,
        **gather(prefix, config, bundle, parts, find, "tf1", _BOOKKEEPING.search),
        **(told or {"labels": placeholder_labels(outputs), "tokenizer": find_tokenizer(folder)}),
    )


def _open_model_garden(prefix, bundle, config):
    find = finder(config, bundle, model_garden.locate)
    parts = dict.fromkeys(("encoder", "pooler", "masked_lm", "next_sentence"), 1)
    return Checkpoint(
        where=prefix,
        format="Model Garden TF2",
        config=config,
        tokenizer=find_tokenizer(prefix.parent),
        **gather(prefix, config, bundle, parts, find, "own", model_garden.bookkeeping),
    )


def write_google(model, folder):
    """Writes a checkpoint under the original's names, and its configuration, to a folder.

    What the original's files have no place for (labels, direction of attention) goes into this
    library's own description beside them.
    """
    from keras_bert_ref._tensorflow import tf

    tensors = {}
    for name, variable in variables_by_name(model):
        value = tf.convert_to_tensor(variable.value)
        tensors[name.tf1] = tf.transpose(value) if name.tf1_transposed else value
    ordered = sorted(tensors)
    try:
        tf.raw_ops.SaveV2(
            prefix=os.fspath(Path(folder) / PREFIX),
            tensor_names=ordered,
            shape_and_slices=[""] * len(ordered),
            tensors=[tensors[name] for name in ordered],
        )
    except tf.errors.OpError as error:
        raise OutputError(f"{folder} cannot be written: {first_line(error.message)}") from None
    encoder_of(model).config.to_json(Path(folder) / _CONFIG)
    Description.of(model).write(folder)
