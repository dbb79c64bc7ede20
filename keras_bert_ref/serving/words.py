"""A tagger's answer for texts: a tag for each word, in the graph as `tasks.ner` does it."""

import sys

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.graph_symbols import indices_of, rank
from keras_bert_ref.serving.inputs import in_chunks
from keras_bert_ref.serving.labels import best_label, label_names
from keras_bert_ref.serving.rows import Block, numbered, rows_of, starts_of, valid_text

# What divides words for `str.split`.
_WHITE_SPACE = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace())


def tagged_words(texts, tokenizer, text_layer, labels, compute):
    """Tags the words of texts, which white space divides.

    A text of more pieces than a row holds is read in parts, cut between words.

    Args:
        texts: strings [B].
        tokenizer: a WordPieceTokenizer.
        text_layer: its `TextLayer`.
        labels: the names of the C tags.
        compute: a `Computation` of "logits" [B, S, C].

    Returns:
        `words` and `tags`, strings [B, W], and `probabilities`, float32 [B, W, C], filled up with
        "" and 0; `labels`, strings [B, C], the order of the probabilities.
    """
    words = _words(texts)
    ids, begins = _pieces(words.values, tokenizer, text_layer)
    room = text_layer.max_length - 2

    # Parts: runs of words whose pieces fit into a row.
    sizes = tf.minimum(begins[1:] - begins[:-1], room)  # of a longer word, its first pieces
    fitted = starts_of(sizes)
    opens = _opens(words.row_splits, fitted, room)
    firsts = indices_of(opens)
    part_of = tf.cumsum(tf.cast(opens, tf.int64)) - 1
    first_of = tf.gather(firsts, part_of)
    lengths = tf.math.segment_sum(sizes, part_of)

    block = Block(ids, tf.gather(begins, firsts), lengths)
    features, _ = rows_of([block], tokenizer)
    logits = in_chunks(compute, features)["logits"]
    columns = 1 + fitted[:-1] - tf.gather(fitted, first_of)
    logits = tf.gather_nd(logits, tf.stack([part_of, columns], 1))  # [words, C]

    def padded(values):
        return words.with_values(values).to_tensor()

    return {
        "words": padded(words.values),
        "tags": padded(best_label(labels, logits)),
        "probabilities": padded(tf.nn.softmax(logits)),
        "labels": label_names(labels, tf.shape(texts)[0]),
    }


def _words(texts):
    """Returns the words of texts, ragged [B, W]."""
    spaced = tf.strings.regex_replace(valid_text(texts), f"[{_WHITE_SPACE}]+", " ")
    return tf.strings.split(spaced)


def _pieces(words, tokenizer, text_layer):
    """Returns the ids of the pieces of words, [UNK] for one without any, and where each begins."""
    found = text_layer.tokenize(words)["ids"]
    counts = found.row_lengths()
    word, place = numbered(tf.maximum(counts, 1))
    at = tf.gather(found.row_starts(), word) + place
    empty = tf.gather(counts == 0, word)
    values = tf.concat([found.values, [0]], 0)
    ids = tf.where(
        empty, tokenizer.unk_id, tf.gather(values, tf.where(empty, tf.zeros_like(at), at))
    )
    return ids, starts_of(tf.maximum(counts, 1))


def _opens(splits, fitted, room):
    """Returns whether a part begins with each word, bool [words].

    Args:
        splits: where the words of each text begin.
        fitted: where the pieces of each word begin, [words + 1].
        room: the most pieces of a part.
    """
    count = tf.size(fitted, tf.int64) - 1
    opens = tf.zeros([count], tf.bool)
    # The first word that no longer fits into a part that begins with a word.
    beyond = rank(fitted[1:], fitted[:-1] + room, right=True)
    ends = tf.gather(splits, rank(splits, tf.range(count), right=True))

    def step(opens, at):
        opens = tf.tensor_scatter_nd_update(opens, at[:, tf.newaxis], tf.ones_like(at, tf.bool))
        following = tf.gather(beyond, at)
        return opens, tf.boolean_mask(following, following < tf.gather(ends, at))

    begins = tf.boolean_mask(splits[:-1], splits[1:] > splits[:-1])
    return tf.while_loop(
        lambda opens, at: tf.size(at) > 0,
        step,
        [opens, begins],
        shape_invariants=[tf.TensorShape([None]), tf.TensorShape([None])],
    )[0]
