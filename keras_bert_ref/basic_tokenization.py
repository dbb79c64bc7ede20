"""Text to words: the cleaning and splitting that comes before WordPiece.

The steps and their order are those of the original BERT tokenizer, for every code point: delete
control characters, cut at white space and around CJK ideographs, lower-case, strip accents, cut
around punctuation. All of them act within one white-space-delimited chunk, so chunks can be
handled, and remembered, one at a time.
"""

import itertools
import re
import unicodedata

_CJK = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
_SPACE = " \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

_IDEOGRAPH = re.compile(f"[{_CJK}]")
_CHUNK = re.compile(f"[^{_SPACE}]+")
_CUT = re.compile(f"[{_SPACE}{_CJK}]")
# str.split() takes these for white space; they are control characters, to be deleted.
_FALSE_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

_BLOCK = 1 << 20  # characters split at a time: bounds the memory a huge text takes
_LONG = 1 << 10  # above this a chunk avoids unicodedata.normalize, quadratic in runs of marks


class _Translation(dict):
    """A table for `str.translate`, filled as code points are met."""

    def __init__(self, replacement):
        self._replacement = replacement

    def __missing__(self, code_point):
        self[code_point] = replacement = self._replacement(chr(code_point))
        return replacement


def _is_deleted(char):
    return char in "\0\ufffd" or (
        unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"
    )


def _is_mark(char):
    return unicodedata.category(char) == "Mn"


def _is_punctuation(char):
    # In ASCII, symbols such as $ ^ ` + count as well.
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def _spaced(char):
    return f" {char} "


_CLEAN = _Translation(
    lambda char: None if _is_deleted(char) else _spaced(char) if _IDEOGRAPH.match(char) else char
)
_SPLIT = _Translation(lambda char: _spaced(char) if _is_punctuation(char) else char)
_STRIP_AND_SPLIT = _Translation(lambda char: None if _is_mark(char) else _SPLIT[ord(char)])


def blocks(text):
    """Yields a text in parts of bounded length, cut only where words end anyway."""
    start = 0
    while len(text) - start > _BLOCK and (cut := _CUT.search(text, start + _BLOCK)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text


def chunks(text):
    """Returns the white-space-delimited chunks of a text."""
    if not text.isprintable() and _FALSE_SPACE.search(text):  # the first test is the faster
        text = _FALSE_SPACE.sub("", text)
    return text.split()


def located_chunks(text):
    """Yields each chunk of a text with the position of its first character."""
    return ((chunk.start(), chunk.group()) for chunk in _CHUNK.finditer(text))


class BasicTokenizer:
    """Turns white-space-delimited chunks into words and punctuation marks.

    Args:
        lower_case: lower-case the words.
        strip_accents: decompose characters (NFD) and drop the non-spacing marks.
    """

    def __init__(self, lower_case, strip_accents):
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self._split = _STRIP_AND_SPLIT if strip_accents else _SPLIT

    def words(self, chunk):
        """Returns the words of a chunk, normalised."""
        if len(chunk) > _LONG:
            return [word for word, _ in self.located_words(chunk)]
        words = []
        for token in chunk.translate(_CLEAN).split():
            if self.lower_case:
                token = token.lower()
            if self.strip_accents:
                token = unicodedata.normalize("NFD", token)
            words += token.translate(self._split).split()
        return words

    def located_words(self, chunk):
        """Returns the words of a chunk, each with the origin of its characters.

        Returns:
            A list of (word, spans): spans[i] is the (start, end) in the chunk that character i of
            the word came from. A stripped mark belongs to the character it stood on.
        """
        if chunk.isascii() and chunk.isprintable():  # one character to one character
            text = chunk.lower() if self.lower_case else chunk
            words, start = [], 0
            for word in text.translate(_SPLIT).split():
                words.append((word, [(i, i + 1) for i in range(start, start + len(word))]))
                start += len(word)
            return words
        words = []
        kept = ((char, i) for i, char in enumerate(chunk) if not _is_deleted(char))
        for ideograph, token in itertools.groupby(
            kept, lambda char: _IDEOGRAPH.match(char[0]) and char[1]
        ):
            del ideograph
            words += self._located(list(token))
        return words

    def _located(self, token):
        if self.lower_case:
            token = _lower(token)
        if self.strip_accents:
            token = _decompose(token)
        words, glued = [], False
        for char, origin in token:
            if self.strip_accents and _is_mark(char):
                if words:
                    spans = words[-1][1]
                    spans[-1] = (spans[-1][0], max(spans[-1][1], origin + 1))
                continue
            punctuation = _is_punctuation(char)
            if punctuation or not glued:
                words.append(([], []))
            words[-1][0].append(char)
            words[-1][1].append((origin, origin + 1))
            glued = not punctuation
        return [("".join(chars), spans) for chars, spans in words]


def _lower(token):
    # As one string, because a final sigma depends on its neighbours; only İ changes length.
    lowered = iter("".join(char for char, _ in token).lower())
    return [(next(lowered), origin) for char, origin in token for _ in range(len(char.lower()))]


def _decompose(token):
    parts = [(c, origin) for char, origin in token for c in unicodedata.normalize("NFD", char)]
    # Canonical order: each run of marks is sorted by combining class (which is 0 for the others).
    ordered = []
    for _, run in itertools.groupby(parts, lambda part: _combining(part) > 0):
        ordered += sorted(run, key=_combining)
    return ordered


def _combining(part):
    return unicodedata.combining(part[0])
