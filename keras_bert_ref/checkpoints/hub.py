"""Fetches a checkpoint from the Hugging Face Hub, if `huggingface_hub` is installed."""

import contextlib
import re
from pathlib import Path

from keras_bert_ref.errors import CheckpointError, CheckpointWarning, ConfigError
from keras_bert_ref.files import first_line

_ADDRESS = re.compile(r"hf://(\w[\w.-]*/)?(\w[\w.-]*)(@\w[\w./-]*)?")
# What describes a checkpoint, and its weights in the formats that are read, the best first. Of a
# repository that has several, only the first is fetched.
_DESCRIPTIONS = (
    *("config.json", "bert_config.json", "keras_bert_ref.json", "model.safetensors.index.json"),
    *("tokenizer_config.json", "tokenizer.json", "added_tokens.json", "vocab.txt"),
    *("assets/tokenizer/vocabulary.txt", "checkpoint"),
)
_WEIGHTS = (
    ("model.safetensors", "model-*-of-*.safetensors"),
    ("model.weights.h5",),
    ("*.index", "*.data-*-of-*"),
)


def is_address(where):
    """Returns whether `where` is meant as an address on the Hub."""
    return str(where).startswith(("hf://", "hf:/"))  # a Path has lost a slash


def fetch(address):
    """Fetches a repository's checkpoint into the Hub's cache; returns its folder there.

    Args:
        address: `hf://owner/name`, or `hf://owner/name@revision` with a branch, tag or commit.

    Raises:
        ConfigError: the address is not one, or `huggingface_hub` is not installed.
        CheckpointError: it cannot be fetched, or holds no weights that are read.
    """
    address = re.sub("^hf:/+", "hf://", str(address))
    if not (parts := _ADDRESS.fullmatch(address)):
        raise ConfigError(f"{address} is not an address: it must be hf://owner/name[@revision]")
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError(
            f"{address}: the Hub is read through huggingface_hub: pip install 'keras-bert-ref[hub]'"
        ) from None
    owner, name, revision = parts.groups()
    repository = (owner or "") + name
    revision = revision[1:] if revision else None
    try:
        found = huggingface_hub.HfApi().model_info(repository, revision=revision, timeout=30)
        files = [file.rfilename for file in found.siblings]
    except Exception as error:  # offline, or not there: by its many ways to say so
        return _cached(huggingface_hub, repository, revision, address, error)
    weights = next((kind for kind in _WEIGHTS if _matching(files, kind)), None)
    if weights is None:
        pickles = [file for file in files if file.startswith("pytorch_model")]
        raise CheckpointError(
            f"{address} has no weights in a format that is read"
            + (
                f"; {pickles[0]} is a pickle, which can run any program when it is opened: ask its "
                "owner for safetensors, or convert a copy"
                if pickles
                else ""
            )
        )
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=[*_DESCRIPTIONS, *weights]
        )
    except Exception as error:
        raise CheckpointError(f"{address} cannot be fetched: {first_line(error)}") from error
    return Path(folder)


def _matching(files, patterns):
    from huggingface_hub.utils import filter_repo_objects

    return list(filter_repo_objects(files, allow_patterns=list(patterns)))


def _cached(huggingface_hub, repository, revision, address, error):
    """Returns what an earlier call fetched, for those who are offline."""
    for weights in _WEIGHTS:
        with contextlib.suppress(OSError, ValueError):
            folder = huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[*_DESCRIPTIONS, *weights],
                local_files_only=True,
            )
            if _matching([path.name for path in Path(folder).iterdir()], weights):
                CheckpointWarning.issue(f"{address} is taken from the cache: {first_line(error)}")
                return Path(folder)
    raise CheckpointError(f"{address} cannot be fetched: {first_line(error)}") from error
