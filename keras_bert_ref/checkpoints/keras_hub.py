"""Where a keras-hub BERT preset keeps each variable, and how its description reads here.

A preset is a folder: `config.json` and `model.weights.h5` of the backbone, `tokenizer.json` and
`assets/tokenizer/vocabulary.txt`, and, where a task was saved, `task.weights.h5` with its head. The
head stays unread: that of its masked language model computes with another activation and epsilon
than the encoder, which no BERT of the paper does.
"""

from pathlib import Path

from keras_bert_ref.checkpoints.checkpoint import Checkpoint, finder, gather
from keras_bert_ref.checkpoints.hdf5_file import Hdf5File
from keras_bert_ref.checkpoints.model_garden import divided_by_heads
from keras_bert_ref.checkpoints.names import names
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.files import read_json
from keras_bert_ref.tokenization import WordPieceTokenizer

CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.weights.h5", "assets/tokenizer/vocabulary.txt"
_HEAD, _TOKENIZER = "task.weights.h5", "tokenizer.json"

# Names here, then of groups in the file. Keras names a group for the layer's class and counts from
# the second on: transformer_encoder, transformer_encoder_1, … The first name present counts.
_BACKBONE = (
    ("embeddings/word_embeddings", "layers/reversible_embedding"),
    ("embeddings/position_embeddings", "layers/position_embedding"),
    ("embeddings/token_type_embeddings", "layers/embedding"),
    ("embeddings/LayerNorm", "layers/layer_normalization"),
    ("layer_{n}/self_attention/query", "{block}/_self_attention_layer/query_dense"),
    ("layer_{n}/self_attention/key", "{block}/_self_attention_layer/key_dense"),
    ("layer_{n}/self_attention/value", "{block}/_self_attention_layer/value_dense"),
    ("layer_{n}/attention_output", "{block}/_self_attention_layer/output_dense"),
    ("layer_{n}/attention_LayerNorm", "{block}/_self_attention_layer_norm"),
    ("layer_{n}/intermediate", "{block}/_feedforward_intermediate_dense"),
    ("layer_{n}/output", "{block}/_feedforward_output_dense"),
    ("layer_{n}/output_LayerNorm", "{block}/_feedforward_layer_norm"),
    ("pooler", "layers/dense"),
)
_PARTS = ("encoder", "pooler")
# A layer's variables are numbered in the order they were made.
_LEAVES = (
    ("", "/vars/0"),
    ("/kernel", "/vars/0"),
    ("/bias", "/vars/1"),
    ("/gamma", "/vars/0"),
    ("/beta", "/vars/1"),
)


def recognise(folder):
    """Returns whether a folder is a preset of keras-hub, of whatever model."""
    return "class_name" in read_json(Path(folder) / CONFIG)


def open_keras_hub(folder):
    """Opens a preset of keras-hub's `BertBackbone`."""
    folder = Path(folder)
    config = BertConfig.from_dict(read_settings(read_json(folder / CONFIG)), where=str(folder))
    tensors = Hdf5File(folder / WEIGHTS)
    find = finder(config, tensors, locate)
    contents = gather(folder, config, tensors, dict.fromkeys(_PARTS, 1), find, "own")
    if (folder / _HEAD).is_file():
        contents["ignored"] += (_HEAD,)
    tokenizer = None
    if (folder / VOCABULARY).is_file():
        casing = read_casing(read_json(folder / _TOKENIZER))
        tokenizer = WordPieceTokenizer.from_vocab(folder / VOCABULARY, *casing)
    return Checkpoint(
        where=folder, format="keras-hub", config=config, tokenizer=tokenizer, **contents
    )


def read_settings(config_json):
    """Returns the fields of a `BertConfig` that a preset's `config.json` spells out.

    Args:
        config_json: the parsed file.

    Raises:
        CheckpointError: it does not describe keras-hub's `BertBackbone`.
    """
    kind = config_json.get("class_name")
    if kind != "BertBackbone":
        raise CheckpointError(f"config.json describes {kind}, not keras-hub's BertBackbone")
    config = config_json.get("config", {})
    try:
        settings = {
            "vocab_size": config["vocabulary_size"],
            "hidden_size": config["hidden_dim"],
            "num_hidden_layers": config["num_layers"],
            "num_attention_heads": config["num_heads"],
            "intermediate_size": config["intermediate_dim"],
            "max_position_embeddings": config["max_sequence_length"],
            "type_vocab_size": config["num_segments"],
            "hidden_dropout_prob": config["dropout"],
            "attention_probs_dropout_prob": config["dropout"],
        }
    except KeyError as error:
        raise CheckpointError(f"config.json of the BertBackbone lacks {error}") from None
    # Neither is a setting there: `BertBackbone` always has the tanh approximation and this epsilon.
    return settings | {"hidden_act": "gelu_tanh", "layer_norm_eps": 1e-12}


def read_casing(tokenizer_json):
    """Returns whether a preset's tokenizer lowercases, and whether it strips accents.

    They are two settings there, and lowercasing alone keeps the accents; the original does both or
    neither.

    Args:
        tokenizer_json: the parsed `tokenizer.json`.

    Raises:
        CheckpointError: it does not describe keras-hub's `BertTokenizer`.
    """
    kind = tokenizer_json.get("class_name")
    if kind != "BertTokenizer":
        raise CheckpointError(f"tokenizer.json describes {kind}, not keras-hub's BertTokenizer")
    config = tokenizer_json.get("config", {})
    return bool(config.get("lowercase")), bool(config.get("strip_accents"))


def locate(shapes, config):
    """Finds the encoder's variables in `model.weights.h5`.

    Args:
        shapes: path of a dataset in the file → shape, of all datasets.
        config: the encoder's `BertConfig`.

    Returns:
        Variable path → dataset, the shape it must have, and the variable's shape; the value is the
        dataset reshaped. Variables that the file lacks are left out.
    """
    own_shapes = {name.own: name.shape for part in _PARTS for name in names(config, part)}
    found = {}
    for n in range(config.num_hidden_layers):
        block = f"layers/transformer_encoder_{n}" if n else "layers/transformer_encoder"
        for own, stored in _BACKBONE:
            for own_leaf, stored_leaf in _LEAVES:
                path, dataset = own.format(n=n) + own_leaf, stored.format(block=block) + stored_leaf
                if path in own_shapes and dataset in shapes and path not in found:
                    shape = own_shapes[path]
                    found[path] = dataset, divided_by_heads(path, shape, config), shape
    return found
