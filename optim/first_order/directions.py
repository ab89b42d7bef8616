"""Directions P of first-order optimizers, whose steps are W -= rate * P.

    adagrad   D += G^2                     P = G / (sqrt(D) + eps)         a separate eps, 0 by default
    rmsprop   D = b D + (1 - b) G^2        P = G / (sqrt(D) + eps)
    adam      as rmsprop, D bias-corrected
    sgd                                    P = G
    lars                                   P = |W| / |G| G                 layer by layer
    lamb      as adam, P'                  P = |W| / |P'| P'               layer by layer

The second moment always uses the gradient itself; with a moving average of gradients (PT 3.1.1) the direction
uses the average. The factor of LARS and LAMB is 1 if one of the norms is 0, so that weights of 0 move.
"""

import tensorflow as tf

from ctr.optim.first_order.options import LAMB, AdaGrad, Adam, Graft, SecondMoments


def update_accumulator(options: Graft, accumulator: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the second moments after a gradient, both of any shape and one floating dtype."""
    squared = tf.square(gradient)
    if not isinstance(options, SecondMoments):
        return accumulator + squared
    return options.beta2 * accumulator + (1.0 - options.beta2) * squared


def direction(
    options: Graft, accumulator: tf.Tensor | None, gradient: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """Computes the direction, of the gradient's shape and dtype, before any layer-wise factor.

    The accumulator includes the current gradient; ``step``, int64, is 1 at the first step.
    """
    if isinstance(options, AdaGrad) and accumulator is not None:
        root = tf.sqrt(accumulator)
        # A weight whose gradient and sum are both zero stays where it is.
        return tf.math.divide_no_nan(gradient, root + options.epsilon if options.epsilon else root)
    if isinstance(options, SecondMoments) and accumulator is not None:
        if isinstance(options, Adam | LAMB):
            base = tf.constant(options.beta2, gradient.dtype)
            accumulator = accumulator / (1.0 - tf.pow(base, tf.cast(step, gradient.dtype)))
        return tf.math.divide_no_nan(gradient, tf.sqrt(accumulator) + options.epsilon)
    return gradient


def layer_factor(weight_norm: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
    """Computes |W| / |P|, scalar; 1 if one of the norms is 0."""
    return tf.where(
        (weight_norm > 0) & (norm > 0), tf.math.divide_no_nan(weight_norm, norm), tf.ones_like(norm)
    )


def momentum_step(
    average: tf.Tensor,
    direction: tf.Tensor,
    momentum: float,
    nesterov: bool = False,
    active: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the new average M = mu M + (1 - mu) P, and the step: M, or mu M + (1 - mu) P (Nesterov, PT eq. 33-34).

    Normalized as in PSO alg. II, unlike PT, so that tuned learning rates stay right (FF 4.2). Where ``active``,
    a bool scalar, is False, the average stays unchanged.
    """
    added = (1.0 - momentum) * direction
    new = momentum * average + added
    if active is not None:
        new = tf.where(active, new, average)
    return new, momentum * new + added if nesterov else new
