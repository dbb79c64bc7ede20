"""What a pretraining run will need: arithmetic on a configuration, before any machine is rented."""

import dataclasses

from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import ConfigError

# Bytes of a number in the precision that products are computed in.
COMPUTE_BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}

# Makers' data sheets: dense bfloat16 (V100: float16) matrix products in TFLOP/s, memory in GB. The
# first TPUs are counted by the core, of which a chip has two, each with half of its memory.
DEVICES = {
    "v100": (125, 32),
    "a100": (312, 80),
    "h100": (989, 80),
    "tpu-v2-core": (22.5, 8),
    "tpu-v3-core": (61.5, 16),
    "tpu-v4": (275, 32),
    "tpu-v5e": (197, 16),
}


def count_parameters(config: BertConfig) -> int:
    """Returns the number of weights of a `BertPretrainer` with both heads."""
    hidden, inner = config.hidden_size, config.intermediate_size
    norm = 2 * hidden
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    block = 4 * (hidden + 1) * hidden + (hidden + 1) * inner + (inner + 1) * hidden + 2 * norm
    pooler = (hidden + 1) * hidden
    masked_lm = (hidden + 1) * hidden + norm + config.vocab_size  # the decoder is the embeddings
    next_sentence = (hidden + 1) * 2
    embeddings = rows * hidden + norm
    return embeddings + config.num_hidden_layers * block + pooler + masked_lm + next_sentence


def training_flops(config: BertConfig, length: int, predictions: int) -> float:
    """Returns the floating point operations of a training step, for a row.

    Products of matrices alone: two operations for each weight and token, as much again for each of
    the two gradients. The rest is less than a hundredth.

    Args:
        config: of the model.
        length: S, of a row.
        predictions: P, masked positions of a row.
    """
    hidden = config.hidden_size
    weights = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    block = 2 * length * weights + 4 * length**2 * hidden
    masked_lm = 2 * predictions * (hidden**2 + hidden * config.vocab_size)
    return 3.0 * (config.num_hidden_layers * block + masked_lm + 2 * hidden**2)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device, as this library trains."""

    weights: float  # float32
    optimizer: float  # m and v, float32
    gradients: float  # float32
    copies: float  # of the weights, in the compute dtype
    activations: float  # what the layers keep for the backward pass
    predictions: float  # logits over the vocabulary, and their gradient

    @property
    def total(self):
        return sum(dataclasses.astuple(self))


def memory(
    config: BertConfig,
    rows: int,
    length: int,
    predictions: int,
    precision: str,
    *,
    accumulates: bool = False,
) -> Memory:
    """Returns what a device needs for a (micro-)batch of so many rows.

    Each layer keeps, for a token, its input, query, key and value, the context, two normalized
    sums and the input of the feed-forward network (8·H), the inner layer before and after its
    activation (2·I), and the attention probabilities before and after dropout (2·A·S).

    Args:
        config: of the model.
        rows: computed at once.
        length: S, of a row.
        predictions: P, masked positions of a row.
        precision: a Keras dtype policy.
        accumulates: whether there are several micro-batches: their gradients' sum is kept beside
            the next one's.
    """
    size = COMPUTE_BYTES[precision]
    parameters = count_parameters(config)
    kept = (
        8 * config.hidden_size
        + 2 * config.intermediate_size
        + 2 * config.num_attention_heads * length
    )
    tokens = rows * length
    return Memory(
        weights=4.0 * parameters,
        optimizer=8.0 * parameters,
        gradients=(8.0 if accumulates else 4.0) * parameters,
        copies=0.0 if size == 4 else float(size * parameters),
        activations=float(size * tokens * kept * config.num_hidden_layers),
        predictions=float((4 + 4 + size) * rows * predictions * config.vocab_size),
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """A phase of a run: so many steps on rows of one length."""

    steps: int
    length: int
    predictions: int
    tokens: float  # slots of rows, padding included
    flops: float
    memory: Memory  # of a device
    tokens_per_second: float  # of all devices
    hours: float


def plan(
    config: BertConfig,
    *,
    steps: int,
    batch_size: int,
    length: int,
    predictions: int,
    devices: int,
    peak: float,
    utilization: float,
    micro_batches: int = 1,
    precision: str = "mixed_bfloat16",
) -> Plan:
    """Returns what a phase of a run needs.

    Args:
        config: of the model.
        steps: updates.
        batch_size: rows an update, over all devices.
        length: S, of a row.
        predictions: P, masked positions of a row.
        devices: how many.
        peak: operations a second of one device, in the precision named.
        utilization: the share of the peak that is reached ("MFU").
        micro_batches: parts in which a device computes its rows.
        precision: a Keras dtype policy.

    Raises:
        ConfigError: a number is out of range, or the batch cannot be divided.
    """
    numbers = {
        "steps": steps,
        "batch_size": batch_size,
        "length": length,
        "predictions": predictions,
        "devices": devices,
        "peak": peak,
        "utilization": utilization,
        "micro_batches": micro_batches,
    }
    for name, value in numbers.items():
        if not value > 0:
            raise ConfigError(f"{name} must be above 0, not {value}")
    if utilization > 1:
        raise ConfigError(f"utilization is a share of the peak: at most 1, not {utilization}")
    if precision not in COMPUTE_BYTES:
        raise ConfigError(
            f"precision {precision!r} is unknown: choose one of {', '.join(COMPUTE_BYTES)}"
        )
    if length > config.max_position_embeddings:
        raise ConfigError(
            f"length is {length}, the configuration's max_position_embeddings is "
            f"{config.max_position_embeddings}"
        )
    rows, rest = divmod(batch_size, devices * micro_batches)
    if rest:
        raise ConfigError(
            f"batch_size {batch_size} does not divide into {devices} devices × {micro_batches} "
            "micro-batches"
        )
    flops = steps * batch_size * training_flops(config, length, predictions)
    tokens = float(steps * batch_size * length)
    seconds = flops / (devices * peak * utilization)
    return Plan(
        steps=steps,
        length=length,
        predictions=predictions,
        tokens=tokens,
        flops=flops,
        memory=memory(config, rows, length, predictions, precision, accumulates=micro_batches > 1),
        tokens_per_second=tokens / seconds,
        hours=seconds / 3600,
    )
