"""`features`: the hidden states of a frozen encoder for a file of texts."""

import enum
import warnings
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_ref.cli import app
from keras_bert_ref.cli.checkpoints import Where
from keras_bert_ref.cli.pretraining import PRECISIONS, check_precision
from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.cli.runners import BeamOptions, Runner, make_runner
from keras_bert_ref.errors import ConfigError, InputError, OutputError, TruncationWarning

# Characters between two commits: about 16 batches, sorted by length among each other.
_STEP = 1 << 18


class Format(enum.StrEnum):
    text = enum.auto()
    tsv = enum.auto()
    jsonl = enum.auto()
    conll = enum.auto()
    parquet = enum.auto()


@app.command()
def features(
    texts: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="A text a line (pairs: ' ||| ' between), TSV, JSONL, CoNLL or Parquet; gzip too. "
            "With --runner beam, a glob as well.",
        ),
    ],
    where: Where,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to make: .npz, .parquet, .h5 or .jsonl (as the original's). With "
            "--runner beam, a folder of Parquet files."
        ),
    ],
    layers: Annotated[
        str,
        typer.Option(
            help="'last4', 'all', or numbers as -1,-2: 0 is the embeddings, -1 the last layer."
        ),
    ] = "last4",
    combine: Annotated[
        str | None, typer.Option(help="concat (the default), sum, mean or stack several layers.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="A vector a text: mean (the default), max, mean_max, cls, pooler; a word: "
            "first_piece, last_piece, mean_piece; or pieces, which .jsonl always has."
        ),
    ] = None,
    format: Annotated[
        Format | None, typer.Option(help="Of INPUT, where its name does not tell.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Names, or numbers from 1, of the column of texts, or two: 'a,b'."),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header", help="Whether a TSV begins with names; if any are in --columns."
        ),
    ] = None,
    specials: Annotated[
        bool,
        typer.Option("--specials/--no-specials", help="Whether [CLS] and [SEP] count or come."),
    ] = True,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale vectors to length 1.")
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(help="Pieces read at once; by default 512 or what there can be.")
    ] = None,
    overflow: Annotated[
        str, typer.Option(help="Longer texts: truncate them, or slide a window over them.")
    ] = "truncate",
    stride: Annotated[
        int | None, typer.Option(help="How far the window slides; by default half its length.")
    ] = None,
    tokens_per_batch: Annotated[
        int, typer.Option(min=1, help="Pieces in a batch, padding included.")
    ] = 4096,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "float32",
    runner: Runner = "local",
    beam_options: BeamOptions = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace --out, or what was begun otherwise.")
    ] = False,
):
    """Compute features of texts with a frozen encoder (paper, section 5.3).

    Interrupted, or stopped by a bad row, the same command goes on where it was; with --runner beam,
    a folder appears when all is done, or not at all.
    """
    from keras_bert_ref.features.reading import InputFile
    from keras_bert_ref.features.writing import SUFFIXES, FeatureFile, check_output

    check_precision(precision)
    layers = parse_layers(layers)
    reading = {
        "format": format and str(format),
        "columns": columns.split(",") if columns else (),
        "header": header,
    }
    original = out.suffix == ".jsonl"
    options = {
        "layers": layers,
        "combine": combine or ("stack" if original else "concat"),
        "pooling": pooling or ("pieces" if original else "mean"),
        "specials": specials,
        "normalize": normalize,
        "max_length": max_length,
        "overflow": overflow,
        "stride": stride,
        "tokens_per_batch": tokens_per_batch,
        "dtype": precision,
    }
    if runner := make_runner(runner, beam_options):
        if out.suffix in SUFFIXES:
            raise ConfigError(f"with --runner beam, --out is a folder, not {out}")
        _extract_by_pipeline(runner, str(texts), where, out, options, reading, overwrite)
        return
    check_output(out, overwrite)
    texts = InputFile(texts, **reading)
    if out.exists() and out.samefile(texts.path):
        raise OutputError(f"{out} is what is to be read: name another file")
    from keras_bert_ref.features.extractor import FeatureExtractor

    with console.status(f"reading {where}"):
        extractor = FeatureExtractor(where, **options)
    names = {"last4": range(-4, 0), "all": extractor.layers}.get(str(layers), layers)
    with FeatureFile(out, extractor, layers=names, overwrite=overwrite) as file:
        try:
            extract(extractor, texts, file)
        except BaseException:
            if file.done.rows:
                console.print(f"{file.done.rows:,} rows are kept: the same command goes on there")
            raise
        with console.status(f"writing {out}"):
            file.finish()
    done = file.done
    count = f"{done.vectors:,} " if file.for_pieces else ""
    size = " × ".join(f"{n:,}" for n in file.size)
    cut = f", {done.truncated:,} of them cut to {extractor.max_length} pieces"
    _tell(f"{done.rows:,} rows{cut if done.truncated else ''}: {count}vectors of {size} in {out}")


def _extract_by_pipeline(runner, texts, where, out, options, reading, overwrite):
    from tfrecords.corpus import corpus_files
    from tfrecords.feature_pipeline import extract_features

    files = corpus_files(texts)
    with console.status(f"{len(files):,} files on {runner.name}"):
        rows, cut = extract_features(
            runner, files, where, out, **reading, overwrite=overwrite, **options
        )
    unknown = ", how many of them cut the runner does not tell"
    cut = unknown if cut is None else f", {cut:,} of them cut" if cut else ""
    _tell(f"{rows:,} rows{cut}: vectors in {out}")


def _tell(line):
    console.print(line, markup=False, highlight=False)


def extract(extractor, texts, file):
    """Computes the features of all rows that are not done, with a progress bar.

    Args:
        extractor: a `FeatureExtractor`.
        texts: an `InputFile`.
        file: a `FeatureFile`.

    Raises:
        InputError, ConfigError: a row cannot be read; those before it have been committed.
    """
    with progress_bar("bytes") as bars, warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # they are counted
        bar = bars.add_task("features", total=texts.size, note="")
        for step in _steps(file.remaining(texts)):
            values, failed = [value for _, value in step], None
            count = 0
            try:
                for found in extractor.stream(values, file.for_pieces):
                    file.add(found)
                    count += 1
            except (ConfigError, InputError) as error:
                failed = type(error)(f"{step[count][0]}: {error}")
            file.commit(values[:count], extractor.truncated)
            bars.update(bar, completed=texts.position, note=f"{file.done.rows:,} rows")
            if failed:
                raise failed


def _steps(rows):
    """Yields lists of rows; what is wrong with one is raised after those before it.

    That steps are the same in every run, and each is computed by itself, makes features equal to
    the last bit whether a run was interrupted or not.
    """
    from keras_bert_ref.features.reading import characters

    step, size, failed = [], 0, None
    try:
        for place, value in rows:
            step.append((place, value))
            size += 8 + characters(value)  # an empty text is work, too
            if size >= _STEP:
                yield step
                step, size = [], 0
    except InputError as error:
        failed = error
    if step:
        yield step
    if failed:
        raise failed


def parse_layers(text):
    """Returns what `--layers` means to a `FeatureExtractor`."""
    if text in ("last4", "all"):
        return text
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"layers must be 'last4', 'all' or numbers as -1,-2, not {text!r}"
        ) from None
