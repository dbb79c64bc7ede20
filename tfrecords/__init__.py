"""Pretraining data: raw text → token store → masked instances → TFRecord shards → tf.data.

`create.create_pretraining_data` goes from text to a folder of shards, `reader.pretraining_dataset`
from there to what `fit` takes. Only the reader's side needs TensorFlow.
"""
