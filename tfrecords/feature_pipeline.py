"""Features of more texts than one machine can read: Apache Beam's RunInference, and a pipeline.

Needs the extra `beam`. All workers must see one file system, for texts, model and output.
"""

import copy
import reprlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_bert_ref.errors import ConfigError, InputError, TruncationWarning
from keras_bert_ref.features.combining import TEXT_POOLINGS
from keras_bert_ref.features.extractor import FeatureExtractor
from keras_bert_ref.features.formats import parquet_schema, parquet_vectors
from keras_bert_ref.features.reading import InputFile
from keras_bert_ref.features.writing import spellings
from keras_bert_ref.files import replacing_folder
from tfrecords.beam import BeamRunner, quietly

with quietly():
    import apache_beam
    from apache_beam.ml.inference.base import (
        KeyedModelHandler,
        ModelHandler,
        PredictionResult,
        RunInference,
    )

_SPACE = "keras_bert_ref"  # of Beam's counters
_PLACES = {"file": pyarrow.string(), "row": pyarrow.int64()}


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
        pooling = options.get("pooling", "mean")
        # Sorted by length among so many; vectors for all pieces take 100 times the room.
        rows = 1024 if pooling in TEXT_POOLINGS else 64
        super().__init__(min_batch_size=rows, max_batch_size=rows)
        self.where, self.options = str(where), options

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
        extractor = copy.copy(model)  # threads share the model; what was truncated, they do not
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # they are counted
            try:
                for features in extractor.stream(batch, model.pooling not in TEXT_POOLINGS):
                    results.append(PredictionResult(batch[len(results)], features))
            except (ConfigError, InputError) as error:
                text = reprlib.repr(batch[len(results)])
                raise type(error)(f"{text}: {error}") from None
        apache_beam.metrics.Metrics.counter(_SPACE, "truncated").inc(extractor.truncated)
        return results

    def get_metrics_namespace(self) -> str:
        """Returns what RunInference's own counters are under."""
        return _SPACE


def extract_features(
    runner: BeamRunner,
    files: Sequence[str],
    handler: FeatureHandler,
    out: Path,
    *,
    format: str | None = None,
    columns: Sequence[str] = (),
    header: bool | None = None,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Writes the features of all rows of files to a folder of Parquet files.

    A row has the `file` and `row` (from 0) that its text is from, for order is none among a
    pipeline's results, and `features` as in the file that `FeatureFile` makes. The vectors are
    those of one machine but for rounding, which depends on the texts that share a batch.

    Args:
        runner: Of the pipeline.
        files: What to read.
        handler: Computes the features.
        out: The folder to make; it appears when all is done.
        format: Of the files, and `columns`, `header`: see `InputFile`.
        overwrite: Replace such a folder.

    Returns:
        How many rows it has, and how many of the texts were cut.

    Raises:
        ConfigError, CheckpointError: The model or the columns do not fit.
        InputError: A file cannot be read, or a row of it. No features are kept.
        OutputError: `out` is in use, or cannot be written.
        BertError: The pipeline failed.
    """
    reading = (format, tuple(columns), header)
    known = [path.name for path in Path(out).glob("features-*.parquet")]
    with replacing_folder(out, known, overwrite) as folder:
        for file in files:  # before machines are started
            InputFile(file, *reading)
        extractor = handler.load_model()
        size = extractor.size if isinstance(extractor.size, tuple) else (extractor.size,)
        schema = parquet_schema(size, lists=extractor.pooling not in TEXT_POOLINGS)
        del extractor
        for name in reversed(_PLACES):
            schema = schema.insert(0, pyarrow.field(name, _PLACES[name]))

        def build(pipeline):
            rows = pipeline | "files" >> apache_beam.Create(list(files))
            rows = rows | "spread files" >> apache_beam.Reshuffle()
            rows = rows | "read" >> apache_beam.FlatMap(_rows, *reading)
            # Few files are work for many; and all has been read before anything is computed.
            rows = rows | "spread rows" >> apache_beam.Reshuffle()
            found = rows | "encode" >> RunInference(KeyedModelHandler(handler))
            few = handler.batch_elements_kwargs()["max_batch_size"]
            found = found | "gather" >> apache_beam.BatchElements(few, few)
            tables = found | "tables" >> apache_beam.Map(_table, schema)
            _ = tables | "write" >> apache_beam.io.WriteToParquetBatched(
                str(folder / "features"), schema, file_name_suffix=".parquet"
            )

        result = runner.run(build)
        parts = [pyarrow.parquet.read_metadata(path) for path in folder.glob("*.parquet")]
        if not parts:
            pyarrow.parquet.write_table(
                schema.empty_table(), folder / "features-00000-of-00001.parquet"
            )
        counters = result.metrics().query(
            apache_beam.metrics.MetricsFilter().with_namespace(_SPACE).with_name("truncated")
        )["counters"]
    return sum(part.num_rows for part in parts), sum(one.result for one in counters)


def _rows(file: str, *reading) -> Iterator:
    """Yields ((file, row), text)."""
    for row, (_, value) in enumerate(InputFile(file, *reading)):
        yield (file, row), value


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
