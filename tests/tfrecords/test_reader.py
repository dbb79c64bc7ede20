import collections
import dataclasses
import itertools
import random
import shutil

import numpy as np
import pytest
from shared_data import shared

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, RecordError, VocabularyError
from tfrecords import reader as reader_module
from tfrecords import shards as shards_module
from tfrecords.dynamic_masking import mask_batch
from tfrecords.manifest import Manifest
from tfrecords.masking import mask_rows
from tfrecords.reader import explain, open_shards, pretraining_dataset
from tfrecords.schema import record_bytes, record_features
from tfrecords.shards import read_records
from tfrecords.writer import ShardWriter, encode_examples


def batches(*args, **options):
    """The batches of a dataset, each one dict of arrays."""
    data = pretraining_dataset(*args, **options)
    return [inputs | labels for inputs, labels in data.as_numpy_iterator()]


def take(count, *args, **options):
    data = pretraining_dataset(*args, **options).take(count)
    return [inputs | labels for inputs, labels in data.as_numpy_iterator()]


def rows(dataset):
    """Every row of a list of batches as bytes, to be counted and compared."""
    return [
        b"".join(batch[name][i].tobytes() for name in sorted(batch))
        for batch in dataset
        for i in range(len(batch["input_ids"]))
    ]


def all_rows(where, **options):
    """Every row that a dataset gives, in order."""
    return rows(batches(where, 8, drop_remainder=False, **options))


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("dynamic_masking", [False, True])
def test_batches_have_static_shapes_and_the_names_fit_takes(made, dynamic_masking):
    inputs, labels = pretraining_dataset(made(dynamic_masking=dynamic_masking), 7).element_spec
    assert inputs == {
        "input_ids": tf.TensorSpec((7, 32), tf.int32),
        "input_mask": tf.TensorSpec((7, 32), tf.int32),
        "segment_ids": tf.TensorSpec((7, 32), tf.int32),
        "masked_lm_positions": tf.TensorSpec((7, 5), tf.int32),
    }
    assert labels == {
        "masked_lm_ids": tf.TensorSpec((7, 5), tf.int32),
        "masked_lm_weights": tf.TensorSpec((7, 5), tf.float32),
        "next_sentence_labels": tf.TensorSpec((7,), tf.int32),
    }


def test_the_original_shards_are_read(tmp_path):
    recorded = shared("expected/pretraining_data/sample_text_examples.tfrecord")
    shards = open_shards(recorded)
    assert (shards.max_seq_length, shards.max_predictions_per_seq) == (128, 20)
    assert shards.records == (60,) and shards.manifest is None
    read = batches(shards, 60, shuffle=False, epochs=1)[0]
    for i, record in enumerate(read_records(recorded)):
        features = tf.train.Example.FromString(record).features.feature
        for name, feature in features.items():
            values = feature.int64_list.value or feature.float_list.value
            assert np.ravel(read[name][i]).tolist() == list(values)


