"""A frozen encoder as a step of a scikit-learn pipeline."""

import functools
import hashlib
import os
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from keras_bert_ref.checkpoints.opening import open_checkpoint
from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.features.cache import FeatureCache
from keras_bert_ref.features.combining import (
    COMBINATIONS,
    TEXT_POOLINGS,
    choose,
    combine_layers,
    layer_numbers,
    normalized,
    text_vector,
)
from keras_bert_ref.features.windows import check_input

_TEXTS_AT_ONCE = 512  # between two writes to the cache


class BertFeaturizer(TransformerMixin, BaseEstimator):
    """Turns texts into vectors, for scikit-learn.

    ```python
    make_pipeline(BertFeaturizer("hf://google-bert/bert-base-uncased"), LogisticRegression())
    ```

    It holds the place of a checkpoint, not a model: clones and pickles are small, and the encoder
    is loaded once a process, when it is first needed. There is nothing to fit.

    Args:
        where: a checkpoint, see `BertEncoder.from_pretrained`.
        layers, combine, pooling, specials, normalize, max_length, overflow, stride,
        tokens_per_batch, dtype: see `FeatureExtractor`; `pooling` makes one vector of a text.
        cache: a folder in which what was computed is kept: texts that were seen before, by whatever
            process, with whatever `layers`, `combine`, `pooling`, `specials` and `normalize`, are
            not read again. A text takes 20·(L+1)·H bytes. None keeps nothing.
    """

    def __init__(
        self,
        where,
        *,
        layers=(-4, -3, -2, -1),
        combine="concat",
        pooling="mean",
        specials=True,
        normalize=False,
        max_length=None,
        overflow="truncate",
        stride=None,
        tokens_per_batch=4096,
        dtype=None,
        cache=None,
    ):
        self.where = where
        self.layers = layers
        self.combine = combine
        self.pooling = pooling
        self.specials = specials
        self.normalize = normalize
        self.max_length = max_length
        self.overflow = overflow
        self.stride = stride
        self.tokens_per_batch = tokens_per_batch
        self.dtype = dtype
        self.cache = cache

    def fit(self, X, y=None):  # noqa: N803  scikit-learn's name
        """Checks the options; nothing is learned.

        Raises:
            ConfigError: an option is unknown or at odds with the encoder.
        """
        self._check()
        return self

    def transform(self, X):  # noqa: N803
        """Returns the vectors of texts, float32 [N, D].

        Args:
            X: a list, NumPy array or pandas column of strings or of pairs (tuples of two strings);
                or a table of one or two columns of strings, two being pairs.

        Raises:
            InputError: a row is no text, such as None or NaN; the message names it.
            ConfigError: an option is unknown or at odds with the encoder.
        """
        self._check()
        texts = _texts(X)
        if self.cache is None:
            return self._extractor(
                layers=self.layers,
                combine=self.combine,
                pooling=self.pooling,
                specials=self.specials,
                normalize=self.normalize,
            ).extract(texts)
        return self._from_cache(texts)

    def get_feature_names_out(self, input_features=None):
        """Returns the names of the D columns: bert0, bert1, …"""
        return np.array([f"bert{n}" for n in range(self._size())], dtype=object)

    def __sklearn_is_fitted__(self):
        return True

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def _check(self):
        choose("pooling", self.pooling, TEXT_POOLINGS)
        if self.combine == "stack":
            raise ConfigError("combine='stack' gives no vector: choose concat, sum or mean")
        if not callable(self.combine):
            choose("combine", self.combine, COMBINATIONS)
        self._size()

    def _size(self):
        """Returns D, without loading the encoder's weights."""
        config = _config(os.fspath(self.where), _state(self.where))
        layers = layer_numbers(self.layers, config.num_hidden_layers)
        if self.pooling == "pooler":
            return config.hidden_size
        width = config.hidden_size * (2 if self.pooling == "mean_max" else 1)
        return combine_layers(np.zeros((len(layers), width), np.float32), self.combine).size

    def _extractor(self, **options):
        layers = options.pop("layers")
        return _extractor(
            os.fspath(self.where),
            _state(self.where),
            self.dtype,
            layers=tuple(layers) if isinstance(layers, list | np.ndarray) else layers,
            max_length=self.max_length,
            overflow=self.overflow,
            stride=self.stride,
            tokens_per_batch=self.tokens_per_batch,
            **options,
        )

    def _from_cache(self, texts):
        cache = FeatureCache(self.cache)
        reading = (self.max_length, self.overflow, self.stride, self.dtype)
        base = f"{_fingerprint(os.fspath(self.where), _state(self.where))} {reading} "
        keys = [hashlib.sha256((base + repr(text)).encode()).digest() for text in texts]
        config = _config(os.fspath(self.where), _state(self.where))
        layers = list(layer_numbers(self.layers, config.num_hidden_layers))
        result = np.empty((len(texts), self._size()), np.float32)
        extractor = None
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = range(first, min(first + _TEXTS_AT_ONCE, len(texts)))
            known = cache.get({keys[row] for row in some})
            missing = {keys[row]: texts[row] for row in some if keys[row] not in known}
            if missing:
                extractor = extractor or self._extractor(layers="all")
                new = dict(zip(missing, extractor.statistics(missing.values()), strict=True))
                cache.put(new)
                known |= new
            for row in some:
                statistics = {
                    name: value if name == "pooler" else value[layers]
                    for name, value in known[keys[row]].items()
                }
                if self.pooling == "pooler" and "pooler" not in statistics:
                    raise ConfigError(f"{self.where} has no pooler: choose another pooling")
                result[row] = text_vector(statistics, self.pooling, self.specials, self.combine)
        return normalized(result) if self.normalize else result


