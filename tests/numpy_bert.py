"""BERT, its two pretraining losses and its optimizer in NumPy float64, as the paper states them.

Nothing here comes from the library, so that equality with it says something. Written for clarity
over sequences [B, S, H], where the library works on tokens [T, H]. `weights` maps the paths of
variables to arrays. Axes: B batch, S sequence, P predictions, A heads, d = H/A, H hidden,
V vocabulary.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


def random_weights(variables, seed=0, width=0.3):
    """Returns path → float64 values for `variables`, none of them left at 0 or 1.

    Matrices are wider than the paper's 0.02, so that attention is far from uniform and every term
    counts.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for variable in variables:
        centre = 1.0 if variable.path.endswith("gamma") else 0.0
        spread = 0.3 if len(variable.shape) == 1 else width
        values = centre + spread * rng.standard_normal(variable.shape)
        # Exactly representable in float32: no difference comes from rounding the weights.
        weights[variable.path] = values.astype(np.float32).astype(np.float64)
    return weights


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class NumpyBert:
    """The forward pass, over `weights` by path.

    Args:
        config: a `BertConfig`.
        weights: path → array.
        left_to_right: whether a position sees only itself and those before it.
    """

    def __init__(self, config, weights, left_to_right=False):
        self.config = config
        self.weights = weights
        self.left_to_right = left_to_right
        self.act = ACTIVATIONS[config.hidden_act]

    def dense(self, path, x):
        return x @ self.weights[f"{path}/kernel"] + self.weights[f"{path}/bias"]

    def norm(self, path, x):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        x = (x - mean) / np.sqrt(variance + self.config.layer_norm_eps)
        return x * self.weights[f"{path}/gamma"] + self.weights[f"{path}/beta"]

    def block(self, path, x, visible):
        """Returns [B, S, H] and the attention probabilities [B, A, S, S]."""
        heads = self.config.num_attention_heads
        batch, length, hidden = x.shape

        def split(x):
            return x.reshape(batch, length, heads, hidden // heads).swapaxes(1, 2)  # [B, A, S, d]

        query, key, value = (
            split(self.dense(f"{path}/self_attention/{name}", x))
            for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(2, 3) / math.sqrt(hidden // heads)
        probabilities = softmax(np.where(visible, scores, scores - 1e4))
        context = (probabilities @ value).swapaxes(1, 2).reshape(batch, length, hidden)
        x = self.norm(
            f"{path}/attention_LayerNorm", x + self.dense(f"{path}/attention_output", context)
        )
        inner = self.act(self.dense(f"{path}/intermediate", x))
        x = self.norm(f"{path}/output_LayerNorm", x + self.dense(f"{path}/output", inner))
        return x, probabilities

    def encode(self, features):
        """Returns the encoder's four outputs, or three where the weights hold no pooler."""
        ids, weights = features["input_ids"], self.weights
        length = ids.shape[1]
        x = weights["embeddings/word_embeddings"][ids]
        x = x + weights["embeddings/position_embeddings"][:length]
        x = x + weights["embeddings/token_type_embeddings"][features["segment_ids"]]
        x = self.norm("embeddings/LayerNorm", x)
        visible = features["input_mask"][:, None, None, :] == 1  # [B, 1, 1, S]
        if self.left_to_right:
            visible = visible & np.tri(length, dtype=bool)  # [B, 1, S, S]
        states, attentions = [x], []
        for number in range(self.config.num_hidden_layers):
            x, probabilities = self.block(f"layer_{number}", x, visible)
            states.append(x)
            attentions.append(probabilities)
        outputs = {
            "sequence_output": x,
            "hidden_states": np.stack(states, 1),
            "attentions": np.stack(attentions, 1),
        }
        if "pooler/kernel" in weights:
            outputs["pooled_output"] = np.tanh(self.dense("pooler", x[:, 0]))
        return outputs

    def pretraining_logits(self, features):
        """Returns masked-LM logits [B, P, V] and next-sentence logits [B, 2]."""
        encoded = self.encode(features)
        x = np.take_along_axis(
            encoded["sequence_output"], features["masked_lm_positions"][:, :, None], 1
        )
        x = self.norm(
            "masked_lm/transform_LayerNorm", self.act(self.dense("masked_lm/transform", x))
        )
        masked_lm = x @ self.weights["embeddings/word_embeddings"].T
        return (
            masked_lm + self.weights["masked_lm/output_bias"],
            self.dense("next_sentence/output", encoded["pooled_output"]),
        )

    def pretraining_losses(self, features, labels):
        """Returns the masked-LM loss, Σ w·ℓ / (Σ w + 1e-5), and the mean next-sentence loss."""
        masked_lm, next_sentence = self.pretraining_logits(features)
        weights = labels["masked_lm_weights"].astype(np.float64)
        values = cross_entropy(labels["masked_lm_ids"], masked_lm)
        return (
            (weights * values).sum() / (weights.sum() + 1e-5),
            cross_entropy(labels["next_sentence_labels"], next_sentence).mean(),
        )


def cross_entropy(labels, logits):
    """Returns -log softmax(logits)[label]."""
    logits = logits - logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits).sum(-1))
    return log_sum - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def warmup_linear(step, rate, steps, warmup, continuous=False):
    """Returns the learning rate at `step`."""
    if step < warmup:
        return rate * step / warmup
    if continuous:
        return rate * max(steps - step, 0) / (steps - warmup)
    return rate * max(1 - step / steps, 0)


class NumpyAdamW:
    """The original's optimizer over path → float64 arrays, which `update` changes in place."""

    def __init__(
        self, weights, decayed, *, decay=0.01, clip_norm=1.0, bias_correction=False, lamb=False
    ):
        self.lamb = lamb  # LAMB in its place
        self.weights, self.decayed = weights, decayed
        self.decay, self.clip_norm, self.bias_correction = decay, clip_norm, bias_correction
        self.m = {path: np.zeros_like(w) for path, w in weights.items()}
        self.v = {path: np.zeros_like(w) for path, w in weights.items()}
        self.step = 0

    def update(self, gradients, rate):
        """Applies one step and returns the global norm before clipping."""
        self.step += 1
        norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        scale = min(1, self.clip_norm / norm) if self.clip_norm else 1
        for path, gradient in gradients.items():
            gradient = gradient * scale
            self.m[path] = 0.9 * self.m[path] + 0.1 * gradient
            self.v[path] = 0.999 * self.v[path] + 0.001 * gradient**2
            m, v = self.m[path], self.v[path]
            if self.bias_correction:
                m, v = m / (1 - 0.9**self.step), v / (1 - 0.999**self.step)
            change = m / (np.sqrt(v) + 1e-6)
            if path in self.decayed:
                change = change + self.decay * self.weights[path]
                if self.lamb:
                    lengths = [math.sqrt((x**2).sum()) for x in (self.weights[path], change)]
                    change = change * (lengths[0] / lengths[1] if all(lengths) else 1)
            self.weights[path] = self.weights[path] - rate * change
        return norm
