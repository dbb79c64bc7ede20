"""What a served model is given: checked ids, and rows a few at a time."""

from keras_bert_ref._tensorflow import tf

INPUTS = ("input_ids", "input_mask", "segment_ids")


def checked(features, config):
    """Returns the features of a request, or lets it fail with a sentence that says why.

    Args:
        features: `INPUTS`, int32 [..., S].
        config: the encoder's `BertConfig`.
    """
    ids, mask, segments = (features[name] for name in INPUTS)
    shape = tf.shape(ids)
    sizes = {
        "input_ids": (ids, config.vocab_size),
        "segment_ids": (segments, config.type_vocab_size),
    }
    checks = [
        tf.debugging.Assert(
            tf.reduce_all(tf.equal(tf.shape(other), shape)),
            [f"{name} must have the shape of input_ids:", tf.shape(other), shape],
        )
        for name, other in (("input_mask", mask), ("segment_ids", segments))
    ]
    longest = config.max_position_embeddings
    checks.append(
        tf.debugging.Assert(
            (tf.size(ids) == 0) | (shape[-1] <= longest),
            [f"input_ids must have at most {longest} pieces a row, not", shape[-1]],
        )
    )
    checks.append(
        tf.debugging.Assert(
            (shape[-1] > 0) | tf.reduce_any(shape[:-1] == 0), ["input_ids must have a piece a row"]
        )
    )
    for name, (values, size) in sizes.items():
        checks.append(
            tf.debugging.Assert(
                tf.reduce_all((values >= 0) & (values < size)),
                [f"{name} must be at least 0 and below {size}"],
            )
        )
    with tf.control_dependencies(checks):
        return {name: tf.identity(features[name]) for name in INPUTS}


def in_chunks(compute, features, rows=32):
    """Computes some rows after the other, so that memory stays bounded however many there are.

    Args:
        compute: a `Computation`.
        features: name → int32 [B, S].
        rows: the most rows at a time.

    Returns:
        What `compute` would return for all rows.
    """
    # One part at least, of no rows: results have a shape.
    parts = tf.maximum((tf.shape(features["input_ids"])[0] + rows - 1) // rows, 1)

    def step(number, arrays):
        begin = number * rows
        outputs = compute({name: x[begin : begin + rows] for name, x in features.items()})
        written = [
            array.write(number, outputs[name])
            for name, array in zip(compute.outputs, arrays, strict=True)
        ]
        return number + 1, written

    arrays = [
        tf.TensorArray(x.dtype, parts, infer_shape=False, element_shape=x.shape)
        for x in compute.outputs.values()
    ]
    _, arrays = tf.while_loop(
        lambda number, arrays: number < parts, step, [0, arrays], parallel_iterations=1
    )
    results = zip(compute.outputs, (array.concat() for array in arrays), strict=True)
    return dict(results)
