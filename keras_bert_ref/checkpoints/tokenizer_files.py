"""The tokenizer that comes with a checkpoint, in and out."""

import json
import re
from pathlib import Path

from keras_bert_ref.errors import BertError, CheckpointError, CheckpointWarning, VocabularyError
from keras_bert_ref.files import first_line, read_json, replace_text
from keras_bert_ref.tokenization import WordPieceTokenizer
from keras_bert_ref.vocabulary import SPECIAL_PIECES, read_vocabulary

_VOCABULARY, _OPTIONS, _FAST = "vocab.txt", "tokenizer_config.json", "tokenizer.json"
_ADDED = "added_tokens.json"
VOCABULARY_FILES = (_VOCABULARY, _OPTIONS)  # that `write_tokenizer` writes
# The classes of transformers that tokenize as BERT's does; none named is BERT's as well.
_CLASSES = {
    None,
    *(
        f"{name}Tokenizer{kind}"
        for name in ("Bert", "DistilBert", "Electra")
        for kind in ("", "Fast")
    ),
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
}


def find_tokenizer(folder):
    """Returns the tokenizer of a checkpoint's folder, or None if it has none of BERT's kind.

    The vocabulary is `vocab.txt`, else the one in `tokenizer.json`, each followed by the tokens
    that were added later; casing and accents are what `tokenizer_config.json` says, else what
    `tokenizer.json` says, else a guess, with a warning.

    Raises:
        CheckpointError: a file is damaged.
        VocabularyError: the vocabulary cannot be used.
    """
    folder = Path(folder)
    try:
        return _find_tokenizer(folder)
    except BertError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{folder}: {_OPTIONS} or {_FAST} is damaged: {first_line(error)}"
        ) from error


def _find_tokenizer(folder):
    options, fast = (
        read_json(p) if p.exists() else {} for p in (folder / _OPTIONS, folder / _FAST)
    )
    kind, model = options.get("tokenizer_class"), fast.get("model") or {}
    if kind not in _CLASSES or model.get("type", "WordPiece") != "WordPiece":
        CheckpointWarning.issue(
            f"{folder} has a tokenizer of another kind than BERT's "
            f"({kind if kind not in _CLASSES else model['type']}): set the model's `tokenizer`"
        )
        return None
    if (folder / _VOCABULARY).exists():
        vocabulary = list(read_vocabulary(folder / _VOCABULARY))
    elif fast:
        vocabulary = _in_order(dict(model["vocab"]), folder / _FAST)
    else:
        return None
    added = _added_pieces(folder, options, fast, vocabulary)
    vocabulary += added

    normalizer = fast.get("normalizer") or {}
    for name, usual in {
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
        "do_basic_tokenize": True,
    }.items():
        if options.get(name, usual) is False:
            CheckpointWarning.issue(
                f"{folder} was made with {name} off, which BERT's tokenizer never has: some text "
                "will be tokenized otherwise than in training"
            )
    for piece in SPECIAL_PIECES:
        name = f"{piece[1:-1].lower()}_token"
        given = options.get(name, piece)
        if (given.get("content") if isinstance(given, dict) else given) not in (piece, None):
            CheckpointWarning.issue(f"{folder / _OPTIONS} has {name} {given!r}; {piece} is used")
    lower_case = options.get("do_lower_case", normalizer.get("lowercase"))
    strip_accents = options.get("strip_accents", normalizer.get("strip_accents"))
    if lower_case is None:
        lower_case = guess_lower_case(vocabulary, folder)
    for name, value in (("do_lower_case", lower_case), ("strip_accents", strip_accents)):
        if not isinstance(value, bool | None):
            raise CheckpointError(f"{folder / _OPTIONS}: {name} is {value!r}, not true or false")
    never_split = options.get("never_split") or ()
    if not isinstance(never_split, list | tuple) or not set(never_split) <= set(vocabulary):
        raise CheckpointError(f"{folder / _OPTIONS}: never_split is not a list of pieces")
    never_split = dict.fromkeys([*never_split, *added])
    return WordPieceTokenizer(vocabulary, lower_case, strip_accents, tuple(never_split))


def _added_pieces(folder, options, fast, vocabulary):
    """Returns the pieces that were added behind a vocabulary, in the order of their ids."""
    added = dict(read_json(folder / _ADDED)) if (folder / _ADDED).exists() else {}
    for number, token in (options.get("added_tokens_decoder") or {}).items():
        added[token["content"]] = int(number)
    for token in fast.get("added_tokens") or ():
        added[token["content"]] = token["id"]
    known = set(vocabulary)
    added = {piece: number for piece, number in added.items() if piece not in known}
    pieces = sorted(added, key=added.get)
    if [added[piece] for piece in pieces] != list(range(len(known), len(known) + len(added))):
        raise VocabularyError(
            f"{folder}: the pieces that were added to the vocabulary do not follow it: "
            f"{', '.join(pieces[:5])}"
        )
    return pieces


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


def _in_order(ids, path):
    """Returns pieces in the order of their ids, which must be 0, 1, 2, …"""
    pieces = sorted(ids, key=ids.get)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise VocabularyError(f"{path}: the ids of the pieces are not 0, 1, 2, …")
    return pieces
