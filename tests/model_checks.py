"""What the tests of all task models do with them."""

import numpy as np

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.losses import denominators, share_of_loss


def dataset_of(batches):
    """Returns a dataset of these features, or (features, labels), whatever their sizes."""
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, x.dtype), batches[0])
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


def loss_of(model, features, labels):
    weights = model.loss_weights(labels)
    values = model.loss_values(labels, model(features, training=True))
    return share_of_loss(values, weights, denominators(weights))


def values_of(model):
    return {v.path: v.numpy() for v in model.trainable_variables}


def assert_weights_equal(given, expected, tolerance):
    assert set(given) == set(expected)
    for path, values in expected.items():
        np.testing.assert_allclose(given[path], values, rtol=0, atol=tolerance, err_msg=path)


def floats(results):
    return {name: float(value) for name, value in results.items()}
