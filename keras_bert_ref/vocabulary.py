"""Vocabularies of word pieces: reading, writing, learning from text."""

import collections
import importlib.util
import itertools
from pathlib import Path

from keras_bert_ref.basic_tokenization import BasicTokenizer, blocks, chunks
from keras_bert_ref.errors import ConfigError, VocabularyError
from keras_bert_ref.files import replace_text

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_MAX_PIECE = 50  # characters
_RARE_CHARACTER = 1e-6  # of all characters; words with rarer ones become [UNK]
_NEAR = 1.03  # times the size: near enough to stop searching and drop the rarest pieces
_MAX_WORDS = 1 << 21  # different words to count; beyond it the rarest are forgotten
_PENDING = 1 << 24  # characters whose chunks are held before they are counted as words


def read_vocabulary(path):
    r"""Reads a vocabulary file: a piece a line, its line number (from 0) its id.

    Lines end at "\n" only: a piece may hold any other character that counts as a line break
    elsewhere, and one of the released Chinese vocabulary does. A file whose every line ends in
    "\r\n" is read as well.

    Args:
        path: a UTF-8 text file.

    Returns:
        The pieces, a tuple of strings.

    Raises:
        VocabularyError: the file cannot be read, is not UTF-8, or `check_vocabulary` refuses it.
    """
    path = Path(path)
    if path.is_fifo():  # would be waited for
        raise VocabularyError(f"{path} cannot be read: it is no file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise VocabularyError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} at offset {error.start} is not "
            "UTF-8; convert the file to UTF-8"
        ) from None
    if text.startswith("\ufeff"):
        raise VocabularyError(f"{path}, line 1: a byte order mark; save the file without it")
    pieces = text.removesuffix("\n").split("\n") if text else []
    if all(piece.endswith("\r") for piece in pieces[:-1]) and "\r" in text:
        pieces = [piece.removesuffix("\r") for piece in pieces]
    check_vocabulary(pieces, path)
    return tuple(pieces)


def check_vocabulary(pieces, source):
    """Raises VocabularyError unless every piece is there once, the five special ones included.

    Args:
        pieces: the pieces in the order of their ids, a sequence of strings.
        source: what messages call the vocabulary, such as its path.
    """
    if not pieces:
        raise VocabularyError(f"{source} is empty; a vocabulary has one piece a line")
    line_of = {}
    for line, piece in enumerate(pieces, start=1):
        if not isinstance(piece, str):
            raise VocabularyError(f"{source}, line {line}: {piece!r} is not a string")
        if not piece:
            raise VocabularyError(f"{source}, line {line} is empty; every line is one piece")
        if "\n" in piece or not _encodes(piece):
            raise VocabularyError(f"{source}, line {line}: {piece!r} cannot be written as a line")
        if line_of.setdefault(piece, line) != line:
            raise VocabularyError(
                f"{source}, line {line}: {piece!r} is on line {line_of[piece]} already; a piece "
                "has one id, so remove or rename one of them"
            )
    missing = [piece for piece in SPECIAL_PIECES if piece not in line_of]
    if missing:
        raise VocabularyError(
            f"{source} lacks {', '.join(missing)}; a BERT vocabulary has all of "
            f"{', '.join(SPECIAL_PIECES)}"
        )