def _texts(table):
    """Returns the rows of a list, column or table as strings and pairs."""
    if hasattr(table, "to_numpy"):  # pandas
        table = table.to_numpy(dtype=object)
    if isinstance(table, str | bytes):
        raise InputError("X is one string: give a list of strings")
    if isinstance(table, np.ndarray) and table.ndim == 2:
        if table.shape[1] not in (1, 2):
            raise InputError(f"X has {table.shape[1]} columns: give one of texts, or two of pairs")
        rows = [row[0] if len(row) == 1 else tuple(row) for row in table.tolist()]
    else:
        rows = table.tolist() if isinstance(table, np.ndarray) else list(table)
    for number, row in enumerate(rows):
        check_input(number, row)
    return rows


def _state(where):
    """Returns what tells whether the files of a checkpoint are still the same."""
    place = Path(where)
    folder = place if place.is_dir() else place.parent
    if not folder.is_dir():
        return ()
    files = [path.stat() for path in sorted(folder.iterdir()) if path.is_file()]
    return tuple((file.st_ino, file.st_size, file.st_mtime_ns) for file in files)


@functools.lru_cache(maxsize=16)
def _config(where, state):
    return open_checkpoint(where).config


@functools.lru_cache(maxsize=2)
def _encoder(where, state, dtype):
    from keras_bert_ref.encoder import BertEncoder

    return BertEncoder.from_pretrained(where, dtype=dtype)


@functools.lru_cache(maxsize=4)
def _extractor(where, state, dtype, **options):
    from keras_bert_ref.features.extractor import FeatureExtractor

    return FeatureExtractor(_encoder(where, state, dtype), **options)


@functools.lru_cache(maxsize=16)
def _fingerprint(where, state):
    """Returns a hash of all that decides what a checkpoint makes of a text."""
    checkpoint = open_checkpoint(where)
    tokenizer = checkpoint.tokenizer
    found = hashlib.sha256(repr((checkpoint.config, checkpoint.attention)).encode())
    if tokenizer is not None:
        casing = (tokenizer.lower_case, tokenizer.strip_accents, tokenizer.never_split)
        found.update(repr((tokenizer.vocabulary_sha256, casing)).encode())
    for path in sorted(checkpoint.weights):
        if path.startswith(("embeddings/", "layer_", "pooler/")):
            found.update(path.encode())
            found.update(np.ascontiguousarray(checkpoint.weights[path].read()).data)
    return found.hexdigest()
