"""Finds shards, checks that they are whole and fit each other, and says which record is bad."""

import dataclasses
import glob
import gzip
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_bert_ref.checksums import masked_crc
from keras_bert_ref.errors import RecordError
from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords import manifest
from tfrecords.manifest import Manifest
from tfrecords.schema import DYNAMIC, record_features, value_limits

_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")
_GZIP_MAGIC = b"\x1f\x8b\x08"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """Files of records which fit each other."""

    files: tuple[str, ...]
    records: tuple[int, ...]  # in each file
    bytes: int  # of all files
    compression: str  # "" or "GZIP", as TFRecordDataset wants it
    max_seq_length: int
    max_predictions_per_seq: int | None  # slots of a record; None: masked while reading
    sequences_per_row: int  # places for them; above 1 they are packed
    manifest: Manifest | None  # where the files come with one
    folder: Path | None  # of the manifest

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary the ids are of, where it is known."""
        return self.manifest and self.manifest.vocabulary["size"]

    def tokenizer(self) -> WordPieceTokenizer | None:
        """Loads the vocabulary the shards were made with; None where there is no manifest.

        Raises:
            RecordError: The file beside the manifest holds another vocabulary.
            VocabularyError: The file cannot be read.
        """
        if self.manifest is None:
            return None
        file = self.folder / self.manifest.vocabulary["file"]
        tokenizer = WordPieceTokenizer.from_vocab(file, **self.manifest.tokenizer)
        if tokenizer.vocabulary_sha256 != self.manifest.vocabulary["sha256"]:
            raise RecordError(
                f"{file} is not the vocabulary the shards beside it were made with: put that one "
                "back, or create the data again."
            )
        return tokenizer


def open_shards(
    where: str | os.PathLike | Iterable[str | os.PathLike], split: str = "train"
) -> Shards:
    """Finds shards and checks all that can be checked without reading every record.

    A file listed in a manifest must have the size stated there. Any other file is walked from
    record to record, so that one that is cut short is noticed.

    Args:
        where: A folder made by `create_pretraining_data`, a file, a glob, or a list of these; the
            original's files will do.
        split: "train" or "heldout", of a folder.

    Raises:
        RecordError: Files are missing, damaged, empty, of different splits of a folder, or differ
            in lengths, features, compression, vocabulary or next sentence prediction.
    """
    if isinstance(where, str | os.PathLike):
        where = [where]
    parts = [part for place in where for part in _open_place(os.fspath(place), split)]
    if not parts:
        raise RecordError("No shards were named.")
    _check_splits(parts)
    # A file without manifest does not tell all its traits: those that do are compared with the one
    # that speaks for all of them.
    known = next((part for part in parts if part.manifest), parts[0])
    expected = _traits(known)
    for part in parts:
        for what, value in _traits(part).items():
            if value != expected[what] and None not in (value, expected[what]):
                raise RecordError(
                    f"{part.files[0]} has {what} {value}, but {known.files[0]} has "
                    f"{expected[what]}: shards read together must agree."
                )
    return dataclasses.replace(
        known,
        files=tuple(file for part in parts for file in part.files),
        records=tuple(count for part in parts for count in part.records),
        bytes=sum(part.bytes for part in parts),
    )


def _check_splits(parts):
    """Refuses a glob that takes in what was held out beside what is trained on."""
    found = {}
    for part in filter(lambda part: part.manifest, parts):
        file = part.files[0]
        for name, split in part.manifest.splits.items():
            if os.path.basename(file) in (shard.file for shard in split.shards):
                other, other_file = found.setdefault(part.folder.resolve(), (name, file))
                if name != other:
                    raise RecordError(
                        f"{other_file} is of split {other!r}, but {file} is of {name!r}: read them "
                        f"apart. Name the folder {part.folder}, or {part.folder}/train-*"
                    )


def _traits(part):
    found = part.manifest
    return {
        "max_seq_length": part.max_seq_length,
        "max_predictions_per_seq": part.max_predictions_per_seq or "none (dynamic masking)",
        "sequences_per_row": part.sequences_per_row,
        "compression": part.compression or "none",
        "a vocabulary with SHA-256": found and found.vocabulary["sha256"],
        "tokenizer options": found and found.tokenizer,
        "next sentence prediction": found and ("on" if found.settings.next_sentence else "off"),
    }


def _open_place(place, split):
    """Returns the shards of a folder, or of each file a glob matches."""
    if os.path.isdir(place):
        return [_open_folder(Path(place), split)]
    files = [place] if os.path.isfile(place) else sorted(filter(os.path.isfile, glob.glob(place)))
    if not files:
        raise RecordError(f"{place}: there is no such file or folder.")
    return [_open_file(file) for file in files]


def _open_folder(folder, split):
    if not (folder / manifest.FILE).is_file():
        raise RecordError(
            f"{folder} holds no {manifest.FILE}, so it was not made by create-data: name the "
            f"record files themselves, as in {folder}/*.tfrecord"
        )
    found = Manifest.load(folder)
    if split not in found.splits:
        raise RecordError(
            f"{folder} has no split {split!r}, only {', '.join(found.splits)}: create the data "
            "with held_out (--held-out) for a held-out split."
        )
    part = found.splits[split]
    for shard in part.shards:
        file = folder / shard.file
        if not file.is_file():
            raise RecordError(f"{file} is missing: {folder / manifest.FILE} lists it.")
        if (size := file.stat().st_size) != shard.bytes:
            raise RecordError(
                f"{file} has {size:,} bytes instead of the {shard.bytes:,} written: it is cut "
                "short or was changed. Copy or create it again."
            )
    dynamic = part.masking == "dynamic"
    return Shards(
        files=tuple(str(folder / shard.file) for shard in part.shards),
        records=tuple(shard.records for shard in part.shards),
        bytes=sum(shard.bytes for shard in part.shards),
        compression="GZIP" if part.shards[0].file.endswith(".gz") else "",
        max_seq_length=found.settings.max_seq_length,
        max_predictions_per_seq=DYNAMIC if dynamic else found.settings.predictions_per_row,
        sequences_per_row=found.settings.sequences_per_row,
        manifest=found,
        folder=folder,
    )


def _open_file(file):
    count = sum(1 for _ in read_records(file, contents=False))
    if not count:
        raise RecordError(f"{file} holds no records.")
    from keras_bert_ref._tensorflow import tf  # folders with a manifest do without

    first = next(read_records(file))
    try:
        features = tf.train.Example.FromString(first).features.feature
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise RecordError(f"{file}, record 0 is not a tf.train.Example: {error}.") from None
    length = len(features["input_ids"].int64_list.value)
    predictions = len(features["masked_lm_positions"].int64_list.value) or DYNAMIC
    sequences = len(features["next_sentence_labels"].int64_list.value) or 1
    if fault := _fault(features, record_features(length, predictions, sequences), None):
        raise RecordError(f"{file}, record 0 is no pretraining record: {fault}.")
    with open(file, "rb") as opened:
        packed = opened.read(3) == _GZIP_MAGIC
    beside = Path(file).parent
    known = (beside / manifest.FILE).is_file()
    return Shards(
        files=(file,),
        records=(count,),
        bytes=os.path.getsize(file),
        compression="GZIP" if packed else "",
        max_seq_length=length,
        max_predictions_per_seq=predictions,
        sequences_per_row=sequences,
        manifest=Manifest.load(beside) if known else None,
        folder=beside if known else None,
    )


def read_records(file: str | os.PathLike, *, contents: bool = True) -> Iterator[bytes | None]:
    """Yields the records of a file, plain or GZIP, checking their checksums.

    Args:
        file: The file.
        contents: False to only step from record to record, which yields None for each.

    Raises:
        RecordError: Names the file and the first record that is cut short or damaged.
    """
    number = 0
    try:
        with open(file, "rb") as raw:
            packed = raw.peek(3)[:3] == _GZIP_MAGIC
            with gzip.open(raw) if packed else raw as stream:
                while header := stream.read(_HEADER.size):
                    yield _read_record(stream, header, contents, f"{file}, record {number}")
                    number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordError(
            f"{file}, record {number}: the gzip stream is damaged: {error}."
        ) from None
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror or error}.") from None


def _read_record(stream, header, contents, place):
    cut = RecordError(f"{place} is cut short: the file ends within it.")
    if len(header) < _HEADER.size:
        raise cut
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        raise RecordError(f"{place} is damaged: the checksum of its length does not match.")
    if not contents:
        stream.seek(length + _FOOTER.size - 1, os.SEEK_CUR)
        if not stream.read(1):
            raise cut
        return None
    data, footer = stream.read(length), stream.read(_FOOTER.size)
    if len(footer) < _FOOTER.size:
        raise cut
    if (masked_crc(data),) != _FOOTER.unpack(footer):
        raise RecordError(f"{place} is damaged: its checksum does not match.")
    return data


def explain(
    error: Exception, shards: Shards, *, vocab_size: int | None = None
) -> RecordError | None:
    """Finds the record behind an error that came up while iterating over a dataset.

    It reads the files from the start, so it is for the moment when training has stopped anyway.

    Args:
        error: What was raised. A bad record shows as `tf.errors.DataLossError` or
            `tf.errors.InvalidArgumentError`; for any other type nothing is read.
        shards: What the dataset was made from.
        vocab_size: Size of the model's vocabulary; None for the one the shards state.

    Returns:
        An error that names the file and the record and has `error` as its cause; None if every
        record is in order, or `error` has nothing to do with records.
    """
    from keras_bert_ref._tensorflow import tf

    if not isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        return None
    features = record_features(
        shards.max_seq_length, shards.max_predictions_per_seq, shards.sequences_per_row
    )
    found = None
    for file in shards.files:
        number = -1
        try:
            for number, record in enumerate(read_records(file)):
                try:
                    example = tf.train.Example.FromString(record)
                except Exception as reason:  # protobuf's DecodeError has no stable home
                    found = RecordError(
                        f"{file}, record {number} is no tf.train.Example: {reason}."
                    )
                    break
                fault = _fault(example.features.feature, features, vocab_size or shards.vocab_size)
                if fault:
                    found = RecordError(f"{file}, record {number}: {fault}.")
                    break
        except RecordError as damage:
            found = damage
        if found:
            found.__cause__ = error
            return found
    return None


def _fault(values, features, vocab_size):
    """Returns what is wrong with the features of one record, or None."""
    row = {}
    for name, feature in features.items():
        kind = "float_list" if feature.dtype == "float32" else "int64_list"
        row[name] = list(getattr(values[name], kind).value) if name in values else []
        (wanted,) = feature.shape
        if len(row[name]) != wanted or not wanted:
            return f"{name} has {len(row[name])} values instead of {wanted or 'at least one'}"
    sequences = len(row["next_sentence_labels"])
    for name, limit in value_limits(len(row["input_ids"]), vocab_size, sequences).items():
        for value in row.get(name, ()):
            if not 0 <= value < limit:
                return f"{name} holds {value}, which is not in the range 0 to {limit - 1}"
    return None