def _encodes(piece):
    try:
        return bool(piece.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def write_vocabulary(path, pieces):
    r"""Writes a vocabulary, a piece a line, UTF-8 and "\n": whole or not at all.

    Args:
        path: the file to write; an existing one is replaced.
        pieces: the pieces in the order of their ids.

    Raises:
        VocabularyError: `check_vocabulary` refuses the pieces.
        OutputError: the file cannot be written.
    """
    check_vocabulary(pieces, "the vocabulary to write")
    replace_text(path, "".join(f"{piece}\n" for piece in pieces))


def learn_vocabulary(texts, size, lower_case=True, strip_accents=None, progress=None):
    """Learns a WordPiece vocabulary from text.

    The learner is the one of tensorflow-text: it keeps the word endings (whole words among them)
    that are seen at least so many times. The threshold is searched that gives `size` pieces.

    Args:
        texts: an iterable of strings, such as the lines of a corpus.
        size: the number of pieces to have, the five special ones included. A text too short to
            have so many that occur twice gives fewer.
        lower_case: lower-case the text first.
        strip_accents: strip accents first; None follows `lower_case`.
        progress: called with a line of text about each step done; None for no reports.

    Returns:
        The pieces, a tuple of strings: the special pieces; the characters of the text, except
        those rarer than one in a million, as initial and as continuing pieces; the other pieces,
        the most frequent first. Equal texts give equal vocabularies, whatever their order (as long
        as they have no more than two million different words).

    Raises:
        ConfigError: `size` is too small for the characters of the text.
        VocabularyError: there are no words in the text.
    """
    report = progress or (lambda message: None)
    basic = BasicTokenizer(lower_case, lower_case if strip_accents is None else strip_accents)
    counts = _count_words(texts, basic)
    if not counts:
        raise VocabularyError("no words to learn a vocabulary from: the text is empty")
    report(f"{sum(counts.values()):,} words, {len(counts):,} different")

    initial, continuing = _alphabet(counts, basic)
    required = [*SPECIAL_PIECES, *initial, *(f"##{char}" for char in continuing)]
    if len(required) > size:
        raise ConfigError(
            f"size={size} is too small: the special pieces and the characters of the text alone "
            f"are {len(required)}"
        )
    known = frozenset(initial)
    # Single characters are in already. Sorted, so that no order can matter to the learner.
    words = sorted(
        (word, count)
        for word, count in counts.items()
        if 1 < len(word) <= _MAX_PIECE and known.issuperset(word)
    )
    return tuple(_learn(words, size, required, report)[:size])


def _count_words(texts, basic):
    if isinstance(texts, str):
        raise TypeError("texts must be an iterable of strings, such as lines; got one string")
    counts, chunk_counts, pending = collections.Counter(), collections.Counter(), 0

    def count_pending():
        for chunk, count in chunk_counts.items():
            for word in basic.words(chunk):
                counts[word] += count
        chunk_counts.clear()
        rarest = 1
        while len(counts) > _MAX_WORDS:
            rarest += 1
            for word in [word for word, count in counts.items() if count < rarest]:
                del counts[word]

    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must hold strings, not {type(text).__name__}")
        for block in blocks(text):
            chunk_counts.update(chunks(block))
            pending += len(block)
            if pending > _PENDING:
                count_pending()
                pending = 0
    count_pending()
    return counts


def _alphabet(counts, basic):
    """Returns the characters that words begin with and, of these, those words can go on with."""
    char_counts = collections.Counter()
    for word, count in counts.items():
        for char in word:
            char_counts[char] += count
    enough = _RARE_CHARACTER * char_counts.total()
    initial = sorted(char for char, count in char_counts.items() if count >= enough)
    # Punctuation and ideographs are always words of their own.
    return initial, [char for char in initial if len(basic.words(f"a{char}")) == 1]


def _learn(words, size, required, report):
    """Returns the learner's pieces, at least `size` of them if the words have so many."""
    if not words:
        return required
    learner = _learner()
    settings = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=4,
        max_input_tokens=-1,
        max_token_length=_MAX_PIECE,
        max_unique_chars=len(required),
        vocab_size=size,
        slack_ratio=0,
        include_joiner_token=True,
        joiner="##",
        reserved_tokens=required,
    )
    by_count = sorted((count for _, count in words), reverse=True)
    threshold = max(2, by_count[min(size // 2, len(by_count) - 1)])
    too_low, too_high = 1, by_count[0] + 1
    enough = most = required
    for attempt in itertools.count():
        pieces = learner.learn_with_thresh(words, threshold, settings)
        report(f"{len(pieces):,} pieces are seen {threshold:,} times or more")
        if len(pieces) >= size:
            too_low, enough = threshold, pieces
        else:
            too_high, most = threshold, max(most, pieces, key=len)
        if size <= len(pieces) <= _NEAR * size or too_high - too_low <= 1:
            return enough if len(enough) >= size else most
        # The number of pieces falls about as threshold^-0.6; bisect if that should not lead there.
        threshold = round(threshold * (len(pieces) / size) ** 1.6)
        if attempt > 4 or not too_low < threshold < too_high:
            threshold = max(too_low + 1, round((too_low * too_high) ** 0.5))


def _learner():
    # By its file: importing the package would load TensorFlow, which the learner does not use.
    package = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    file = Path(package, "tools", "wordpiece_vocab", "wordpiece_tokenizer_learner_lib.py")
    spec = importlib.util.spec_from_file_location("wordpiece_tokenizer_learner_lib", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
