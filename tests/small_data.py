"""Pretraining data of a few words, made in a moment."""

import numpy as np

from keras_bert_ref.tokenization import WordPieceTokenizer
from keras_bert_ref.vocabulary import SPECIAL_PIECES
from tfrecords.create import create_pretraining_data
from tfrecords.settings import InstanceSettings


def make_data(folder, **options):
    """Writes rows of 16 pieces of a vocabulary of 9 to `folder / "data"`, which it returns."""
    rng = np.random.default_rng(0)
    words = ["sun", "rain", "wind", "snow"]
    documents = [
        "\n".join(" ".join(rng.choice(words, 5)) for _ in range(4)) + "\n" for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n".join(documents))
    create_pretraining_data(
        folder / "text.txt",
        WordPieceTokenizer([*SPECIAL_PIECES, *words]),
        folder / "data",
        InstanceSettings(max_seq_length=16, max_predictions_per_seq=3, dupe_factor=2),
        held_out=0.2,
        **options,
    )
    return folder / "data"
