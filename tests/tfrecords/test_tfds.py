"""Texts of tensorflow-datasets, with made-up rows: nothing is downloaded."""

import pytest

from keras_bert_ref.errors import InputError, OutputError
from tfrecords.corpus import corpus_bytes, corpus_files, read_sentences
from tfrecords.create import create_pretraining_data

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture
def mocked():
    """Returns a context in which every data set has these rows."""

    def mock(rows):
        def dataset(self, split, **_):
            from keras_bert_ref._tensorflow import tf

            signature = self.info.features.get_tensor_spec()
            return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=signature)

        return tfds.testing.mock_data(num_examples=len(rows), as_dataset_fn=dataset)

    return mock


def test_every_text_is_a_document(mocked):
    # As in a file, no mark but "\n" ends a line.
    texts = ["One.\n\n Two.\u2028Two. ", " \n ", "Thrée."]
    rows = [{"text": text.encode(), "label": 0} for text in texts]
    with mocked(rows):
        assert corpus_files("tfds:imdb_reviews") == ["tfds:imdb_reviews"]
        read = []
        sentences = list(read_sentences("tfds:imdb_reviews", progress=read.append))
        assert sum(read) == corpus_bytes("tfds:imdb_reviews")
    assert sentences == ["One.", "Two.\u2028Two.", "", "Thrée.", ""]


def test_a_data_set_becomes_shards(mocked, tmp_path, corpus, tokenizer, settings):
    """The same as a file of its texts."""
    documents = (corpus / "1.txt").read_text().split("\n\n")
    with mocked([{"text": document.encode(), "label": 1} for document in documents]):
        found = create_pretraining_data(
            "tfds:imdb_reviews", tokenizer, tmp_path / "found", settings
        )
    create_pretraining_data(corpus / "1.txt", tokenizer, tmp_path / "expected", settings)
    for path in (tmp_path / "expected").glob("*.tfrecord"):
        assert (tmp_path / "found" / path.name).read_bytes() == path.read_bytes()
    assert found.sources[0]["file"] == "tfds:imdb_reviews"


def test_the_place_is_looked_at_before_anything_is_downloaded(tmp_path, tokenizer, settings):
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(OutputError, match="not empty"):
        create_pretraining_data("tfds:nonsense", tokenizer, tmp_path, settings)


def test_what_has_no_text(mocked):
    with pytest.raises(InputError, match="tfds:nonsense: tensorflow-datasets has no such data set"):
        list(read_sentences("tfds:nonsense"))
    row = {"sentence1": b"a", "sentence2": b"b", "label": 0, "idx": 1}
    with mocked([row]), pytest.raises(InputError, match="has no 'text', which pretraining reads"):
        list(read_sentences("tfds:glue/mrpc"))
