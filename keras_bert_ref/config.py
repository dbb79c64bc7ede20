"""The shape of a BERT model: named sizes, and `bert_config.json` in and out."""

import dataclasses
import difflib
import json
from pathlib import Path

from keras_bert_ref.errors import ConfigError
from keras_bert_ref.files import replace_text

# (layers L, hidden H); heads are H/64 and the feed-forward width is 4H throughout. Base and large
# are the paper's (section 3), the smaller ones those released later (Turc et al. 2019).
_SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

# Spellings of the tanh approximation in published configurations.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}

# Keys of released configurations (multilingual, Chinese, Model Garden) that no BERT code reads.
_IGNORED = {"directionality", "backward_compatible"} | {
    f"pooler_{name}"
    for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes and rates of a BERT encoder; field names are those of `bert_config.json`.

    Raises:
        ConfigError: a value is out of range, or two do not go together.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    # Width of the feed-forward layer between its two dense layers.
    intermediate_size: int = 3072
    # "gelu" is the exact (erf) form, "gelu_tanh" the approximation the original uses since 2019-02.
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    # Rows of the position table: the longest sequence the model can read, in pieces.
    max_position_embeddings: int = 512
    # Rows of the segment table: sentence A and sentence B.
    type_vocab_size: int = 2
    # Standard deviation of the truncated normal that weights start from.
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ConfigError(f"{field.name} must be a whole number above 0, not {value!r}")
            elif field.type is float:
                try:
                    if isinstance(value, bool) or not isinstance(value, int | float):
                        raise ValueError
                    float(value)
                except (ValueError, OverflowError):
                    raise ConfigError(f"{field.name} must be a number, not {value!r}") from None
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        if not isinstance(self.hidden_act, str) or self.hidden_act not in _ACTIVATIONS:
            raise ConfigError(
                f"hidden_act {self.hidden_act!r} is unknown: choose one of "
                f"{', '.join(sorted(_ACTIVATIONS))}"
            )
        object.__setattr__(self, "hidden_act", _ACTIVATIONS[self.hidden_act])
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be in [0, 1), not {getattr(self, name)!r}")
        for name in ("initializer_range", "layer_norm_eps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)!r}")

    @property
    def head_size(self):
        """Width of one attention head, H / A."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_name(cls, name, **changes):
        """Returns a named size: tiny, mini, small, medium, base or large.

        Args:
            name: one of the six names.
            **changes: fields to set otherwise, such as `vocab_size=8000`.
        """
        if not isinstance(name, str) or name not in _SIZES:
            raise ConfigError(f"no BERT size is named {name!r}: choose one of {', '.join(_SIZES)}")
        layers, hidden = _SIZES[name]
        sizes = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        return cls.from_dict(sizes | changes)

    @classmethod
    def from_dict(cls, settings, where="the configuration"):
        """Returns the configuration that `settings` spells out; unknown keys are refused.

        Args:
            settings: a mapping from field names to values.
            where: how error messages call the place the settings come from.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        settings = dict(settings)
        narrow = settings.pop("embedding_size", None)  # the Model Garden's, for ALBERT
        if narrow not in (None, settings.get("hidden_size")):
            raise ConfigError(
                f"{where}: embedding_size {narrow!r} differs from hidden_size: that is no BERT"
            )
        for key in settings:
            if key not in known | _IGNORED:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{where} has an unknown setting {key!r}{hint}")
        try:
            return cls(**{key: value for key, value in settings.items() if key in known})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    @classmethod
    def from_json(cls, path):
        """Reads a `bert_config.json` as released with the original.

        Raises:
            ConfigError: the file is missing, is not JSON, or holds a setting that is unknown, out
                of range, or missing (`vocab_size`, without which no model can be built).
        """
        try:
            if Path(path).exists() and not Path(path).is_file():
                raise ConfigError(f"{path} cannot be read: it is no file")
            settings = json.loads(Path(path).read_text(encoding="utf-8"))
        except ConfigError:
            raise
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not JSON: {error}") from None
        if not isinstance(settings, dict) or "vocab_size" not in settings:
            raise ConfigError(f"{path} is not a BERT configuration: it has no vocab_size")
        return cls.from_dict(settings, where=str(path))

    def to_dict(self):
        """Returns the fields as a plain dict."""
        return dataclasses.asdict(self)

    def to_json(self, path):
        """Writes `bert_config.json` in the released format."""
        replace_text(path, json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n")
