"""Requests that TensorFlow Serving answers before it takes any others.

A graph is optimized at its first run, which takes seconds: no client should wait for it. Serving
reads `assets.extra/tf_serving_warmup_requests`, a TFRecord file of `PredictionLog` messages, see
https://www.tensorflow.org/tfx/serving/saved_model_warmup. Their few fields are written here by
hand, as tensorflow-serving-api is no dependency.
"""

from keras_bert_ref._tensorflow import tf

PLACE = "assets.extra/tf_serving_warmup_requests"

# Numbers of the fields, from tensorflow_serving/apis/{prediction_log,predict,model}.proto.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS = 6, 1, 1, 2
_NAME, _SIGNATURE_NAME = 1, 3
_KEY, _VALUE = 1, 2


def write_warmup(folder, model_name, requests):
    """Writes requests into the folder of a SavedModel.

    Args:
        folder: of the SavedModel.
        model_name: the name that the model is served under.
        requests: an iterable of (signature, name → array).
    """
    path = folder / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            writer.write(_prediction_log(model_name, signature, inputs))


def _prediction_log(model_name, signature, inputs):
    spec = _field(_NAME, model_name.encode()) + _field(_SIGNATURE_NAME, signature.encode())
    request = _field(_MODEL_SPEC, spec)
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(_INPUTS, _field(_KEY, name.encode()) + _field(_VALUE, tensor))
    return _field(_PREDICT_LOG, _field(_REQUEST, request))


def _field(number, content):
    """Returns a field of protobuf's wire format that holds bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
