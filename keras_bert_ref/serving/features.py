"""A feature extractor's answer: the same vectors, pooled and combined in the graph."""

import numpy as np

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.features.combining import TEXT_POOLINGS
from keras_bert_ref.features.frozen import hidden_states
from keras_bert_ref.serving.served import Served


class ServedFeatures(Served):
    """The vector of each text; or those of its words or pieces, and how many they are.

    Words begin where a piece does not begin with "##". [CLS] and [SEP] are told by their places.

    Args:
        extractor: a `FeatureExtractor`.

    Raises:
        ConfigError: it reads longer texts through a window, or combines layers by other means than
            a Keras layer.
    """

    def __init__(self, extractor):
        if extractor.stride is not None:
            raise ConfigError(
                "overflow='slide' cannot be exported: texts are cut to max_length, so export an "
                "extractor with overflow='truncate'"
            )
        combine = extractor.combine
        if callable(combine) and not isinstance(combine, keras.layers.Layer):
            raise ConfigError("combine must be a name or a Keras layer to be exported")
        super().__init__(extractor, extractor.max_length)
        self.pooling, self.combine = extractor.pooling, combine
        self.specials, self.normalize = extractor.specials, extractor.normalize

    def compute(self, features):
        encoder = self.model.encoder
        states, top = hidden_states(
            encoder, self.model.layers, features, whole=self.pooling == "pooler"
        )
        if self.pooling == "pooler":
            return {"features": self._scaled(tf.cast(encoder.pooler(top[:, 0]), tf.float32))}
        states = tf.stack(states, axis=2)  # [B, S, k, H]
        real = features["input_mask"] > 0
        ids = features["input_ids"]
        special = _specials(real, features["segment_ids"])
        if self.pooling in TEXT_POOLINGS:
            chosen = real if self.specials else real & ~special
            return {"features": self._scaled(self._combined(self._pooled(states, chosen)))}
        if self.pooling == "pieces":
            found = tf.ragged.boolean_mask(states, real if self.specials else real & ~special)
        else:
            found = self._words(states, real & ~special, ids)
        vectors = self._scaled(self._combined(found.values))
        return {
            "features": found.with_values(vectors).to_tensor(),
            "lengths": tf.cast(found.row_lengths(), tf.int32),
        }

    def _pooled(self, states, chosen):
        """Returns the vectors of texts for each layer, [B, k, H], or [B, k, 2·H] for mean_max."""
        if self.pooling == "cls":
            return states[:, 0]
        chosen = chosen[:, :, tf.newaxis, tf.newaxis]
        parts = []
        if self.pooling.startswith("mean"):
            count = tf.maximum(tf.reduce_sum(tf.cast(chosen, tf.float32), 1), 1)
            parts.append(tf.reduce_sum(tf.where(chosen, states, 0), 1) / count)
        if self.pooling.endswith("max"):
            highest = tf.reduce_max(tf.where(chosen, states, states.dtype.min), 1)
            parts.append(tf.where(tf.reduce_any(chosen, 1), highest, 0))
        return tf.concat(parts, -1)

    def _words(self, states, chosen, ids):
        """Returns the vectors of words for each layer, ragged [B, words, k, H]."""
        pieces = tf.ragged.boolean_mask(states, chosen)
        continues = tf.gather(tf.constant(self.tokenizer.continues_word), ids)
        opens = tf.ragged.boolean_mask(~continues, chosen)
        # What is left of a word whose beginning is not there is a word.
        opens = tf.tensor_scatter_nd_update(
            tf.concat([opens.values, [True]], 0),  # the True: where there is no piece at all
            pieces.row_starts()[:, tf.newaxis],
            tf.ones_like(pieces.row_starts(), tf.bool),
        )[:-1]
        word = tf.cumsum(tf.cast(opens, tf.int64)) - 1
        begins = tf.where(opens)[:, 0]
        if self.pooling == "first_piece":
            values = tf.gather(pieces.values, begins)
        elif self.pooling == "last_piece":
            ends = tf.concat([begins[1:], [tf.size(word, tf.int64)]], 0)[: tf.size(begins)]
            values = tf.gather(pieces.values, ends - 1)
        else:
            values = tf.math.segment_mean(pieces.values, word)
        rows = tf.gather(pieces.value_rowids(), begins)
        return tf.RaggedTensor.from_value_rowids(values, rows, pieces.nrows(), validate=False)

    def _combined(self, states):
        """Returns one vector for each [..., k, H], see `features.combining.combine_layers`."""
        if self.combine == "concat":
            return tf.reshape(states, [-1, states.shape[-2] * states.shape[-1]])
        if self.combine == "sum":
            return tf.reduce_sum(states, -2)
        if self.combine == "mean":
            return tf.reduce_mean(states, -2)
        return states if self.combine == "stack" else self.combine(states)

    def _scaled(self, vectors):
        if not self.normalize:
            return vectors
        length = tf.norm(vectors, axis=-1, keepdims=True)
        return vectors / tf.maximum(length, np.finfo(np.float32).tiny)


def _specials(real, segment_ids):
    """Returns where [CLS] and the [SEP] that ends each segment are, bool [B, S].

    By their places, as a text may hold such pieces of its own.
    """
    columns = tf.range(tf.shape(real)[1])[tf.newaxis]

    def last(chosen):
        return tf.reduce_sum(tf.cast(chosen, tf.int32), 1, keepdims=True) - 1

    first_text = real & (segment_ids == 0)
    return (columns == 0) | (columns == last(first_text)) | (columns == last(real))
