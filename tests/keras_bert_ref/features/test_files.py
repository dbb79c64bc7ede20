"""Texts out of files and features into them, without the command around."""

import gzip
import json
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
from checkpoint_models import make

from keras_bert_ref.errors import ConfigError, InputError, OutputError
from keras_bert_ref.features.combining import TEXT_POOLINGS
from keras_bert_ref.features.extractor import FeatureExtractor, TokenFeatures
from keras_bert_ref.features.reading import InputFile
from keras_bert_ref.features.writing import FeatureFile, json_line, spellings

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

CUT_OFF = gzip.compress(b"good\n" * 9, mtime=0)[:-9]  # the time would change the test's name


def rows(path, *arguments, **options):
    return [value for _, value in InputFile(path, *arguments, **options)]


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture(scope="module")
def model():
    return make("encoder")


@pytest.fixture(scope="module")
def extractor(model):
    return FeatureExtractor(model, layers=-1)


def test_text_is_divided_as_in_the_original(tmp_path):
    text = "\ufeffone\r\n a ||| b \n\na ||| b ||| c\nx |||\nlast\u2028line"
    assert rows(write(tmp_path / "x.txt", text)) == [
        "one",
        ("a", "b"),
        "",
        ("a ||| b", "c"),
        "x |||",
        "last\u2028line",
    ]
    assert rows(write(tmp_path / "x.txt", "")) == []


def test_tsv(tmp_path):
    path = write(tmp_path / "x.tsv", 'id\tfirst\tsecond\n1\t"a\tb \n\n2\t\tno"\r\n')
    assert rows(path, columns="first") == ['"a', ""]
    assert rows(path, columns=["second", "first"]) == [("b ", '"a'), ('no"', "")]
    assert rows(path, columns=3) == ["second", "b ", 'no"']
    assert rows(path, columns=["3"], header=True) == ["b ", 'no"']


def test_jsonl(tmp_path):
    path = write(tmp_path / "x.jsonl", '{"a": "é\\n", "b": "x", "c": ["one", "two"]}\n \n')
    assert rows(path, columns="a") == ["é\n"]
    assert rows(path, columns=["a", "b"]) == [("é\n", "x")]
    assert rows(path, columns="c") == [["one", "two"]]


def test_conll(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP\n# NN\n\n \nno\u00a0break\tNN\n-DOCSTART-\nend .\n"
    path = write(tmp_path / "x.conll", text)
    assert rows(path) == [["EU", "#"], ["no\u00a0break"], ["end"]]
    assert rows(path, columns=2) == [["NNP", "NN"], ["NN"], ["."]]


def test_parquet(tmp_path):
    columns = {"a": ["x", "y"] * 400, "b": ["", "z"] * 400, "c": [["u", "v"], []] * 400}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    assert rows(tmp_path / "x.parquet", columns="a") == columns["a"]
    assert rows(tmp_path / "x.parquet", columns=["b", "a"])[:2] == [("", "x"), ("z", "y")]
    assert rows(tmp_path / "x.parquet", columns="c") == columns["c"]


def test_gzip_and_position(tmp_path):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n", mtime=0))
    file = InputFile(path)
    assert [place for place, _ in file] == [f"{path}, line 1", f"{path}, line 2"]
    assert file.position == file.size
    assert rows(path.rename(tmp_path / "x"), "text") == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("x.txt", b"good\nb\xffd\n", (), r"x\.txt, line 2: its byte 2 is no UTF-8"),
        ("x.txt", "text".encode("utf-16"), (), r"line 1: its byte 1 is no UTF-8"),
        ("x.txt.gz", CUT_OFF, (), r"x\.txt\.gz is damaged or cut off"),
        ("x.tsv", "a\tb\nc\n", 2, r"line 2: has 1 columns, and column 2 is wanted"),
        ("x.jsonl", '{"a": "x"}\n{"b": "x"}\n', "a", r"line 2: has no 'a', only b"),
        ("x.jsonl", '{"a": "x"}\n{"a": null}\n', "a", r"line 2: a should be text and has None"),
        ("x.jsonl", '{"a": "x"}\n{"a": ["b", 3]}\n', "a", r"line 2: a should be text and has 3"),
        ("x.jsonl", '{"a": "x"}\n{"a": "y"\n', "a", r"line 2: is no JSON: "),
        ("x.jsonl", '{"a": "x"}\n["a"]\n', "a", r"line 2: is no JSON object"),
        ("x.jsonl", '{"a": "x"}\n' + "[" * 99999, "a", r"line 2: is no JSON: "),
        ("x.conll", "a b\nc\n", 2, r"line 2: has 1 columns, and column 2 is wanted"),
        ("x.parquet", b"PAR1 no", "a", r"x\.parquet is damaged: "),
    ],
)
def test_a_bad_row_is_named(tmp_path, name, content, columns, message):
    with pytest.raises(InputError, match=message):
        rows(write(tmp_path / name, content), columns=columns)


