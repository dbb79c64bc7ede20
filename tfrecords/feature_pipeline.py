"""Features of more texts than one machine can read: Apache Beam's RunInference, and a pipeline.

Needs the extra `beam`. All workers must see one file system, for texts, model and output, each of
them under the same path as this machine.
"""

import contextlib
import copy
import os
import reprlib
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_bert_ref.errors import ConfigError, InputError, OutputError, TruncationWarning
from keras_bert_ref.features.combining import TEXT_POOLINGS
from keras_bert_ref.features.extractor import FeatureExtractor
from keras_bert_ref.features.formats import parquet_schema, parquet_vectors
from keras_bert_ref.features.reading import InputFile, characters
from keras_bert_ref.features.writing import spellings
from keras_bert_ref.files import replace_text, replacing_folder, writing
from tfrecords.beam import BeamRunner, no_shared_files, quietly
from tfrecords.corpus import TFDS

with quietly():
    import apache_beam
    from apache_beam.ml.inference.base import ModelHandler, PredictionResult, RunInference

_SPACE = "keras_bert_ref"  # of Beam's counters
_PLACES = {"file": pyarrow.string(), "row": pyarrow.int64()}

# Characters that are read at once, to be sorted by length among each other. Vectors of all pieces
# take 100 times the room of those of texts.
_CHARACTERS_FOR_TEXTS, _CHARACTERS_FOR_PIECES = 1 << 18, 1 << 14
_TABLE_BYTES = 1 << 26  # of vectors that are written at once


class FeatureHandler(ModelHandler):
    """A frozen encoder for Beam's RunInference, in any pipeline.

    ```python
    texts | RunInference(FeatureHandler("hf://google-bert/bert-base-uncased", layers="last4"))
    ```

    Elements are what a `FeatureExtractor` reads: strings, pairs, lists of words. Each one's
    `PredictionResult` has float32 [D], or, where pooling is of pieces or words, `TokenFeatures`.
    The counter `truncated` of keras_bert_ref tells how many texts were cut.

    Args:
        where: A checkpoint, see `BertEncoder.from_pretrained`; each worker process loads it once.
        options: As of `FeatureExtractor`.
    """

    def __init__(self, where: str, **options):
        super().__init__()
        place = Path(where).expanduser()
        # Workers have another current folder, and another home.
        local = place.exists() or place.with_name(f"{place.name}.index").exists()
        self.where = os.path.abspath(place) if local else str(where)
        self.options = options

    def batch_elements_kwargs(self) -> dict:
        """Returns how RunInference puts elements together: by the characters in them.

        Keys, of a `KeyedModelHandler`, count as texts do.
        """
        of_texts = self.options.get("pooling", "mean") in TEXT_POOLINGS
        most = _CHARACTERS_FOR_TEXTS if of_texts else _CHARACTERS_FOR_PIECES
        return _by_weight(most, _characters)

    def load_model(self) -> FeatureExtractor:
        """Loads the checkpoint.

        Raises:
            ConfigError, CheckpointError: As `FeatureExtractor`.
        """
        return FeatureExtractor(self.where, **self.options)

    def run_inference(
        self, batch: Sequence, model: FeatureExtractor, inference_args: dict | None = None
    ) -> list[PredictionResult]:
        """Returns the features of each element.

        Raises:
            InputError, ConfigError: An element cannot be read.
        """
        return self._results(batch, model, [reprlib.repr(element) for element in batch])

    def _results(self, batch, model, names):
        extractor = copy.copy(model)  # threads share the model; what was truncated, they do not
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # they are counted
            try:
                for features in extractor.stream(batch, model.pooling not in TEXT_POOLINGS):
                    results.append(PredictionResult(batch[len(results)], features))
            except (ConfigError, InputError) as error:
                number = len(results)  # within the batch, which means nothing to anyone
                reason = str(error).removeprefix(f"row {number} is a ")
                raise type(error)(f"{names[number]}: {reason}") from None
        apache_beam.metrics.Metrics.counter(_SPACE, "truncated").inc(extractor.truncated)
        return results

    def get_metrics_namespace(self) -> str:
        """Returns what RunInference's own counters are under."""
        return _SPACE


class _RowHandler(FeatureHandler):
    """Takes ((file, row), text), which it names where the text cannot be read."""

    def run_inference(self, batch, model, inference_args=None):
        places, texts = zip(*batch, strict=True)
        names = [f"{file}, row {row} (from 0)" for file, row in places]
        return list(zip(places, self._results(texts, model, names), strict=True))


