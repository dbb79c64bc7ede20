"""A weighted sum of layers whose weights are learned."""

from keras_bert_ref._tensorflow import keras, tf


@keras.saving.register_keras_serializable("keras_bert_ref")
class ScalarMix(keras.layers.Layer):
    """γ · Σ softmax(w)ₖ · hₖ over k layers (Peters et al. 2018; "weighted sum" in table 7).

    It starts as their mean. Trained, it is a way for a `FeatureExtractor` to combine layers.

    Call arguments:
        states: [..., k, H], such as features with combine="stack".

    Returns:
        [..., H].
    """

    def build(self, shape):
        self.layer_weights = self.add_weight(
            shape=(shape[-2],), initializer="zeros", name="layer_weights"
        )
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, states):
        shares = tf.nn.softmax(tf.convert_to_tensor(self.layer_weights))
        return self.scale * tf.einsum("...kh,k->...h", states, shares)
