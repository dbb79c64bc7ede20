"""The graph that computes features: an encoder's weights as constants, and no layer too many."""

import numpy as np

from keras_bert_ref._tensorflow import frozen, tf
from keras_bert_ref.layers import AttentionBias

# What a text is summed up to, for each layer: the state of [CLS]; the mean and the largest value
# of each dimension, over all pieces or those of the text alone; the output of the pooler.
STATISTICS = ("cls", "mean", "max", "text_mean", "text_max", "pooler")


class FrozenEncoder:
    """Computes hidden states, or sums them up, up to the highest layer that is asked for.

    On CPU the weights become constants of the graph: oneDNN then arranges them for its kernels once
    and not at every call. Later changes of the encoder's weights are not seen.

    Args:
        encoder: a `BertEncoder`.
        layers: numbers of the layers wanted, 0 for the embeddings to L.
    """

    def __init__(self, encoder, layers):
        self.encoder = encoder
        self.layers = tuple(layers)
        self._functions = {}

    def states(self, arrays):
        """Returns the hidden states of a batch, float32 [B, S, k, H] for k layers."""
        (states,) = self._run("states", arrays)
        return states

    def statistics(self, arrays, wanted):
        """Sums up each row of a batch.

        Args:
            arrays: see `batches`.
            wanted: some of `STATISTICS`.

        Returns:
            A list of arrays in the order of `wanted`: float32 [B, k, H] for k layers ([B, H] of the
            pooler). Means are sums still: windows are to be added up before they are divided.
        """
        return self._run(tuple(wanted), arrays)

    def _run(self, wanted, arrays):
        if wanted not in self._functions:
            self._functions[wanted] = self._build(wanted)
        inputs = [tf.constant(arrays[name]) for name in _INPUTS]
        return [np.asarray(output) for output in self._functions[wanted](*inputs)]

    def _build(self, wanted):
        def compute(*inputs):
            features = dict(zip(_INPUTS, inputs, strict=True))
            states, top = hidden_states(
                self.encoder, self.layers, features, whole="pooler" in wanted
            )
            if wanted == "states":
                return [tf.stack(states, axis=2)]
            return [self._statistic(name, states, top, features) for name in wanted]

        signature = [tf.TensorSpec([None, None], tf.int32, name=name) for name in _INPUTS]
        function = tf.function(compute, input_signature=signature, autograph=False)
        function = function.get_concrete_function()
        return function if tf.config.list_logical_devices("GPU") else frozen(function)

    def _statistic(self, name, states, top, features):
        if name == "pooler":
            return tf.cast(self.encoder.pooler(top[:, 0]), tf.float32)
        if name == "cls":
            return tf.stack([state[:, 0] for state in states], axis=1)
        chosen = features["text"]
        if not name.startswith("text"):
            chosen += features["special"]
        if name.endswith("mean"):
            weights = tf.cast(chosen, tf.float32)[:, None]  # [B, 1, S]
            return tf.concat([tf.matmul(weights, state) for state in states], axis=1)
        hidden = tf.where(chosen == 0, -np.inf, 0.0)[:, :, None]  # [B, S, 1]
        return tf.stack([tf.reduce_max(state + hidden, axis=1) for state in states], axis=1)


_INPUTS = ("input_ids", "input_mask", "segment_ids", "text", "special")


def hidden_states(encoder, layers, features, whole=False):
    """Computes hidden states, no layer more than it takes.

    Args:
        encoder: a `BertEncoder`.
        layers: numbers of the layers wanted, 0 for the embeddings to L.
        features: the encoder's inputs.
        whole: whether all layers are to be computed.

    Returns:
        The wanted states, a list of float32 [B, S, H], and the last one that was computed.
    """
    blocks = encoder.blocks if whole else encoder.blocks[: max(layers)]
    shape = [*tf.unstack(tf.shape(features["input_ids"])), encoder.config.hidden_size]
    bias = AttentionBias(encoder.attention, name="bias", dtype=encoder.dtype_policy)
    bias = bias(features["input_mask"])
    x = encoder.embeddings(features["input_ids"], features["segment_ids"])  # [T, H]
    states = [tf.reshape(x, shape)]
    for block in blocks:
        x, _ = block(x, bias)
        states.append(tf.reshape(x, shape))
    return [states[layer] for layer in layers], states[-1]