def test_what_is_no_row_is_named(tmp_path):
    table = pyarrow.table({"a": ["x", None]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"row 1 \(from 0\): a should be text and has None"):
        rows(tmp_path / "x.parquet", columns="a")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        InputFile(tmp_path / "none.txt")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        InputFile(tmp_path, "text")


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("x.tsv", (), r"say which of .*x\.tsv to read: 1 \('{\"a\": \"x\"}'\)"),
        ("x.tsv", "a", "has no 'a', only {"),
        ("x.tsv", "0", "counted from 1"),
        ("x.conll", "a", "counted from 1"),
        ("x.conll", [1, 2], "at most 1 to choose"),
        ("x.txt", 1, "at most 0 to choose"),
        ("x.jsonl", (), r"say which of .*x\.jsonl to read: a"),
        ("x.jsonl", "abc", "at most 2 to choose"),
        ("x.doc", (), r"the name of .*x\.doc does not tell its format"),
    ],
)
def test_columns_that_do_not_fit(tmp_path, name, columns, message):
    path = write(tmp_path / name, '{"a": "x"}\n')
    with pytest.raises(ConfigError, match=message):
        InputFile(path, columns=list(columns) if columns == "abc" else columns)


def test_parquet_without_pyarrow(tmp_path, monkeypatch, model):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = r"pip install 'keras-bert-ref\[parquet\]'"
    with pytest.raises(ConfigError, match=message):
        InputFile(write(tmp_path / "x.parquet", "x"), columns="a")
    with pytest.raises(ConfigError, match=message):
        FeatureFile(tmp_path / "y.parquet", FeatureExtractor(model))
    assert not list(tmp_path.glob("y*"))


def test_decimals_are_those_of_the_original():
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.normal(size=20000),
            rng.normal(size=20000) * 10.0 ** rng.integers(-9, 9, 20000),
            np.ldexp(rng.integers(-(2**20), 2**20, 20000), -rng.integers(6, 9, 20000)),  # ties
            [0.0, -0.0, -1e-9, 3e38, 1e-40],
        ]
    ).astype(np.float32)
    features = TokenFeatures(values.reshape(1, 1, -1), ["é"], [(0, 1)], [0])
    expected = {
        "linex_index": 7,
        "features": [
            {
                "token": "é",
                "layers": [{"index": -2, "values": [round(float(x), 6) for x in values]}],
            }
        ],
    }
    assert json_line(7, features, [-2]) == json.dumps(expected) + "\n"


@pytest.mark.parametrize("specials", [True, False])
@pytest.mark.parametrize("pooling", ["pieces", "first_piece", "mean_piece"])
def test_each_vector_has_a_spelling(extractor, pooling, specials):
    extractor.pooling, extractor.specials = pooling, specials
    texts = ["ab word1c d", ("ab c", "ab"), ["ab", "", "cd"], "", "abcdefghijklmnopqr st"]
    with pytest.warns(UserWarning, match="were cut"):
        found = extractor.extract(texts, return_tokens=True)
    spelled = [spellings(features) for features in found]
    assert [len(words) for words in spelled] == [len(features.values) for features in found]
    if pooling != "pieces":
        expected = [["ab", "word1c", "d"], ["ab", "c", "ab"], ["ab", "[UNK]", "cd"], []]
        assert spelled == [*expected, ["abcdefghijklmn"]]
    elif not specials:
        assert spelled[1] == ["a", "##b", "c", "a", "##b"]
    else:
        assert spelled[1] == ["[CLS]", "a", "##b", "c", "[SEP]", "a", "##b", "[SEP]"]


# FORMATS


def read(path):
    """Returns what a file of features holds, whatever its format, as arrays of one text each."""
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        features = [np.array(row, np.float32) for row in table["features"].to_pylist()]
        return features, table["tokens"].to_pylist() if "tokens" in table.schema.names else None
    if path.suffix == ".npz":
        file = np.load(path)
    else:
        with h5py.File(path) as opened:
            file = {name: opened[name][()] for name in opened}
            if "tokens" in file:
                file["tokens"] = opened["tokens"].asstr()[()]
    assert file["features"].dtype == np.float32
    if "offsets" not in file:
        return list(file["features"]), None
    assert file["offsets"].dtype == np.int64
    assert file["offsets"][0] == 0 and file["offsets"][-1] == len(file["features"])
    assert len(file["tokens"]) == len(file["features"])
    inner = file["offsets"][1:-1]
    tokens = [part.tolist() for part in np.split(file["tokens"], inner)]
    return np.split(file["features"], inner), tokens


def random_features(extractor, rows, seed=0):
    """Returns as many features as if they had been computed, of up to 5 pieces each."""
    rng = np.random.default_rng(seed)
    size = extractor.size if isinstance(extractor.size, tuple) else (extractor.size,)
    if extractor.pooling in TEXT_POOLINGS:
        return list(rng.normal(size=(rows, *size)).astype(np.float32))
    found = []
    for count in rng.integers(0, 6, rows):
        tokens = ["".join(rng.choice(["ä", "b", "##", "字"], n)) for n in range(1, count + 1)]
        values = rng.normal(size=(count, *size)).astype(np.float32)
        found.append(TokenFeatures(values, tokens, [(0, 1)] * count, list(range(count))))
    return found


