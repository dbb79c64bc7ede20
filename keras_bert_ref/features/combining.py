"""How pieces become one vector, and layers one: in this order, layer by layer."""

import numpy as np

from keras_bert_ref.errors import ConfigError

PIECE_POOLINGS = ("pieces", "first_piece", "last_piece", "mean_piece")
TEXT_POOLINGS = ("cls", "pooler", "mean", "max", "mean_max")
COMBINATIONS = ("concat", "sum", "mean", "stack")


def choose(name, value, choices):
    """Raises ConfigError unless the value of an option is one of its choices."""
    if value not in choices:
        raise ConfigError(f"{name} {value!r} is unknown: choose one of {', '.join(choices)}")


def layer_numbers(layers, count):
    """Returns the numbers, from 0 for the embeddings to `count`, of the layers that are meant.

    Args:
        layers: a number, negative ones from the end; several; "last4"; or "all".
        count: L, the number of layers of the encoder.

    Raises:
        ConfigError: there is no such layer.
    """
    if layers == "all":
        return tuple(range(count + 1))
    if layers == "last4":
        layers = range(-4, 0)
    if isinstance(layers, int):
        layers = (layers,)
    if isinstance(layers, str) or not all(
        type(n) is int or isinstance(n, np.integer) for n in layers
    ):
        raise ConfigError(f"layers must be whole numbers, 'last4' or 'all', not {layers!r}")
    numbers = []
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise ConfigError(
                f"layer {layer} is none of this encoder's: they are 0 (the embeddings) to {count}, "
                f"or from the end -1 to {-count - 1}"
            )
        numbers.append(int(layer) % (count + 1))
    if not numbers:
        raise ConfigError("layers names no layer")
    return tuple(numbers)


def statistics_for(pooling, specials):
    """Returns the names, as in `frozen.STATISTICS`, that a pooling of whole texts is made from."""
    prefix = "" if specials else "text_"
    return {
        "cls": ("cls",),
        "pooler": ("pooler",),
        "mean": (f"{prefix}mean",),
        "max": (f"{prefix}max",),
        "mean_max": (f"{prefix}mean", f"{prefix}max"),
    }[pooling]


def combine_layers(states, combine):
    """Makes one vector of those of several layers.

    Args:
        states: [..., k, H].
        combine: one of `COMBINATIONS`, or a function of such an array.

    Returns:
        [..., k·H] for "concat", [..., k, H] for "stack", else [..., H].
    """
    if combine == "concat":
        return states.reshape(*states.shape[:-2], -1)
    if combine == "sum":
        return states.sum(-2)
    if combine == "mean":
        return states.mean(-2)
    return states if combine == "stack" else np.asarray(combine(states))


def text_vector(statistics, pooling, specials, combine):
    """Makes the vector of a text of its statistics.

    Args:
        statistics: name → [k, H] ([H] of the pooler), those that `statistics_for` names.
        pooling: one of `TEXT_POOLINGS`.
        specials: see `statistics_for`.
        combine: see `combine_layers`.
    """
    parts = [statistics[name] for name in statistics_for(pooling, specials)]
    if pooling == "pooler":
        return parts[0]
    return combine_layers(np.concatenate(parts, axis=-1), combine)


def normalized(vectors):
    """Returns vectors [..., D] scaled to length 1; those of zeros stay."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(length, np.finfo(np.float32).tiny)


def pool_pieces(states, word_ids, pooling):
    """Makes one vector for each word of the vectors of its pieces.

    Args:
        states: [n, ...], the pieces.
        word_ids: the index of each piece's word; None for [CLS] and [SEP]. Of a pair's two texts
            each counts its own.
        pooling: one of `PIECE_POOLINGS` but "pieces".

    Returns:
        [words, ...].
    """
    word_ids = [-1 if word is None else word for word in word_ids]
    real = np.flatnonzero(np.array(word_ids) >= 0)
    if not len(real):
        return states[:0]
    words = np.take(word_ids, real)
    # A word begins where the number changes, and where [SEP] comes between.
    begins = np.flatnonzero(np.r_[True, (np.diff(words) != 0) | (np.diff(real) > 1)])
    if pooling == "first_piece":
        return states[real[begins]]
    ends = np.r_[begins[1:], len(words)]
    if pooling == "last_piece":
        return states[real[ends - 1]]
    sums = np.add.reduceat(states[real], begins, axis=0)
    return sums / (ends - begins).reshape(-1, *[1] * (states.ndim - 1)).astype(states.dtype)
