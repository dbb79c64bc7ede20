"""The part of a served model that has weights."""

import math

from keras_bert_ref._tensorflow import frozen, tf
from keras_bert_ref.errors import ConfigError

_LARGEST = 2**31 - 2**26  # bytes; the rest of the graph, vocabulary included, has the difference


class Computation:
    """A function of named tensors, traced once, with its weights as constants or variables.

    Args:
        function: takes and returns name → tensor.
        inputs: a `tf.TensorSpec` for each input.
        freeze: whether weights become constants of the graph.

    Attributes:
        outputs: name → `tf.TensorSpec`.
        variables: those that the function reads; none if they are constants.
    """

    def __init__(self, function, inputs, freeze):
        self._names = [spec.name for spec in inputs]
        names = []

        def run(*values):
            outputs = function(dict(zip(self._names, values, strict=True)))
            names[:] = outputs
            return list(outputs.values())

        traced = tf.function(run, input_signature=inputs, autograph=False).get_concrete_function()
        size = sum(math.prod(x.shape) * x.dtype.size for x in traced.variables)
        if freeze and size > _LARGEST:
            raise ConfigError(
                f"weights of {size / 2**30:.1f} GiB cannot be constants of a graph, which is "
                "written as one message of at most 2 GiB: keep them as variables (freeze=False)"
            )
        self._function = frozen(traced) if freeze else traced
        self.outputs = {
            name: tf.TensorSpec(x.shape, x.dtype, name)
            for name, x in zip(names, traced.outputs, strict=True)
        }
        self.variables = list(self._function.variables)

    def __call__(self, features):
        values = self._function(*[_with_a_column(features[name]) for name in self._names])
        return {
            name: tf.ensure_shape(value, spec.shape)
            for value, (name, spec) in zip(values, self.outputs.items(), strict=True)
        }


def _with_a_column(x):
    """Returns x [..., S], S at least 1: a batch of no texts has no column, but [CLS] is read."""
    missing = tf.cast(tf.equal(tf.shape(x)[-1:], 0), tf.int32)
    return tf.concat([x, tf.zeros(tf.concat([tf.shape(x)[:-1], missing], 0), x.dtype)], -1)