def test_without_shuffling_the_order_is_that_of_the_files(made):
    folder = made()
    read = batches(folder, 8, shuffle=False, epochs=1, drop_remainder=False)
    read = np.concatenate([batch["input_ids"] for batch in read])
    written = [
        tf.train.Example.FromString(record).features.feature["input_ids"].int64_list.value
        for file in open_shards(folder).files
        for record in read_records(file)
    ]
    np.testing.assert_array_equal(read, written)


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("window", ["all", "part"])
def test_every_record_comes_once_an_epoch_in_an_order_of_its_own(
    made, monkeypatch, compression, window
):
    folder = made(compression=compression)
    shards = open_shards(folder)
    if window == "part":
        monkeypatch.setattr(reader_module, "SHUFFLE_BYTES", shards.bytes // 5)
    total = sum(shards.records)
    plain = all_rows(folder, shuffle=False, epochs=1)
    read = all_rows(folder, seed=3, epochs=3)
    epochs = [read[i : i + total] for i in range(0, 3 * total, total)]
    for epoch in epochs:
        assert collections.Counter(epoch) == collections.Counter(plain)
    assert plain != epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert all_rows(folder, seed=4, epochs=1) != epochs[0]
    if window == "all":  # places are spread evenly: neighbours end up anywhere
        place = {row: i for i, row in enumerate(epochs[0])}
        places = [place[row] for row in plain]
        assert abs(np.corrcoef(np.arange(total), places)[0, 1]) < 5 / np.sqrt(total)


def test_the_shuffled_stretch_is_measured_before_compression(made, monkeypatch):
    """GZIP shards come in the order of plain ones, so as many rows are held."""
    monkeypatch.setattr(reader_module, "SHUFFLE_BYTES", 30 * record_bytes(32, 5))
    plain, packed = made(), made(compression="GZIP")
    in_files = all_rows(plain, shuffle=False, epochs=1)
    assert all_rows(packed, seed=3, epochs=1) == all_rows(plain, seed=3, epochs=1) != in_files


@pytest.mark.parametrize("predictions", [20, None])
@pytest.mark.parametrize("length", [128, 512])
def test_the_size_of_a_record_is_estimated(tmp_path, length, predictions):
    """A row as of a large vocabulary, whose ids mostly take two bytes, a tenth of it padding."""
    row = {
        name: np.ones((1, *feature.shape), feature.dtype)
        for name, feature in record_features(length, predictions).items()
    }
    row["input_ids"][:, : int(0.9 * length)] = 2000
    if predictions:
        row["masked_lm_ids"][:] = 2000
    with ShardWriter(tmp_path / "shard") as writer:
        writer.write(encode_examples(row))
    estimate = record_bytes(length, predictions)
    np.testing.assert_allclose((tmp_path / "shard").stat().st_size, estimate, rtol=0.05)


def test_batches_run_on_across_epochs(made):
    folder = made()
    total = sum(open_shards(folder).records)
    size = total - 3
    read = batches(folder, size, epochs=3)
    assert len(read) == 3 * total // size
    assert len(batches(folder, size, epochs=3, drop_remainder=False)) == -(-3 * total // size)
    assert rows(read) == all_rows(folder, epochs=3)[: len(read) * size]


@pytest.mark.parametrize("dynamic_masking", [False, True])
@pytest.mark.parametrize("start", [1, 19, 61])
def test_a_later_start_continues_exactly(made, dynamic_masking, start):
    folder = made(dynamic_masking=dynamic_masking)
    tf.random.set_seed(1)
    whole = take(70, folder, 16, seed=5)
    tf.random.set_seed(2)  # nothing may hang on the global seed
    assert_equal(take(70 - start, folder, 16, seed=5, start_batch=start), whole[start:])


def test_a_start_behind_the_last_epoch_gives_nothing(made):
    assert batches(made(), 16, epochs=1, start_batch=10_000) == []


@pytest.mark.parametrize("workers, shuffle", [(3, True), (3, False), (6, True)])
def test_workers_share_an_epoch_without_loss_or_repetition(made, workers, shuffle):
    """Four files: whole ones for up to four workers, then record by record."""
    folder = made()
    read = collections.Counter()
    for worker in range(workers):
        context = tf.distribute.InputContext(workers, worker, workers)
        read.update(all_rows(folder, shuffle=shuffle, epochs=1, input_context=context))
    assert read == collections.Counter(all_rows(folder, shuffle=False, epochs=1))


def test_more_workers_than_records_are_refused(made):
    context = tf.distribute.InputContext(100_000, 99_999, 100_000)
    with pytest.raises(RecordError, match="too few for 100000 workers"):
        pretraining_dataset(made(), 1, input_context=context)


def test_dynamic_masks_change_between_epochs_and_keep_the_text(made, settings, tokenizer):
    folder = made(dynamic_masking=True)
    total = sum(open_shards(folder).records)
    first, second = batches(folder, total, shuffle=False, epochs=2)
    pairs = [
        tf.train.Example.FromString(record).features.feature["input_ids"].int64_list.value
        for file in open_shards(folder).files
        for record in read_records(file)
    ]
    for batch in (first, second):
        restored = batch["input_ids"].copy()
        used = batch["masked_lm_weights"] == 1
        at = np.nonzero(used)[0], batch["masked_lm_positions"][used]
        restored[at] = batch["masked_lm_ids"][used]
        np.testing.assert_array_equal(restored, pairs)
        wanted = settings.predictions_by_length[batch["input_mask"].sum(axis=1)]
        assert (used.sum(axis=1) == wanted).all()
    assert (first["masked_lm_positions"] != second["masked_lm_positions"]).mean() > 0.5


def test_workers_draw_masks_of_their_own(made, tmp_path):
    """Two workers with the same rows; the first draws as a single one does."""
    folder = made(dynamic_masking=True)
    file = "train-00000-of-00004.tfrecord"
    copy = shutil.copytree(folder, tmp_path / "copy")
    shards = open_shards([folder / file, copy / file])
    contexts = [tf.distribute.InputContext(2, worker, 2) for worker in (0, 1)]
    first, second = (take(2, shards, 16, shuffle=False, input_context=c) for c in contexts)
    assert_equal(first, take(2, folder / file, 16, shuffle=False))
    np.testing.assert_array_equal(first[0]["input_mask"], second[0]["input_mask"])
    assert (first[0]["masked_lm_positions"] != second[0]["masked_lm_positions"]).mean() > 0.5


def test_the_tokenizer_of_shards_is_that_of_their_manifest(made, tokenizer, tmp_path):
    folder = shutil.copytree(made(dynamic_masking=True), tmp_path / "data")
    shards = open_shards(folder)
    loaded = shards.tokenizer()
    assert loaded.vocabulary_sha256 == tokenizer.vocabulary_sha256
    assert loaded.lower_case == tokenizer.lower_case
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("##c", "##d"))
    for use in (shards.tokenizer, lambda: pretraining_dataset(shards, 4)):
        with pytest.raises(RecordError, match=r"vocab.txt is not the vocabulary"):
            use()
    vocabulary.unlink()
    with pytest.raises(VocabularyError, match=r"vocab.txt"):
        shards.tokenizer()
    (folder / "manifest.json").unlink()
    assert open_shards(f"{folder}/train*").tokenizer() is None


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.3, 0.0, 0.7)])
def test_dynamic_masks_follow_the_rule_of_static_ones(tokenizer, settings, whole_words, shares):
    """The same rows under both: equally many at each position, of each kind."""
    names = ("mask_share", "same_share", "random_share")
    settings = dataclasses.replace(
        settings, max_seq_length=24, whole_word_masking=whole_words, masked_lm_prob=0.2,
        **dict(zip(names, shares, strict=True)),
    )  # fmt: skip
    row = [2, 7, 16, 6, 8, 17, 18, 9, 3, 16, 17, 5, 7, 8, 16, 9, 10, 11, 12, 3, 0, 0, 0, 0]
    n = 20_000
    ids = np.tile(np.array(row, np.int32), (n, 1))
    lengths = np.full(n, 20)
    static = mask_rows(ids, lengths, settings, tokenizer, random.Random(1))
    mask = (np.arange(24) < 20).astype(np.int32) * np.ones_like(ids)
    names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    dynamic = dict(zip(names, mask_batch(ids, mask, settings, tokenizer, [1, 2]), strict=True))
    dynamic = {name: value.numpy() for name, value in dynamic.items()}

    def figures(masked):
        used = masked["masked_lm_weights"] == 1
        positions, labels = masked["masked_lm_positions"], masked["masked_lm_ids"]
        shown = np.take_along_axis(masked["input_ids"], positions, axis=1)[used]
        kinds = [(shown == 4).sum(), (shown == labels[used]).sum(), len(shown)]
        together = np.zeros((24, 24))
        np.add.at(together, (positions[used], positions[:, 0].repeat(used.sum(axis=1))), 1)
        return np.bincount(positions[used], minlength=24), kinds, together

    for ours, theirs in zip(figures(dynamic), figures(static), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=6 * np.sqrt(2 * np.max(theirs)))
    for masked in (static, dynamic):
        used = masked["masked_lm_weights"] == 1
        assert (used.sum(axis=1) <= 4).all()
        slots = np.where(used, masked["masked_lm_positions"], 99)
        assert (np.diff(slots, axis=1)[used[:, 1:]] > 0).all()
        assert not masked["masked_lm_positions"][~used].any()
        assert not masked["masked_lm_ids"][~used].any()
        assert (masked["input_ids"][:, [0, 8, 19, 20, 23]] == [2, 3, 3, 0, 0]).all()
        if whole_words:  # pieces 1-2, 4-6 and 7-9-10 (across [SEP]) go together
            chosen = np.zeros((n, 100), bool)
            np.put_along_axis(chosen, slots, True, axis=1)
            for word in ([1, 2], [4, 5, 6], [7, 9, 10], [13, 14]):
                assert (chosen[:, word].all(axis=1) == chosen[:, word].any(axis=1)).all()


