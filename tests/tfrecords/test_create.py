import dataclasses
import gzip
import hashlib
import multiprocessing
import os
import tempfile

import numpy as np
import pytest

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, CorpusError, OutputError
from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords import shard_job
from tfrecords import store as store_module
from tfrecords.corpus import read_sentences
from tfrecords.create import create_pretraining_data
from tfrecords.manifest import Manifest
from tfrecords.store import TokenStore, build_store


def contents(folder):
    """Name → checksum of every file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def rows_of(files):
    """Feature name → array of all records."""
    rows = {}
    for file in map(str, files):
        compression = "GZIP" if file.endswith(".gz") else ""
        for record in tf.data.TFRecordDataset(file, compression).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            for name, feature in features.items():
                values = feature.int64_list.value or feature.float_list.value
                rows.setdefault(name, []).append(list(values))
    return {name: np.array(values) for name, values in rows.items()}


@pytest.mark.parametrize("dynamic_masking", [False, True])
def test_shards_and_manifest_agree(made, corpus, settings, tokenizer, dynamic_masking):
    folder = made(dynamic_masking=dynamic_masking)
    manifest = Manifest.load(folder)
    names = [f"train-{i:05d}-of-00004.tfrecord" for i in range(4)]
    names = ["heldout-00000-of-00001.tfrecord", "manifest.json", *names, "vocab.txt"]
    assert sorted(os.listdir(folder)) == names
    assert WordPieceTokenizer.from_vocab(folder / "vocab.txt").vocabulary == tokenizer.vocabulary
    assert manifest.vocabulary["sha256"] == tokenizer.vocabulary_sha256
    assert [source["bytes"] for source in manifest.sources] == [
        os.path.getsize(corpus / name) for name in ("1.txt", "2.txt")
    ]
    assert manifest.settings.dupe_factor == (1 if dynamic_masking else settings.dupe_factor)
    lines = [line for line in read_sentences(f"{corpus}/*.txt") if line]
    splits = manifest.splits.values()
    assert sum(split.documents for split in splits) == 60
    assert manifest.splits["heldout"].documents == 6
    assert sum(split.sentences for split in splits) == len(lines)
    assert sum(split.tokens for split in splits) == sum(
        len(tokenizer.token_ids(line)) for line in lines
    )
    for name, split in manifest.splits.items():
        static = name == "heldout" or not dynamic_masking
        assert split.masking == ("static" if static else "dynamic")
        rows = rows_of(folder / shard.file for shard in split.shards)
        assert ("masked_lm_ids" in rows) == static
        lengths = rows["input_mask"].sum(axis=1)
        assert [shard.bytes for shard in split.shards] == [
            os.path.getsize(folder / shard.file) for shard in split.shards
        ]
        assert len(lengths) == split.instances == sum(shard.records for shard in split.shards)
        assert split.mean_length == pytest.approx(lengths.mean())
        assert split.padding == pytest.approx(1 - rows["input_mask"].mean())
        assert split.random_next == pytest.approx(rows["next_sentence_labels"].mean())
        assert not rows["input_ids"][rows["input_mask"] == 0].any()
        assert (rows["input_ids"][:, 0] == tokenizer.cls_id).all()
        if static:
            used = rows["masked_lm_weights"].sum(axis=1)
            assert (used == settings.predictions_by_length[lengths]).all()


def test_the_same_seed_gives_the_same_bytes_for_any_number_of_processes(
    made, corpus, tmp_path, settings, tokenizer
):
    options = {"shards": 4, "held_out": 0.1, "processes": 2}
    again = create_pretraining_data(
        f"{corpus}/*.txt", tokenizer, tmp_path / "again", settings, **options
    )
    assert contents(tmp_path / "again") == contents(made())
    assert again == Manifest.load(tmp_path / "again")
    assert multiprocessing.active_children() == []
    create_pretraining_data(
        f"{corpus}/*.txt", tokenizer, tmp_path / "other", settings, **options, seed=1
    )
    ours, other = contents(tmp_path / "again"), contents(tmp_path / "other")
    assert [name for name in ours if ours[name] == other[name]] == ["vocab.txt"]


def test_the_store_does_not_depend_on_processes_or_blocks(corpus, tmp_path, tokenizer, monkeypatch):
    for name, processes, block in (("1", 1, 1 << 20), ("2", 2, 100), ("3", 1, 1)):
        monkeypatch.setattr(store_module, "_BLOCK_CHARACTERS", block)
        (tmp_path / name).mkdir()
        sentences = read_sentences(f"{corpus}/*.txt")
        build_store(tmp_path / name, sentences, tokenizer, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    store = TokenStore.open(tmp_path / "1")
    lines = [line for line in read_sentences(f"{corpus}/*.txt") if line]
    assert store.document_count == 60
    for i, line in enumerate(lines):
        start, end = store.sentence_starts[i], store.sentence_starts[i + 1]
        assert store.tokens[start:end].tolist() == tokenizer.token_ids(line)


@pytest.mark.parametrize("language", ["en", "zz-unknown"])
def test_paragraphs_are_split_into_sentences(tmp_path, tokenizer, language):
    text = ["A big cat. Did he! Fine, dad?  ", "", "H.\n", ""]
    counts = build_store(tmp_path, text, tokenizer, split_sentences=language)
    assert (counts.documents, counts.sentences) == (2, 4)


def test_no_document_is_in_both_splits(tmp_path, tokenizer, settings):
    """Each document has a word of its own, so the rows show where they come from."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
    numbered = WordPieceTokenizer(words)
    text = "\n".join(f"w{i} w{i} w{i}\n" * 5 for i in range(40))
    (tmp_path / "text").write_text(text)
    settings = dataclasses.replace(settings, random_share=0, same_share=0.2)
    manifest = create_pretraining_data(
        tmp_path / "text", numbered, tmp_path / "out", settings, held_out=0.25, shards=3
    )
    seen = {
        name: set(rows_of(tmp_path / "out" / s.file for s in split.shards)["input_ids"].ravel())
        for name, split in manifest.splits.items()
    }
    documents = {name: {i for i in ids if i > 4} for name, ids in seen.items()}
    assert len(documents["heldout"]) == 10 and len(documents["train"]) == 30
    assert documents["heldout"].isdisjoint(documents["train"])


