"""`features` as a person uses it: every input and output, kills on the way, what goes wrong."""

import functools
import gc
import gzip
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
from checkpoint_models import make, tokenizer
from command_line import run_command
from shared_data import shared

from keras_bert_ref import BertConfig, BertEncoder, FeatureExtractor, WordPieceTokenizer
from keras_bert_ref.cli import features as command_module
from keras_bert_ref.cli import progress
from keras_bert_ref.features import extractor as extractor_module
from keras_bert_ref.features import writing

TEXTS = [f"ab c{'d' * (n % 5)} word{n % 40}" for n in range(40)]
PAIRS = [(text, f"e word{n % 7}") for n, text in enumerate(TEXTS)]
WORDS = [text.split() for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, and the same texts in files of every format."""
    folder = tmp_path_factory.mktemp("features")
    make("encoder").save_pretrained(folder / "model")

    def write(name, lines):
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    write("texts.txt", TEXTS)
    write("pairs.txt.gz", [" ||| ".join(pair) for pair in PAIRS])
    write("pairs.tsv", ["id\ta\tb", *(f"{n}\t{a}\t{b}" for n, (a, b) in enumerate(PAIRS))])
    write("texts.jsonl", [json.dumps({"text": text, "words": text.split()}) for text in TEXTS])
    write("words.conll", [line for words in WORDS for line in [*(f"{w} O" for w in words), ""]])
    return folder


@pytest.fixture(scope="module")
def loaded():
    """Loads each model with the same options once: a graph takes its time."""
    return functools.cache(FeatureExtractor)


@pytest.fixture
def command(monkeypatch, capsys, loaded):
    """Runs the command in this process; returns its exit code, output and errors."""
    monkeypatch.setattr(progress.console, "_width", 300, raising=False)
    monkeypatch.setattr(command_module, "_STEP", 150)  # about 7 texts

    def load(where, **options):
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return loaded(where, **options)

    monkeypatch.setattr(extractor_module, "FeatureExtractor", load)

    return functools.partial(run_command, monkeypatch, capsys, "features")


def read(path):
    """Returns the arrays, or lines, of a file."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return {k: v.asstr()[()] if k == "tokens" else v[()] for k, v in file.items()}
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()
        if "tokens" not in table:
            return {"features": np.array(table["features"], np.float32)}
        return {
            "features": np.array(list(itertools.chain(*table["features"])), np.float32),
            "offsets": np.cumsum([0, *map(len, table["features"])]),
            "tokens": np.array(list(itertools.chain(*table["tokens"]))),
        }
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("suffix", ["npz", "h5", "parquet", "jsonl"])
@pytest.mark.parametrize(
    ("name", "options", "values"),
    [
        ("texts.txt", (), TEXTS),
        ("pairs.txt.gz", (), PAIRS),
        ("pairs.tsv", ("--columns", "a,b"), PAIRS),
        ("pairs.tsv", ("--columns", "2,3", "--header"), PAIRS),
        ("texts.jsonl", ("--columns", "text"), TEXTS),
        ("words.conll", (), WORDS),
        ("words.parquet", ("--columns", "words"), WORDS),
    ],
)
def test_every_input_and_output(command, loaded, folder, tmp_path, name, options, values, suffix):
    if name == "words.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pyarrow.parquet.write_table(pyarrow.table({"words": WORDS}), folder / name)
    out = tmp_path / f"x.{suffix}"
    original = suffix == "jsonl"
    pooling = "pieces" if original else "last_piece" if values is WORDS else "mean"
    choice = ("--pooling", pooling) if values is WORDS else ()
    arguments = (folder / name, folder / "model", "--layers", "-1,0", "--out", out)
    code, printed, errors = command(*arguments, *options, *choice)
    assert (code, errors) == (0, "")
    assert printed.splitlines()[-1].startswith("40 rows: ")
    assert list(tmp_path.iterdir()) == [out]

    extractor = loaded(
        str(folder / "model"),
        layers=(-1, 0),
        combine="stack" if original else "concat",
        pooling=pooling,
    )
    found = read(out)
    if original:
        expected = extractor.extract(values, return_tokens=True)
        for row, (line, features) in enumerate(zip(found, expected, strict=True)):
            assert line["linex_index"] == row
            assert [piece["token"] for piece in line["features"]] == features.tokens
            layers = [piece["layers"] for piece in line["features"]]
            assert {tuple(state["index"] for state in states) for states in layers} == {(-1, 0)}
            states = [[state["values"] for state in states] for states in layers]
            np.testing.assert_allclose(states, features.values, atol=2e-6)
    elif pooling == "last_piece":
        expected = extractor.extract(values)
        assert np.diff(found["offsets"]).tolist() == list(map(len, expected))
        np.testing.assert_allclose(found["features"], np.concatenate(expected), atol=2e-6)
        assert found["tokens"].tolist() == [word for words in WORDS for word in words]
    else:
        np.testing.assert_allclose(found["features"], extractor.extract(values), atol=2e-6)


def test_in_one_step_it_is_extract_to_the_bit(command, loaded, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command_module, "_STEP", 1 << 18)
    arguments = (folder / "texts.txt", folder / "model", "--layers", "-1,0", "--out")
    assert command(*arguments, tmp_path / "x.npz")[0] == 0
    extractor = loaded(str(folder / "model"), layers=(-1, 0), combine="concat", pooling="mean")
    found = read(tmp_path / "x.npz")["features"]
    np.testing.assert_array_equal(found, extractor.extract(TEXTS))


def test_options_reach_the_extractor(command, folder, tmp_path, monkeypatch):
    given = {}

    def load(where, **options):
        given.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(extractor_module, "FeatureExtractor", load)
    code, *_ = command(
        *(folder / "texts.txt", folder / "model", "--out", tmp_path / "x.h5", "--layers", "all"),
        *("--combine", "sum", "--pooling", "max", "--no-specials", "--normalize"),
        *("--max-length", 9, "--overflow", "slide", "--stride", 4, "--tokens-per-batch", 64),
        *("--precision", "mixed_bfloat16"),
    )
    assert code == 130
    assert given == {
        **{"layers": "all", "combine": "sum", "pooling": "max", "specials": False},
        **{"normalize": True, "max_length": 9, "overflow": "slide", "stride": 4},
        **{"tokens_per_batch": 64, "dtype": "mixed_bfloat16"},
    }


def test_jsonl_is_as_the_original_writes_it(command, tmp_path):
    source = shared("expected/extract_features")
    (expected,) = (source / "output.jsonl").read_text().splitlines()
    tokens = [piece["token"] for piece in json.loads(expected)["features"]]
    sizes = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12}
    pieces = list(dict.fromkeys([*tokenizer().vocabulary[:31], *tokens]))
    encoder = BertEncoder(
        BertConfig(vocab_size=len(pieces), intermediate_size=8, max_position_embeddings=16, **sizes)
    )
    encoder.tokenizer = WordPieceTokenizer(pieces)
    encoder.save_pretrained(tmp_path / "model")
    out, layers = tmp_path / "x.jsonl", "-1,-2,-3,-4"
    code, *_ = command(source / "input.txt", tmp_path / "model", "--layers", layers, "--out", out)
    assert code == 0
    (line,) = out.read_text().splitlines()

    def without_numbers(line):
        return re.sub(r"-?\d+(\.\d{1,6}|(\.\d)?e-0\d)(?=[,\]])", "x", line)

    assert without_numbers(line) == without_numbers(expected)
    assert without_numbers(line).count("x, ") == 14 * 4 * 767


