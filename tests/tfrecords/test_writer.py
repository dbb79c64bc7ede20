import os
import random
import subprocess
import sys

import numpy as np
import pytest
from shared_data import shared

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, OutputError
from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords.corpus import read_sentences
from tfrecords.instances import create_instances
from tfrecords.schema import record_features
from tfrecords.settings import InstanceSettings
from tfrecords.store import TokenStore, build_store
from tfrecords.writer import ShardWriter, encode_examples


def example_of(columns, row):
    """The same record by protobuf."""
    features = {}
    for name, values in columns.items():
        if values.dtype.kind == "f":
            kind = {"float_list": tf.train.FloatList(value=values[row])}
        else:
            kind = {"int64_list": tf.train.Int64List(value=values[row])}
        features[name] = tf.train.Feature(**kind)
    return tf.train.Example(features=tf.train.Features(feature=features))


@pytest.mark.parametrize("largest", [1, 127, 128, 16383, 16384, 119546, 2**32 - 1])
def test_encoded_rows_are_the_bytes_of_protobuf(largest):
    rng = np.random.default_rng(largest)
    columns = {
        "small": rng.integers(0, 2, (7, 5)),
        "ids": rng.integers(0, largest, (7, 133), endpoint=True),
        "a_rather_long_name_for_weights": rng.random((7, 33), np.float32),
        "one": rng.integers(0, 128, (7, 1), dtype=np.int8),
    }
    columns["ids"][0, :2] = 0, largest
    columns["ids"][1] = 0
    for row, record in enumerate(encode_examples(columns)):
        assert record == example_of(columns, row).SerializeToString(deterministic=True)


def test_no_rows_give_no_records():
    assert encode_examples({"a": np.zeros((0, 3), int), "b": np.zeros((0, 1))}) == []


def test_records_of_the_sample_text_parse_equal_to_the_recorded_ones(tmp_path):
    recorded = shared("expected/pretraining_data/sample_text_examples.tfrecord")
    tokenizer = WordPieceTokenizer.from_vocab(shared("data/vocab/bert-base-uncased-vocab.txt"))
    text = shared("data/text/google_sample_text.txt")
    build_store(tmp_path, read_sentences(text), tokenizer)
    settings = InstanceSettings(dupe_factor=5)
    store, rng = TokenStore.open(tmp_path), random.Random(12345)
    columns = {}
    for instance in create_instances(store, settings, tokenizer, rng):
        count = len(instance.masked_lm_positions)
        row = instance._asdict() | {
            "input_mask": [1] * len(instance.input_ids),
            "masked_lm_weights": [1.0] * count,
            "next_sentence_labels": [int(instance.is_random_next)],
        }
        del row["is_random_next"]
        for name, feature in record_features(128, 20).items():
            padded = row[name] + [0] * (feature.shape[0] - len(row[name]))
            columns.setdefault(name, []).append(np.array(padded, feature.dtype))
    with ShardWriter(tmp_path / "ours.tfrecord") as writer:
        writer.write(encode_examples({name: np.stack(rows) for name, rows in columns.items()}))
    ours = tf.data.TFRecordDataset(str(tmp_path / "ours.tfrecord")).as_numpy_iterator()
    theirs = tf.data.TFRecordDataset(str(recorded)).as_numpy_iterator()
    pairs = [
        (tf.train.Example.FromString(a), tf.train.Example.FromString(b))
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert len(pairs) == 60
    assert all(a == b for a, b in pairs)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_tensorflow_reads_back_what_was_written(tmp_path, compression):
    records = [os.urandom(n) for n in (0, 1, 100, 70000)]
    path = tmp_path / "shard"
    written = []
    for _ in range(2):
        with ShardWriter(path, compression) as writer:
            writer.write(records[:2])
            writer.write(records[2:])
        assert writer.records == 4
        written.append(path.read_bytes())
    assert written[0] == written[1]
    read = tf.data.TFRecordDataset(str(path), compression_type=compression or "")
    assert list(read.as_numpy_iterator()) == records
    assert os.listdir(tmp_path) == ["shard"]


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_failure_leaves_no_file_behind(tmp_path, compression):
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "shard", compression) as writer:
        writer.write([b"abc"])
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OutputError, match="nowhere"), ShardWriter(tmp_path / "nowhere" / "shard"):
        pass


def test_an_unknown_compression_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="GZIP"):
        ShardWriter(tmp_path / "shard", "ZLIB")


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, compression):
    """The limit on file sizes stands in for a full disk: the same call fails."""
    code = f"""
import os, resource
from tfrecords.writer import ShardWriter
from keras_bert_ref.errors import OutputError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with ShardWriter("shard", {compression!r}) as writer:
        for _ in range(100):
            writer.write([os.urandom(10_000)])
except OutputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("shard cannot be written: ")
    assert os.listdir(tmp_path) == []


def test_writing_needs_no_tensorflow():
    code = "import sys, tfrecords.writer, tfrecords.create; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
