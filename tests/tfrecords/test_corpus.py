import gzip
import os
import tracemalloc

import pytest

from keras_bert_ref.errors import ConfigError, CorpusError
from tfrecords.corpus import corpus_files, read_sentences


@pytest.fixture
def file(tmp_path):
    def write(data, name="text.txt"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


def test_a_blank_line_and_the_end_of_a_file_end_a_document(file):
    first = file(b"\n\n one \r\ntwo\n\n \t \nthree", "1.txt")
    second = file(gzip.compress("\ufefffour\nfünf\n\n".encode()), "2.txt.gz")
    empty = file(b"", "3.txt")
    sentences = list(read_sentences([first, second, empty]))
    assert sentences == ["one", "two", "", "three", "", "four", "fünf", ""]


def test_lines_end_at_newlines_only(file):
    path = file("a\x0bb\u2028c\x85d\x1ce\n".encode())
    assert list(read_sentences(path)) == ["a\x0bb\u2028c\x85d\x1ce", ""]


def test_globs_are_sorted_and_no_file_is_read_twice(file, tmp_path):
    for name in ("b.txt", "a.txt", "c.text", "x[1].txt"):
        file(b"x", name)
    (tmp_path / "d.txt").mkdir()
    names = corpus_files([tmp_path / "c.text", f"{tmp_path}/*.txt", tmp_path / "a.txt"])
    assert [os.path.basename(name) for name in names] == ["c.text", "a.txt", "b.txt", "x[1].txt"]
    assert corpus_files(tmp_path / "x[1].txt") == [str(tmp_path / "x[1].txt")]
    file(b"x", "d.txt/deep.txt")
    assert len(corpus_files(f"{tmp_path}/**/*.txt")) == 4


@pytest.mark.parametrize(
    "pattern, message",
    [("nothing.txt", "no such file"), ("*.nothing", "matches no file"), ("", "is a folder")],
)
def test_what_names_no_file_is_refused(tmp_path, pattern, message):
    with pytest.raises(CorpusError, match=message):
        corpus_files(tmp_path / pattern if pattern else tmp_path)
    with pytest.raises(CorpusError, match="No text file"):
        corpus_files([])


def test_progress_adds_up_to_the_bytes_on_disk(file):
    plain = file(b"some words\n" * 5000, "1.txt")
    packed = file(gzip.compress(os.urandom(60_000).hex().encode().replace(b"00", b"\n")), "2.gz")
    done = []
    list(read_sentences([plain, packed], progress=done.append))
    assert sum(done) == plain.stat().st_size + packed.stat().st_size
    assert len(done) > 4 and min(done) >= 0


@pytest.mark.parametrize("packed", [False, True])
def test_invalid_utf8_is_refused_with_line_and_byte_or_replaced(file, packed):
    data = b"fine\n\nM\xfcnchen\n"
    path = file(gzip.compress(data) if packed else data)
    with pytest.raises(CorpusError, match=r"text.txt, line 3: byte 7 \(0xfc\) is not UTF-8"):
        list(read_sentences(path))
    assert list(read_sentences(path, errors="replace")) == ["fine", "", "M\ufffdnchen", ""]


def test_nul_is_refused_with_line_and_byte_or_dropped(file):
    path = file(b"fine\nwor\0ds\n\0\n")
    with pytest.raises(CorpusError, match=r"line 2: NUL character at byte 8. Is this UTF-16"):
        list(read_sentences(path))
    assert list(read_sentences(path, errors="replace")) == ["fine", "words", ""]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
def test_utf16_is_recognised(file, encoding):
    with pytest.raises(CorpusError, match="UTF-16"):
        list(read_sentences(file("some words\n".encode(encoding))))


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_50_megabytes_is_refused_without_being_held(file, packed):
    data = b"fine\n" + b"x" * 50_000_000
    path = file(gzip.compress(data, 1) if packed else data)
    del data
    tracemalloc.start()
    with pytest.raises(CorpusError, match=r"line 2 \(from byte 5\) is longer than 1 MiB"):
        list(read_sentences(path, errors="replace"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_line_of_exactly_the_limit_is_read(file):
    path = file(b"y" * ((1 << 20) - 1) + b"\nz")
    assert [len(sentence) for sentence in read_sentences(path)] == [(1 << 20) - 1, 1, 0]


def test_a_gzip_file_cut_short_or_damaged_is_refused(file):
    whole = gzip.compress(os.urandom(20_000).hex().encode().replace(b"0", b"\n"))
    with pytest.raises(CorpusError, match="cut short: its gzip stream ends after line"):
        list(read_sentences(file(whole[:-3000])))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    with pytest.raises(CorpusError, match="damaged after line"):
        list(read_sentences(file(bytes(flipped))))


def test_a_file_that_cannot_be_read_is_named(file, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    path = file(b"x")
    monkeypatch.setattr("builtins.open", deny)
    with pytest.raises(CorpusError, match=r"text.txt cannot be read: Permission denied"):
        list(read_sentences(path))


def test_an_unknown_errors_setting_is_refused(file):
    with pytest.raises(ConfigError, match="ignore"):
        list(read_sentences(file(b"x"), errors="ignore"))
