"""The same shards from an Apache Beam pipeline as from this machine's processes."""

import logging
import sys
import time

import numpy as np
import pytest

from keras_bert_ref.errors import (
    BertError,
    BertWarning,
    ConfigError,
    CorpusError,
    InputError,
    OutputError,
)
from keras_bert_ref.tokenization import WordPieceTokenizer
from keras_bert_ref.vocabulary import SPECIAL_PIECES
from tfrecords.beam import BeamRunner, _Run, quietly
from tfrecords.create import create_pretraining_data
from tfrecords.store import TokenizeFile, build_store, join_stores

pytest.importorskip("apache_beam")


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def square(number):
    return number**2


def fail(number):
    raise CorpusError(f"text {number} is no text")


def break_down(number):
    raise ZeroDivisionError("a fault of ours")


def test_results_come_in_order(tmp_path):
    done = []
    assert BeamRunner()(square, range(7), tmp_path, done.append) == [n**2 for n in range(7)]
    assert sorted(done) == list(range(7))
    assert not list(tmp_path.iterdir())


def slow_square(number):
    time.sleep(0.3)
    return number**2


def test_what_is_done_is_told_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr("tfrecords.beam._SECONDS_BETWEEN_LOOKS", 0.05)
    told = []
    BeamRunner()(slow_square, range(4), tmp_path, lambda number: told.append(time.monotonic()))
    assert told[-1] - told[0] > 0.4


def test_errors_of_workers_are_raised_here(tmp_path):
    with pytest.raises(CorpusError, match="text 3 is no text"):
        BeamRunner()(fail, [3], tmp_path)
    with pytest.raises(BertError, match=r"Beam pipeline failed on FnApiRunner.*a fault of ours"):
        BeamRunner()(break_down, [3], tmp_path)


class Elsewhere:
    """Stands for a pipeline that runs on other machines."""

    def __init__(self, **_):
        self.result, self.state, self.cancelled = self, "DONE", False
        self.told = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __or__(self, other):
        return self

    def wait_until_finish(self):
        if self.told:
            raise self.told

    def cancel(self):
        if self.state == "DONE":
            raise RuntimeError("the job server is gone")
        self.cancelled = True


@pytest.fixture
def elsewhere(monkeypatch):
    import apache_beam

    pipeline = Elsewhere()
    monkeypatch.setattr(apache_beam, "Pipeline", lambda **_: pipeline)
    monkeypatch.setattr(apache_beam, "Create", lambda items: pipeline)
    return pipeline


def test_a_pipeline_elsewhere_ends_with_its_driver(elsewhere):
    runner = BeamRunner(["--runner=FlinkRunner"])
    assert runner.run(lambda _: None) is elsewhere
    elsewhere.state = "CANCELLED"
    with pytest.raises(BertError, match="on FlinkRunner ended, but is CANCELLED"):
        runner.run(lambda _: None)
    assert not elsewhere.cancelled
    elsewhere.told = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        runner.run(lambda _: None)
    assert elsewhere.cancelled
    elsewhere.state = "DONE"
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(BertWarning, match="could not be cancelled, and may go on.* on FlinkRunner"),
    ):
        runner.run(lambda _: None)


def test_workers_that_do_not_see_the_folder(elsewhere, tmp_path):
    with pytest.raises(OutputError, match="does not hold what the workers wrote"):
        BeamRunner()(square, range(2), tmp_path)
    with pytest.raises(OutputError, match=f"{tmp_path} does not hold"):
        _Run(str(tmp_path / "results" / "task.pickle"), str(tmp_path / "results"))((0, 1))


