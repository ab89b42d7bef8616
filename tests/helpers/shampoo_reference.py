"""Shampoo replayed in NumPy float64 from the papers' formulas, and gradients that are hard on it.

``replay`` follows PSO alg. II with grafting before momentum (App. G), PT 3.1's heuristics, and the timing that
the optimizer promises: at step ``start`` and every ``tau1`` steps from there on, between statistics and direction,
roots are exchanged. The first exchange waits for its own roots, later ones take in those of the exchange before,
unless all are synchronous. With ``early_growth`` exchanges begin closer to each other, and are synchronous while
they are; until then statistics are collected at every step, and sums take each in at 1 / tau2 of a later one,
which stands for tau2 steps. ``between_steps`` puts exchanges after their step. Of the options it reads the
settings alone.
"""

import itertools
import math

import numpy as np
import tensorflow as tf

import shampoo_options
from ctr.optim.shampoo.optimizer import ShampooCore


def options(**changed):
    """Small and quick, with every root computed anew: what most tests begin with."""
    settings = {
        "block_size": 4,
        # It bounds conditions at 1e4, so that float64 roots are right to 1e-11 or so and 1e-6 means something.
        "epsilon": 1e-4,
        "statistics_frequency": 1,
        "start_preconditioning_step": 3,
        "precondition_frequency": 5,
        "early_growth": 0.0,
        "drift_bound": 0.0,
    }
    return shampoo_options.options(**settings | changed)


def inverse_root(matrix, exponent, epsilon):
    """(A + epsilon lambda_max I)^-exponent; a smallest eigenvalue below 0 is lifted to 0 first."""
    values, vectors = np.linalg.eigh(matrix)
    values = values + epsilon * values[-1] + max(-values[0], 0.0)
    return (vectors * values**-exponent) @ vectors.T


def unfolded(tensor, axis):
    return np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)


def multiplied(tensor, axis, matrix):
    return np.moveaxis(np.tensordot(matrix, tensor, axes=(1, axis)), 0, axis)


def merged_shape(shape, limit):
    result = []
    for size in (size for size in shape if size != 1):
        if limit and result and result[-1] * size <= limit:
            result[-1] *= size
        else:
            result.append(size)
    return result


class Side:
    """The statistics of one dimension of one block."""

    def __init__(self, size):
        self.sum = np.zeros((size, size))
        self.at_exchange = self.sum
        self.sent = self.root = None
        self.drift = 0.0


class Layer:
    """One tensor: its blocks, each a slice of the merged tensor with a Side for each preconditioned axis."""

    def __init__(self, settings, weight):
        self.weight = np.array(weight, np.float64)
        self.merged = merged_shape(weight.shape, settings.merge_dimensions)
        axes = [axis for axis, size in enumerate(self.merged) if size <= settings.max_dimension]
        if len(self.merged) < 2 or settings.start_preconditioning_step is None:
            axes = []
        # Balanced parts, the longer ones first: numpy.array_split's.
        cuts = []
        for axis, size in enumerate(self.merged):
            parts = math.ceil(size / settings.block_size) if axis in axes else 1
            cuts.append([slice(p[0], p[-1] + 1) for p in np.array_split(np.arange(size), parts)])
        self.blocks = [
            (where, {axis: Side(where[axis].stop - where[axis].start) for axis in axes})
            for where in itertools.product(*cuts)
            if axes
        ]
        order = settings.exponent_override or 2 * len(axes)
        self.exponent = settings.exponent_multiplier / order if axes else None
        start = settings.initial_accumulator if settings.grafting == "adagrad" else 0.0
        self.squares = np.full(weight.shape, start)
        self.average = np.zeros(weight.shape)
        self.momentum = np.zeros(weight.shape)

    @property
    def sides(self):
        return [side for _, sides in self.blocks for side in sides.values()]

    @property
    def ready(self):
        return bool(self.blocks) and all(side.root is not None for side in self.sides)