def test_every_document_is_passed_over_as_often_as_asked(tmp_path, tokenizer, settings):
    """Without random nexts, all tokens of all passes are in the rows exactly once."""
    (tmp_path / "text").write_text("\n".join("a b c .\n" * (i + 1) for i in range(9)))
    settings = dataclasses.replace(
        settings, next_sentence=False, mask_share=0, same_share=1, random_share=0
    )
    manifest = create_pretraining_data(
        tmp_path / "text", tokenizer, tmp_path / "out", settings, shards=2
    )
    rows = rows_of(tmp_path / "out" / shard.file for shard in manifest.splits["train"].shards)
    counts = np.bincount(rows["input_ids"].ravel(), minlength=10)
    assert counts[tokenizer.token_ids("a b c .")].tolist() == [45 * 3] * 4
    assert not rows["next_sentence_labels"].any() and not rows["segment_ids"].any()


def test_gzip_shards_hold_the_same_records(made):
    plain, packed = made(), made(compression="GZIP")
    for shard in Manifest.load(packed).splits["train"].shards:
        assert shard.file.endswith(".tfrecord.gz")
        unpacked = gzip.decompress((packed / shard.file).read_bytes())
        assert unpacked == (plain / shard.file.removesuffix(".gz")).read_bytes()


def create(tmp_path, text, tokenizer, settings, **options):
    (tmp_path / "text.txt").write_text(text)
    return create_pretraining_data(
        tmp_path / "text.txt", tokenizer, tmp_path / "out", settings, **options
    )


@pytest.mark.parametrize("text", ["", "\n \n\n", "\u200b\n\n\ufeff\n"])
def test_an_empty_corpus_is_refused(tmp_path, tokenizer, settings, text):
    with pytest.raises(CorpusError, match=r"no text in .*text.txt"):
        create(tmp_path, text, tokenizer, settings)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_one_document_needs_no_nsp(tmp_path, tokenizer, settings, text_of):
    text = text_of(1, sentences=50) + "\n\n"
    with pytest.raises(CorpusError, match=r"no blank line .* --no-nsp"):
        create(tmp_path, text, tokenizer, settings)
    assert os.listdir(tmp_path) == ["text.txt"]
    alone = dataclasses.replace(settings, next_sentence=False)
    assert create(tmp_path, text, tokenizer, alone).splits["train"].documents == 1


def test_a_split_of_one_document_is_refused(tmp_path, tokenizer, settings, text_of):
    with pytest.raises(CorpusError, match="3 documents, too few to set"):
        create(tmp_path, text_of(3), tokenizer, settings, held_out=0.1)
    manifest = create(tmp_path, text_of(4), tokenizer, settings, held_out=0.1)
    assert [split.documents for split in manifest.splits.values()] == [2, 2]


def test_documents_of_one_sentence_give_a_warning(tmp_path, tokenizer, settings, text_of):
    manifest = create(tmp_path, text_of(20, sentences=1), tokenizer, settings)
    assert manifest.splits["train"].random_next == 1
    assert len(manifest.warnings) == 1 and "single sentence" in manifest.warnings[0]
    assert Manifest.load(tmp_path / "out") == manifest
    alone = dataclasses.replace(settings, next_sentence=False)
    options = {"overwrite": True}
    assert not create(tmp_path, text_of(20, sentences=1), tokenizer, alone, **options).warnings


