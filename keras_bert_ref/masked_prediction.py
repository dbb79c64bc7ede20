"""What a pretrained model puts in the place of [MASK]."""

import numpy as np

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.tokenization import WordPieceTokenizer

MASK = "[MASK]"


def fill_mask(model, text, *, top=5):
    """Predicts the pieces behind each [MASK] of a text.

    Args:
        model: a `BertPretrainer` with its `tokenizer`.
        text: a string that holds "[MASK]" at least once.
        top: how many predictions to return for each.

    Returns:
        For each [MASK] in order, a list of `top` pairs (piece, probability), the likeliest first.

    Raises:
        ConfigError: the text holds no [MASK], or is longer than the model can read; or the model
            is of another kind, or has no tokenizer.
    """
    if getattr(model, "head", None) != "masked_lm":
        raise ConfigError(
            f"a {type(model).__name__} predicts no masked pieces: load a checkpoint that has the "
            "head for it with BertPretrainer.from_pretrained"
        )
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ConfigError("the model has no tokenizer: set model.tokenizer to a WordPieceTokenizer")
    tokenizer = keeping_masks(tokenizer)
    encoding = tokenizer.encode(text)
    longest = model.encoder.config.max_position_embeddings
    if len(encoding.input_ids) > longest:
        raise ConfigError(
            f"the text has {len(encoding.input_ids)} pieces, the model reads at most {longest}"
        )
    positions = [n for n, piece in enumerate(encoding.tokens) if piece == MASK]
    if not positions:
        raise ConfigError(f"the text has no {MASK} to fill: {text!r}")
    features = {
        "input_ids": [encoding.input_ids],
        "input_mask": [encoding.input_mask],
        "segment_ids": [encoding.segment_ids],
        "masked_lm_positions": [positions],
    }
    features = {name: tf.constant(value, tf.int32) for name, value in features.items()}
    logits = model(features, training=False)["masked_lm_logits"][0]
    # A configuration may have room for more pieces than its vocabulary has.
    probabilities = tf.nn.softmax(logits[:, : tokenizer.vocab_size]).numpy()  # [P, V]
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
    return [
        [(tokenizer.vocabulary[index], float(row[index])) for index in indices]
        for indices, row in zip(best, probabilities, strict=True)
    ]


def keeping_masks(tokenizer):
    """Returns a tokenizer that does the same, but reads "[MASK]" as the piece of that name."""
    if MASK in tokenizer.never_split:
        return tokenizer
    return WordPieceTokenizer(
        tokenizer.vocabulary,
        tokenizer.lower_case,
        tokenizer.strip_accents,
        (*tokenizer.never_split, MASK),
    )
