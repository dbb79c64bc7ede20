"""Text to words: the cleaning and splitting that comes before WordPiece.

The steps and their order are those of the original BERT tokenizer, for every code point: delete
control characters, cut at white space and around CJK ideographs, lower-case, strip accents, cut
around punctuation. All of them act within one white-space-delimited chunk, so chunks can be
handled, and remembered, one at a time.
"""

import itertools
import re
import unicodedata

# The ideographs that are words of their own; kana and Hangul are not.
CJK = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
_SPACE = " \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

_IDEOGRAPH = re.compile(f"[{CJK}]")
_CHUNK = re.compile(f"[^{_SPACE}]+")
_CUT = re.compile(f"[{_SPACE}{CJK}]")
# str.split() takes these for white space; they are control characters, to be deleted.
_FALSE_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

_BLOCK = 1 << 20  # characters of a huge text to split at a time, to bound the memory it takes
_PART = 1 << 10  # characters to decompose at a time


class _Translation(dict):
    """A table for `str.translate`, filled as code points are met."""

    def __init__(self, replacement):
        self._replacement = replacement

    def __missing__(self, code_point):
        self[code_point] = replacement = self._replacement(chr(code_point))
        return replacement


def clean(char):
    """Returns what cleaning makes of a character: itself, apart, or None if it is deleted."""
    if char in "\0\ufffd":
        return None
    if unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r":
        return None
    return f" {char} " if _IDEOGRAPH.match(char) else char


def split(char):
    """Returns a character, with spaces around it if it is punctuation."""
    if char.isascii():  # symbols such as $ ^ ` + are punctuation here
        punctuation = char.isprintable() and not char.isalnum() and char != " "
    else:
        punctuation = unicodedata.category(char).startswith("P")
    return f" {char} " if punctuation else char


def _strip_and_split(char):
    return None if unicodedata.category(char) == "Mn" else split(char)


_CLEAN = _Translation(clean)
_SPLIT = _Translation(split)
_STRIP_AND_SPLIT = _Translation(_strip_and_split)


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
    """Turns text into words and punctuation marks.

    Args:
        lower_case: lower-case the words.
        strip_accents: decompose characters (NFD) and drop the non-spacing marks.
    """

    def __init__(self, lower_case, strip_accents):
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self._split = _STRIP_AND_SPLIT if strip_accents else _SPLIT

    def words(self, text):
        """Returns the words of a text, normalised."""
        text = text.translate(_CLEAN)
        if self.lower_case:
            text = text.lower()
        if self.strip_accents:
            text = _nfd(text)
        return text.translate(self._split).split()

    def located_words(self, text):
        """Returns the words of a text and where their characters come from.

        Returns:
            words: as from `words`.
            starts, ends: two lists of ints; character i of the joined words comes from
                `text[starts[i]:ends[i]]`. A stripped mark belongs to the character it stood on.
        """
        cleaned = [_CLEAN[ord(char)] or "" for char in text]
        text, origins = "".join(cleaned), _spread(range(len(text)), cleaned)
        if self.lower_case:
            # As one string, because a final sigma depends on its neighbours; only İ gets longer.
            text, origins = text.lower(), _spread(origins, [char.lower() for char in text])
        if self.strip_accents:
            text, origins = _located_nfd(text, origins)
        starts, ends = [], []
        for char, origin in zip(text, origins, strict=True):
            if self._split[ord(char)] is None:
                if ends:
                    ends[-1] = max(ends[-1], origin + 1)
            elif not char.isspace():
                starts.append(origin)
                ends.append(origin + 1)
        return text.translate(self._split).split(), starts, ends


def _spread(origins, parts):
    return [origin for origin, part in zip(origins, parts, strict=True) for _ in part]


def _nfd(text):
    # unicodedata.normalize is quadratic in the length of a run of marks, hence the parts.
    if len(text) <= _PART:
        return unicodedata.normalize("NFD", text)
    parts, start = [], 0
    while start < len(text):
        end = start + _PART
        while end < len(text) and unicodedata.combining(unicodedata.normalize("NFD", text[end])[0]):
            end += 1
        part = text[start:end]
        if len(part) <= 2 * _PART:
            parts.append(unicodedata.normalize("NFD", part))
        else:
            parts.append(_located_nfd(part, range(len(part)))[0])
        start = end
    return "".join(parts)


def _located_nfd(text, origins):
    parts = [unicodedata.normalize("NFD", char) for char in text]
    text, origins = "".join(parts), _spread(origins, parts)
    if unicodedata.is_normalized("NFD", text):
        return text, origins
    # Canonical order: each run of marks is sorted by combining class (which is 0 for the others).
    order = []
    for _, run in itertools.groupby(range(len(text)), lambda i: unicodedata.combining(text[i]) > 0):
        order += sorted(run, key=lambda i: unicodedata.combining(text[i]))
    return "".join(text[i] for i in order), [origins[i] for i in order]
