"""Shards → the tf.data pipeline that pretraining reads.

What a dataset yields is a function of the seed and of the number of the batch alone: all draws are
stateless. A run that starts at batch n therefore continues exactly where one that took n batches
stopped, and nothing needs to be saved for it.
"""

import os
from collections.abc import Iterable

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError, RecordError
from keras_bert_ref.tokenization import WordPieceTokenizer
from tfrecords.dynamic_masking import mask_batch
from tfrecords.schema import record_bytes, record_features, value_limits
from tfrecords.settings import InstanceSettings
from tfrecords.shards import Shards, explain, open_shards

__all__ = ["Shards", "explain", "open_shards", "pretraining_dataset"]

# As many records, unpacked, are shuffled as one; they are held twice for a moment. Larger data are
# shuffled in stretches of this size, each a mix of files that are in random order themselves.
SHUFFLE_BYTES = 128 << 20
_FILES_AT_ONCE = 16
_INPUTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")


def pretraining_dataset(
    where: Shards | str | os.PathLike | Iterable[str | os.PathLike],
    batch_size: int,
    *,
    split: str = "train",
    shuffle: bool = True,
    seed: int = 0,
    epochs: int | None = None,
    start_batch: int = 0,
    input_context: "tf.distribute.InputContext | None" = None,
    vocab_size: int | None = None,
    drop_remainder: bool = True,
    sequences_per_row: int = 1,
    masking: InstanceSettings | None = None,
    tokenizer: WordPieceTokenizer | None = None,
) -> "tf.data.Dataset":
    """Returns a dataset of (inputs, labels) for `BertPretrainer`.

    Inputs: `input_ids`, `input_mask`, `segment_ids` [B, S] and `masked_lm_positions` [B, P], int32.
    Labels: `masked_lm_ids` [B, P] int32, `masked_lm_weights` [B, P] float32, `next_sentence_labels`
    [B] int32; or [B, N], -1 in unused places, with `sequences_per_row` N above 1. Every record
    comes once an epoch, in an order of its own; batches run on across the borders of epochs.

    Args:
        where: See `open_shards`, or what it returned.
        batch_size: Rows in a batch of this input pipeline.
        split: "train" or "heldout", of a folder.
        shuffle: False for the order of the files.
        seed: Of order and dynamic masks.
        epochs: Passes over the data; None for no end.
        start_batch: Number of batches, of a dataset with the same arguments, to pass over.
        input_context: Divides the data among the workers of a strategy: by file, or by record
            where there are fewer files than workers.
        vocab_size: Size of the model's vocabulary; ids beyond it are refused. None for the size the
            shards state, if they do.
        drop_remainder: False to end with a smaller batch, when `epochs` is finite.
        sequences_per_row: N, what the model's encoder takes (see `BertEncoder`): at least as many
            as the shards were made with.
        masking: For dynamically masked shards: settings other than those they were made with.
        tokenizer: For dynamically masked shards that come without their vocabulary.

    Raises:
        ConfigError: An argument is out of range or does not suit the shards.
        RecordError: See `open_shards`. What is found wrong later, while iterating, is a
            `tf.errors.OpError`; `explain` names the record behind it.
    """
    shards = where if isinstance(where, Shards) else open_shards(where, split)
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("start_batch", start_batch, 0),
        ("epochs", 1 if epochs is None else epochs, 1),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}: it must be at least {least}.")
    if vocab_size is not None and shards.vocab_size and shards.vocab_size > vocab_size:
        raise ConfigError(
            f"{shards.files[0]} was made with a vocabulary of {shards.vocab_size} pieces, the "
            f"model's vocab_size is {vocab_size}: use one that holds all pieces."
        )
    if sequences_per_row < shards.sequences_per_row:
        raise ConfigError(
            f"{shards.files[0]} holds up to {shards.sequences_per_row} sequences to a row: give "
            f"sequences_per_row={shards.sequences_per_row}, here and to the model's BertEncoder."
        )
    check = _checks(shards, vocab_size or shards.vocab_size)
    mask = _dynamic_masking(shards, masking, tokenizer)

    workers, worker = 1, 0
    if input_context is not None:
        workers, worker = input_context.num_input_pipelines, input_context.input_pipeline_id
    read_epoch, records = _epochs(shards, shuffle, seed, workers, worker)
    first_epoch, passed = divmod(start_batch * batch_size, records)
    last_epoch = tf.int64.max if epochs is None else max(epochs, first_epoch)
    features = {
        name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype))
        for name, feature in record_features(
            shards.max_seq_length, shards.max_predictions_per_seq, shards.sequences_per_row
        ).items()
    }

    def parse(number, serialized):
        row = tf.io.parse_example(serialized, features)
        with tf.control_dependencies(check(row)):
            row = {
                k: tf.cast(v, tf.int32 if v.dtype == tf.int64 else v.dtype) for k, v in row.items()
            }
        mask_seed = tf.stack([tf.constant(seed, tf.int64), number])
        if worker:  # batches of the same number must not share their draws
            mask_seed = tf.random.experimental.stateless_fold_in(mask_seed, worker)
        row = mask(row, mask_seed)
        row["next_sentence_labels"] = _next_sentence_labels(row, sequences_per_row)
        inputs = {name: row.pop(name) for name in _INPUTS}
        return inputs, row

    dataset = tf.data.Dataset.range(first_epoch, last_epoch).flat_map(read_epoch).skip(passed)
    dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
    dataset = dataset.enumerate(start_batch).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    # Keras asks for the length, and warns of a dataset that ends without having told it.
    batches = tf.data.INFINITE_CARDINALITY
    if epochs is not None:
        rows = max(0, epochs * records - start_batch * batch_size)
        batches = rows // batch_size if drop_remainder else -(-rows // batch_size)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _epochs(shards, shuffle, seed, workers, worker):
    """Returns a function from an epoch's number to a worker's records, and how many they are."""
    by_file = len(shards.files) >= workers
    files = shards.files[worker::workers] if by_file else shards.files
    if by_file:
        records = sum(shards.records[worker::workers])
    else:
        records = len(range(worker, sum(shards.records), workers))
    if not records:
        raise RecordError(
            f"{shards.files[0]}: {sum(shards.records)} records are too few for {workers} workers."
        )
    row_bytes = record_bytes(shards.max_seq_length, shards.max_predictions_per_seq)
    window = max(1, min(records, int(SHUFFLE_BYTES / row_bytes)))

    def read(epoch):
        names = tf.constant(files)
        if shuffle:
            names = _shuffled(names, seed, epoch, 0)
        dataset = tf.data.Dataset.from_tensor_slices(names).interleave(
            lambda name: tf.data.TFRecordDataset(name, shards.compression, 1 << 20),
            cycle_length=_FILES_AT_ONCE if shuffle else 1,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if not by_file:
            dataset = dataset.shard(workers, worker)
        if shuffle:
            dataset = dataset.batch(window).enumerate(1)
            dataset = dataset.map(lambda number, rows: _shuffled(rows, seed, epoch, number))
            dataset = dataset.unbatch()
        return dataset

    return read, records


def _shuffled(values, seed, epoch, number):
    """Shuffles a tensor by draws of its own; tf.data's shuffle would heed the global seed."""
    seed = tf.random.experimental.stateless_fold_in([seed, epoch], number)
    return tf.random.experimental.stateless_shuffle(values, seed)


def _next_sentence_labels(row, places):
    """Returns those of a parsed batch as the model takes them."""
    labels = row["next_sentence_labels"]
    if places == 1:
        return tf.squeeze(labels, axis=1)
    labels = tf.pad(labels, [[0, 0], [0, places - labels.shape[1]]])
    sequences = tf.reduce_max(row["input_mask"], axis=1, keepdims=True)
    return tf.where(tf.range(places) < sequences, labels, -1)


def _checks(shards, vocab_size):
    """Returns a function from a parsed batch to the assertions that it can be trained on."""
    limits = value_limits(shards.max_seq_length, vocab_size, shards.sequences_per_row)

    def check(row):
        assertions = []
        for name, limit in limits.items():
            if name in row:
                fine = tf.reduce_all((row[name] >= 0) & (row[name] < limit))
                message = f"{name} of a record is not in the range 0 to {limit - 1}"
                assertions.append(tf.debugging.Assert(fine, [message]))
        return assertions

    return check


def _dynamic_masking(shards, settings, tokenizer):
    """Returns a function that masks a parsed batch by a seed, or leaves it as it is."""
    if shards.max_predictions_per_seq is not None:
        if settings is not None:
            raise ConfigError(
                f"masking does not apply to {shards.files[0]}: its records are masked already. "
                "Create the data with dynamic masking."
            )
        return lambda row, seed: row
    tokenizer = tokenizer or shards.tokenizer()
    if tokenizer is None:
        raise ConfigError(f"{shards.files[0]} is to be masked while reading: give a tokenizer.")
    settings = settings or (shards.manifest and shards.manifest.settings)
    if settings is None:
        raise ConfigError(f"{shards.files[0]} is to be masked while reading: give masking.")
    for name in ("max_seq_length", "sequences_per_row"):
        if getattr(settings, name) != getattr(shards, name):
            raise ConfigError(
                f"masking.{name} is {getattr(settings, name)}, that of the rows of "
                f"{shards.files[0]} is {getattr(shards, name)}."
            )

    def mask(row, seed):
        masked = mask_batch(row["input_ids"], row["input_mask"], settings, tokenizer, seed)
        names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        return row | dict(zip(names, masked, strict=True))

    return mask
