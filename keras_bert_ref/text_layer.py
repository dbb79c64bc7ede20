"""WordPiece tokenization inside a TensorFlow graph: for tf.data, and SavedModels that read text.

Only operations of core TensorFlow are used, so a SavedModel needs no tensorflow-text to load.

Texts are decoded to code points. A table replaces each code point by *symbols*: a space, a mark to
be stripped, a letter, or a character that is a word of its own (`graph_symbols`). A trie of the
vocabulary gives the longest piece at every position, for all positions at a time, and the pieces
that can be reached from the beginning of a word are the result (`graph_pieces`).
"""

import re
from typing import NamedTuple

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.graph_pieces import Trie, find_words, first_words, without_long_words
from keras_bert_ref.graph_symbols import Symbols, indices_of, rank


class TextLayer(tf.Module):
    """Tokenizes texts in the graph, equal to `WordPieceTokenizer`.

    Bytes that are not UTF-8 are dropped, as from `text.decode(errors="replace")`. A SavedModel
    keeps the Unicode version of the Python that made it.

    Args:
        tokenizer: a WordPieceTokenizer; its vocabulary is held in the graph.
        max_length: the most pieces of an encoded text or pair, specials included.

    Raises:
        ConfigError: the tokenizer has `never_split` pieces that are not of the kind of "[MASK]", or
            `max_length` leaves no room for [CLS] and [SEP].
    """

    def __init__(self, tokenizer, max_length=128):
        super().__init__(name="text_layer")
        _check_room(max_length, 1)
        self.max_length = max_length
        self._pad_id, self._unk_id = tokenizer.pad_id, tokenizer.unk_id
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        with tf.device("CPU:0"):
            self._whole = _WholePieces(tokenizer.never_split)
            self._vocabulary = tf.constant(tokenizer.vocabulary)
            self._symbols = Symbols(tokenizer, self._whole.stand_ins.values())
            pieces = [self._whole.stand_ins.get(piece, piece) for piece in tokenizer.vocabulary]
            self._trie = Trie(pieces, self._symbols.of_character)
        self._encode = tf.function(self._encoded, autograph=False, reduce_retracing=True)
        self._tokenize = tf.function(self._tokenized, autograph=False, reduce_retracing=True)

    def __call__(self, texts, pairs=None):
        """Encodes texts, or pairs of texts, as the model takes them: [CLS] text [SEP] pair [SEP].

        What is too much is cut from the end of the longer of the two, as by
        `WordPieceTokenizer.encode`.

        Args:
            texts: strings [B].
            pairs: strings [B], the second texts; None for single texts.

        Returns:
            A dictionary of `input_ids`, `input_mask` (0 for padding) and `segment_ids`, int32
            [B, S], where S is the length of the batch's longest.

        Raises:
            ConfigError: `max_length` leaves no room for [CLS] and two [SEP].
            InputError: `texts` or `pairs` is not strings [B], or one is longer than the other.
        """
        texts = _strings(texts, "texts")
        if pairs is None:
            return self._encode(texts)
        _check_room(self.max_length, 2)
        pairs = _strings(pairs, "pairs")
        if not texts.shape.is_compatible_with(pairs.shape):
            raise InputError(
                f"there are {texts.shape[0]} texts, but {pairs.shape[0]} pairs; each text needs one"
            )
        return self._encode(texts, pairs)

    def tokenize(self, texts):
        """Splits texts into pieces, without specials and without a limit.

        Args:
            texts: strings [B].

        Returns:
            A dictionary of ragged tensors [B, pieces]: `ids` (int32), `tokens` (strings), `starts`
            and `ends` (int32). `text[start:end]` is what the piece came from, in characters, not
            bytes, of the text as given.

        Raises:
            InputError: `texts` is not strings [B].
        """
        return self._tokenize(_strings(texts, "texts"))

    def _encoded(self, texts, pairs=None):
        with tf.device("CPU:0"):  # no other device decodes text
            room = self.max_length - (2 if pairs is None else 3)
            batch = tf.size(texts, tf.int64)
            both = texts if pairs is None else tf.concat([texts, pairs], 0)
            pieces = self._pieces(both, most_words=room)
            counts = pieces.splits[1:] - pieces.splits[:-1]
            if pairs is None:
                kept = tf.minimum(counts, room)
                first_columns, pair_columns, lengths = tf.ones_like(kept), kept + 2, kept + 2
            else:
                kept, kept_of_pair = _truncated(*tf.unstack(tf.reshape(counts, [2, batch])), room)
                pair_columns, lengths = kept + 2, kept + kept_of_pair + 3
                first_columns = tf.concat([tf.ones_like(kept), pair_columns], 0)
                kept = tf.concat([kept, kept_of_pair], 0)

            nth = tf.range(tf.size(pieces.ids, tf.int64)) - tf.gather(pieces.splits, pieces.texts)
            fitting = indices_of(nth < tf.gather(kept, pieces.texts))
            text = tf.gather(pieces.texts, fitting)
            column = tf.gather(first_columns, text) + tf.gather(nth, fitting)
            row = text if pairs is None else tf.where(text < batch, text, text - batch)

            columns = tf.range(tf.reduce_max(tf.concat([lengths, [0]], 0)))  # the 0: for no texts
            mask = columns < lengths[:, tf.newaxis]
            # Where no piece comes, it is [SEP] or padding.
            ids = tf.where(columns == 0, self._cls_id, tf.where(mask, self._sep_id, self._pad_id))
            return {
                "input_ids": tf.tensor_scatter_nd_update(
                    ids, tf.stack([row, column], 1), tf.gather(pieces.ids, fitting)
                ),
                "input_mask": tf.cast(mask, tf.int32),
                "segment_ids": tf.cast(mask & (columns >= pair_columns[:, tf.newaxis]), tf.int32),
            }

    def _tokenized(self, texts):
        with tf.device("CPU:0"):
            pieces = self._pieces(texts, located=True)
            found = {
                "ids": pieces.ids,
                "tokens": tf.gather(self._vocabulary, pieces.ids),
                "starts": tf.cast(pieces.starts, tf.int32),
                "ends": tf.cast(pieces.ends, tf.int32),
            }
            return {
                name: tf.RaggedTensor.from_row_splits(values, pieces.splits, validate=False)
                for name, values in found.items()
            }

    def _pieces(self, texts, most_words=None, located=False):
        """Returns the _Pieces of texts [B], or of the first `most_words` words of each."""
        # The space keeps a word from going on into the next text.
        texts = tf.strings.join([" ", self._whole.replaced(texts)])
        decoded = tf.strings.unicode_decode(texts, "UTF-8")
        expanded = self._symbols.of_code_points(decoded.values)
        characters = self._symbols.without_marks(expanded.values, located)
        words = find_words(characters, self._symbols.first_alone)

        splits = tf.gather(expanded.row_splits, decoded.row_splits)
        first_places = tf.gather(words.characters.places, words.firsts)
        word_texts = rank(splits[1:], first_places, right=True)
        if most_words is not None:
            words, word_texts = first_words(words, word_texts, tf.size(texts), most_words)

        words = without_long_words(words, self._symbols.unknown)
        ids, at = self._trie.pieces(words, self._unk_id)
        piece_texts = tf.gather(word_texts, tf.gather(words.of_characters, at))
        piece_splits = rank(piece_texts, tf.range(tf.size(texts, tf.int64) + 1))
        if not located:
            return _Pieces(ids, piece_texts, piece_splits, None, None)

        of_characters = rank(at, tf.range(tf.size(words.characters.symbols, tf.int64)), True) - 1
        starts, ends = (
            rank(expanded.row_splits[1:], places, right=True)
            for places in (
                tf.math.segment_min(words.characters.places, of_characters),
                tf.math.segment_max(words.characters.last_places, of_characters),
            )
        )
        begin = tf.gather(decoded.row_splits, piece_texts) + 1  # 1: the space in front
        places = self._whole.given_places(starts, ends + 1, begin, decoded.values)
        return _Pieces(ids, piece_texts, piece_splits, *places)


