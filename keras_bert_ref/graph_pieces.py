"""The pieces that words are made of, found in the graph by a trie of the vocabulary."""

from typing import NamedTuple

import numpy as np

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.graph_symbols import SPACE, Characters, indices_of, rank
from keras_bert_ref.tokenization import MAX_WORD

_ROOTS = 2  # of the trie: node 0 for the beginning of a word, node 1 for continuations


class Words(NamedTuple):
    """Words of all texts together; N characters, W words."""

    characters: Characters  # without spaces
    opens: tf.Tensor  # [N] whether a word begins there
    firsts: tf.Tensor  # [W] indices of the characters that words begin with
    of_characters: tf.Tensor  # [N] indices of words


class Trie:
    """Finds the longest pieces of a vocabulary.

    The edge from a node for a symbol is the number `node * symbols + symbol`. Edges are sorted, and
    edge i leads to node `_ROOTS + i`, so finding an edge is finding where it leads to.

    Args:
        vocabulary: the pieces in the order of their ids.
        symbol_of: the symbol of each character that can be met; pieces with another are left out.
    """

    def __init__(self, vocabulary, symbol_of):
        spelt = []
        for i, piece in enumerate(vocabulary):
            root, chars = (1, piece[2:]) if piece.startswith("##") else (0, piece)
            if 0 < len(chars) <= MAX_WORD and all(char in symbol_of for char in chars):
                spelt.append((i, root, [symbol_of[char] for char in chars]))
        self._symbols = max(symbol_of.values(), default=0) + 1
        edges, pieces, lengths = _grown(spelt, self._symbols)
        self._edges = tf.constant(np.append(edges, np.iinfo(np.int64).max))
        self._pieces = tf.constant(pieces, tf.int32)
        self._lengths = tf.constant(lengths, tf.int64)

    def pieces(self, words, unknown_id):
        """Returns the ids of the pieces of Words, and the characters they begin with; [P] each."""
        nodes = self._deepest_nodes(words)
        lengths = tf.gather(self._lengths, nodes)
        reached = _reached(words, lengths)
        failed = tf.tensor_scatter_nd_update(
            tf.zeros_like(words.firsts, tf.bool),
            *_flags(tf.gather(words.of_characters, indices_of(reached & (lengths == 0)))),
        )
        failed = tf.gather(failed, words.of_characters)
        at = indices_of(words.opens | (reached & ~failed))
        ids = tf.gather(self._pieces, tf.gather(nodes, at))
        return tf.where(tf.gather(failed, at), unknown_id, ids), at

    def _deepest_nodes(self, words):
        """Returns the node that the walk from each character ends at, [N]."""
        symbols, opens = words.characters.symbols, words.opens
        # No edge has the symbol of a space, so walks end with the word.
        following = tf.concat([tf.where(opens, SPACE, symbols), [SPACE]], 0)
        roots = tf.where(opens, tf.constant(0, tf.int64), 1)

        def advance(walks, nodes, symbols):
            edges = nodes * self._symbols + tf.cast(symbols, tf.int64)
            found = rank(self._edges, edges)
            going_on = indices_of(tf.gather(self._edges, found) == edges)
            return tf.gather(walks, going_on), tf.gather(found, going_on) + _ROOTS

        def step(depth, deepest, walks, nodes):
            deepest = tf.tensor_scatter_nd_update(deepest, walks[:, tf.newaxis], nodes)
            walks, nodes = advance(walks, nodes, tf.gather(following, walks + depth))
            return depth + 1, deepest, walks, nodes

        walks, nodes = advance(tf.range(tf.size(symbols, tf.int64)), roots, symbols)
        return tf.while_loop(
            lambda depth, deepest, walks, nodes: tf.size(walks) > 0,
            step,
            [tf.constant(1, tf.int64), roots, walks, nodes],
            shape_invariants=[tf.TensorShape([]), *[tf.TensorShape([None])] * 3],
        )[1]


