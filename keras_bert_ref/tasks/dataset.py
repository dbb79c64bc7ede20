"""Training rows as a `tf.data.Dataset`."""

import itertools

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.tasks.batching import TrainingBatches
from keras_bert_ref.tasks.prediction import check_fits

_AHEAD = 4  # batches that are made while the model computes


def training_batches(task, model, examples, size, seed):
    """Returns the `TrainingBatches` of examples for a model."""
    check_fits(task, model.tokenizer, model.encoder.config)
    longest = model.encoder.config.max_position_embeddings
    labels = getattr(model, "labels", None)
    rows = [row for one in examples for row in task.features(one, model.tokenizer, labels, True)]
    return TrainingBatches(rows, size, longest, seed)


def dataset_of(batches, generate):
    """Returns a dataset of what a function yields.

    Args:
        batches: `TrainingBatches`, for names, types and numbers of axes.
        generate: a function that returns an iterator of (features, labels).
    """
    first = next(batches.starting_at(0))
    signature = tf.nest.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, x.dtype), first)
    return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(_AHEAD)


def epochs_of(batches):
    """Returns a dataset of one epoch, of another order each time that it is gone through."""
    done = itertools.count()

    def generate():
        start = next(done) * batches.per_epoch
        yield from itertools.islice(batches.starting_at(start), batches.per_epoch)

    dataset = dataset_of(batches, generate)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches.per_epoch))
