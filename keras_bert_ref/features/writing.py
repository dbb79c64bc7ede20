"""Features into a file, in steps that outlive a kill, and whole or not at all."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import ConfigError, OutputError
from keras_bert_ref.features.combining import PIECE_POOLINGS
from keras_bert_ref.features.formats import make_hdf5, make_npz, make_parquet
from keras_bert_ref.features.reading import require_pyarrow
from keras_bert_ref.files import replace_text, writing

SUFFIXES = (".npz", ".parquet", ".h5", ".hdf5", ".jsonl")
_NAMES = ("features", "offsets", "tokens", "lines", "done.json.part")


@dataclasses.dataclass
class Done:
    """What has been committed: the sizes of files, in bytes, and what they hold.

    Attributes:
        rows: how many texts are done, and `digest` of which.
        vectors: how many vectors have been computed for them.
        truncated: how many of them were cut.
    """

    settings: dict
    sizes: dict
    rows: int = 0
    vectors: int = 0
    truncated: int = 0
    digest: str | None = None


class FeatureFile:
    """The features of many texts, on their way to a file.

    What has been computed is kept in the folder `<out>.part`, in files which only grow, beside a
    note of their sizes at the last commit: anything beyond was left by a kill, and is cut off. HDF5
    and Parquet could not be gone on with safely themselves.

    The formats, for N texts and vectors of D numbers, float32:

    - .npz, .h5, .hdf5: `features` [N, D]; for pieces and words `features` [total, D], those of text
      i from `offsets[i]` to `offsets[i + 1]`, and `tokens` [total].
    - .parquet: a row a text, `features` [D]; for pieces and words lists `features` and `tokens`.
    - .jsonl: the original's (extract_features.py): all pieces, each with its layers.

    Args:
        out: the file.
        extractor: a `FeatureExtractor`; for JSONL with pooling="pieces" and combine="stack".
        layers: what JSONL calls the layers; None for their numbers.
        overwrite: whether an older file, or what was begun with other settings, is replaced.

    Attributes:
        done: see `Done`.
        for_pieces: whether texts have a vector for each piece or word.
        size: the shape of a vector, [D], or [k, H] with combine="stack".

    Raises:
        ConfigError: the format cannot hold such features.
        OutputError: the place is taken, or cannot be written; or something was begun there with
            other settings, which are named.
    """

    def __init__(self, out, extractor, *, layers=None, overwrite=False):
        check_output(out, overwrite)
        self.out = Path(out)
        self.for_pieces = extractor.pooling in PIECE_POOLINGS
        self.size = extractor.size if isinstance(extractor.size, tuple) else (extractor.size,)
        self._layers = list(layers or extractor.layers)
        self._overwrite = overwrite
        self._folder = self.out.with_name(self.out.name + ".part")
        self._note = self._folder / "done.json"
        if self.out.suffix != ".jsonl":
            names = ["features", "offsets", "tokens"] if self.for_pieces else ["features"]
        elif (extractor.pooling, extractor.combine) == ("pieces", "stack"):
            names = ["lines"]
        else:
            raise ConfigError(
                "JSONL, as in the original, has each layer of each piece: leave pooling and "
                "combine out, or write another format"
            )
        settings = _settings(extractor, self._layers)
        with writing(self.out), contextlib.ExitStack() as opened:
            self._folder.mkdir(parents=True, exist_ok=True)
            opened.callback(os.close, self._lock())
            self.done = self._begun(settings) or Done(settings, dict.fromkeys(names, 0))
            self._files = {
                name: opened.enter_context(open(self._folder / name, "ab")) for name in names
            }
            self._start()
            self._opened = opened.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):  # a full disk, and of what was not committed
            self._opened.close()

    def remaining(self, rows):
        """Returns an iterator over the rows that are not done.

        Args:
            rows: an `InputFile`, or (place, value) otherwise.

        Raises:
            OutputError: the rows that are done were others.
        """
        iterator = iter(rows)
        for _, value in itertools.islice(iterator, self.done.rows):
            self._add_to_digest(value)
        if not self.done.rows or self._digest.hexdigest() == self.done.digest:
            return iterator
        if not self._overwrite:
            raise OutputError(
                f"{self._folder} was begun with other texts: its {self.done.rows:,} are not the "
                "first of the input. Give those again, name another file, or allow --overwrite"
            )
        self.done = Done(self.done.settings, dict.fromkeys(self._files, 0))
        self._start()
        return iter(rows)

    def add(self, features):
        """Adds the features of the next text: an array, or `TokenFeatures` for pieces and words."""
        with writing(self.out):
            if "lines" in self._files:
                line = json_line(self._rows, features, self._layers)
                self._files["lines"].write(line.encode())
                self._vectors += len(features.values)
            elif self.for_pieces:
                self._files["features"].write(np.asarray(features.values, "<f4").tobytes())
                for token in spellings(features):
                    self._files["tokens"].write(f"{token}\n".encode())
                self._vectors += len(features.values)
                self._files["offsets"].write(np.array(self._vectors, "<i8").tobytes())
            else:
                self._files["features"].write(np.asarray(features, "<f4").tobytes())
                self._vectors += 1
        self._rows += 1

    def commit(self, values, truncated):
        """Makes sure that what was added is kept, whatever happens.

        Args:
            values: the texts that were added since the last commit.
            truncated: how many of them were cut.
        """
        for value in values:
            self._add_to_digest(value)
        with writing(self.out):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
            self.done = Done(
                self.done.settings,
                {name: file.tell() for name, file in self._files.items()},
                self._rows,
                self._vectors,
                self.done.truncated + truncated,
                self._digest.hexdigest(),
            )
            self._write_note()

    def finish(self):
        """Makes the file, at once, of what has been committed."""
        suffix = self.out.suffix
        whole = self._folder / ("lines" if suffix == ".jsonl" else f"whole{suffix}")
        make = {".npz": make_npz, ".parquet": make_parquet, ".jsonl": lambda *_: None}
        with writing(self.out):
            make.get(suffix, make_hdf5)(whole, self._folder, self.done, self.size)
            os.replace(whole, self.out)
            shutil.rmtree(self._folder)

    def _lock(self):
        locked = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(locked)
            raise OutputError(f"{self.out} is being written by another process") from None
        except OSError:
            pass  # not every file system can lock
        return locked

    def _begun(self, settings):
        """Returns what is done with these settings, or None if there is nothing."""
        if not self._note.exists():
            # A kill may have left files of this command's, but no others.
            if any(path.name not in _NAMES for path in self._folder.iterdir()):
                raise OutputError(f"{self._folder} is there, and is none of this command's")
            return None
        try:
            done = Done(**json.loads(self._note.read_bytes()))
            changed = [
                f"{name} was {done.settings.get(name)!r} and is now {value!r}"
                for name, value in settings.items()
                if done.settings.get(name) != value
            ]
            for name, size in done.sizes.items():
                if (self._folder / name).stat().st_size < size:
                    changed.append(f"{name} has lost its end")
        except (ValueError, TypeError, AttributeError, FileNotFoundError):
            changed = [f"{self._note.name} or another file in it is damaged"]
        if not changed:
            return done
        if not self._overwrite:
            raise OutputError(
                f"{self._folder} cannot be gone on with: {'; '.join(changed)}. Use the settings it "
                "was begun with, name another file, or allow --overwrite"
            )
        for path in self._folder.iterdir():
            path.unlink()
        return None

    def _start(self):
        """Puts the files back to what is done."""
        self._rows, self._vectors = self.done.rows, self.done.vectors
        self._digest = hashlib.blake2b(digest_size=16)
        for name, file in self._files.items():
            file.truncate(self.done.sizes[name])
            file.seek(0, os.SEEK_END)
        self._write_note()

    def _write_note(self):
        replace_text(self._note, json.dumps(dataclasses.asdict(self.done), indent=2) + "\n")

    def _add_to_digest(self, value):
        self._digest.update(json.dumps([isinstance(value, tuple), value]).encode())


def check_output(out, overwrite=False):
    """Raises ConfigError if the name of `out` tells no format, OutputError if it exists."""
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"the name of {out} must end in one of {', '.join(SUFFIXES)}")
    if out.suffix == ".parquet":
        require_pyarrow(out)
    if out.exists() and not overwrite:
        raise OutputError(f"{out} exists: name another file, or allow --overwrite")


def json_line(row, features, layers):
    """Returns a line as the original writes it.

    Args:
        row: the index of the text.
        features: `TokenFeatures` with values [n, k, H].
        layers: k numbers, what the layers are called.
    """
    # The six decimals of round(float(x), 6): the product is exact, as 24 bits of a float32 times 14
    # of 1e6, and so are the ties.
    values = (np.rint(features.values.astype(np.float64) * 1e6) / 1e6).tolist()
    pieces = [
        {
            "token": token,
            "layers": [
                {"index": index, "values": numbers}
                for index, numbers in zip(layers, states, strict=True)
            ],
        }
        for token, states in zip(spellings(features), values, strict=True)
    ]
    return json.dumps({"linex_index": row, "features": pieces}) + "\n"


def spellings(features):
    """Returns what each vector of `TokenFeatures` stands for: a piece, or the pieces of a word."""
    if len(features.values) == len(features.tokens):
        return features.tokens
    words, before = [], None
    for token, word in zip(features.tokens, features.word_ids, strict=True):
        if word is None or word != before:
            words += [] if word is None else [token]
        else:
            words[-1] += token.removeprefix("##")
        before = word
    return words


def _settings(extractor, layers):
    """Returns what features depend on, but for the texts.

    The budget of tokens is none of it: a run that was too large for the memory can go on.
    """
    encoder, tokenizer = extractor.encoder, extractor.tokenizer
    model = hashlib.blake2b(digest_size=16)
    for weight in encoder.weights:
        model.update(weight.numpy().tobytes())
    model.update(json.dumps(encoder.config.to_dict(), sort_keys=True).encode())
    model.update(repr((encoder.attention, *tokenizer.__reduce__()[1])).encode())
    return {
        "model": model.hexdigest(),
        "layers": layers,
        "precision": encoder.dtype_policy.name,
        **{
            name: getattr(extractor, name)
            for name in ("combine", "pooling", "specials", "normalize", "max_length", "stride")
        },
    }