class Killed(BaseException):
    """Nothing of the program catches it."""


def kill(monkeypatch, place, name, at, when=lambda *_: True):
    """Lets the call number `at` of a function end the program instead."""
    usual, calls = getattr(place, name), []

    def call(*arguments, **options):
        if when(*arguments):
            calls.append(None)
            if len(calls) == at:
                raise Killed
        return usual(*arguments, **options)

    monkeypatch.setattr(place, name, call)


KILLS = {
    "in the first step": lambda m, out: kill(m, writing.FeatureFile, "add", 3),
    "between steps": lambda m, out: kill(m, writing.FeatureFile, "commit", 3),
    "in a step": lambda m, out: kill(m, writing.FeatureFile, "add", 20),
    "before the first note": lambda m, out: kill(m, writing, "replace_text", 1),
    "before a note": lambda m, out: kill(m, writing, "replace_text", 3),
    "while flushing": lambda m, out: kill(m, os, "fsync", 5),
    "before the end": lambda m, out: kill(m, writing.FeatureFile, "finish", 1),
    "at the end": lambda m, out: kill(m, os, "replace", 1, lambda _, to: to == out),
    "after the end": lambda m, out: kill(m, writing.shutil, "rmtree", 1),
}


@pytest.mark.parametrize(
    ("suffix", "pooling", "at"),
    [
        *(("npz", "pieces", at) for at in KILLS),
        *(("jsonl", "pieces", at) for at in KILLS),
        *(("h5", "mean", at) for at in ("in a step", "at the end")),
        *(("parquet", "pieces", at) for at in ("in a step", "at the end")),
    ],
)
def test_a_kill_loses_a_step_at_most(command, folder, tmp_path, monkeypatch, suffix, pooling, at):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    arguments = [folder / "texts.txt", folder / "model", "--layers", "-1,0", "--pooling", pooling]
    whole = tmp_path / f"whole.{suffix}"
    assert command(*arguments, "--out", whole)[0] == 0
    out = tmp_path / f"x.{suffix}"
    with monkeypatch.context() as patch:
        KILLS[at](patch, out)
        with pytest.raises(Killed):
            command(*arguments, "--out", out)
    part = tmp_path / f"{out.name}.part"
    assert out.exists() == (at == "after the end")
    note = part / "done.json"
    done = json.loads(note.read_bytes())["rows"] if note.exists() else 0
    for name in ("features", "offsets", "tokens", "lines", "done.json.part"):  # torn writes
        if (part / name).exists():
            with open(part / name, "ab") as file:
                file.write(b"torn")
    if at == "after the end":
        code, _, errors = command(*arguments, "--out", out)
        assert code == 1 and "exists: name another file, or allow --overwrite" in errors
        arguments.append("--overwrite")
    added, add = [], writing.FeatureFile.add
    monkeypatch.setattr(writing.FeatureFile, "add", lambda self, x: (added.append(x), add(self, x)))
    code, _, errors = command(*arguments, "--out", out)
    assert (code, errors) == (0, "")
    assert out.read_bytes() == whole.read_bytes()
    assert not part.exists()
    if (suffix, at) != ("jsonl", "after the end"):  # its lines are in place already
        assert len(added) == 40 - done
    expected = {"in the first step": 0, "before the first note": 0, "in a step": 16}
    assert done == expected.get(at, done)
    assert done > 0 or at in expected


