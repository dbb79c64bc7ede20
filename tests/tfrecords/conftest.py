import random

import pytest

from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords.create import create_pretraining_data
from tfrecords.settings import InstanceSettings

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"abcdefghij", "##a", "##b", "##c"]
SETTINGS = InstanceSettings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=3)


@pytest.fixture(scope="session")
def tokenizer():
    return WordPieceTokenizer(PIECES)


@pytest.fixture(scope="session")
def settings():
    return SETTINGS


@pytest.fixture(scope="session")
def text_of():
    """A function that makes up documents: a sentence a line, a blank line between documents."""

    def make(documents, seed=0, sentences=12):
        rng = random.Random(seed)

        def word():
            return rng.choice("abcdefghij") + "".join(
                rng.choices("abc", k=rng.choice((0, 0, 1, 3)))
            )

        def sentence():
            return " ".join(word() for _ in range(rng.randint(1, 9))) + " .\n"

        return "\n".join(
            "".join(sentence() for _ in range(rng.randint(min(2, sentences), sentences)))
            for _ in range(documents)
        )

    return make


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, text_of):
    """A folder with two text files of 60 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "1.txt").write_text(text_of(40))
    (folder / "2.txt").write_text(text_of(20, seed=1))
    return folder


@pytest.fixture(scope="session")
def made(tmp_path_factory, corpus, tokenizer):
    """A function that gives the folder of shards of `corpus`, for keywords of create."""
    folders = {}

    def make(**options):
        key = repr(sorted(options.items()))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("made") / "data"
            options = {"settings": SETTINGS, "shards": 4, "held_out": 0.1} | options
            create_pretraining_data(f"{corpus}/*.txt", tokenizer, folders[key], **options)
        return folders[key]

    return make
