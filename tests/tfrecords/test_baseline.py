import random

import numpy as np
import pytest

from keras_bert_ref.tokenization import WordPieceTokenizer
from keras_bert_ref.vocabulary import SPECIAL_PIECES
from tfrecords.baseline import constant_baseline
from tfrecords.create import create_pretraining_data
from tfrecords.reader import pretraining_dataset
from tfrecords.settings import InstanceSettings


def test_the_baseline_equals_a_count_by_hand(tmp_path):
    words = ["the", "the", "the", "cat", "sat", "on", "a", "mat"]
    draw = random.Random(0)
    documents = ["\n".join(" ".join(draw.choices(words, k=6)) for _ in range(5)) for _ in range(30)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    tokenizer = WordPieceTokenizer((*SPECIAL_PIECES, *dict.fromkeys(words)))
    create_pretraining_data(
        tmp_path / "text.txt",
        tokenizer,
        tmp_path / "data",
        InstanceSettings(max_seq_length=16, max_predictions_per_seq=3),
        held_out=0.3,
    )

    def targets(split):
        pieces, labels = [], []
        for _, row in pretraining_dataset(tmp_path / "data", 1, split=split, epochs=1):
            pieces += row["masked_lm_ids"][row["masked_lm_weights"] > 0].numpy().tolist()
            labels += row["next_sentence_labels"].numpy().tolist()
        return np.array(pieces), np.array(labels)

    (train, train_labels), (held_out, labels) = targets("train"), targets("heldout")
    the = tokenizer.token_ids("the")[0]
    shares = np.array([(np.sum(train == v) + 1) for v in range(tokenizer.vocab_size)])
    shares = shares / shares.sum()
    baseline = constant_baseline(tmp_path / "data", tokenizer.vocab_size)
    assert baseline["commonest_piece"] == the
    assert baseline["masked_lm_accuracy"] == pytest.approx(np.mean(held_out == the))
    assert baseline["masked_lm_loss"] == pytest.approx(-np.mean(np.log(shares[held_out])))
    commoner = int(np.mean(train_labels) > 0.5)
    assert baseline["next_sentence_accuracy"] == pytest.approx(np.mean(labels == commoner))
