"""Google's TF1 checkpoints in and out, and the TF2 ones of the Model Garden in."""

import os
import re
from pathlib import Path

from keras_bert_ref.checkpoints import model_garden
from keras_bert_ref.checkpoints.checkpoint import (
    Checkpoint,
    Stored,
    check_layers,
    check_whole,
    placeholder_labels,
)
from keras_bert_ref.checkpoints.names import names, variables_by_name
from keras_bert_ref.checkpoints.own import DESCRIPTION, Description
from keras_bert_ref.checkpoints.tensor_bundle import TensorBundle, bundles, latest
from keras_bert_ref.checkpoints.tokenizer_files import find_tokenizer
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError

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
    check_layers(config, bundle)
    if model_garden.recognise(bundle.shapes):
        config = model_garden.as_computed(config)
        located = model_garden.locate(bundle.shapes, config)
        weights = {
            path: Stored(bundle, name, shape, stored_shape)
            for path, (name, stored_shape, shape) in located.items()
        }
        check_whole(prefix, config, weights, "own")
        used = {stored.name for stored in weights.values()}
        return Checkpoint(
            where=prefix,
            format="Model Garden TF2",
            config=config,
            weights=weights,
            ignored=tuple(
                name
                for name in bundle.shapes
                if name not in used and not model_garden.bookkeeping(name)
            ),
            tokenizer=find_tokenizer(folder),
        )

    described = (folder / DESCRIPTION).is_file()
    if described:
        description = Description.read(folder)
        head, told = description.head or head, description.options(folder)
    labels = next(iter(bundle.shapes.get("output_weights", ())), 0)
    wanted = [name for part in _parts(bundle.shapes, head) for name in names(config, part, labels)]
    weights = {
        name.own: Stored(
            bundle,
            name.tf1,
            name.shape,
            name.shape[::-1] if name.tf1_transposed else name.shape,
            name.tf1_transposed,
        )
        for name in wanted
        if name.tf1 in bundle.shapes
    }
    check_whole(prefix, config, weights, "tf1")
    used = {stored.name for stored in weights.values()}
    if not described:
        told = {"labels": placeholder_labels(labels), "tokenizer": find_tokenizer(folder)}
    return Checkpoint(
        where=prefix,
        format="Google TF1",
        config=config,
        weights=weights,
        ignored=tuple(n for n in bundle.shapes if n not in used and not _BOOKKEEPING.search(n)),
        **told,
    )


def _parts(shapes, head):
    parts = ["encoder", "pooler", "masked_lm", "next_sentence", "span"]
    if "output_weights" in shapes:
        parts.append(head if head in ("classifier", "choice", "tagger") else "classifier")
    return parts


def write_google(model, folder):
    """Writes a checkpoint under the original's names, and its configuration, to a folder.

    What the original's files have no place for (labels, direction of attention) goes into this
    library's own description beside them.
    """
    from keras_bert_ref._tensorflow import tf

    config = getattr(model, "encoder", model).config
    tensors = {}
    for name, variable in variables_by_name(model):
        value = tf.convert_to_tensor(variable.value)
        tensors[name.tf1] = tf.transpose(value) if name.tf1_transposed else value
    ordered = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=os.fspath(Path(folder) / PREFIX),
        tensor_names=ordered,
        shape_and_slices=[""] * len(ordered),
        tensors=[tensors[name] for name in ordered],
    )
    config.to_json(Path(folder) / _CONFIG)
    Description.of(model).write(folder)
