"""manifest.json: what a folder of shards holds and how it came about."""

import dataclasses
import json
from pathlib import Path

from keras_bert_ref.errors import RecordError
from tfrecords.settings import InstanceSettings

FILE = "manifest.json"
VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of records."""

    file: str  # within the folder
    records: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """The shards of one split, "train" or "heldout"; no document is in both."""

    masking: str  # "static": masked in the records; "dynamic": masked while reading
    documents: int
    sentences: int
    tokens: int  # of the documents, each counted once
    instances: int  # sequences; as many as rows, unless several are packed into one
    mean_length: float  # tokens in an instance, specials included
    padding: float  # share of all row positions
    random_next: float  # share of instances whose second segment is from another document
    shards: tuple[Shard, ...]

    @property
    def records(self) -> int:
        """The number of rows."""
        return sum(shard.records for shard in self.shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of manifest.json."""

    version: int
    settings: InstanceSettings
    seed: int
    tokenizer: dict  # lower_case, strip_accents, never_split
    vocabulary: dict  # file (within the folder), size, sha256
    sources: tuple[dict, ...]  # file and bytes of each text
    split_sentences: str | None
    errors: str
    unknown_tokens: float  # share of tokens that are [UNK]
    splits: dict[str, Split]
    warnings: tuple[str, ...]
    duplicates: int = 0  # documents left out because an earlier one has the same tokens

    def save(self, folder: Path) -> None:
        """Writes manifest.json into a folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2)
        Path(folder, FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Reads the manifest of a folder.

        Raises:
            RecordError: It cannot be read, or was written by another version.
        """
        path = Path(folder, FILE)
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            version = fields.get("version")
            if version != VERSION:
                raise RecordError(
                    f"{path} has version {version}, this library reads version {VERSION}: create "
                    "the data again."
                )
            fields["settings"] = InstanceSettings(**fields["settings"])
            fields["splits"] = {
                name: Split(**split | {"shards": tuple(Shard(**s) for s in split["shards"])})
                for name, split in fields["splits"].items()
            }
            fields["sources"] = tuple(fields["sources"])
            fields["warnings"] = tuple(fields["warnings"])
            return cls(**fields)
        except OSError as error:
            raise RecordError(f"{path} cannot be read: {error.strerror or error}.") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"{path} is damaged ({error}): create the data again.") from None
