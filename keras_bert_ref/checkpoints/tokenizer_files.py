"""The tokenizer that comes with a checkpoint, in and out."""

import json
import re
from pathlib import Path

from keras_bert_ref.errors import CheckpointError, CheckpointWarning, VocabularyError
from keras_bert_ref.files import read_json, replace_text
from keras_bert_ref.tokenization import WordPieceTokenizer
from keras_bert_ref.vocabulary import read_vocabulary

_VOCABULARY, _OPTIONS, _FAST = "vocab.txt", "tokenizer_config.json", "tokenizer.json"


def find_tokenizer(folder):
    """Returns the tokenizer of a checkpoint's folder, or None if no vocabulary is there.

    The vocabulary is `vocab.txt`, else the one in `tokenizer.json`; casing and accents are what
    `tokenizer_config.json` says, else what `tokenizer.json` says, else a guess, with a warning.

    Raises:
        CheckpointError: a file is damaged, or describes another kind of tokenizer.
        VocabularyError: the vocabulary cannot be used.
    """
    folder = Path(folder)
    options = _json(folder / _OPTIONS)
    fast = _json(folder / _FAST)
    normalizer = fast.get("normalizer") or {}
    if (folder / _VOCABULARY).is_file():
        vocabulary = read_vocabulary(folder / _VOCABULARY)
    elif fast:
        vocabulary = _fast_vocabulary(fast, folder / _FAST)
    else:
        return None
    if options.get("tokenize_chinese_chars", True) is False:
        CheckpointWarning.issue(
            f"{folder / _OPTIONS} asks not to split CJK characters, which BERT's tokenizer always "
            "does: such text will be tokenized otherwise than in training"
        )
    lower_case = options.get("do_lower_case", normalizer.get("lowercase"))
    strip_accents = options.get("strip_accents", normalizer.get("strip_accents"))
    if lower_case is None:
        lower_case = guess_lower_case(vocabulary, folder)
    never_split = options.get("never_split") or ()
    for name, value in (("do_lower_case", lower_case), ("strip_accents", strip_accents)):
        if not isinstance(value, bool | None):
            raise CheckpointError(f"{folder / _OPTIONS}: {name} is {value!r}, not true or false")
    if not isinstance(never_split, list | tuple) or not all(
        isinstance(piece, str) for piece in never_split
    ):
        raise CheckpointError(f"{folder / _OPTIONS}: never_split is not a list of pieces")
    return WordPieceTokenizer(vocabulary, lower_case, strip_accents, never_split)


def guess_lower_case(vocabulary, folder):
    """Guesses from capitals in the vocabulary whether text is to be lower-cased; warns of it."""
    capitals = sum(
        piece != piece.lower() for piece in vocabulary if not re.fullmatch(r"\[.*\]|<.*>", piece)
    )
    lower_case = capitals == 0
    words = re.split(r"[^a-z]+", Path(folder).resolve().name.lower())
    named = {True: "uncased" in words, False: "cased" in words}
    doubt = f"; but the folder is named {Path(folder).name}" if named[not lower_case] else ""
    CheckpointWarning.issue(
        f"{folder} does not say how its text was cased: taken as "
        f"{'uncased' if lower_case else 'cased'}, because the vocabulary has "
        f"{'no' if lower_case else f'{capitals:,}'} pieces with capitals{doubt}. A "
        f'{_OPTIONS} with {{"do_lower_case": true}} or false settles it'
    )
    return lower_case


def write_tokenizer(tokenizer, folder, max_length):
    """Writes `vocab.txt`, and the options under the names that Hugging Face tokenizers use."""
    folder = Path(folder)
    tokenizer.save_vocabulary(folder / _VOCABULARY)
    options = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "never_split": list(tokenizer.never_split) or None,
        "model_max_length": max_length,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    replace_text(folder / _OPTIONS, json.dumps(options, indent=2, ensure_ascii=False) + "\n")


def _json(path):
    return read_json(path) if path.is_file() else {}


def _fast_vocabulary(content, path):
    """Returns the pieces of a `tokenizer.json` in the order of their ids."""
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type", "WordPiece") != "WordPiece":
        raise CheckpointError(f"{path} describes no WordPiece tokenizer, which BERT's is")
    ids = dict(model.get("vocab") or {})
    for token in content.get("added_tokens") or ():
        ids.setdefault(token["content"], token["id"])
    pieces = sorted(ids, key=ids.get)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise VocabularyError(f"{path}: the ids of the pieces are not 0, 1, 2, …")
    return tuple(pieces)
