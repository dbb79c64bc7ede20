"""The one table of names: each variable here, in Google's TF1 checkpoints, in Hugging Face files.

Read in both directions. A row is a module with a kernel and a bias, a gamma and a beta, or one
array; the order is that of the forward pass.
"""

import dataclasses

from keras_bert_ref.errors import ConfigError
from keras_bert_ref.pretrained import encoder_of

# Parts that a checkpoint may have, and beside each module: its kind, its sizes and its name here,
# in a TF1 checkpoint (Devlin et al.'s release), and in a Hugging Face file. In sizes, H is hidden,
# I the feed-forward width, V the vocabulary, S positions, T segments, C labels. `{n}` is the layer.
_ENCODER = (
    ("array", "VH", "embeddings/word_embeddings",
     "bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings"),
    ("array", "SH", "embeddings/position_embeddings",
     "bert/embeddings/position_embeddings", "bert.embeddings.position_embeddings"),
    ("array", "TH", "embeddings/token_type_embeddings",
     "bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings"),
    ("norm", "H", "embeddings/LayerNorm",
     "bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm"),
)  # fmt: skip
_LAYER = (
    ("dense", "HH", "layer_{n}/self_attention/query",
     "bert/encoder/layer_{n}/attention/self/query", "bert.encoder.layer.{n}.attention.self.query"),
    ("dense", "HH", "layer_{n}/self_attention/key",
     "bert/encoder/layer_{n}/attention/self/key", "bert.encoder.layer.{n}.attention.self.key"),
    ("dense", "HH", "layer_{n}/self_attention/value",
     "bert/encoder/layer_{n}/attention/self/value", "bert.encoder.layer.{n}.attention.self.value"),
    ("dense", "HH", "layer_{n}/attention_output",
     "bert/encoder/layer_{n}/attention/output/dense",
     "bert.encoder.layer.{n}.attention.output.dense"),
    ("norm", "H", "layer_{n}/attention_LayerNorm",
     "bert/encoder/layer_{n}/attention/output/LayerNorm",
     "bert.encoder.layer.{n}.attention.output.LayerNorm"),
    ("dense", "HI", "layer_{n}/intermediate",
     "bert/encoder/layer_{n}/intermediate/dense", "bert.encoder.layer.{n}.intermediate.dense"),
    ("dense", "IH", "layer_{n}/output",
     "bert/encoder/layer_{n}/output/dense", "bert.encoder.layer.{n}.output.dense"),
    ("norm", "H", "layer_{n}/output_LayerNorm",
     "bert/encoder/layer_{n}/output/LayerNorm", "bert.encoder.layer.{n}.output.LayerNorm"),
)  # fmt: skip
_PARTS = {
    "pooler": (
        ("dense", "HH", "pooler", "bert/pooler/dense", "bert.pooler.dense"),
    ),
    "masked_lm": (
        ("dense", "HH", "masked_lm/transform",
         "cls/predictions/transform/dense", "cls.predictions.transform.dense"),
        ("norm", "H", "masked_lm/transform_LayerNorm",
         "cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm"),
        ("bias", "V", "masked_lm/output_bias", "cls/predictions/output_bias", "cls.predictions"),
    ),
    "next_sentence": (
        ("head", "H2", "next_sentence/output", "cls/seq_relationship/", "cls.seq_relationship"),
    ),
    "span": (("head", "H2", "span/output", "cls/squad/", "qa_outputs"),),
    # The original has a classifier only; choices and tags take its names, as they do in HF files.
    "classifier": (("head", "HC", "classifier/output", "", "classifier"),),
    "choice": (("head", "H1", "choice/output", "", "classifier"),),
    "tagger": (("head", "HC", "tagger/output", "", "classifier"),),
}  # fmt: skip

# What each kind of module holds: name here, in TF1, in HF files; then whether TF1 and HF store it
# transposed (HF keeps every kernel as [out, in]; TF1 only those of the heads on top).
_KINDS = {
    "array": (("", "", ".weight", False, False),),
    "norm": (
        ("/gamma", "/gamma", ".weight", False, False),
        ("/beta", "/beta", ".bias", False, False),
    ),
    "dense": (
        ("/kernel", "/kernel", ".weight", False, True),
        ("/bias", "/bias", ".bias", False, False),
    ),
    "head": (
        ("/kernel", "output_weights", ".weight", True, True),
        ("/bias", "output_bias", ".bias", False, False),
    ),
    "bias": (("", "", ".bias", False, False),),
}


@dataclasses.dataclass(frozen=True)
class Name:
    """One variable and what others call it.

    Attributes:
        own: the variable's path in this library.
        shape: its shape.
        tf1: its name in a TF1 checkpoint.
        hf: its name in a Hugging Face file.
        tf1_transposed: whether TF1 checkpoints hold it transposed.
        hf_transposed: whether Hugging Face files do.
    """

    own: str
    shape: tuple[int, ...]
    tf1: str
    hf: str
    tf1_transposed: bool
    hf_transposed: bool


PARTS = ("encoder", *_PARTS)


def names(config, part, labels=1):
    """Returns the names of a part in the order of the forward pass.

    Args:
        config: a `BertConfig`.
        part: one of `PARTS`.
        labels: the number of outputs of a classifier or tagger.

    Returns:
        A list of `Name`.
    """
    sizes = {
        "V": config.vocab_size,
        "H": config.hidden_size,
        "I": config.intermediate_size,
        "S": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "C": labels,
    }
    if part == "encoder":
        rows = [(row, None) for row in _ENCODER]
        rows += [(row, n) for n in range(config.num_hidden_layers) for row in _LAYER]
    else:
        rows = [(row, None) for row in _PARTS[part]]
    found = []
    for (kind, letters, *modules), n in rows:
        shape = tuple(sizes[letter] if letter in sizes else int(letter) for letter in letters)
        own, tf1, hf = (module.format(n=n) for module in modules)
        for own_leaf, tf1_leaf, hf_leaf, tf1_transposed, hf_transposed in _KINDS[kind]:
            found.append(
                Name(
                    own=own + own_leaf,
                    # A kernel is [in, out]; biases, gammas and betas have the size that goes out.
                    shape=shape if own_leaf in ("", "/kernel") else shape[-1:],
                    tf1=tf1 + tf1_leaf,
                    hf=hf + hf_leaf,
                    tf1_transposed=tf1_transposed,
                    hf_transposed=hf_transposed,
                )
            )
    return found


def variables_by_name(model):
    """Pairs each weight of an encoder or a task model with its `Name`, in the table's order.

    Raises:
        ConfigError: the model has weights of another kind.
    """
    pairs, others = pair_variables(model)
    if others:
        raise ConfigError(f"no checkpoint has a name for the weight {others[0].path}")
    return pairs


def pair_variables(model):
    """Returns the pairs of `variables_by_name`, and a list of the weights of another kind."""
    encoder = encoder_of(model)
    # A model that was built within another layer has that one's name before its own.
    scope = encoder.embeddings.word_embeddings.path.removesuffix("embeddings/word_embeddings")
    weights = {variable.path.removeprefix(scope): variable for variable in model.weights}
    labels = len(model.labels) if getattr(model, "labels", None) else 1
    pairs = [
        (name, weights.pop(name.own))
        for part in PARTS
        for name in names(encoder.config, part, labels)
        if name.own in weights
    ]
    return pairs, list(weights.values())