def test_a_real_kill(command, folder, tmp_path):
    out = tmp_path / "x.npz"
    arguments = [folder / "texts.txt", folder / "model", "--out", out]
    program = (
        "import os, signal, sys\n"
        "from keras_bert_ref import cli\n"
        "from keras_bert_ref.cli import features\n"
        "from keras_bert_ref.features.writing import FeatureFile\n"
        "features._STEP, add, rows = 150, FeatureFile.add, []\n"
        "def kill(self, features):\n"
        "    rows.append(add(self, features))\n"
        "    if len(rows) == 25: os.kill(os.getpid(), signal.SIGKILL)\n"
        "FeatureFile.add = kill\n"
        f"sys.argv = ['keras-bert-ref', 'features', *{list(map(str, arguments))!r}]\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert json.loads((tmp_path / "x.npz.part" / "done.json").read_text())["rows"] > 10
    assert command(*arguments)[0] == 0
    assert command(*arguments[:-1], tmp_path / "whole.npz")[0] == 0
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_an_interrupt_says_how_to_go_on(command, folder, tmp_path, monkeypatch):
    arguments = (folder / "texts.txt", folder / "model", "--out", tmp_path / "x.h5")
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.Killed", KeyboardInterrupt)
        kill(patch, writing.FeatureFile, "add", 20)
        code, printed, _ = command(*arguments)
    assert code == 130
    assert re.search(r"1\d rows are kept: the same command goes on there", printed)
    code, printed, _ = command(*arguments)
    assert code == 0 and "40 rows: vectors of 128 in" in printed


def begin(command, monkeypatch, *arguments):
    """Runs the command until it is killed in its third step."""
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill(patch, writing.FeatureFile, "add", 20)
        command(*arguments)


def test_other_settings_are_refused(command, folder, tmp_path, monkeypatch):
    out = tmp_path / "x.npz"
    texts = tmp_path / "texts.txt"
    texts.write_bytes((folder / "texts.txt").read_bytes())
    begin(command, monkeypatch, texts, folder / "model", "--out", out)

    def refused(*arguments):
        code, _, errors = command(*arguments, "--out", out)
        assert code == 1 and not out.exists()
        return errors

    errors = refused(texts, folder / "model", "--pooling", "cls", "--no-specials")
    assert "pooling was 'mean' and is now 'cls'" in errors
    assert "specials was True and is now False" in errors
    make("encoder", seed=1).save_pretrained(tmp_path / "model")
    assert "model was" in refused(texts, tmp_path / "model")
    lines = TEXTS.copy()
    lines[3] = "changed"
    texts.write_text("\n".join(lines))
    assert "was begun with other texts" in refused(texts, folder / "model")
    texts.write_text("\n".join(TEXTS[:5]))
    assert "was begun with other texts" in refused(texts, folder / "model")
    (tmp_path / "x.npz.part" / "features").write_bytes(b"")
    assert "features has lost its end" in refused(folder / "texts.txt", folder / "model")
    (tmp_path / "x.npz.part" / "done.json").write_bytes(b"{}")
    assert "is damaged" in refused(folder / "texts.txt", folder / "model")


@pytest.mark.parametrize("change", ["texts", "settings", "nothing"])
def test_overwriting(command, folder, tmp_path, monkeypatch, change):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    arguments = [texts, folder / "model", "--out", tmp_path / "x.npz", "--overwrite"]
    (tmp_path / "x.npz").write_bytes(b"old")
    begin(command, monkeypatch, *arguments)
    assert (tmp_path / "x.npz").read_bytes() == b"old"
    if change == "texts":
        texts.write_text("\n".join(TEXTS[1:]))
    if change == "settings":
        arguments += ["--pooling", "first_piece"]
    assert command(*arguments)[0] == 0
    arguments[3] = tmp_path / "whole.npz"
    assert command(*arguments)[0] == 0
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_smaller_batch_is_no_other_setting(command, folder, tmp_path, monkeypatch):
    arguments = (folder / "texts.txt", folder / "model", "--out", tmp_path / "x.npz")
    begin(command, monkeypatch, *arguments)
    assert command(*arguments, "--tokens-per-batch", 64)[0] == 0


def test_a_bad_row_leaves_the_others(command, folder, tmp_path):
    texts, out = tmp_path / "x.jsonl", tmp_path / "x.npz"
    good = (folder / "texts.jsonl").read_text().splitlines()
    arguments = (texts, folder / "model", "--columns", "text", "--out", out)
    for bad, message in (
        ('{"txt": "a"}', "has no 'text', only txt"),
        ('{"text": null}', "text should be text and has None"),
        ('{"text": "a', "is no JSON"),
    ):
        texts.write_text("\n".join([*good[:30], bad, *good[31:]]))
        code, printed, errors = command(*arguments)
        assert code == 1 and not out.exists()
        assert f"{texts}, line 31: " in errors and message in errors
        assert "30 rows are kept" in printed
    texts.write_text("\n".join(good))
    assert command(*arguments)[0] == 0
    assert command(folder / "texts.txt", *arguments[1:4][:1], "--out", tmp_path / "y.npz")[0] == 0
    np.testing.assert_allclose(
        read(out)["features"], read(tmp_path / "y.npz")["features"], atol=2e-6
    )


def test_a_pair_that_does_not_fit_is_named(command, folder, tmp_path):
    texts = tmp_path / "x.txt"
    texts.write_text("a\n" * 20 + " ".join("abcdefghijklmno") + " ||| b c d\nx\n")
    arguments = (texts, folder / "model", "--out", tmp_path / "x.npz", "--overflow", "slide")
    code, printed, errors = command(*arguments)
    assert code == 2 and "20 rows are kept" in printed
    assert f"{texts}, line 21: the first text of a pair has 15 pieces" in errors


def test_truncated_texts_are_counted(command, folder, tmp_path):
    texts = tmp_path / "x.txt"
    texts.write_text(("a b\n" + "c " * 20 + "\n") * 25)
    code, printed, errors = command(texts, folder / "model", "--out", tmp_path / "x.npz")
    assert (code, errors) == (0, "")
    line = f"50 rows, 25 of them cut to 16 pieces: vectors of 128 in {tmp_path / 'x.npz'}"
    assert printed.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("code", "message", "arguments"),
    [
        (2, "precision 'half' is unknown", ("--precision", "half")),
        (2, "layers must be 'last4', 'all' or numbers", ("--layers", "first")),
        (2, "layer 6 is none of this encoder's", ("--layers", "6")),
        (2, "pooling 'min' is unknown", ("--pooling", "min")),
        (2, "must end in one of .npz", ("--out", "x.csv")),
        (2, "at most 0 to choose", ("--columns", "a")),
        (1, "is no JSON", ("--format", "jsonl", "--columns", "a")),
        (2, "leave pooling and combine out", ("--out", "x.jsonl", "--pooling", "mean")),
    ],
)
def test_wrong_usage(command, folder, tmp_path, code, message, arguments, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, _, errors = command(folder / "texts.txt", folder / "model", "--out", "x.npz", *arguments)
    assert (found, "Traceback" in errors) == (code, False)
    assert message in errors
    assert not list(tmp_path.iterdir())


def test_the_input_is_not_written_over(command, folder):
    texts = folder / "texts.jsonl"
    before = texts.read_bytes()
    code, _, errors = command(
        texts, folder / "model", "--columns", "text", "--out", texts, "--overwrite"
    )
    assert code == 1 and "is what is to be read" in errors
    assert texts.read_bytes() == before


def test_memory_is_flat(command, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command_module, "_STEP", 1 << 14)
    commit = writing.FeatureFile.commit

    def collect(self, *arguments):
        commit(self, *arguments)
        gc.collect()  # what is garbage is not held, but would come and go at random

    monkeypatch.setattr(writing.FeatureFile, "commit", collect)

    def peak(rows):
        with open(tmp_path / "x.txt", "w") as file:
            for row in range(rows):
                file.write(f"ab c{'d' * (row % 5)} word{row % 40}\n")
        tracemalloc.start()
        out = tmp_path / f"{rows}.npz"
        assert command(tmp_path / "x.txt", folder / "model", "--out", out)[0] == 0
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(200)  # what comes once: modules, and the graph
    gc.freeze()  # collecting is quick without what the other tests have left
    few, many = peak(1500), peak(6000)
    gc.unfreeze()
    assert (tmp_path / "6000.npz").stat().st_size > 3e6
    assert many - few < 3e5