OURS = "keras_bert_ref.errors.InputError: a.txt, line 3: bad"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (f"Traceback:\n  line 1\n{OURS} [while running 'read']", InputError, "a.txt, line 3: bad"),
        (
            f"{OURS} [while running 'read']\n\tat org.Foo(F.java:1)",
            InputError,
            "a.txt, line 3: bad",
        ),
        (f"RuntimeError: {OURS}", InputError, "a.txt, line 3: bad"),
        (
            f"{OURS}\nDuring handling of it another:\nZeroDivisionError: the real one",
            BertError,
            "the Beam pipeline failed on FnApiRunner: ZeroDivisionError: the real one",
        ),
        (
            "Caused by: java.lang.OutOfMemoryError: heap\n\tat org.Foo(F.java:1)",
            BertError,
            "failed on FnApiRunner: Caused by: java.lang.OutOfMemoryError: heap",
        ),
        ("keras_bert_ref.errors.NewError: of a later version", BertError, "of a later version"),
        ("keras_bert_ref.errors.InputWarning: a word", BertError, "a word"),
        ("", BertError, "RuntimeError"),
    ],
)
def test_what_runners_tell_of_an_error(elsewhere, text, kind, message):
    elsewhere.told = RuntimeError(text)
    with pytest.raises(BertError) as raised:
        BeamRunner().run(lambda _: None)
    assert type(raised.value) is kind
    assert message in str(raised.value)
    assert "while running" not in str(raised.value)


def test_only_what_beam_says_is_kept_quiet_and_only_meanwhile(caplog):
    with quietly():
        logging.warning("a part is not there")
        logging.getLogger("apache_beam.io").warning("nor is this")
        logging.getLogger("mine").warning("a thing of mine")
    logging.getLogger("apache_beam.io").warning("a thing of Beam's")
    assert caplog.messages == ["a thing of mine", "a thing of Beam's"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_shards_are_the_same(corpus, tmp_path, tokenizer, settings, processes):
    options = {"shards": 3, "held_out": 0.1, "seed": 5}
    create_pretraining_data(corpus / "*.txt", tokenizer, tmp_path / "local", settings, **options)
    told = []
    create_pretraining_data(
        corpus / "*.txt",
        tokenizer,
        tmp_path / "beam",
        settings,
        **options,
        runner=BeamRunner(processes=processes),
        progress=lambda *what: told.append(what),
    )
    assert files_of(tmp_path / "beam") == files_of(tmp_path / "local")
    assert [n for phase, n, _ in told if phase == "write"] == [0, 1, 2, 3, 4]
    assert next(done == total for phase, done, total in reversed(told) if phase == "tokenize")


def test_joined_stores_are_the_store_of_all(corpus, tmp_path, tokenizer):
    from tfrecords.corpus import read_sentences

    (corpus / "nothing").write_text("\n\n")
    files = [corpus / "1.txt", corpus / "nothing", corpus / "2.txt"]
    for name in ("whole", "joined"):
        (tmp_path / name).mkdir()
    counts = build_store(tmp_path / "whole", read_sentences(files), tokenizer)
    tokenize = TokenizeFile(tmp_path / "joined", tokenizer, None, "strict")
    parts = [tokenize((number, str(file))) for number, file in enumerate(files)]
    parts[1] = tokenize((1, str(files[1])))  # a pipeline may do a thing twice
    assert join_stores(tmp_path / "joined", parts) == counts
    assert files_of(tmp_path / "joined") == files_of(tmp_path / "whole")
    (corpus / "nothing").unlink()
    assert np.fromfile(tmp_path / "joined" / "sentences.int64", np.int64)[-1] == counts.tokens


def test_options_that_beam_cannot_read():
    with pytest.raises(ConfigError, match=r"cannot read its options.*direct_num_workers"):
        BeamRunner(["--direct_num_workers=x"])
    with pytest.raises(ConfigError, match="a runner that is named has options of its own"):
        BeamRunner(["--runner=FlinkRunner"], processes=2)


def test_what_a_killed_worker_left_is_cleared(tmp_path):
    def leaving(task, items, folder, report):
        (folder / ".train-00000.1234.partial").write_bytes(b"half")
        return [task(item) for item in items]

    (tmp_path / "text.txt").write_text("a b .\n\nb a .\n\na a .\n")
    create_pretraining_data(
        tmp_path / "text.txt",
        WordPieceTokenizer([*SPECIAL_PIECES, "a", "b", "."]),
        tmp_path / "out",
        runner=leaving,
    )
    assert not list((tmp_path / "out").glob(".*"))


def test_what_beam_cannot_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.setitem(sys.modules, "apache_beam.options.pipeline_options", None)
    with pytest.raises(ConfigError, match=r"pip install 'keras-bert-ref\[beam\]'"):
        BeamRunner()
