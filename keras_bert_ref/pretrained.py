"""A trained model as a folder: weights, configuration and the vocabulary it was trained with."""

import json
import shutil
from pathlib import Path

from keras_bert_ref._tensorflow import keras
from keras_bert_ref.errors import CheckpointError, OutputError
from keras_bert_ref.files import first_line, replace_text, writing
from keras_bert_ref.tokenization import WordPieceTokenizer

_MODEL, _CONFIG, _VOCABULARY, _TOKENIZER = (
    "model.keras",
    "bert_config.json",
    "vocab.txt",
    "tokenizer_config.json",
)


def save_pretrained(model, tokenizer, folder):
    """Writes a model and its tokenizer to a folder that appears as a whole.

    The folder gets `model.keras`, `bert_config.json`, `vocab.txt` and `tokenizer_config.json` (its
    options, under the names that Hugging Face tokenizers use). An older folder of this kind is
    replaced once the new one is complete.

    Args:
        model: a task model or a `BertEncoder`.
        tokenizer: a `WordPieceTokenizer`.
        folder: the folder to make.

    Raises:
        OutputError: the folder cannot be written, or holds something else.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / _MODEL).is_file() and any(folder.iterdir()):
        raise OutputError(f"{folder} is in use and holds no {_MODEL}: choose another folder")
    part, old = (folder.with_name(folder.name + suffix) for suffix in (".part", ".old"))
    settings = {
        "do_lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "never_split": list(tokenizer.never_split),
    }
    with writing(folder):
        try:
            for leftover in (part, old):
                shutil.rmtree(leftover, ignore_errors=True)
            part.mkdir(parents=True)
            model.save(part / _MODEL)
            getattr(model, "encoder", model).config.to_json(part / _CONFIG)
            tokenizer.save_vocabulary(part / _VOCABULARY)
            replace_text(part / _TOKENIZER, json.dumps(settings, indent=2) + "\n")
            if folder.exists():
                folder.rename(old)
            part.rename(folder)
        finally:
            for leftover in (part, old):
                shutil.rmtree(leftover, ignore_errors=True)


def load_pretrained(folder):
    """Reads what `save_pretrained` wrote.

    Returns:
        The model, uncompiled, and its tokenizer.

    Raises:
        CheckpointError: the folder is not one of these, or is damaged.
    """
    folder = Path(folder)
    if not (folder / _MODEL).is_file():
        raise CheckpointError(f"{folder} holds no {_MODEL}: name a folder that pretrain wrote")
    import keras_bert_ref.models  # noqa: F401  registers the classes that a file may name

    try:
        settings = json.loads((folder / _TOKENIZER).read_text(encoding="utf-8"))
        tokenizer = WordPieceTokenizer.from_vocab(
            folder / _VOCABULARY,
            settings["do_lower_case"],
            settings["strip_accents"],
            settings.get("never_split", ()),
        )
        return keras.saving.load_model(folder / _MODEL, compile=False), tokenizer
    except Exception as error:  # by damage: BadZipFile, ValueError, KeyError, OSError, …
        raise CheckpointError(f"{folder} cannot be loaded: {first_line(error)}") from error