def replay(settings, weights, history, rate, between_steps=False):
    """The weights after each step; the layers at the end; how often a root was kept for its small drift.

    Args:
        settings: ShampooOptions.
        weights: arrays, at the start.
        history: for each step the gradients, None for a weight that stays.
        rate: the learning rate.
        between_steps: roots come in after a step and not within it.
    """
    settings = shampoo_options.names(settings)
    layers = [Layer(settings, weight) for weight in weights]
    trajectory, skipped, collections = [], 0, 0
    first = due = settings.start_preconditioning_step
    for t, gradients in enumerate(history, 1):
        interval = settings.precondition_frequency
        if settings.early_growth:
            interval = min(max(math.floor(settings.early_growth * t), 1), interval)
        early = interval < settings.precondition_frequency
        if early or t % settings.statistics_frequency == 0 or t == settings.start_preconditioning_step:
            collections += 1
            weight = 1 / settings.statistics_frequency if early else 1.0
            for layer, gradient in zip(layers, gradients, strict=True):
                if gradient is not None:
                    _collect(settings, layer, gradient, weight)
        if between_steps:
            _step_all(settings, layers, gradients, t, rate)
        if t == due:
            correction = 1 - settings.beta2**collections if settings.beta2 < 1 else 1.0
            at_once = t == first or early or not settings.asynchronous
            due += interval
            for layer, gradient in zip(layers, gradients, strict=True):
                # What waits for its roots is a part of the step.
                takes_part = settings.asynchronous or gradient is not None
                for side in layer.sides if takes_part else ():
                    skipped += _exchange(settings, side, layer.exponent, correction, at_once)
        if not between_steps:
            _step_all(settings, layers, gradients, t, rate)
        trajectory.append([layer.weight.copy() for layer in layers])
    return trajectory, layers, skipped


def _collect(settings, layer, gradient, weight):
    for where, sides in layer.blocks:
        block = gradient.reshape(layer.merged)[where]
        for axis, side in sides.items():
            product = unfolded(block, axis) @ unfolded(block, axis).T
            if settings.beta2 < 1:
                side.sum = settings.beta2 * side.sum + (1 - settings.beta2) * product
            else:
                side.sum = side.sum + weight * product


def _exchange(settings, side, exponent, correction, at_once):
    def take_in():
        if side.sent is not None:
            side.root = inverse_root(side.sent, exponent, settings.epsilon)
            side.sent, side.drift = None, 0.0

    take_in()
    side.drift += np.linalg.norm(side.sum - side.at_exchange)
    side.at_exchange = side.sum
    norm = np.linalg.norm(side.sum)
    if norm == 0:
        return 0
    if side.root is not None and side.drift <= settings.drift_bound * norm:
        return 1
    side.sent = side.sum / correction
    if at_once:
        take_in()
    return 0


def _step_all(settings, layers, gradients, t, rate):
    for layer, gradient in zip(layers, gradients, strict=True):
        if gradient is not None:
            _step(settings, layer, gradient, t, rate)


def _step(settings, layer, gradient, t, rate):
    moving = gradient
    if settings.beta1:
        layer.average = settings.beta1 * layer.average + (1 - settings.beta1) * gradient
        moving = layer.average / (1 - settings.beta1**t)
    graft = _graft(settings, layer, gradient, moving, t)
    direction = graft
    if layer.ready:
        shampoo = np.empty(layer.merged)
        for where, sides in layer.blocks:
            block = moving.reshape(layer.merged)[where]
            for axis, side in sides.items():
                block = multiplied(block, axis, side.root)
            shampoo[where] = block
        if shampoo.any():
            shampoo = shampoo.reshape(graft.shape) * (np.linalg.norm(graft) / np.linalg.norm(shampoo))
            passed = t - settings.start_preconditioning_step + 1
            share = min(passed / (settings.blend_steps + 1), 1.0)
            direction = share * shampoo + (1 - share) * graft
    direction = direction + settings.weight_decay * layer.weight
    if settings.momentum:
        mu = settings.momentum
        layer.momentum = mu * layer.momentum + (1 - mu) * direction
        direction = mu * layer.momentum + (1 - mu) * direction if settings.nesterov else layer.momentum
    layer.weight = layer.weight - rate * direction


