"""WordPiece tokenization, equal to the original's piece for piece, with offsets into the text."""

import dataclasses
import hashlib
import re

import numpy as np

from keras_bert_ref.basic_tokenization import CJK, BasicTokenizer, blocks, chunks, located_chunks
from keras_bert_ref.errors import ConfigError, VocabularyError
from keras_bert_ref.vocabulary import check_vocabulary, read_vocabulary, write_vocabulary

MAX_WORD = 200  # characters; a longer word is [UNK]

# What `decode` does about the spaces around punctuation.
_READABLE = (
    (re.compile(r"(?<=\w) (['’-]) (?=\w)"), r"\1"),
    (re.compile(r" (?=[.,;:!?%)\]}’”])"), ""),
    (re.compile(r"(?<=[(\[{“‘]) "), ""),
    (re.compile(f"(?<=[{CJK}]) (?=[{CJK}])"), ""),
)

_MEMO_ENTRIES = 1 << 19  # about 120 MB of English; 11 million words of novels need 350,000
_MEMO_KEY = 32  # characters; longer chunks hardly ever come again


class _Memo(dict):
    """Remembers what it computed; when full it forgets everything and starts again.

    Text is Zipfian: nearly every chunk has been seen before, and a dictionary answers faster than
    any splitting could.
    """

    def __init__(self, compute):
        self._compute = compute

    def __missing__(self, key):
        value = self._compute(key)
        if len(key) <= _MEMO_KEY:
            if len(self) >= _MEMO_ENTRIES:
                self.clear()
            self[key] = value
        return value


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A text, or a pair of texts, as the model takes it: [CLS] text [SEP] pair [SEP].

    All fields are lists of the same length S.

    Attributes:
        tokens: the pieces, strings.
        input_ids: their ids.
        input_mask: ones; padding, added later, is 0.
        segment_ids: 0 for [CLS] text [SEP], 1 for pair [SEP].
        offsets: (start, end) such that `text[start:end]` (or `pair[start:end]`) is what the piece
            came from, in characters of the string as given; None for [CLS] and [SEP]. For [UNK] it
            is the whole word.
        word_ids: the index of the word (or punctuation mark) within its text; None for [CLS] and
            [SEP].
    """

    tokens: list[str]
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    offsets: list[tuple[int, int] | None]
    word_ids: list[int | None]


class WordPieceTokenizer:
    """Splits text into the pieces of a vocabulary (Devlin et al. 2019, section 3).

    Instances can be shared by threads and sent to processes.

    Args:
        vocabulary: the pieces in the order of their ids.
        lower_case: lower-case the text; what the vocabulary was made with decides.
        strip_accents: strip accents; None follows `lower_case`, as in the original.
        never_split: pieces to keep whole wherever they occur in the text, even next to a letter:
            with "[MASK]", the text "un[MASK]." gives "un", "[MASK]", ".". They are looked for in
            the text as given, before it is lower-cased. By default even "[MASK]" is split, as in
            the original.

    Raises:
        VocabularyError: a piece is empty or there twice, or a special piece is missing.
        ConfigError: `never_split` has a piece that is not in the vocabulary.
    """

    def __init__(self, vocabulary, lower_case=True, strip_accents=None, never_split=()):
        self.vocabulary = tuple(vocabulary)
        check_vocabulary(self.vocabulary, "the vocabulary")
        self.lower_case = lower_case
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.never_split = (never_split,) if isinstance(never_split, str) else tuple(never_split)

        self._ids = {piece: i for i, piece in enumerate(self.vocabulary)}
        unknown = [piece for piece in self.never_split if piece not in self._ids]
        if unknown:
            raise ConfigError(
                f"never_split: {', '.join(map(repr, unknown))} is not in the vocabulary, so it "
                "could only become [UNK]"
            )
        self.vocab_size = len(self.vocabulary)
        self.pad_id = self._ids["[PAD]"]
        self.unk_id = self._ids["[UNK]"]
        self.cls_id = self._ids["[CLS]"]
        self.sep_id = self._ids["[SEP]"]
        self.mask_id = self._ids["[MASK]"]
        self.continues_word = np.array([piece.startswith("##") for piece in self.vocabulary])
        self.continues_word.flags.writeable = False
        text = "".join(f"{piece}\n" for piece in self.vocabulary)
        self.vocabulary_sha256 = hashlib.sha256(text.encode()).hexdigest()

        self._continuations = {
            piece[2:]: i for piece, i in self._ids.items() if piece.startswith("##")
        }
        self._longest = max(map(len, self.vocabulary))
        longest_first = sorted(self.never_split, key=len, reverse=True)
        self._protected = (
            re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        )
        self._basic = BasicTokenizer(self.lower_case, self.strip_accents)
        self._ids_of_word = _Memo(self._match)
        self._ids_of_chunk = _Memo(self._chunk_ids)
        self._spans_of_chunk = _Memo(self._chunk_spans)

    @classmethod
    def from_vocab(cls, path, lower_case=True, strip_accents=None, never_split=()):
        """Reads the vocabulary from a file, a piece a line. For the arguments see the class.

        Raises:
            VocabularyError: see `read_vocabulary`.
        """
        return cls(read_vocabulary(path), lower_case, strip_accents, never_split)

    def save_vocabulary(self, path):
        """Writes the vocabulary, a piece a line; see `write_vocabulary`."""
        write_vocabulary(path, self.vocabulary)

    def __reduce__(self):
        settings = (self.vocabulary, self.lower_case, self.strip_accents, self.never_split)
        return type(self), settings

    def tokenize(self, text):
        """Returns the pieces of a text, a list of strings."""
        vocabulary = self.vocabulary
        return [vocabulary[i] for i in self.token_ids(text)]

    def token_ids(self, text):
        """Returns the ids of the pieces of a text, a list of ints: `tokenize`, but faster."""
        _check_text(text)
        if self._protected is None:
            return self._plain_ids(text)
        ids = []
        for i, part in enumerate(self._protected.split(text)):
            if i % 2:
                ids.append(self._ids[part])
            else:
                ids += self._plain_ids(part)
        return ids

    def encode(self, text, pair=None, max_length=None):
        """Encodes a text, or a pair of texts, as the model takes it.

        Args:
            text: a string.
            pair: a second string, such as the paragraph to a question.
            max_length: the most pieces, specials included; what is too much is cut from the end of
                the longer of the two.

        Returns:
            An Encoding.

        Raises:
            ConfigError: `max_length` leaves no room for [CLS] and [SEP].
        """
        texts = [text] if pair is None else [text, pair]
        room = _room(max_length, len(texts))
        parts = [self._located_pieces(text, room) for text in texts]
        return self._encoding(parts, room)

    def encode_words(self, words, max_length=None):
        """Encodes a text that is divided into words already, such as a sentence to be tagged.

        Each word is tokenized by itself and gets at least one piece, [UNK] if it has no other.

        Args:
            words: strings.
            max_length: the most pieces, specials included; what is too much is cut from the end.

        Returns:
            An Encoding, whose `word_ids` are indices into `words` and whose `offsets` are places
            within each word.

        Raises:
            ConfigError: `max_length` leaves no room for [CLS] and [SEP].
        """
        room = _room(max_length, 1)
        pieces = []
        for index, word in enumerate(words):
            if room is not None and len(pieces) > room:
                break
            found = self._located_pieces(word, None) or [(self.unk_id, (0, len(word)), 0)]
            pieces += [(i, span, index) for i, span, _ in found]
        return self._encoding([pieces], room)

    def _encoding(self, parts, room):
        if room is not None:
            _truncate(parts, room)
        pieces, segment_ids = [(self.cls_id, None, None)], [0]
        for segment, part in enumerate(parts):
            pieces += [*part, (self.sep_id, None, None)]
            segment_ids += [segment] * (len(part) + 1)
        input_ids, offsets, word_ids = map(list, zip(*pieces, strict=True))
        return Encoding(
            tokens=[self.vocabulary[i] for i in input_ids],
            input_ids=input_ids,
            input_mask=[1] * len(input_ids),
            segment_ids=segment_ids,
            offsets=offsets,
            word_ids=word_ids,
        )

    def decode(self, ids, skip_special=True):
        """Joins pieces into readable text.

        What tokenization lost stays lost: case and accents (if the tokenizer drops them), the kind
        and amount of white space, deleted characters, and the words that became [UNK].

        Args:
            ids: ids of pieces, a sequence of ints or an array [S].
            skip_special: leave out [PAD], [CLS] and [SEP]; [MASK] and [UNK] stand for
                text and stay.

        Returns:
            A string.

        Raises:
            VocabularyError: an id is outside the vocabulary.
        """
        pieces = []
        skipped = {self.pad_id, self.cls_id, self.sep_id} if skip_special else ()
        for i in np.asarray(ids, dtype=np.int64).ravel().tolist():
            if not 0 <= i < self.vocab_size:
                raise VocabularyError(
                    f"id {i} is outside the vocabulary; ids are 0 to {self.vocab_size - 1}"
                )
            if i not in skipped:
                pieces.append(self.vocabulary[i])
        text = " ".join(pieces).replace(" ##", "")
        for pattern, replacement in _READABLE:
            text = pattern.sub(replacement, text)
        return text

    def _plain_ids(self, text):
        ids, ids_of = [], self._ids_of_chunk.__getitem__
        for block in blocks(text):
            for chunk_ids in map(ids_of, chunks(block)):
                ids += chunk_ids
        return ids

    def _chunk_ids(self, chunk):
        words = self._basic.words(chunk)
        if len(words) == 1:
            return self._ids_of_word[words[0]]
        ids = []
        for word in words:
            ids += self._ids_of_word[word]
        return tuple(ids)

    def _match(self, word):
        """Returns the ids of the longest pieces that make up a word, from left to right."""
        if len(word) > MAX_WORD:
            return (self.unk_id,)
        ids, pieces, start = [], self._ids, 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                found = pieces.get(word[start:end])
                if found is not None:
                    break
            else:
                return (self.unk_id,)
            ids.append(found)
            pieces, start = self._continuations, end
        return tuple(ids)

    def _located_pieces(self, text, room):
        """Returns the id, the (start, end) in the text and the word's index of each piece.

        Stops soon after `room` pieces, as the rest would be cut off.
        """
        _check_text(text)
        pieces, word, origin = [], 0, 0
        for i, part in enumerate(self._protected.split(text) if self._protected else [text]):
            if i % 2:
                pieces.append((self._ids[part], (origin, origin + len(part)), word))
                word += 1
            else:
                for start, chunk in located_chunks(part):
                    if room is not None and len(pieces) > room:
                        return pieces
                    start += origin
                    words, spans = self._spans_of_chunk[chunk]
                    pieces += [(i, (start + a, start + b), word + w) for i, a, b, w in spans]
                    word += words
            origin += len(part)
        return pieces

    def _chunk_spans(self, chunk):
        """Returns the number of words of a chunk and (id, start, end, word) of its pieces."""
        words, starts, ends = self._basic.located_words(chunk)
        pieces, begin = [], 0
        for index, word in enumerate(words):
            ids = self._ids_of_word[word]
            if ids == (self.unk_id,):
                lengths = [len(word)]
            else:
                lengths = [len(self.vocabulary[i]) - 2 for i in ids]
                lengths[0] += 2  # the others begin with ##
            for i, length in zip(ids, lengths, strict=True):
                end = begin + length
                pieces.append((i, min(starts[begin:end]), max(ends[begin:end]), index))
                begin = end
        return len(words), tuple(pieces)


def _check_text(text):
    if not isinstance(text, str):
        hint = "; decode it first" if isinstance(text, bytes) else ""
        raise TypeError(f"the text to tokenize must be a str, not {type(text).__name__}{hint}")


def _room(max_length, texts):
    """Returns how many pieces `max_length` leaves to so many texts; None for no limit."""
    if max_length is None:
        return None
    room = max_length - 1 - texts
    if room < 0:
        raise ConfigError(
            f"max_length={max_length} has no room for [CLS] and {texts} [SEP]; it is at least "
            f"{1 + texts}"
        )
    return room


def _truncate(parts, room):
    """Cuts lists to `room` items together, one at a time from the end of the longer."""
    while sum(map(len, parts)) > room:
        longer = parts[0] if len(parts) == 1 or len(parts[0]) > len(parts[1]) else parts[1]
        longer.pop()
