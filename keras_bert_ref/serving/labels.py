"""Labels as strings of the graph."""

from keras_bert_ref._tensorflow import tf


def best_label(labels, logits):
    """Returns the names of the best labels, strings [...], for logits [..., C]."""
    return tf.gather(tf.constant(labels), tf.argmax(logits, -1))


def label_names(labels, rows):
    """Returns the names of all labels for each row, strings [rows, C]."""
    return tf.tile(tf.constant([labels]), [rows, 1])
