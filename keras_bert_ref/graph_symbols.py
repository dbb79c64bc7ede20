"""The characters of text as numbers that tell what tokenization does with them, in the graph.

Tables are made in Python by the rules of the exact tokenizer, so what is punctuation or a capital
does not depend on the Unicode data that TensorFlow is linked with.
"""

import re
import unicodedata
from typing import NamedTuple

import numpy as np

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.basic_tokenization import CJK, clean, split

_CODE_POINTS = 0x110000
_UNASSIGNED = ("Cn", "Co", "Cs")  # categories of code points with no meaning, a million of them
_PAGE = 128  # code points; tables are kept in pages, as many pages are equal

# Kinds of characters, in the order in which symbols are numbered.
SPACE, _MARK, _LETTER, _ALONE, _DELETED = range(5)

_CAPITAL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
_OTHER, _CASED, _IGNORED = range(3)  # what a character is to a capital sigma near it


class Characters(NamedTuple):
    """Characters of all texts together; [N]."""

    symbols: tf.Tensor
    places: tf.Tensor  # where they were before anything was left out
    last_places: tf.Tensor  # of the marks that stood on them; None if nobody asks


class Symbols:
    """The symbols of code points.

    Symbols are numbered so that comparisons tell their kind: the space is 0, marks come before
    `first_letter`, characters that are words of their own from `first_alone` on.

    Args:
        tokenizer: a WordPieceTokenizer.
        stand_ins: characters of no meaning that are to be words of their own.
    """

    def __init__(self, tokenizer, stand_ins=()):
        self._lower_case, self._strip_accents = tokenizer.lower_case, tokenizer.strip_accents
        self._stand_ins = set(stand_ins)
        self._alphabet = set("".join(tokenizer.vocabulary)) | self._stand_ins

        everything = "".join(map(chr, range(_CODE_POINTS)))
        ideographs = set(re.findall(f"[{CJK}]", everything))  # a few of them are unassigned
        known = [
            char
            for char in everything
            if unicodedata.category(char) not in _UNASSIGNED
            or char in self._alphabet
            or char in ideographs
        ]
        unknown = (_LETTER, 0, "")  # what any other character is
        descriptions = {char: self._descriptions(char) for char in known}
        symbols = sorted({unknown}.union(*descriptions.values()), key=_symbol_order)
        numbers = {description: i for i, description in enumerate(symbols)}

        self.unknown = numbers[unknown]
        self.first_letter = sum(kind < _LETTER for kind, _, _ in symbols)
        self.first_alone = sum(kind < _ALONE for kind, _, _ in symbols)
        self.of_character = {char: i for (_, _, char), i in numbers.items() if char}
        # Only these, of the letters, change places with others when text is decomposed.
        self._last_moving = sum(kind < _LETTER or klass > 0 for kind, klass, _ in symbols) - 1

        rows = {(self.unknown,): 0}
        row_of = np.zeros(_CODE_POINTS, np.int32)
        for char, described in descriptions.items():
            row = tuple(numbers[description] for description in described)
            row_of[ord(char)] = rows.setdefault(row, len(rows))
        self._rows = PagedTable(row_of)
        self._expansions = tf.RaggedTensor.from_row_lengths(
            np.array([i for row in rows for i in row], np.int32),
            np.array([len(row) for row in rows], np.int64),
        )
        self._classes = tf.constant([klass for _, klass, _ in symbols], tf.int64)
        if self._lower_case:
            self._near_sigma = PagedTable(self._seen_from_sigma(known))

    def _kind(self, char):
        if char in self._stand_ins:
            return _ALONE
        cleaned = clean(char)
        if cleaned is None:
            return _DELETED
        if char.isspace():
            return SPACE
        if self._strip_accents and unicodedata.category(char) == "Mn":
            return _MARK
        return _LETTER if cleaned == split(char) == char else _ALONE

    def _descriptions(self, char):
        """Returns (kind, combining class, the character if any piece has it) of its symbols."""
        if self._kind(char) == _DELETED:
            return []
        if self._lower_case:
            char = char.lower()
        if self._strip_accents:
            char = unicodedata.normalize("NFD", char)
        return [self._description(part) for part in char]

    def _description(self, char):
        kind = self._kind(char)
        spelt = char if kind in (_LETTER, _ALONE) and char in self._alphabet else ""
        return kind, unicodedata.combining(char) if self._strip_accents else 0, spelt

    def _seen_from_sigma(self, known):
        """Returns what each character is to a capital sigma, whose small form depends on it."""
        seen = np.zeros(_CODE_POINTS, np.int32)
        for char in known:
            if clean(char) is None:
                seen[ord(char)] = _IGNORED
            elif f"{char}Σ".lower().endswith("ς"):
                seen[ord(char)] = _CASED
            elif f"a{char}Σ".lower().endswith("ς"):
                seen[ord(char)] = _IGNORED
        return seen

    def of_code_points(self, code_points):
        """Returns the symbols of code points [N], ragged [N, symbols]."""
        if self._lower_case:
            code_points = tf.cond(
                tf.reduce_any(code_points == _CAPITAL_SIGMA),
                lambda: self._with_final_sigmas(code_points),
                lambda: code_points,
            )
        return tf.gather(self._expansions, self._rows.lookup(code_points))

    def _with_final_sigmas(self, code_points):
        """Replaces capital sigmas that end a word, by the rule of Unicode, with ς."""
        seen = self._near_sigma.lookup(code_points)
        places = indices_of(seen != _IGNORED)
        cased = tf.gather(seen, places) == _CASED
        last = (
            (tf.gather(code_points, places) == _CAPITAL_SIGMA)
            & tf.concat([[False], cased[:-1]], 0)
            & ~tf.concat([cased[1:], [False]], 0)
        )
        places = tf.boolean_mask(places, last)
        return tf.tensor_scatter_nd_update(
            code_points, places[:, tf.newaxis], tf.fill(tf.shape(places), _FINAL_SIGMA)
        )

    def without_marks(self, symbols, located):
        """Returns the Characters of symbols [N], with accents stripped if they are to be."""
        places = tf.range(tf.size(symbols, tf.int64))
        if not self._strip_accents:
            return Characters(symbols, places, places)
        if self._last_moving >= self.first_letter:
            symbols, places = tf.cond(
                tf.reduce_any((symbols >= self.first_letter) & (symbols <= self._last_moving)),
                lambda: self._in_canonical_order(symbols),
                lambda: (symbols, places),
            )
        kept = (symbols == SPACE) | (symbols >= self.first_letter)
        last_places = None
        if located:
            last_places = tf.math.segment_max(places, tf.cumsum(tf.cast(kept, tf.int64)) - 1)
        kept = indices_of(kept)
        return Characters(tf.gather(symbols, kept), tf.gather(places, kept), last_places)

    def _in_canonical_order(self, symbols):
        """Returns symbols as NFD sorts them, each run of marks by class, and their old places."""
        classes = tf.gather(self._classes, symbols)
        runs = tf.cumsum(tf.cast(classes == 0, tf.int64))
        places = tf.argsort(runs * 256 + classes, stable=True)
        return tf.gather(symbols, places), tf.cast(places, tf.int64)


def _symbol_order(description):
    kind, klass, char = description
    return kind, klass == 0, klass, char


class PagedTable:
    """A table of integers for all code points, of which equal pages are kept once."""

    def __init__(self, values):
        begins = {}
        self._begins = tf.constant(
            [
                begins.setdefault(page.tobytes(), len(begins) * _PAGE)
                for page in values.reshape(-1, _PAGE)
            ],
            tf.int32,
        )
        self._pages = tf.constant(np.frombuffer(b"".join(begins), values.dtype))

    def lookup(self, code_points):
        """Returns the values for code points, int32 [N]."""
        begins = tf.gather(self._begins, code_points // _PAGE)
        return tf.gather(self._pages, begins + code_points % _PAGE)


def indices_of(flags):
    """Returns the indices where flags [N] are true, int64."""
    return tf.where(flags)[:, 0]


def rank(ordered, values, right=False):
    """Returns how many of the sorted `ordered` are less than (`right`: or equal to) each value."""
    bound = tf.raw_ops.UpperBound if right else tf.raw_ops.LowerBound
    return bound(sorted_inputs=ordered[tf.newaxis], values=values[tf.newaxis], out_type=tf.int64)[0]
