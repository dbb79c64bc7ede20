"""`BertFeaturizer` as scikit-learn and its users take it."""

import pickle
import sqlite3
import threading

import joblib
import numpy as np
import pandas as pd
import pytest
from checkpoint_models import make
from encoder_rows import count_encoder_rows
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from keras_bert_ref import BertFeaturizer, FeatureExtractor
from keras_bert_ref.errors import ConfigError, InputError, OutputError
from keras_bert_ref.features.cache import FeatureCache

TEXTS = [f"{a} word{n} {b}" for n in range(10) for a, b in (("x", "y z"), ("a b", "c"))]
LABELS = np.array([0, 1] * 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("featurizer") / "model"
    make("encoder").save_pretrained(place)
    return place


@pytest.fixture
def passes(monkeypatch):
    return count_encoder_rows(monkeypatch)


def test_it_gives_the_extractors_features(folder, tmp_path):
    expected = FeatureExtractor(folder).extract(TEXTS)
    np.testing.assert_allclose(BertFeaturizer(folder).fit_transform(TEXTS), expected, atol=1e-6)
    for options in (
        {},
        {"layers": (0, -1), "combine": "sum", "pooling": "mean_max", "specials": False},
        {"layers": "all", "pooling": "max", "normalize": True},
        {"layers": 2, "pooling": "cls"},
        {"pooling": "pooler"},
    ):
        plain = BertFeaturizer(folder, **options).transform(TEXTS)
        for _ in range(2):
            kept = BertFeaturizer(folder, **options, cache=tmp_path / "cache").transform(TEXTS)
            np.testing.assert_allclose(kept, plain, atol=1e-5)
        assert kept.dtype == np.float32
        assert len(BertFeaturizer(folder, **options).get_feature_names_out()) == kept.shape[1]


def test_it_is_a_well_behaved_estimator(folder, tmp_path):
    featurizer = BertFeaturizer(folder, layers=(-1,), pooling="cls")
    assert clone(featurizer).get_params() == featurizer.get_params()
    assert featurizer.set_params(layers=[0, 1]).layers == [0, 1]
    assert "layers=[0, 1]" in repr(featurizer)
    expected = featurizer.transform(TEXTS)
    data = pickle.dumps(featurizer)
    assert len(data) < 1000  # no model in it
    np.testing.assert_array_equal(pickle.loads(data).transform(TEXTS), expected)
    joblib.dump(featurizer, tmp_path / "x.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "x.joblib").transform(TEXTS), expected)
    tags = get_tags(featurizer)
    assert tags.input_tags.string and not tags.requires_fit
    frame = featurizer.set_output(transform="pandas").transform(
        pd.Series(TEXTS, index=range(5, 25))
    )
    assert list(frame.columns[:2]) == ["bert0", "bert1"]
    np.testing.assert_array_equal(frame.to_numpy(), expected)


@pytest.mark.parametrize(
    "rows",
    [
        list,
        tuple,
        np.array,
        lambda texts: np.array(texts, dtype=object),
        lambda texts: np.array(texts)[:, None],
        pd.Series,
        lambda texts: pd.DataFrame({"text": texts}),
        iter,
    ],
)
def test_texts_may_come_in_any_container(folder, rows):
    featurizer = BertFeaturizer(folder, layers=-1)
    np.testing.assert_array_equal(featurizer.transform(rows(TEXTS)), featurizer.transform(TEXTS))


def test_pairs(folder):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    featurizer = BertFeaturizer(folder, layers=-1)
    expected = FeatureExtractor(folder, layers=-1).extract(pairs)
    for table in (pairs, np.array(pairs), pd.DataFrame(pairs), pd.DataFrame(pairs, dtype=object)):
        np.testing.assert_allclose(featurizer.transform(table), expected, atol=1e-6)
    with pytest.raises(InputError, match="X has 3 columns"):
        featurizer.transform(np.array([["a", "b", "c"]]))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, 3])
def test_a_row_without_text_is_named(folder, missing):
    column = pd.Series(["a", missing, "b"], dtype=object)
    with pytest.raises(InputError, match="row 1 is "):
        BertFeaturizer(folder).transform(column)


def test_pipelines_and_columns(folder):
    frame = pd.DataFrame({"text": TEXTS, "other": TEXTS[::-1], "number": np.arange(20.0)})
    columns = ColumnTransformer(
        [
            ("one", BertFeaturizer(folder, layers=-1), "text"),
            ("pair", BertFeaturizer(folder, layers=-1, pooling="cls"), ["text", "other"]),
            ("number", StandardScaler(), ["number"]),
        ]
    )
    pipeline = make_pipeline(columns, LogisticRegression())
    assert pipeline.fit(frame, LABELS).score(frame, LABELS) > 0.9
    assert len(columns.get_feature_names_out()) == 32 + 32 + 1
    scores = cross_val_score(
        make_pipeline(BertFeaturizer(folder), LogisticRegression()), TEXTS, LABELS, cv=4
    )
    assert scores.shape == (4,)


