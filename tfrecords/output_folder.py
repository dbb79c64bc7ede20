"""A folder that appears as a whole, or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_bert_ref.errors import OutputError
from keras_bert_ref.files import writing
from tfrecords import manifest


@contextlib.contextmanager
def output_folder(out: Path, overwrite: bool, sources: Sequence[str]) -> Iterator[Path]:
    """Gives a temporary folder beside `out`, which takes its place when the block ends well.

    Args:
        out: The folder to make. An empty one may be there.
        overwrite: Replace `out` if it holds pretraining data (a manifest.json).
        sources: Files that must not be in the way.

    Raises:
        OutputError: `out` is in use or cannot be written.
    """
    out = out.resolve()
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used and not overwrite:
        raise OutputError(f"{out} is not empty: name another folder, or allow overwriting.")
    if used and not (out / manifest.FILE).is_file():
        raise OutputError(
            f"{out} holds no {manifest.FILE}, so it is not pretraining data and will not be "
            "overwritten: name another folder."
        )
    if used and any(Path(file).resolve().is_relative_to(out) for file in sources):
        raise OutputError(f"{out} holds texts to be read and will not be overwritten.")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        new, old = beside / "new", beside / "old"
        with writing(out):
            new.mkdir()
        yield new
        with writing(out):
            if used:
                os.rename(out, old)
            try:
                os.rename(new, out)
            except OSError:
                if used:
                    os.rename(old, out)
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