@pytest.mark.parametrize(
    "options, message",
    [
        ({"processes": 0}, "processes"), ({"shards": 0}, "shards"),
        ({"shards": 21}, "20 documents"),
        ({"held_out": 1.0}, "held_out"), ({"held_out": -0.1}, "held_out"),
        ({"compression": "gzip"}, "GZIP"), ({"errors": "ignore"}, "errors"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(tmp_path, tokenizer, settings, text_of, options, message):
    with pytest.raises(ConfigError, match=message):
        create(tmp_path, text_of(20), tokenizer, settings, **options)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_a_used_folder_is_refused_and_overwritten_only_by_success(
    tmp_path, tokenizer, settings, text_of
):
    (tmp_path / "out").mkdir()  # an empty folder may be filled
    create(tmp_path, text_of(20), tokenizer, settings)
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match="not empty"):
        create(tmp_path, text_of(20), tokenizer, settings)
    with pytest.raises(CorpusError):
        create(tmp_path, "", tokenizer, settings, overwrite=True)
    assert contents(tmp_path / "out") == before
    create(tmp_path, text_of(20, seed=5), tokenizer, settings, overwrite=True)
    assert contents(tmp_path / "out") != before
    assert sorted(os.listdir(tmp_path)) == ["out", "text.txt"]


def test_overwriting_spares_what_is_not_pretraining_data(tmp_path, tokenizer, settings, text_of):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match=r"no manifest.json"):
        create(tmp_path, text_of(20), tokenizer, settings, overwrite=True)
    (tmp_path / "out" / "manifest.json").write_text("{}")
    (tmp_path / "out" / "text.txt").write_text(text_of(5))
    with pytest.raises(OutputError, match="holds texts"):
        create_pretraining_data(
            tmp_path / "out" / "text.txt", tokenizer, tmp_path / "out", settings, overwrite=True
        )
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json", "text.txt", "thesis.tex"]


def test_progress_reaches_its_totals(tmp_path, tokenizer, settings, text_of):
    seen = {}
    text = text_of(20)
    create(
        tmp_path, text, tokenizer, settings, shards=3,
        progress=lambda phase, done, total: seen.setdefault(phase, []).append((done, total)),
    )  # fmt: skip
    assert seen == {"tokenize": [(len(text), len(text))], "write": [(i, 3) for i in range(4)]}


def test_a_temporary_folder_without_room_is_not_taken_for_the_output(
    tmp_path, tokenizer, settings, text_of, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    with pytest.raises(
        OutputError, match=r"temporary file \(\$TMPDIR\) cannot be written: No such"
    ):
        create(tmp_path, text_of(5), tokenizer, settings, processes=2)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_an_order_is_drawn_once_a_pass_however_many_shards(
    tmp_path, tokenizer, settings, text_of, monkeypatch
):
    drawn = []

    def permutation(rng, count):
        drawn.append(count)
        return original(rng, count)

    original = shard_job.permutation
    monkeypatch.setattr(shard_job, "permutation", permutation)
    create(tmp_path, text_of(50), tokenizer, settings, shards=10)
    assert drawn[: settings.dupe_factor] == [50] * settings.dupe_factor
    assert len(drawn) == settings.dupe_factor + 10  # and one for the rows of each shard


def test_an_interrupt_leaves_nothing(tmp_path, tokenizer, settings, text_of):
    def interrupt(phase, done, total):
        if phase == "write" and done:
            raise KeyboardInterrupt

    for processes in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            create(
                tmp_path, text_of(20), tokenizer, settings,
                shards=8, processes=processes, progress=interrupt,
            )  # fmt: skip
        assert os.listdir(tmp_path) == ["text.txt"]
        assert multiprocessing.active_children() == []


def test_copies_of_documents_are_left_out(tmp_path, text_of, tokenizer, settings):
    """As if they had never been there; a copy may break its lines elsewhere."""
    documents = text_of(12).split("\n\n")
    (tmp_path / "once.txt").write_text("\n\n".join(documents))
    copies = [documents[3], documents[0].replace("\n", " ", 1), documents[3]]
    (tmp_path / "more.txt").write_text("\n\n".join([*documents, *copies]))
    made = {}
    for name, options in (("once", {}), ("more", {"deduplicate": True}), ("more", {})):
        place = tmp_path / f"{name}{len(made)}"
        manifest = create_pretraining_data(
            tmp_path / f"{name}.txt", tokenizer, place, settings, held_out=0.2, **options
        )
        shards = [path.read_bytes() for path in sorted(place.glob("*.tfrecord"))]
        made[len(made)] = manifest.duplicates, manifest.splits["train"].documents, shards
    assert made[1] == (3, *made[0][1:])
    assert made[2][0] == 0 and made[2][1] > made[0][1]