def save(out, extractor, found, **options):
    with FeatureFile(out, extractor, **options) as file:
        for features in found:
            file.add(features)
        file.commit(["text"] * len(found), 0)
        file.finish()
    assert sorted(out.parent.glob(f"{out.name}*")) == [out]


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".hdf5", ".parquet"])
@pytest.mark.parametrize(
    ("pooling", "combine", "rows"),
    [
        ("mean", "concat", 300),
        ("mean_max", "stack", 300),
        ("pooler", "stack", 300),
        ("pieces", "stack", 300),
        ("last_piece", "sum", 5000),
    ],
)
def test_what_is_written_is_read(model, tmp_path, monkeypatch, suffix, pooling, combine, rows):
    monkeypatch.setattr("keras_bert_ref.features.formats._BLOCK", 1 << 12)  # 8 or more vectors
    extractor = FeatureExtractor(model, layers=(0, -1), combine=combine, pooling=pooling)
    out, found = tmp_path / f"x{suffix}", random_features(extractor, rows)
    save(out, extractor, found)
    features, tokens = read(out)
    assert len(features) == len(found)
    if tokens is not None:
        assert tokens == [one.tokens for one in found]
        found = [one.values for one in found]
    shapes = [one.shape for one in found]
    if suffix == ".parquet":  # nested lists tell nothing about empty arrays
        shapes = [one.shape if one.size else (0,) for one in found]
    assert [one.shape for one in features] == shapes
    assert np.array_equal(*(np.concatenate([one.ravel() for one in x]) for x in (features, found)))


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".parquet", ".jsonl"])
@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_anything(model, tmp_path, suffix, rows):
    extractor = FeatureExtractor(model, combine="stack", pooling="pieces", specials=False)
    (nothing,) = extractor.extract([""], return_tokens=True)
    save(tmp_path / f"x{suffix}", extractor, [nothing] * rows)
    if suffix == ".jsonl":
        lines = (tmp_path / "x.jsonl").read_text().splitlines()
        assert lines == ['{"linex_index": 0, "features": []}'] * rows
    elif rows or suffix == ".parquet":  # np.split makes one part of no rows
        features, tokens = read(tmp_path / f"x{suffix}")
        assert ([len(x) for x in features], tokens) == ([0] * rows, [[]] * rows)


@pytest.mark.parametrize(
    ("suffix", "steps"), [(".npz", 50), (".h5", 50), (".parquet", 50), (".jsonl", 10)]
)
def test_memory_is_flat(model, tmp_path, monkeypatch, suffix, steps):
    monkeypatch.setattr("keras_bert_ref.features.formats._BLOCK", 1 << 17)
    extractor = FeatureExtractor(model, combine="stack", pooling="pieces")
    found = random_features(extractor, 100)

    def peak(steps):
        """Returns the most memory in use, of Python and NumPy, and of Arrow until now."""
        tracemalloc.start()
        with FeatureFile(tmp_path / f"{steps}{suffix}", extractor) as file:
            for _ in range(steps):
                for features in found:
                    file.add(features)
                file.commit(["text"] * len(found), 0)
            file.finish()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, pyarrow.default_memory_pool().max_memory()

    few, few_in_arrow = peak(steps // 5)
    many, many_in_arrow = peak(steps)
    assert (tmp_path / f"{steps}{suffix}").stat().st_size > 3e6
    assert many - few < 2e5
    assert many_in_arrow - few_in_arrow < 2e5


def test_only_pieces_go_into_jsonl(model, tmp_path):
    with pytest.raises(ConfigError, match="leave pooling and combine out"):
        FeatureFile(tmp_path / "x.jsonl", FeatureExtractor(model))
    with pytest.raises(ConfigError, match=r"must end in one of \.npz"):
        FeatureFile(tmp_path / "x.csv", FeatureExtractor(model))
    assert not list(tmp_path.iterdir())


def test_two_do_not_write_one_file(model, tmp_path):
    extractor = FeatureExtractor(model)
    message = "is being written by another process"
    with FeatureFile(tmp_path / "x.npz", extractor), pytest.raises(OutputError, match=message):
        FeatureFile(tmp_path / "x.npz", extractor)
    save(tmp_path / "x.npz", extractor, [])


def test_folders_of_others_are_left_alone(model, tmp_path):
    (tmp_path / "x.npz.part").mkdir()
    write(tmp_path / "x.npz.part" / "thesis.tex", "x")
    with pytest.raises(OutputError, match="is none of this command's"):
        FeatureFile(tmp_path / "x.npz", FeatureExtractor(model), overwrite=True)
    assert (tmp_path / "x.npz.part" / "thesis.tex").exists()
