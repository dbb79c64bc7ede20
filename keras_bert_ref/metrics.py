"""Metrics that Keras lacks. All are weighted means over everything seen since the last reset."""

from keras_bert_ref._tensorflow import keras, tf


@keras.saving.register_keras_serializable("keras_bert_ref")
class Perplexity(keras.metrics.Mean):
    """exp of the mean loss; `update_state` takes losses in nats and their weights."""

    def result(self):
        return tf.exp(super().result())


def correct(labels, logits):
    """Returns 1.0 where the highest logit is the label's: int [...], float [..., C] → [...]."""
    best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.cast(tf.equal(best, labels), tf.float32)  # not ==, which forgets unknown shapes
