"""The first-order optimizers whose step sizes Shampoo takes (PSO App. G; PT 2.4), as pure functions.

Each gives the direction P of a step W -= rate * P:

    adagrad   D += G^2                     P = G / sqrt(D)
    rmsprop   D = b D + (1 - b) G^2        P = G / (sqrt(D) + eps)
    adam      as rmsprop, D bias-corrected
    sgd                                    P = G

The second moment always takes the gradient itself; with a moving average of gradients (PT 3.1.1) the direction
takes that.
"""

import tensorflow as tf

from ctr.optim.options import ShampooOptions


def has_accumulator(options: ShampooOptions) -> bool:
    """Whether the grafted optimizer keeps second moments."""
    return options.grafting != "sgd"


def initial_accumulator(options: ShampooOptions) -> float:
    """The value at which second moments start."""
    return options.initial_accumulator if options.grafting == "adagrad" else 0.0


def update_accumulator(options: ShampooOptions, accumulator: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """The second moments after a gradient; all of one shape."""
    squared = tf.square(gradient)
    if options.grafting == "adagrad":
        return accumulator + squared
    return options.grafting_beta2 * accumulator + (1.0 - options.grafting_beta2) * squared


def direction(
    options: ShampooOptions, accumulator: tf.Tensor | None, gradient: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """The grafted optimizer's direction.

    Args:
        options: which optimizer.
        accumulator: second moments with the present gradient in them; None for ``sgd``.
        gradient: the gradient, or its moving average.
        step: int64 scalar, 1 at the first step.
    """
    if accumulator is None:
        return gradient
    if options.grafting == "adagrad":
        # A weight whose gradient and sum are both zero stays where it is.
        return tf.math.divide_no_nan(gradient, tf.sqrt(accumulator))
    if options.grafting == "adam":
        base = tf.constant(options.grafting_beta2, gradient.dtype)
        accumulator = accumulator / (1.0 - tf.pow(base, tf.cast(step, gradient.dtype)))
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulator) + options.grafting_epsilon)


def blend_weight(options: ShampooOptions, step: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Shampoo's share of the direction at a step, scalar: 0 before the start, 1 after the blend."""
    if options.start_preconditioning_step is None:
        return tf.zeros([], dtype)
    passed = tf.cast(step - options.start_preconditioning_step + 1, dtype)
    return tf.clip_by_value(passed / (options.blend_steps + 1.0), 0.0, 1.0)
