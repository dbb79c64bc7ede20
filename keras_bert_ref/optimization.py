"""The paper's optimizer and learning-rate schedule (appendix A.2 and the original release)."""

import numbers
import re

from keras_bert_ref import ops
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import ConfigError


def _check(name, value, fits, range_in_words):
    """Refuses a setting that is no number, or not in its range; NaN never is."""
    if not isinstance(value, numbers.Real) or not fits(value):
        raise ConfigError(f"{name} must be {range_in_words}, not {value!r}")


@keras.saving.register_keras_serializable("keras_bert_ref")
class WarmupLinear(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that rises linearly for W steps, then falls linearly to 0 at step T.

    As in the original, the two lines do not meet: the rate at step t is lr·t/W while t < W, and
    lr·(1 - t/T) from then on, so the first step has rate 0 and the rate drops a little at W.

    Args:
        learning_rate: the peak, lr.
        steps: T, the number of training steps.
        warmup_steps: W, below T.
        continuous: whether the falling line starts at the peak instead, lr·(T - t)/(T - W).

    Raises:
        ConfigError: a rate or number of steps is out of range.
    """

    def __init__(self, learning_rate, steps, warmup_steps=0, *, continuous=False):
        _check("learning_rate", learning_rate, lambda rate: 0 < rate < float("inf"), "above 0")
        _check("steps", steps, lambda steps: 0 < steps < float("inf"), "above 0")
        if not isinstance(warmup_steps, numbers.Integral) or not 0 <= warmup_steps < steps:
            raise ConfigError(
                f"warmup_steps must be at least 0 and below the {steps} training steps, "
                f"not {warmup_steps}"
            )
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup_steps = warmup_steps
        self.continuous = continuous

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = step / max(self.warmup_steps, 1)
        start = self.warmup_steps if self.continuous else 0
        falling = 1 - tf.minimum(step - start, self.steps - start) / (self.steps - start)
        return self.learning_rate * tf.where(step < self.warmup_steps, rising, falling)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "continuous": self.continuous,
        }


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertAdamW(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay as the original release computes it.

    For a gradient g, clipped by global norm together with all others:

        m ← β₁·m + (1 - β₁)·g        v ← β₂·v + (1 - β₂)·g²
        p ← p - lr·(m / (√v + ε) + λ·p)

    with λ = 0 for layer normalization and biases. The original does not correct the bias of m and v
    towards zero; `bias_correction=True` does, as in Kingma & Ba (2015).

    Args:
        learning_rate: a float or a schedule.
        weight_decay_rate: λ.
        beta_1, beta_2, epsilon: as above.
        clip_norm: the global norm that gradients are clipped to, once they are summed over all
            replicas; None leaves them as they are.
        no_decay: regular expressions; a variable whose path one of them matches is not decayed.
        bias_correction: whether m and v are divided by 1 - βᵗ.
        name: the optimizer's name.

    Raises:
        ConfigError: a setting is out of range.
    """

    _layerwise = False  # whether the update of a variable is scaled to its norm

    def __init__(
        self,
        learning_rate=1e-4,
        *,
        weight_decay_rate=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        clip_norm=1.0,
        no_decay=("LayerNorm", "bias"),
        bias_correction=False,
        name="bert_adamw",
    ):
        if not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            _check("learning_rate", learning_rate, lambda x: 0 <= x < float("inf"), "at least 0")
        if clip_norm is not None:
            _check("clip_norm", clip_norm, lambda x: x > 0, "above 0, or None")
        _check("weight_decay_rate", weight_decay_rate, lambda x: x >= 0, "at least 0")
        _check("beta_1", beta_1, lambda x: 0 <= x < 1, "in [0, 1)")
        _check("beta_2", beta_2, lambda x: 0 <= x < 1, "in [0, 1)")
        _check("epsilon", epsilon, lambda x: x >= 0, "at least 0")
        try:
            if isinstance(no_decay, str):  # its letters would be taken one by one
                raise TypeError("a str, not a list of them")
            for pattern in no_decay:
                re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"no_decay {no_decay!r} is no list of regular expressions: {error}"
            ) from None
        super().__init__(learning_rate=learning_rate, name=name)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.clip_norm = clip_norm
        self.no_decay = tuple(no_decay)
        self.bias_correction = bias_correction

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["m", "v"])
        self._decays = [
            not any(re.search(pattern, variable.path) for pattern in self.no_decay)
            for variable in variables
        ]

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # Keras clips before replicas are summed, each by its own norm. Sum first, then clip once.
        pairs = self._all_reduce_sum_gradients(
            [(g, getattr(v, "value", v)) for g, v in zip(grads, trainable_variables, strict=True)]
        )
        pairs = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs]
        factor = self._clip_factor([gradient for gradient, _ in pairs])
        if not tf.distribute.has_strategy():
            for gradient, variable in pairs:
                self.update_step(gradient, variable, learning_rate, factor)
            return
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._update_replicas, self._distribution_strategy, pairs, learning_rate, factor
        )

    def _clip_factor(self, gradients):
        """Returns what gradients are multiplied by for a global norm of at most `clip_norm`."""
        if self.clip_norm is None:
            return 1.0
        norm = tf.linalg.global_norm([tf.cast(gradient, tf.float32) for gradient in gradients])
        return self.clip_norm / tf.maximum(norm, self.clip_norm)

    def _update_replicas(self, strategy, pairs, learning_rate, factor):
        for gradient, variable in pairs:
            strategy.extended.update(
                variable,
                lambda variable, *args: self.update_step(args[0], variable, *args[1:]),
                args=(gradient, learning_rate, factor),
                group=False,
            )

    def update_step(self, gradient, variable, learning_rate, factor=1.0):
        index = self._get_variable_index(variable)
        m, v = self._momentums[index].value, self._velocities[index].value
        step = tf.cast(self.iterations + 1, tf.float32)
        new = _updated(
            tf.convert_to_tensor(variable),
            tf.convert_to_tensor(m),
            tf.convert_to_tensor(v),
            gradient,
            rate=tf.cast(learning_rate, tf.float32),
            factor=tf.cast(factor, tf.float32),
            decay=tf.constant(self.weight_decay_rate if self._decays[index] else 0, tf.float32),
            layerwise=self._layerwise and self._decays[index],
            m_bias=1 - self.beta_1**step if self.bias_correction else tf.constant(1.0),
            v_bias=1 - self.beta_2**step if self.bias_correction else tf.constant(1.0),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )
        for old, value in zip((variable, m, v), new, strict=True):
            old.assign(value)

    def get_config(self):
        return {
            "name": self.name,
            "learning_rate": keras.saving.serialize_keras_object(self._learning_rate)
            if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
            else float(self.learning_rate),
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "clip_norm": self.clip_norm,
            "no_decay": list(self.no_decay),
            "bias_correction": self.bias_correction,
        }


