import collections
import dataclasses
import random

import numpy as np
import pytest

from keras_bert_ref.errors import ConfigError, RecordError
from tfrecords.baseline import constant_baseline
from tfrecords.dynamic_masking import mask_batch
from tfrecords.manifest import Manifest
from tfrecords.masking import mask_rows
from tfrecords.packing import pack
from tfrecords.reader import explain, open_shards, pretraining_dataset
from tfrecords.settings import InstanceSettings
from tfrecords.shards import read_records
from tfrecords.writer import ShardWriter, encode_examples

PLACES = 4


@pytest.fixture(scope="module")
def plain(settings):
    """Settings that leave much to pack."""
    return dataclasses.replace(settings, short_seq_prob=0.8)


@pytest.fixture(scope="module")
def packed(plain):
    return dataclasses.replace(plain, sequences_per_row=PLACES)


def batches(where, batch_size=8, **options):
    """The batches of a dataset, each one dict of arrays."""
    options = {"sequences_per_row": PLACES, "drop_remainder": False, "epochs": 1} | options
    data = pretraining_dataset(where, batch_size, **options)
    return [inputs | labels for inputs, labels in data.as_numpy_iterator()]


def sequences(batch):
    """Yields (pieces before masking, segments, label, positions masked) of each sequence."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][rows, slots]
    ids[rows, positions] = batch["masked_lm_ids"][rows, slots]
    labels = batch["next_sentence_labels"].reshape(len(ids), -1)
    for row, mask in enumerate(batch["input_mask"]):
        count = mask.max()
        assert (labels[row, count:] == -1).all()
        # One after the other without a gap, padding last.
        assert (np.diff(mask[mask > 0]) >= 0).all() and not mask[(mask > 0).sum() :].any()
        for number in range(1, count + 1):
            (where,) = np.nonzero(mask == number)
            masked = positions[rows == row]
            masked = masked[np.isin(masked, where)] - where[0]
            segments = batch["segment_ids"][row, where]
            yield tuple(ids[row, where]), tuple(segments), labels[row, number - 1], tuple(masked)


def texts(where, **options):
    """How often each sequence is there, whatever its masks."""
    return collections.Counter(
        sequence[:3] for batch in batches(where, **options) for sequence in sequences(batch)
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_gets_a_place_and_no_row_is_overfull(seed):
    rng = np.random.default_rng(seed)
    room, most, count = rng.integers(10, 600), rng.integers(1, 9), rng.integers(1, 500)
    lengths = rng.integers(1, room, count, endpoint=True)
    rows = pack(lengths, int(room), int(most))
    used = rows >= 0
    assert sorted(rows[used]) == list(range(count))
    assert (used.sum(axis=1) >= 1).all() and (used[:, :-1] >= used[:, 1:]).all()
    filled = np.where(used, lengths[rows], 0).sum(axis=1)
    assert (filled <= room).all()
    # A row is opened by a sequence that none before had room for: two of them are never one.
    for a in range(len(rows)):
        fits = (filled[a] + filled <= room) & (used[a].sum() < most)
        assert not fits[a + 1 :].any()


def test_packing_is_close_to_perfect_where_it_can_be():
    lengths = np.random.default_rng(0).integers(5, 128, 10_000)  # 7.8 of them fill a row
    assert len(pack(lengths, 512, 12)) <= 1.01 * np.ceil(lengths.sum() / 512)
    rows = len(pack(lengths, 512, 8))
    assert rows <= 1.05 * np.ceil(lengths.sum() / 512)
    assert len(pack(np.sort(lengths)[::-1], 512, 8)) > 1.12 * rows  # see there
    assert len(pack(lengths, 512, 4)) == len(lengths) / 4


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("dynamic_masking", [False, True])
def test_packed_shards_hold_what_others_do(made, packed, plain, dynamic_masking, whole_words):
    """The same sequences, each masked as many times as it would be in a row of its own."""
    settings = dataclasses.replace(packed, whole_word_masking=whole_words)
    folder = made(settings=settings, dynamic_masking=dynamic_masking)
    plain = dataclasses.replace(plain, whole_word_masking=whole_words)
    plain = made(settings=plain, dynamic_masking=dynamic_masking)
    for split in ("train", "heldout"):
        assert texts(folder, split=split) == texts(plain, split=split)
        ours, theirs = (Manifest.load(where).splits[split] for where in (folder, plain))
        assert ours.records < ours.instances == theirs.instances == theirs.records
        assert ours.mean_length == theirs.mean_length and ours.random_next == theirs.random_next
        assert ours.padding < theirs.padding
        for batch in batches(folder, split=split):
            for ids, _, _, masked in sequences(batch):
                wanted = settings.predictions_by_length[len(ids)]
                special = {n for n, piece in enumerate(ids) if piece in (2, 3)}
                assert not special & set(masked)
                if whole_words:
                    assert len(masked) <= wanted
                else:
                    assert len(masked) == min(wanted, len(ids) - len(special))
    counts = [b["masked_lm_weights"].sum(axis=1).max() for b in batches(folder)]
    assert max(counts) <= settings.predictions_per_row


def test_full_sentences_are_packed_too(made, packed, plain):
    ours, theirs = (
        texts(made(settings=dataclasses.replace(settings, next_sentence=False)))
        for settings in (packed, plain)
    )
    assert ours == theirs and not any(any(segments) for _, segments, _ in ours)


def test_rows_hold_no_more_masked_positions_than_pieces(made, packed):
    settings = dataclasses.replace(packed, masked_lm_prob=0.95, max_predictions_per_seq=32)
    assert settings.predictions_per_row == settings.max_seq_length
    folder = made(settings=settings, dynamic_masking=True)
    assert batches(folder)[0]["masked_lm_positions"].shape == (8, 32)


@pytest.mark.parametrize("whole_words", [False, True])
def test_each_sequence_of_a_row_is_masked_by_the_rule(tokenizer, settings, whole_words):
    """Drawn in the graph, two to a row; drawn in NumPy, each in a row of its own: equally often."""
    single = dataclasses.replace(
        settings, max_seq_length=24, whole_word_masking=whole_words, masked_lm_prob=0.2
    )
    pair = dataclasses.replace(single, sequences_per_row=2)
    first = [2, 7, 16, 6, 8, 17, 18, 9, 3, 16, 17, 5, 3]
    second = [2, 17, 7, 8, 16, 3, 9, 10, 3]  # begins with what continues a word
    n = 20_000
    row = np.array(first + second + [0, 0], np.int32)
    mask = np.array([1] * len(first) + [2] * len(second) + [0, 0], np.int32)
    names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    together = mask_batch(np.tile(row, (n, 1)), np.tile(mask, (n, 1)), pair, tokenizer, [1, 2])
    together = {k: v.numpy() for k, v in zip(names, together, strict=True)}
    used = together["masked_lm_weights"] == 1
    assert together["masked_lm_positions"].shape == (n, pair.predictions_per_row)
    ours = np.bincount(together["masked_lm_positions"][used], minlength=24)
    theirs = np.zeros(24)
    for start, sequence in ((0, first), (len(first), second)):
        ids = np.zeros((n, 24), np.int32)
        ids[:, : len(sequence)] = sequence
        lengths = np.full(n, len(sequence))
        alone = mask_rows(ids, lengths, single, tokenizer, random.Random(start))
        positions = alone["masked_lm_positions"][alone["masked_lm_weights"] == 1]
        theirs[start : start + len(sequence)] = np.bincount(positions, minlength=24)[
            : len(sequence)
        ]
        # As many of the sequence, whatever was drawn for the other one.
        inside = used & (together["masked_lm_positions"] >= start)
        inside &= together["masked_lm_positions"] < start + len(sequence)
        if not whole_words:
            assert (inside.sum(axis=1) == single.predictions_by_length[len(sequence)]).all()
    np.testing.assert_allclose(ours, theirs, atol=6 * np.sqrt(2 * theirs.max()))


@pytest.mark.parametrize("dynamic_masking", [False, True])
def test_a_later_start_continues_exactly(made, packed, dynamic_masking):
    folder = made(settings=packed, dynamic_masking=dynamic_masking)
    whole = batches(folder, 4, epochs=2)
    later = batches(folder, 4, epochs=2, start_batch=7)
    for a, b in zip(whole[7:], later, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_packed_shards_are_the_same_for_any_number_of_processes(made, packed):
    one, two = (made(settings=packed, processes=processes) for processes in (1, 2))
    for file in sorted(one.glob("*.tfrecord")):
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_other_shards_are_read_with_places_to_spare(made, packed):
    plain = batches(made(), sequences_per_row=1, shuffle=False)
    spare = batches(made(), sequences_per_row=3, shuffle=False)
    for a, b in zip(plain, spare, strict=True):
        labels = b.pop("next_sentence_labels")
        np.testing.assert_array_equal(labels[:, 0], a.pop("next_sentence_labels"))
        assert (labels[:, 1:] == -1).all() and labels.shape[1] == 3
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    with pytest.raises(ConfigError, match="give sequences_per_row=4, here and to the model's"):
        pretraining_dataset(made(settings=packed), 4)
    folder = made(settings=packed, dynamic_masking=True)
    with pytest.raises(ConfigError, match="sequences_per_row is 1, that of the rows"):
        single = dataclasses.replace(packed, sequences_per_row=1)
        pretraining_dataset(folder, 4, sequences_per_row=PLACES, masking=single)


def test_a_file_without_its_manifest_tells_how_many_places_there_are(made, packed, tmp_path):
    file = made(settings=packed) / "train-00000-of-00004.tfrecord"
    alone = tmp_path / "part"
    alone.write_bytes(file.read_bytes())
    shards = open_shards(alone)
    assert shards.sequences_per_row == PLACES
    assert shards.max_predictions_per_seq == packed.predictions_per_row
    with pytest.raises(RecordError, match=r"has sequences_per_row 1, but .* has 4"):
        folders = made(settings=packed, dynamic_masking=True), made(dynamic_masking=True)
        open_shards([folder / "train-00000-of-00004.tfrecord" for folder in folders])


def test_a_number_beyond_the_places_is_traced_to_its_record(made, packed, tmp_path):
    from keras_bert_ref._tensorflow import tf

    folder = made(settings=packed)
    rows = []
    for record in read_records(str(folder / "train-00000-of-00004.tfrecord")):
        features = tf.train.Example.FromString(record).features.feature
        rows.append(
            {k: list(v.int64_list.value or v.float_list.value) for k, v in features.items()}
        )
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns["masked_lm_weights"] = columns["masked_lm_weights"].astype(np.float32)
    columns["input_mask"][2, 0] = PLACES + 1
    with ShardWriter(tmp_path / "part") as writer:
        writer.write(encode_examples(columns))
    shards = open_shards(tmp_path / "part")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        batches(shards)
    found = explain(caught.value, shards)
    assert "record 2" in str(found) and "input_mask holds 5" in str(found)


def test_the_baseline_counts_sequences(made, packed, plain):
    ours, theirs = (constant_baseline(made(settings=s), 19) for s in (packed, plain))
    assert ours["next_sentence_accuracy"] == theirs["next_sentence_accuracy"]


@pytest.mark.parametrize("value", [0, -1, True, 2.0, 27])
def test_sequences_per_row_out_of_range_are_refused(value):
    with pytest.raises(ConfigError, match="sequences_per_row"):
        InstanceSettings(sequences_per_row=value)
