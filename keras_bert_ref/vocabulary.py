"""Vocabularies of word pieces: reading, writing, learning from text."""

import collections
import importlib.util
import os
import tempfile
from pathlib import Path

from keras_bert_ref.basic_tokenization import BasicTokenizer, blocks, chunks
from keras_bert_ref.errors import ConfigError, OutputError, VocabularyError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise VocabularyError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x} at offset "
            f"{error.start}); convert the file to UTF-8"
        ) from None
    pieces = text.removesuffix("\n").split("\n") if text else []
    if pieces and all(piece.endswith("\r") for piece in pieces):
        pieces = [piece[:-1] for piece in pieces]
    check_vocabulary(pieces, path)
    return tuple(pieces)


def check_vocabulary(pieces, source="vocabulary"):
    """Raises VocabularyError unless every piece is there once and the five special ones exist."""
    if not pieces:
        raise VocabularyError(f"{source}: empty; a vocabulary has one piece a line")
    line_of = {}
    for line, piece in enumerate(pieces, start=1):
        if not piece:
            raise VocabularyError(f"{source}, line {line}: empty; every line is one piece")
        if "\n" in piece:
            raise VocabularyError(f"{source}, line {line}: the piece {piece!r} has a line break")
        if line_of.setdefault(piece, line) != line:
            raise VocabularyError(
                f"{source}, line {line}: {piece!r} is already on line {line_of[piece]}; "
                "a piece has one id"
            )
    missing = [piece for piece in SPECIAL_PIECES if piece not in line_of]
    if missing:
        raise VocabularyError(
            f"{source}: lacks {', '.join(missing)}; a BERT vocabulary has all of "
            f"{', '.join(SPECIAL_PIECES)}"
        )


def write_vocabulary(path, pieces):
    r"""Writes a vocabulary, a piece a line, UTF-8 and "\n": whole or not at all.

    Args:
        path: the file to write; an existing one is replaced.
        pieces: the pieces in the order of their ids.

    Raises:
        VocabularyError: `check_vocabulary` refuses the pieces.
        OutputError: the file cannot be written.
    """
    path = Path(path)
    check_vocabulary(pieces, "vocabulary to write")
    data = "".join(f"{piece}\n" for piece in pieces).encode()
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            temporary = file.name
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def learn_vocabulary(texts, size, lower_case=True, strip_accents=None, progress=None):
    """Learns a WordPiece vocabulary from text.

    Args:
        texts: an iterable of strings, such as the lines of a corpus.
        size: the most pieces to have, the five special ones included.
        lower_case: lower-case the text first.
        strip_accents: strip accents first; None follows `lower_case`.
        progress: called with each text once its words are counted; None for no reports.

    Returns:
        The pieces, a tuple of strings: the special pieces, then the characters, then the others,
        the most frequent first. The same for equal texts in any order.

    Raises:
        ConfigError: `size` is too small for the characters of the text.
        VocabularyError: there are no words in the text.
    """
    basic = BasicTokenizer(lower_case, lower_case if strip_accents is None else strip_accents)
    counts = _count_words(texts, basic, progress)
    if not counts:
        raise VocabularyError("no words to learn a vocabulary from: the text is empty")
    learner = _learner()
    # Sorted, because the learner breaks ties by the order it meets words in.
    counts = sorted(counts.items())
    pieces = learner.learn(
        counts, vocab_size=size, reserved_tokens=list(SPECIAL_PIECES), lower_thresh=2
    )
    if len(pieces) > size:
        raise ConfigError(f"size={size} is too small for the text's characters: use {len(pieces)}")
    return tuple(pieces)


def _count_words(texts, basic, progress):
    chunk_counts = collections.Counter()
    counts = collections.Counter()

    def flush():
        for chunk, count in chunk_counts.items():
            for word in basic.words(chunk):
                counts[word] += count
        chunk_counts.clear()

    for text in texts:
        for block in blocks(text):
            chunk_counts.update(chunks(block))
        if len(chunk_counts) > 1 << 18:
            flush()
        if progress:
            progress(text)
    flush()
    return counts


def _learner():
    # By its file: importing the package would load TensorFlow, which the learner does not use.
    package = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    file = Path(package, "tools", "wordpiece_vocab", "wordpiece_tokenizer_learner_lib.py")
    spec = importlib.util.spec_from_file_location("wordpiece_tokenizer_learner_lib", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