class _WholePieces:
    """Keeps some pieces whole wherever they occur: each is replaced by one character.

    Characters that stand in are of those that Unicode will never give a meaning. Where a text has
    one of its own, another takes its place, which is as unknown.

    Args:
        pieces: such as "[MASK]": brackets around anything but brackets, so no two can overlap.
    """

    def __init__(self, pieces):
        if wrong := [piece for piece in pieces if not re.fullmatch(r"\[[^\[\]]+\]", piece)]:
            raise ConfigError(
                f"never_split: a TextLayer keeps pieces like [MASK] whole, but not {wrong[0]!r}"
            )
        if len(pieces) > _STAND_INS:
            raise ConfigError(
                f"never_split: a TextLayer keeps at most {_STAND_INS} pieces whole, not "
                f"{len(pieces)}"
            )
        self.stand_ins = {piece: chr(_FIRST_STAND_IN + n) for n, piece in enumerate(pieces)}
        self._lengths = tf.constant([len(piece) for piece in pieces], tf.int64)

    def replaced(self, texts):
        """Returns texts with a character in the place of each piece."""
        if not self.stand_ins:
            return texts
        first, last = chr(_FIRST_STAND_IN), chr(_FIRST_STAND_IN + _STAND_INS - 1)
        texts = tf.strings.regex_replace(texts, f"[{first}-{last}]", chr(ord(last) + 1))
        for piece, character in self.stand_ins.items():
            texts = tf.strings.regex_replace(texts, re.escape(piece), character)
        return texts

    def given_places(self, starts, ends, begin, code_points):
        """Returns where pieces start and end in the texts as they were before the replacement.

        Args:
            starts, ends: of pieces, among the code points of all texts.
            begin: where the text of each piece begins.
            code_points: of all texts, after the replacement.
        """
        if not self.stand_ins:
            return starts - begin, ends - begin
        numbers = code_points - _FIRST_STAND_IN
        stands = (numbers >= 0) & (numbers < len(self.stand_ins))
        widths = tf.where(stands, tf.gather(self._lengths, tf.where(stands, numbers, 0)), 1)
        given = tf.concat([[0], tf.cumsum(widths)], 0)
        ends = tf.where(tf.gather(stands, starts), starts + 1, ends)  # it takes no mark after it
        begin = tf.gather(given, begin)
        return tf.gather(given, starts) - begin, tf.gather(given, ends) - begin