@keras.saving.register_keras_serializable("keras_bert_ref")
class Lamb(BertAdamW):
    """Adam whose update of each variable is as large as the variable (You et al. 2020, LAMB).

    With u = m / (√v + ε) + λ·p as in `BertAdamW`:

        p ← p - lr·(‖p‖ / ‖u‖)·u

    It is made for batches of thousands of rows, with rates from 1e-3. Where λ = 0 (layer
    normalization and biases), or a norm is 0, the update is not scaled, as in the authors' program.

    Args:
        learning_rate: a float or a schedule.
        bias_correction: whether m and v are divided by 1 - βᵗ, as in the paper.
        name: the optimizer's name.
        **options: the other arguments of `BertAdamW`.

    Raises:
        ConfigError: a setting is out of range.
    """

    _layerwise = True

    def __init__(self, learning_rate=1e-3, *, bias_correction=True, name="lamb", **options):
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **options)


@ops.compiled
def _updated(
    p, m, v, gradient, *, rate, factor, decay, m_bias, v_bias, beta_1, beta_2, epsilon, layerwise
):
    """Returns the new p, m and v, read and written once.

    What differs between variables of one shape comes as a tensor, for one program to serve them.
    """
    gradient = tf.cast(gradient, m.dtype) * factor
    m += (1 - beta_1) * (gradient - m)
    v += (1 - beta_2) * (tf.square(gradient) - v)
    update = (m / m_bias) / (tf.sqrt(v / v_bias) + epsilon) + decay * p
    if layerwise:
        norm, size = tf.norm(p), tf.norm(update)
        rate *= tf.where((norm > 0) & (size > 0), tf.math.divide_no_nan(norm, size), 1.0)
    return p - rate * update, m, v