def extract_features(
    runner: BeamRunner,
    files: Sequence[str],
    where: str,
    out: str | os.PathLike,
    *,
    format: str | None = None,
    columns: Sequence[str] = (),
    header: bool | None = None,
    overwrite: bool = False,
    **options,
) -> tuple[int, int | None]:
    """Writes the features of all rows of files to a folder of Parquet files.

    A row has the `file` (its whole path) and `row` (from 0) that its text is from, for order is
    none among a pipeline's results, and `features` as in the file that `FeatureFile` makes. The
    vectors are those of one machine but for rounding, which depends on the texts that share a
    batch.

    Args:
        runner: Of the pipeline.
        files: What to read.
        where: A checkpoint, see `BertEncoder.from_pretrained`.
        out: The folder to make; it appears when all is done.
        format: Of the files, and `columns`, `header`: see `InputFile`.
        overwrite: Replace such a folder.
        **options: As of `FeatureExtractor`.

    Returns:
        How many rows it has, and how many of the texts were cut; None where the runner does not
        tell. Texts of work that was done twice, for a worker was lost, may count twice.

    Raises:
        ConfigError, CheckpointError: The model or the columns do not fit.
        InputError: A file cannot be read, or a row of it. No features are kept.
        OutputError: `out` is in use, cannot be written, or is not seen by the workers.
        BertError: The pipeline failed.
    """
    reading = (format, tuple(columns), header)
    if named := next((file for file in files if str(file).startswith(TFDS)), None):
        raise ConfigError(f"{named}: features are of files, not of tensorflow-datasets")
    files = [os.path.abspath(file) for file in files]
    handler = _RowHandler(where, **options)
    out = Path(out).expanduser()
    if within := [file for file in files if Path(file).resolve().parent == out.resolve()]:
        raise OutputError(f"{within[0]} is to be read, and {out} to be made: name another folder")
    known = [path.name for path in out.glob("features-*-of-*.parquet")]
    with replacing_folder(out, known, overwrite) as folder:
        for file in files:  # before machines are started
            InputFile(file, *reading)
        extractor = handler.load_model()
        size = extractor.size if isinstance(extractor.size, tuple) else (extractor.size,)
        schema = parquet_schema(size, lists=extractor.pooling not in TEXT_POOLINGS)
        del extractor
        for name in reversed(_PLACES):
            schema = schema.insert(0, pyarrow.field(name, _PLACES[name]))
        count_file = folder / "rows"

        def build(pipeline):
            rows = pipeline | "files" >> apache_beam.Create(files)
            rows = rows | "spread files" >> apache_beam.Reshuffle()
            rows = rows | "read" >> apache_beam.FlatMap(_rows, *reading)
            rows = rows | "spread rows" >> apache_beam.Reshuffle()  # few files, work for many
            count = rows | "count" >> apache_beam.combiners.Count.Globally()
            _ = count | "write count" >> apache_beam.Map(_write_count, str(count_file))
            found = rows | "encode" >> RunInference(handler)
            gather = apache_beam.BatchElements(**_by_weight(_TABLE_BYTES, _bytes))
            tables = found | "gather" >> gather | "tables" >> apache_beam.Map(_table, schema)
            _ = tables | "write" >> apache_beam.io.WriteToParquetBatched(
                str(folder / "features"), schema, file_name_suffix=".parquet"
            )

        result = runner.run(build)
        with writing(out):
            count = _complete(folder, count_file, schema)
    return count, _truncated(result) if count else 0


def _characters(element):
    return 8 + characters(element)  # an empty text is work, too


def _by_weight(most, weight):
    """Returns how `BatchElements` makes batches up to a weight; heavier is one by itself."""
    # Counted as more than the most, Beam would put an empty batch before it.
    return {
        "min_batch_size": most,
        "max_batch_size": most,
        "element_size_fn": lambda element: min(most, weight(element)),
    }


def _rows(file: str, *reading) -> Iterator:
    """Yields ((file, row), text)."""
    for row, (_, value) in enumerate(InputFile(file, *reading)):
        yield (file, row), value


def _write_count(count, file):
    if not Path(file).parent.is_dir():
        raise no_shared_files(Path(file).parent)
    replace_text(file, str(count))


def _bytes(found):
    features = found[1].inference
    return (features if isinstance(features, np.ndarray) else features.values).nbytes


def _complete(folder, count_file, schema):
    """Returns how many rows were read, if the folder holds them all; clears up what else it holds.

    Raises:
        OutputError: It does not.
    """
    for stray in folder.glob("beam-temp-*"):
        shutil.rmtree(stray, ignore_errors=True)
    if not count_file.exists():
        raise no_shared_files(folder)
    count = int(count_file.read_text())
    count_file.unlink()
    if not count:
        pyarrow.parquet.write_table(
            schema.empty_table(), folder / "features-00000-of-00001.parquet"
        )
    try:
        parts = [pyarrow.parquet.read_metadata(path) for path in folder.glob("*.parquet")]
    except pyarrow.ArrowInvalid as error:
        raise OutputError(f"{folder} got a damaged file from the pipeline: {error}") from None
    if (written := sum(part.num_rows for part in parts)) != count:
        raise OutputError(
            f"{folder} got {written:,} of {count:,} rows from the pipeline's workers: it must be "
            "on a file system that they all and this machine see"
        )
    return count


def _truncated(result):
    """Returns how many texts were cut; None where the runner does not tell."""
    with contextlib.suppress(Exception):  # of any kind: runners are many
        counters = result.metrics().query(
            apache_beam.metrics.MetricsFilter().with_namespace(_SPACE).with_name("truncated")
        )["counters"]
        return sum(one.result for one in counters) if counters else None
    return None


def _table(found: Iterable, schema: pyarrow.Schema) -> pyarrow.Table:
    """Returns keyed results as a table."""
    places, results = zip(*found, strict=True)
    features = [result.inference for result in results]
    columns = [pyarrow.array(values) for values in zip(*places, strict=True)]
    if "tokens" not in schema.names:
        columns.append(parquet_vectors(np.stack(features)))
    else:
        ends = pyarrow.array(np.cumsum([0] + [len(one.values) for one in features], dtype="int32"))
        words = pyarrow.array([word for one in features for word in spellings(one)], "string")
        vectors = parquet_vectors(np.concatenate([one.values for one in features]))
        columns += [pyarrow.ListArray.from_arrays(ends, one) for one in (vectors, words)]
    return pyarrow.table(columns, schema)