def _graft(settings, layer, gradient, moving, t):
    if settings.grafting == "sgd":
        return moving
    if settings.grafting == "adagrad":
        layer.squares = layer.squares + gradient**2
        return moving / np.sqrt(layer.squares)
    beta = settings.grafting_beta2
    layer.squares = beta * layer.squares + (1 - beta) * gradient**2
    correction = 1 - beta**t if settings.grafting == "adam" else 1.0
    return moving / (np.sqrt(layer.squares / correction) + settings.grafting_epsilon)


def drifting(shapes, steps, seed=0, condition=100.0):
    """Gradients [steps][tensors] whose spectra are ill-conditioned and turn: A_t Z_t B_t and its like.

    Statistics have condition^2; bases walk by some 3% a step; the scale falls, and noise keeps full rank.
    """
    rng = np.random.default_rng(seed)
    bases = [[np.linalg.qr(rng.normal(size=(n, n)))[0] for n in shape] for shape in shapes]
    history = []
    for t in range(steps):
        gradients = []
        for shape, axes in zip(shapes, bases, strict=True):
            tensor = rng.normal(size=shape)
            for axis, size in enumerate(shape):
                step = 0.03 * rng.normal(size=(size, size))
                axes[axis] = np.linalg.qr(axes[axis] + step)[0]
                tensor = multiplied(tensor, axis, axes[axis] * np.geomspace(1, 1 / condition, size))
            gradients.append(np.asarray((tensor + 1e-3 * rng.normal(size=shape)) / (1 + t / 20)))
        history.append(gradients)
    return history


def initial(shapes, seed=9):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=shape)) for shape in shapes]


def make_core(settings, weights, dtype=tf.float64, **rest):
    """A core over new variables."""
    return ShampooCore(settings, [tf.Variable(np.asarray(w), dtype=dtype) for w in weights], **rest)


def train(core, history, rate, compiled=False, roots="host"):
    """The weights after each step; eager, or each step in one tf.function."""

    def step(gradients):
        core.update(gradients, tf.constant(rate, tf.float64), roots=roots)
        if roots == "between_steps":
            core.exchange()

    if compiled:
        step = tf.function(step)
    trajectory = []
    for gradients in history:
        tensors = [
            g if g is None or isinstance(g, tf.IndexedSlices) else tf.constant(g, weight.dtype)
            for g, weight in zip(gradients, core.weights, strict=True)
        ]
        step(tensors)
        trajectory.append([weight.numpy() for weight in core.weights])
    return trajectory


def gaps(trajectory, expected, start):
    """At each step and weight |W - W'| / |W' - W_0|: how far off the way is, relative to its length."""
    return np.array(
        [
            [
                np.linalg.norm(w - e) / np.linalg.norm(e - s)
                for w, e, s in zip(weights, expecteds, start, strict=True)
            ]
            for weights, expecteds in zip(trajectory, expected, strict=True)
        ]
    )


def state_of(core):
    """All that a checkpoint holds."""
    return {name: variable.numpy() for name, variable in core.variables.items()}, [
        weight.numpy() for weight in core.weights
    ]


def restore(core, saved):
    """Sets a core's variables to those of another."""
    variables, weights = saved
    assert variables.keys() == core.variables.keys()
    for name, value in variables.items():
        core.variables[name].assign(value)
    for variable, value in zip(core.weights, weights, strict=True):
        variable.assign(value)


def assert_same_bits(one, other):
    """Whether two ``state_of`` hold the same bits."""
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        assert value.tobytes() == other[0][name].tobytes(), name
    for number, (mine, others) in enumerate(zip(one[1], other[1], strict=True)):
        assert mine.tobytes() == others.tobytes(), f"weight {number}"
