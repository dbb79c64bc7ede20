"""How documents become training instances: every setting, checked."""

import dataclasses
import functools

import numpy as np

from keras_bert_ref.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """Settings of the instance builder; the defaults are those of the original release.

    Raises:
        ConfigError: A value is out of range.
    """

    max_seq_length: int = 128  # tokens in a row, [CLS] and [SEP] included
    max_predictions_per_seq: int = 20  # masked positions of a sequence, at most
    masked_lm_prob: float = 0.15  # share of a sequence's tokens to predict
    sequences_per_row: int = 1  # at most; above 1 they are packed, see tfrecords/packing.py
    short_seq_prob: float = 0.1  # share of document passes that aim at a random shorter length
    dupe_factor: int = 10  # passes over the corpus, each with other pairs and masks
    whole_word_masking: bool = False  # mask all pieces of a word or none
    next_sentence: bool = True  # pairs for next sentence prediction; else full sentences
    mask_share: float = 0.8  # of the predicted tokens: shown as [MASK] (paper, table 8)
    same_share: float = 0.1  # … shown unchanged
    random_share: float = 0.1  # … shown as a random piece of the vocabulary

    def __post_init__(self):
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} is {value!r}: it must be a whole number.")
        for name in ("masked_lm_prob", "short_seq_prob", *_SHARES):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value!r}: it must lie between 0 and 1.")
        if self.max_seq_length < 5:
            raise ConfigError(
                f"max_seq_length is {self.max_seq_length}: it must be at least 5, which is "
                "[CLS], [SEP], [SEP] and a token on either side."
            )
        if self.max_seq_length > 0xFFFF:
            raise ConfigError(f"max_seq_length is {self.max_seq_length}: the most is 65,535.")
        if not 1 <= self.max_predictions_per_seq <= self.max_seq_length:
            raise ConfigError(
                f"max_predictions_per_seq is {self.max_predictions_per_seq}: it must lie between "
                f"1 and max_seq_length ({self.max_seq_length})."
            )
        for name in ("dupe_factor", "sequences_per_row"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least 1.")
        if self.sequences_per_row > self.max_seq_length // 5:
            raise ConfigError(
                f"sequences_per_row is {self.sequences_per_row}: rows of max_seq_length "
                f"{self.max_seq_length} hold no more than {self.max_seq_length // 5} sequences of "
                "five pieces."
            )
        if self.masked_lm_prob == 0:
            raise ConfigError("masked_lm_prob is 0: nothing would be left to predict.")
        total = sum(getattr(self, name) for name in _SHARES)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"{' + '.join(_SHARES)} is {total:g}: the three must add up to 1.")

    @functools.cached_property
    def predictions_by_length(self) -> np.ndarray:
        """How many tokens to predict in a sequence of 0 … max_seq_length: int64 [S+1].

        A table, so that every masking rounds alike (Python's round, half to even, in float64).
        """
        most = self.max_predictions_per_seq
        wanted = (round(n * self.masked_lm_prob) for n in range(self.max_seq_length + 1))
        return np.array([min(most, max(1, n)) for n in wanted])

    @property
    def predictions_per_row(self) -> int:
        """Slots for masked positions in a row, P: as many as its sequences can have together."""
        if self.sequences_per_row == 1:
            return self.max_predictions_per_seq
        most = int(self.masked_lm_prob * self.max_seq_length) + self.sequences_per_row
        most = min(most, self.sequences_per_row * self.max_predictions_per_seq)
        return min(most, self.max_seq_length)


_WHOLE_NUMBERS = (
    "max_seq_length",
    "max_predictions_per_seq",
    "sequences_per_row",
    "dupe_factor",
)
_SHARES = ("mask_share", "same_share", "random_share")