# The noncharacters U+FDD0 to U+FDEF; the last takes the place of those that a text has.
_FIRST_STAND_IN, _STAND_INS = 0xFDD0, 31


class _Pieces(NamedTuple):
    """Pieces of all texts together; [P]."""

    ids: tf.Tensor
    texts: tf.Tensor  # indices of texts
    splits: tf.Tensor  # [B + 1] where the pieces of a text begin
    starts: tf.Tensor  # in characters of the text
    ends: tf.Tensor


def _truncated(counts, pair_counts, room):
    """Returns how many pieces of two texts remain when they are cut from the end of the longer."""
    return (
        tf.minimum(counts, tf.maximum(room - pair_counts, (room + 1) // 2)),
        tf.minimum(pair_counts, tf.maximum(room - counts, room // 2)),
    )


def _check_room(max_length, texts):
    if max_length < 1 + texts:
        raise ConfigError(
            f"max_length={max_length} has no room for [CLS] and {texts} [SEP]; it is at least "
            f"{1 + texts}"
        )


def _strings(texts, name):
    """Returns texts as a tensor, strings [B]."""
    try:
        texts = tf.convert_to_tensor(texts, tf.string)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: a TextLayer takes strings [B]; {error}") from None
    if texts.shape.rank not in (None, 1):
        raise InputError(f"{name}: a TextLayer takes strings [B], not {texts.shape}")
    return texts if texts.shape.rank else tf.ensure_shape(texts, [None])
