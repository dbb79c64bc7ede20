"""Losses and the way they are averaged.

A task model has named losses. Each is Σ w·ℓ / (Σ w + ε) over the *global* batch, all replicas and
micro-batches together, so that neither padding nor the number of devices changes what is learned.
"""

from keras_bert_ref._tensorflow import tf

# The original's ε, which keeps the loss of a batch without any masked position at zero.
_EPSILON = 1e-5


def cross_entropy(labels, logits):
    """Returns -log softmax(logits)[label]: int [...] and float32 [..., C] to float32 [...]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def scored(labels):
    """Returns 1.0 for labels that count, 0.0 for negative ones: int [...] to float32 [...]."""
    return tf.cast(tf.greater_equal(labels, 0), tf.float32)


def scored_cross_entropy(labels, logits):
    """Returns what `cross_entropy` does, finite for negative labels, which `scored` drops."""
    return cross_entropy(tf.maximum(labels, 0), logits)


def global_sum(x):
    """Returns the sum of scalar `x` over the replicas that run this step."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def denominators(weights):
    """Returns Σ w + ε over the global batch for each named loss; `weights` are this replica's."""
    return {name: global_sum(tf.reduce_sum(w)) + _EPSILON for name, w in weights.items()}


def share_of_loss(values, weights, totals):
    """Returns what these examples contribute to the loss: Σ over names of Σ w·ℓ / total.

    Summed over replicas and micro-batches it is the loss; so are its gradients.

    Args:
        values: name → ℓ, any shape.
        weights: name → w, of the same shapes.
        totals: name → scalar, from `denominators` of the whole batch.
    """
    return tf.add_n([tf.reduce_sum(values[n] * weights[n]) / totals[n] for n in values])