def test_a_grid_search_reads_each_text_once(folder, tmp_path, passes):
    pipeline = make_pipeline(BertFeaturizer(folder, cache=tmp_path), LogisticRegression())
    grid = {
        "bertfeaturizer__layers": [(-1,), "last4", 0],
        "bertfeaturizer__combine": ["concat", "sum"],
        "bertfeaturizer__pooling": ["mean", "max", "cls"],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit([*TEXTS, TEXTS[0]], [*LABELS, 0])
    assert sum(passes) == len(set(TEXTS))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_processes_share_a_cache(folder, tmp_path):
    pipeline = make_pipeline(BertFeaturizer(folder, cache=tmp_path), LogisticRegression())
    search = GridSearchCV(pipeline, {"bertfeaturizer__layers": [-1, 0]}, cv=2, n_jobs=2)
    search.fit(TEXTS, LABELS)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    with sqlite3.connect(FeatureCache(tmp_path).path) as connection:
        assert connection.execute("SELECT count(*) FROM features").fetchone() == (20,)


def test_another_model_or_reading_has_entries_of_its_own(folder, tmp_path, passes):
    cache = tmp_path / "cache"
    first = BertFeaturizer(folder, layers=-1, cache=cache).transform(TEXTS)
    make("encoder", seed=1).save_pretrained(tmp_path / "other")
    other = BertFeaturizer(tmp_path / "other", layers=-1, cache=cache).transform(TEXTS)
    assert not np.allclose(first, other)
    BertFeaturizer(folder, layers=-1, cache=cache, max_length=8).transform(TEXTS)
    assert sum(passes) == 60
    # A copy of the model is the same model; one that has changed in its place is not.
    make("encoder").save_pretrained(tmp_path / "copy", format="tf1")
    again = BertFeaturizer(tmp_path / "copy", layers=-1, cache=cache).transform(TEXTS)
    np.testing.assert_array_equal(again, first)
    assert sum(passes) == 60
    make("encoder", seed=2).save_pretrained(tmp_path / "copy", format="tf1", overwrite=True)
    changed = BertFeaturizer(tmp_path / "copy", layers=-1, cache=cache).transform(TEXTS)
    assert not np.allclose(changed, first)


def test_what_a_killed_writer_left_is_not_read(folder, tmp_path):
    cache = FeatureCache(tmp_path)
    cache.put({b"whole": {"mean": np.ones((2, 3), np.float32)}})
    writer = sqlite3.connect(cache.path)
    writer.execute("INSERT INTO features VALUES (?, ?)", (b"half", b"mean:2,3\n"))
    assert set(cache.get([b"whole", b"half"])) == {b"whole"}
    writer.close()  # without a commit, as a kill does
    assert set(FeatureCache(tmp_path).get([b"whole", b"half"])) == {b"whole"}


def test_many_threads_write_one_cache(tmp_path):
    value = {"mean": np.arange(6, dtype=np.float32).reshape(2, 3), "pooler": np.ones(3, np.float32)}
    errors = []

    def write(number):
        try:
            for n in range(20):
                FeatureCache(tmp_path).put({f"{number} {n}".encode(): value, b"same": value})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = FeatureCache(tmp_path).get([b"same", *(f"{n} 19".encode() for n in range(8))])
    assert len(found) == 9
    for arrays in found.values():
        for name, array in value.items():
            np.testing.assert_array_equal(arrays[name], array)


def test_what_sqlite_does_not_wait_for_is_tried_again(tmp_path):
    tries = []

    def work(connection):
        tries.append(connection)
        if len(tries) < 3:
            # Another connection reads, so that the switch is refused at once.
            other = sqlite3.connect(cache.path)
            other.execute("BEGIN")
            other.execute("SELECT * FROM features").fetchall()
            try:
                connection.execute("PRAGMA journal_mode=DELETE")
            finally:
                other.close()
        return "done"

    cache = FeatureCache(tmp_path)
    assert cache._transaction(work) == "done"
    assert len(tries) == 3


def test_a_damaged_cache_is_named(folder, tmp_path):
    (tmp_path / "features-1.sqlite").write_text("this is no database, however long it goes on")
    with pytest.raises(OutputError, match=r"features-1\.sqlite cannot be used: .*: delete it"):
        BertFeaturizer(folder, cache=tmp_path).transform(TEXTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 9}, "layer 9 is none"),
        ({"pooling": "pieces"}, "pooling 'pieces' is unknown"),
        ({"combine": "stack"}, "gives no vector"),
        ({"combine": "product"}, "combine 'product' is unknown"),
    ],
)
def test_options_are_checked_when_it_is_fitted(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        BertFeaturizer(folder, **options).fit(TEXTS)
    assert BertFeaturizer(folder, **options).get_params()  # but not before
