"""Where a checkpoint of the TensorFlow Model Garden (TF2, object-based) keeps each variable.

Names in such a checkpoint are paths through Python objects, so they depend on the class that was
saved and on what it was saved as. Three generations of classes are about: `TransformerEncoder`
(2020, the first released checkpoints), `BertEncoder` and `BertEncoderV2`; each has been saved as
`model`, as `encoder`, or inside a model with heads.
"""

import dataclasses
import re

from keras_bert_ref.checkpoints.names import names

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"

# Names here, then in the checkpoint, where `{encoder}` and `{masked_lm}` are whatever the objects
# were saved as. `BertEncoder` is a functional model, whose layers with weights are numbered from
# the word embeddings to the pooler; `BertEncoderV2` has attributes. The first name present counts.
_NAMES = (
    ("embeddings/word_embeddings", "{encoder}layer_with_weights-0/embeddings"),
    ("embeddings/word_embeddings", "{encoder}_embedding_layer/embeddings"),
    # A variable has one name, the shortest path to it: with a masked LM head that is the head's.
    ("embeddings/word_embeddings", "{masked_lm}embedding_table"),
    ("embeddings/position_embeddings", "{encoder}layer_with_weights-1/embeddings"),
    ("embeddings/position_embeddings", "{encoder}_position_embedding_layer/embeddings"),
    ("embeddings/token_type_embeddings", "{encoder}layer_with_weights-2/embeddings"),
    ("embeddings/token_type_embeddings", "{encoder}_type_embedding_layer/embeddings"),
    ("embeddings/LayerNorm", "{encoder}layer_with_weights-3"),
    ("embeddings/LayerNorm", "{encoder}_embedding_norm_layer"),
    ("layer_{n}/self_attention/query", "{block}/_attention_layer/_query_dense"),
    ("layer_{n}/self_attention/key", "{block}/_attention_layer/_key_dense"),
    ("layer_{n}/self_attention/value", "{block}/_attention_layer/_value_dense"),
    ("layer_{n}/attention_output", "{block}/_attention_layer/_output_dense"),
    ("layer_{n}/attention_output", "{block}/_attention_output_dense"),
    ("layer_{n}/attention_LayerNorm", "{block}/_attention_layer_norm"),
    ("layer_{n}/intermediate", "{block}/_intermediate_dense"),
    ("layer_{n}/output", "{block}/_output_dense"),
    ("layer_{n}/output_LayerNorm", "{block}/_output_layer_norm"),
    # Next sentence prediction brings a pooler of its own; the encoder's then was never trained.
    ("pooler", "next_sentence..pooler_dense"),
    ("pooler", "model/classification_heads/0/dense"),
    ("pooler", "{encoder}layer_with_weights-{last}"),
    ("pooler", "{encoder}_pooler_layer"),
    ("masked_lm/transform", "{masked_lm}dense"),
    ("masked_lm/transform_LayerNorm", "{masked_lm}layer_norm"),
    ("masked_lm/output_bias", "{masked_lm}output_bias.Sbias"),
    ("next_sentence/output", "model/classification_heads/0/out_proj"),
)
_PARTS = ("encoder", "pooler", "masked_lm", "next_sentence")

# The tensors that give away what the encoder and the masked LM head were saved as.
_FIRST_BLOCK = re.compile(
    r"((?:.+/)?)(?:layer_with_weights-4|_transformer_layers/0)/_attention_layer/_query_dense/kernel"
    + re.escape(_SUFFIX)
)
_OUTPUT_BIAS = re.compile(r"((?:.+/)?)output_bias\.Sbias" + re.escape(_SUFFIX))

_BOOKKEEPING = re.compile(
    r"_CHECKPOINTABLE_OBJECT_GRAPH|(save_counter|global_step|optimizer)/.*|.*/\.OPTIMIZER_SLOT/.*"
)


def recognise(shapes):
    """Returns whether tensors of these names are a Model Garden BERT encoder's."""
    return _saved_as(_FIRST_BLOCK, shapes) is not None


def bookkeeping(name):
    """Returns whether a tensor belongs to the training, not to the model."""
    return _BOOKKEEPING.fullmatch(name) is not None


def as_computed(config):
    """Returns the configuration under which this library computes what the Model Garden does.

    Its "gelu" is the tanh approximation (`official/modeling/activations/gelu.py`).
    """
    if config.hidden_act == "gelu":
        return dataclasses.replace(config, hidden_act="gelu_tanh")
    return config


def locate(shapes, config):
    """Finds this library's variables in a Model Garden checkpoint.

    Args:
        shapes: tensor name → shape, of all tensors in the checkpoint.
        config: the encoder's `BertConfig`.

    Returns:
        Variable path → tensor name, the shape it must have, and the variable's shape; the value is
        the tensor reshaped. Variables that the checkpoint lacks are left out.
    """
    encoder = _saved_as(_FIRST_BLOCK, shapes)
    masked_lm = _saved_as(_OUTPUT_BIAS, shapes)
    own_shapes = {name.own: name.shape for part in _PARTS for name in names(config, part)}
    found = {}
    for n in range(config.num_hidden_layers):
        numbered = f"{encoder}layer_with_weights-{n + 4}"
        block = f"{encoder}_transformer_layers/{n}"
        if f"{numbered}/_attention_layer/_query_dense/kernel{_SUFFIX}" in shapes:
            block = numbered
        for own, stored in _NAMES:
            own = own.format(n=n)
            stored = stored.format(
                encoder=encoder,
                block=block,
                last=config.num_hidden_layers + 4,
                masked_lm=masked_lm,
            )
            for leaf in ("", "/kernel", "/bias", "/gamma", "/beta"):
                path, tensor = own + leaf, stored + leaf + _SUFFIX
                if path in own_shapes and tensor in shapes and path not in found:
                    shape = own_shapes[path]
                    found[path] = tensor, divided_by_heads(path, shape, config), shape
    return found


def divided_by_heads(path, shape, config):
    """Returns the shape a variable has in Keras's `MultiHeadAttention`, [.., A, d] for [.., H]."""
    heads = (config.num_attention_heads, config.head_size)
    if "/self_attention/" in path:
        return (*shape[:-1], *heads)
    if path.endswith("/attention_output/kernel"):
        return (*heads, *shape[1:])
    return shape


def _saved_as(pattern, shapes):
    """Returns what comes before a tell-tale tensor; None if there is none."""
    found = [match[1] for match in map(pattern.fullmatch, shapes) if match]
    return min(found, key=len, default=None)
