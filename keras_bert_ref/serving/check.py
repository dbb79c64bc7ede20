"""Runs a SavedModel as another program would: no module but TensorFlow's is imported.

    python -P check.py SAVED_MODEL CASES.npz RESULTS.npz

CASES holds "signature/input" → array; RESULTS gets "signature/output" → array.
"""

import collections
import os
import re
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf


def main(folder, cases, results):
    requests = collections.defaultdict(dict)
    with np.load(cases) as arrays:
        for key in arrays.files:
            signature, name = key.split("/")
            requests[signature][name] = arrays[key]
    model = tf.saved_model.load(folder)
    found = {}
    for signature, inputs in requests.items():
        outputs = model.signatures[signature](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        for name, value in outputs.items():
            array = value.numpy()
            found[f"{signature}/{name}"] = array.astype("S") if array.dtype == object else array
    np.savez(results, **found)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        # One line that says what is wrong, without TensorFlow's names of nodes.
        text = re.sub(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:.*?\]", "", str(error))
        sys.exit(" ".join(text.split()) or type(error).__name__)
