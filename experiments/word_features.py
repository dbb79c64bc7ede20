"""Hidden states of all layers for every word of a corpus, computed once and kept on disk."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from keras_bert_ref import FeatureExtractor
from keras_bert_ref.cli.progress import progress_bar
from keras_bert_ref.errors import InputError, OutputError
from keras_bert_ref.files import replace_text, writing
from keras_bert_ref.tasks.document_context import windows


def word_features(where, splits, folder, max_length=None):
    """Returns the features of all words, from disk where an earlier call has left them there.

    A word's features are those of its first piece, with the context of its document. A split that
    was begun and not finished is begun again.

    Args:
        where: a checkpoint, or an encoder with its tokenizer, see `FeatureExtractor`.
        splits: name → documents, see `conll.read`.
        folder: where to keep a file for each split. 16 bits a number, float16: MiniLM on CoNLL-2003
            takes 1.6 GB, BERT-base 6.0 GB.
        max_length: the most pieces of a window, see `FeatureExtractor`.

    Returns:
        Name → float16 [L + 1, words, H], a memory map; and the `FeatureExtractor`.

    Raises:
        OutputError: the folder is of another checkpoint or other data, or there is no space.
    """
    extractor = FeatureExtractor(
        where, layers="all", combine="stack", pooling="first_piece", max_length=max_length
    )
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _claim(folder / "source.json", _source(extractor, splits))
    for name, documents in splits.items():
        path = folder / f"{name}.npy"
        if not path.exists():
            _extract(extractor, name, documents, path)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in splits}, extractor


def _source(extractor, splits):
    """Returns what features depend on."""
    weights = hashlib.sha256()
    for variable in extractor.encoder.weights:
        weights.update(np.ascontiguousarray(variable.numpy()).tobytes())
    texts = hashlib.sha256()
    for name in sorted(splits):
        for document in splits[name]:
            texts.update(json.dumps([sentence.words for sentence in document]).encode())
    tokenizer = extractor.tokenizer
    return {
        "weights": weights.hexdigest(),
        "vocabulary": tokenizer.vocabulary_sha256,
        "lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "texts": texts.hexdigest(),
        "max_length": extractor.max_length,
    }


def _claim(path, source):
    if not path.exists():
        replace_text(path, json.dumps(source, indent=2) + "\n")
        return
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        stored = {}
    other = sorted(name for name in source if source[name] != stored.get(name))
    if other:
        raise OutputError(
            f"{path.parent} has features of another source ({', '.join(other)} differ): choose "
            "another --out, or delete it"
        )


def _extract(extractor, name, documents, path):
    jobs, words = [], 0  # a job: the words of a window, the window, where its document begins
    for document in documents:
        text = [word for sentence in document for word in sentence.words]
        pieces = [
            [max(1, len(extractor.tokenizer.token_ids(word))) for word in sentence.words]
            for sentence in document
        ]
        for window in windows(pieces, extractor.max_length - 2):
            jobs.append((text[window.start : window.stop], window, words))
        words += len(text)

    shape = (len(extractor.layers), words, extractor.encoder.config.hidden_size)
    size = 2 * np.prod(shape, dtype=np.int64)
    if shutil.disk_usage(path.parent).free < size:  # a full disk would end a memory map by SIGBUS
        raise OutputError(f"{path} needs {size / 1e9:.1f} GB, more than the disk has left")
    part = path.with_name(path.name + ".part")
    with writing(path), progress_bar("words") as progress:
        array = np.lib.format.open_memmap(part, "w+", np.float16, shape)
        task = progress.add_task(f"features of {name}", total=words, note="")
        states = extractor.stream([text for text, _, _ in jobs])
        for state, (_, window, begin) in zip(states, jobs, strict=True):  # [words, L + 1, H]
            own = state[window.own_start - window.start : window.own_stop - window.start]
            if np.abs(own).max() > np.finfo(np.float16).max:
                raise InputError("the hidden states are too large for float16")
            place = slice(begin + window.own_start, begin + window.own_stop)
            array[:, place] = own.transpose(1, 0, 2)
            progress.advance(task, len(own))
        array.flush()
        del array
        os.replace(part, path)