def _grown(spelt, symbols):
    """Grows a trie, a level at a time.

    Args:
        spelt: (id, root, symbols) of each piece.
        symbols: how many symbols there are.

    Returns:
        edges: int64 [E], sorted.
        pieces, lengths: of the longest piece on the way to each node, [E + 2]; length 0 for none.
    """
    ids, nodes = (np.array([entry[i] for entry in spelt], np.int64) for i in (0, 1))
    lengths_of_pieces = np.array([len(spelling) for _, _, spelling in spelt], np.int64)
    flat = np.array([symbol for _, _, spelling in spelt for symbol in spelling], np.int64)
    at = np.cumsum(lengths_of_pieces) - lengths_of_pieces
    edges, pieces, lengths = [], np.zeros(_ROOTS, np.int64), np.zeros(_ROOTS, np.int64)
    for depth in range(1, lengths_of_pieces.max(initial=0) + 1):
        level, nodes = np.unique(nodes * symbols + flat[at], return_inverse=True)
        edges.append(level)
        nodes += len(pieces)
        parents = level // symbols
        pieces = np.concatenate([pieces, pieces[parents]])
        lengths = np.concatenate([lengths, lengths[parents]])
        complete = lengths_of_pieces == depth
        pieces[nodes[complete]], lengths[nodes[complete]] = ids[complete], depth
        ids, nodes, at, lengths_of_pieces = (
            values[~complete] for values in (ids, nodes, at + 1, lengths_of_pieces)
        )
    return np.concatenate([np.zeros(0, np.int64), *edges]), pieces, lengths


def find_words(characters, first_alone):
    """Returns the Words of Characters."""
    symbols = characters.symbols
    before = tf.concat([[SPACE], symbols[:-1]], 0)
    opens = (symbols >= first_alone) | (before == SPACE) | (before >= first_alone)
    solid = indices_of(symbols != SPACE)
    return _words_of(_taken(characters, solid), tf.gather(opens, solid))


def _words_of(characters, opens):
    return Words(characters, opens, indices_of(opens), tf.cumsum(tf.cast(opens, tf.int64)) - 1)


def first_words(words, texts, batch, most):
    """Returns the first `most` words of each text and their texts: the others would be cut off.

    Args:
        words: Words.
        texts: int64 [W], the text of each.
        batch: how many texts there are.
        most: how many words to keep.
    """
    firsts = rank(texts, tf.range(tf.cast(batch, tf.int64)))
    kept = tf.range(tf.size(texts, tf.int64)) - tf.gather(firsts, texts) < most
    solid = indices_of(tf.gather(kept, words.of_characters))
    words = _words_of(_taken(words.characters, solid), tf.gather(words.opens, solid))
    return words, tf.boolean_mask(texts, kept)


def without_long_words(words, unknown):
    """Returns the words with too long ones made of a symbol that no piece has."""
    symbols = words.characters.symbols
    ends = tf.concat([words.firsts[1:], [tf.size(symbols, tf.int64)]], 0)
    too_long = tf.gather(ends - words.firsts > MAX_WORD, words.of_characters)
    symbols = tf.where(too_long, unknown, symbols)
    return words._replace(characters=words.characters._replace(symbols=symbols))


def _reached(words, lengths):
    """Returns whether a piece begins at each character, if pieces have these lengths; bool [N]."""
    count = tf.size(lengths, tf.int64)
    opens = tf.concat([words.opens, [True]], 0)
    following = tf.range(count) + lengths
    following = tf.where((lengths == 0) | tf.gather(opens, following), count, following)

    def step(reached, at):
        at = tf.gather(following, at)
        at = tf.gather(at, indices_of(at < count))
        return tf.tensor_scatter_nd_update(reached, *_flags(at)), at

    return tf.while_loop(
        lambda reached, at: tf.size(at) > 0,
        step,
        [words.opens, words.firsts],
        shape_invariants=[tf.TensorShape([None]), tf.TensorShape([None])],
    )[0]


def _taken(characters, indices):
    return Characters(
        *(None if values is None else tf.gather(values, indices) for values in characters)
    )


def _flags(indices):
    """Returns indices [N] and as many times True, as a scatter takes them."""
    return indices[:, tf.newaxis], tf.ones_like(indices, tf.bool)