def test_other_masking_settings_apply_to_dynamic_shards_only(made, settings, tokenizer):
    none = dataclasses.replace(settings, mask_share=0, same_share=1, random_share=0)
    folder = made(dynamic_masking=True)
    batch = batches(folder, 50, epochs=1, masking=none)[0]
    assert (batch["input_ids"] != tokenizer.mask_id).all()
    with pytest.raises(ConfigError, match="masked already"):
        pretraining_dataset(made(), 4, masking=none)
    with pytest.raises(ConfigError, match="max_seq_length"):
        pretraining_dataset(folder, 4, masking=dataclasses.replace(none, max_seq_length=33))


def test_dynamic_shards_without_their_manifest_need_a_tokenizer(
    made, settings, tokenizer, tmp_path
):
    folder = made(dynamic_masking=True)
    for file in folder.glob("train-*"):
        shutil.copy(file, tmp_path)
    with pytest.raises(ConfigError, match="give a tokenizer"):
        pretraining_dataset(f"{tmp_path}/*", 4)
    with pytest.raises(ConfigError, match="give masking"):
        pretraining_dataset(f"{tmp_path}/*", 4, tokenizer=tokenizer)
    alone = take(3, f"{tmp_path}/*", 4, tokenizer=tokenizer, masking=settings)
    assert_equal(alone, take(3, folder, 4))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "batch_size"), ({"start_batch": -1}, "start_batch"),
        ({"epochs": 0}, "epochs"), ({"vocab_size": 18}, "vocabulary of 19 pieces"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(made, options, message):
    with pytest.raises(ConfigError, match=message):
        pretraining_dataset(made(), **{"batch_size": 4} | options)


def test_the_held_out_split_is_masked_in_its_records(made):
    for dynamic_masking in (False, True):
        folder = made(dynamic_masking=dynamic_masking)
        total = sum(open_shards(folder, "heldout").records)
        once, again = batches(folder, total, split="heldout", shuffle=False, epochs=2)
        assert_equal([once], [again])
    folder = made(held_out=0.0)
    with pytest.raises(RecordError, match="no split 'heldout', only train"):
        open_shards(folder, "heldout")


# Damage.


@pytest.fixture
def copied(made, tmp_path):
    """A copy of the shards, to be damaged."""
    return shutil.copytree(made(), tmp_path / "data")


def flip(file, offset):
    data = bytearray(file.read_bytes())
    data[offset] ^= 16
    file.write_bytes(data)


def test_what_is_not_there_is_named(copied, tmp_path):
    for where, message in (
        (tmp_path / "nothing", "nothing: there is no such file or folder"),
        (f"{tmp_path}/*.none", "none: there is no such"),
        (tmp_path, "holds no manifest.json"),
        ([], "No shards"),
    ):
        with pytest.raises(RecordError, match=message):
            open_shards(where)
    (copied / "train-00002-of-00004.tfrecord").unlink()
    with pytest.raises(RecordError, match=r"train-00002-of-00004.tfrecord is missing"):
        open_shards(copied)


@pytest.mark.parametrize("manifest", ["{", "[]", '{"version": 99}', '{"version": 1}'])
def test_a_damaged_manifest_is_named(copied, manifest):
    (copied / "manifest.json").write_text(manifest)
    with pytest.raises(RecordError, match=r"manifest.json"):
        open_shards(copied)


def test_a_shard_cut_short_is_noticed_on_opening(copied):
    file = copied / "train-00001-of-00004.tfrecord"
    whole = file.read_bytes()
    count = open_shards(file).records[0]
    ends = np.cumsum([len(record) + 16 for record in read_records(file)])
    for cut in (1, 4, 5, 100, len(whole) - ends[6] - 11, len(whole) - ends[6] - 12):
        file.write_bytes(whole[:-cut])
        with pytest.raises(RecordError, match=r"00001-of-00004.tfrecord has .* cut short"):
            open_shards(copied)
        number = 7 if cut > 1000 else count - 1
        with pytest.raises(RecordError, match=rf"tfrecord, record {number} is cut short"):
            open_shards(file)
    file.write_bytes(b"")
    with pytest.raises(RecordError, match="holds no records"):
        open_shards(file)


def test_a_gzip_shard_cut_short_or_flipped_is_noticed(made, tmp_path):
    source = made(compression="GZIP") / "train-00001-of-00004.tfrecord.gz"
    file = tmp_path / source.name
    file.write_bytes(source.read_bytes()[:-20])
    with pytest.raises(RecordError, match=r"gz, record \d+: the gzip stream is damaged"):
        open_shards(file)
    shutil.copy(source, file)
    flip(file, file.stat().st_size // 2)
    with pytest.raises(RecordError, match=r"gz, record \d+"):
        open_shards(file)


def iterate(*args, **options):
    with pytest.raises(tf.errors.OpError) as caught:
        batches(*args, epochs=1, drop_remainder=False, **options)
    return caught.value


@pytest.mark.parametrize("where", ["length", "contents"])
def test_a_flipped_bit_is_traced_to_its_record(copied, where):
    file = copied / "train-00002-of-00004.tfrecord"
    ends = np.cumsum([len(record) + 16 for record in read_records(file)])
    flip(file, int(ends[8]) + (2 if where == "length" else 60))
    shards = open_shards(copied)
    error = iterate(shards, 8)
    found = explain(error, shards)
    assert isinstance(found, RecordError) and found.__cause__ is error
    assert str(found).startswith(f"{file}, record 9 is damaged")
    if where == "length":
        with pytest.raises(RecordError, match="record 9 is damaged: the checksum of its length"):
            open_shards(file)


def test_a_flipped_bit_in_a_gzip_shard_is_traced(made, tmp_path):
    folder = shutil.copytree(made(compression="GZIP"), tmp_path / "data")
    file = folder / "train-00002-of-00004.tfrecord.gz"
    flip(file, file.stat().st_size // 2)
    shards = open_shards(folder)
    with pytest.raises(RecordError, match=r"train-00002-of-00004.tfrecord.gz, record \d+"):
        raise explain(iterate(shards, 8), shards)


def rewrite(file, number, change):
    """Writes a shard anew with one record changed, checksums right."""
    columns = {}
    for record in read_records(file):
        for name, feature in tf.train.Example.FromString(record).features.feature.items():
            values = feature.int64_list.value or feature.float_list.value
            columns.setdefault(name, []).append(np.array(values))
    with ShardWriter(file) as writer:
        for i in range(len(columns["input_ids"])):
            row = {name: values[i][None] for name, values in columns.items()}
            if i == number:
                change(row)
            writer.write(encode_examples(row))


def set_value(name, value):
    def change(row):
        row[name][0, 0] = value

    return change


def shorten(name):
    def change(row):
        row[name] = row[name][:, :-1]

    return change


def remove(name):
    def change(row):
        del row[name]

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (set_value("input_ids", 19), "input_ids holds 19, which is not in the range 0 to 18"),
        (set_value("masked_lm_ids", 2**32 - 1), "masked_lm_ids holds 4294967295, .* 0 to 18"),
        (set_value("masked_lm_positions", 32), "masked_lm_positions holds 32, .* 0 to 31"),
        (set_value("segment_ids", 2), "segment_ids holds 2"),
        (set_value("next_sentence_labels", 3), "next_sentence_labels holds 3"),
        (shorten("input_mask"), "input_mask has 31 values instead of 32"),
        (remove("masked_lm_weights"), "masked_lm_weights has 0 values instead of 5"),
    ],
)
def test_a_wrong_record_is_refused_and_named(copied, change, message):
    file = copied / "train-00003-of-00004.tfrecord"
    rewrite(file, 11, change)
    shards = open_shards(f"{copied}/train*")
    found = explain(iterate(shards, 8), shards)
    assert str(found).startswith(f"{file}, record 11: ")
    with pytest.raises(RecordError, match=message):
        raise found


def test_a_vocabulary_too_small_is_noticed_in_the_original_format(copied, tmp_path):
    for file in copied.glob("train-*"):
        shutil.move(file, tmp_path)
    shards = open_shards(f"{tmp_path}/*.tfrecord")
    assert shards.vocab_size is None
    error = iterate(shards, 8, vocab_size=12)
    assert "input_ids" in error.message and "0 to 11" in error.message
    assert "not in the range 0 to 11" in str(explain(error, shards, vocab_size=12))


def test_nothing_is_found_where_nothing_is_wrong(copied):
    error = tf.errors.InvalidArgumentError(None, None, "elsewhere")
    assert explain(error, open_shards(copied)) is None


def test_nothing_is_read_for_an_error_that_no_record_causes(copied, monkeypatch):
    shards = open_shards(copied)
    monkeypatch.setattr(shards_module, "read_records", lambda *args: pytest.fail("files are read"))
    for error in (RuntimeError(), tf.errors.ResourceExhaustedError(None, None, "memory")):
        assert explain(error, shards) is None


def test_ids_beyond_int32_are_refused_where_the_vocabulary_is_unknown(copied):
    (copied / "manifest.json").unlink()
    file = copied / "train-00003-of-00004.tfrecord"
    rewrite(file, 11, set_value("input_ids", 1 << 31))
    shards = open_shards(file)
    message = "record 11: input_ids holds 2147483648, which is not in the range 0 to 2147483647"
    assert message in str(explain(iterate(shards, 8), shards))


def test_what_is_no_pretraining_record_is_refused(tmp_path):
    for name, record, message in (
        ("a", b"\xff\xff", "no.* tf.train.Example"),
        ("b", b"", "input_ids has 0 values"),
    ):
        with ShardWriter(tmp_path / name) as writer:
            writer.write([record])
        with pytest.raises(RecordError, match=message):
            open_shards(tmp_path / name)
    (tmp_path / "c").write_text("no records at all, but text that is long enough")
    with pytest.raises(RecordError, match="record 0 is damaged"):
        open_shards(tmp_path / "c")


def test_shards_that_differ_are_refused_together(made, settings, copied):
    longer = dataclasses.replace(settings, max_seq_length=40)
    fewer = dataclasses.replace(settings, max_predictions_per_seq=3)
    manifest = Manifest.load(copied)
    other = manifest.vocabulary | {"sha256": "0" * 64}
    dataclasses.replace(manifest, vocabulary=other).save(copied)
    for where, message in (
        (made(settings=longer), "max_seq_length 40, but .* has 32"),
        (made(settings=fewer), "max_predictions_per_seq 3, but .* has 5"),
        (made(dynamic_masking=True), "dynamic"),
        (made(compression="GZIP"), "compression GZIP"),
        (copied, "vocabulary with SHA-256 0000"),
    ):
        with pytest.raises(RecordError, match=message):
            open_shards([made(), where])


def test_what_only_a_manifest_tells_is_compared_behind_a_file_without_one(
    made, settings, copied, tmp_path
):
    plain = shutil.copy(copied / "train-00000-of-00004.tfrecord", tmp_path)
    manifest = Manifest.load(copied)
    no_nsp = dataclasses.replace(manifest.settings, next_sentence=False)
    for change, message in (
        ({"vocabulary": manifest.vocabulary | {"sha256": "0" * 64}}, "vocabulary with SHA-256 000"),
        ({"tokenizer": manifest.tokenizer | {"lower_case": False}}, "tokenizer options .*False"),
        ({"settings": no_nsp}, "next sentence prediction off, but .* has on"),
    ):
        dataclasses.replace(manifest, **change).save(copied)
        assert open_shards([plain, copied]).manifest == Manifest.load(copied)
        with pytest.raises(RecordError, match=message):
            open_shards([plain, made(), copied])


def test_splits_are_not_read_together(made):
    folder = made()
    train = folder / "train-00000-of-00004.tfrecord"
    heldout = folder / "heldout-00000-of-00001.tfrecord"
    for where in (f"{folder}/*.tfrecord", [train, heldout], [heldout, train], [folder, heldout]):
        with pytest.raises(RecordError, match=rf"folder {folder}, or {folder}/train-\*") as caught:
            open_shards(where)
        assert f"{train} is of " in str(caught.value) or f"but {train} is of" in str(caught.value)
        assert str(heldout) in str(caught.value)
    assert open_shards(f"{folder}/train-*").files == open_shards(folder).files
    assert open_shards(f"{folder}/heldout-*").files == open_shards(folder, "heldout").files


def test_folders_and_files_are_read_together(made, copied):
    parts = [made(), copied / "train-00000-of-00004.tfrecord", f"{copied}/train-0000[12]*"]
    shards = open_shards(parts)
    assert len(shards.files) == 4 + 1 + 2
    assert shards.vocab_size == 19
    assert len(all_rows(shards, epochs=1)) == sum(shards.records)


def test_batches_can_go_into_fit_and_be_distributed(made):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    data = strategy.distribute_datasets_from_function(
        lambda context: pretraining_dataset(
            made(), context.get_per_replica_batch_size(8), input_context=context
        )
    )
    for (inputs, _), expected in zip(itertools.islice(data, 3), take(3, made(), 8), strict=True):
        np.testing.assert_array_equal(inputs["input_ids"], expected["input_ids"])
