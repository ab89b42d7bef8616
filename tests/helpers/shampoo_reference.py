"""The whole family of Shampoo in NumPy float64, from the papers' formulas, and gradients that are hard on it.

``replay`` takes the steps of PSO alg. II with PT's heuristics, SOAP and diagonals, block by block, and reads of the
options nothing but what they are set to. The timing is that which the optimizer promises: exchanges begin
at ``roots.first`` or ``start_preconditioning_step``, between statistics and direction. The first one and early ones
wait for their own roots, later ones bring those of the exchange before, unless all are synchronous. While exchanges
are early, statistics are collected at every step, in sums at 1 / tau2 of a later one, which stands for tau2 steps.
"""

import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import Roots, ShampooOptions, Statistics

# Small and quick, with every root computed anew. The damping bounds conditions at 1e4, so that roots in float64 are
# right to 1e-11 or so.
SMALL = ShampooOptions(
    block_size=4,
    epsilon=1e-4,
    start_preconditioning_step=3,
    precondition_frequency=5,
    statistics=Statistics(frequency=1),
    roots=Roots(early_growth=0.0, drift_bound=0.0),
)


def options(**changed: Any) -> ShampooOptions:
    """``SMALL`` with something changed; groups are mappings of what is changed in them."""
    return SMALL.changed(changed)


# Linear algebra.


def inverse_root(matrix, exponent, epsilon, absolute=False):
    """(A + epsilon lambda_max I)^-exponent, or with epsilon itself; a smallest eigenvalue below 0 is lifted to 0."""
    values, vectors = np.linalg.eigh(matrix)
    values = values + epsilon * (1.0 if absolute else values[-1]) + max(-values[0], 0.0)
    return (vectors * values**-exponent) @ vectors.T


def orthogonal(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def matrix_of(values, seed=0):
    """A symmetric matrix with these eigenvalues, and its eigenvectors."""
    basis = orthogonal(len(values), seed)
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2, basis


def relative_error(root, values, basis, exponent):
    """|A^(e/2) X A^(e/2) - I|, spectral: the largest relative error in any direction."""
    half = (basis * values ** (exponent / 2)) @ basis.T
    return np.linalg.norm(half @ root @ half - np.eye(len(root)), 2)


def unfolded(tensor, axis):
    return np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)


def multiplied(tensor, axis, matrix):
    """sum_j M_ij T_..j.. along an axis."""
    return np.moveaxis(np.tensordot(matrix, tensor, axes=(1, axis)), 0, axis)


def norm_of(tensor, norm):
    """A tensor with another's norm, and nothing where it has none itself."""
    own = np.linalg.norm(tensor)
    return tensor * (norm / own) if own else tensor


def merged_shape(shape, limit):
    result = []
    for size in (size for size in shape if size != 1):
        if limit and result and result[-1] * size <= limit:
            result[-1] *= size
        else:
            result.append(size)
    return result


def parts_of(size, limit, split):
    """Balanced parts, the longer ones first, or full ones and a rest."""
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(size), -(-size // limit))])
    if split == "full":
        ends = np.minimum(np.arange(limit, size + limit, limit), size)
    return [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


# The state.


class Side:
    """Statistics of one dimension of one block, and their root or basis."""

    def __init__(self, size, initial):
        self.sum = initial * np.eye(size)
        self.at_exchange, self.sent, self.drift = self.sum, None, 0.0
        self.root, self.is_ready = np.eye(size), False


class Block:
    """A slice of a tensor, with a side for each axis with a matrix, and the squares of those with a diagonal."""

    def __init__(self, where, full, diagonal, initial):
        self.where, sizes = where, [part.stop - part.start for part in where]
        self.sides = {axis: Side(sizes[axis], initial) for axis in full}
        self.diagonals = {axis: np.full(sizes[axis], initial) for axis in diagonal}
        self.moments = np.zeros(sizes)

    def rotated(self, tensor, back=False):
        for axis, side in self.sides.items():
            tensor = multiplied(tensor, axis, side.root if back else side.root.T)
        return tensor


class Layer:
    """One tensor."""

    def __init__(self, given, weight):
        self.weight = np.array(weight, np.float64)
        blocking = given.blocking
        self.merged = merged_shape(weight.shape, blocking.merge)
        if blocking.vectors and not self.merged:
            self.merged = [1]
        order, limit = len(self.merged), blocking.max_dimension
        full = [axis for axis, size in enumerate(self.merged) if size <= limit]
        diagonal = [axis for axis in range(order) if axis not in full] if given.method == "diagonal" else []
        least = 1 if blocking.vectors else 2
        if order < least or given.start_preconditioning_step is None:
            full = diagonal = []
        count = len(full) + len(diagonal)
        self.exponent = 1.0 / (given.exponent_override or 2 * count or 1)
        cuts = [
            parts_of(size, given.block_size, blocking.split) if axis in full else [slice(0, size)]
            for axis, size in enumerate(self.merged)
        ]
        places = itertools.product(*cuts) if count else ()
        self.blocks = [Block(where, full, diagonal, given.statistics.initial) for where in places]
        begin = given.grafting.initial_accumulator if given.grafting.kind == "adagrad" else 0.0
        self.squares = np.full(weight.shape, begin)
        self.average, self.momentum, self.graft_momentum = (np.zeros(weight.shape) for _ in range(3))

    @property
    def sides(self):
        return [(axis, side) for block in self.blocks for axis, side in block.sides.items()]

    @property
    def ready(self):
        return bool(self.blocks) and all(side.is_ready for _, side in self.sides)

    def each(self, *tensors):
        """Each block with its parts of tensors."""
        for block in self.blocks:
            yield block, *(tensor.reshape(self.merged)[block.where] for tensor in tensors)


# The steps.


def replay(given, weights, history, rate, between_steps=False):
    """The weights after each step; the layers at the end; how often a root was kept for its small drift.

    Args:
        given: ShampooOptions.
        weights: arrays, at the start.
        history: for each step the gradients, None for a weight that stays, with all that is kept of it.
        rate: the learning rate, of all steps or of each.
        between_steps: roots come in after a step and not within it.
    """
    layers = [Layer(given, weight) for weight in weights]
    trajectory, skipped, collections = [], 0, 0
    roots, longest, decays = given.roots, given.precondition_frequency, given.beta2 < 1
    first = due = given.start_preconditioning_step if roots.first is None else roots.first
    rates = np.broadcast_to(rate, len(history))
    for t, gradients in enumerate(history, 1):
        present = [(layer, g) for layer, g in zip(layers, gradients, strict=True) if g is not None]
        interval = longest
        if roots.early_growth:
            interval = min(max(math.floor(roots.early_growth * t), 1), longest)
        early = interval < longest
        if early or t % given.statistics.frequency == 0 or t == first:
            collections += 1
            weight = 1 / given.statistics.frequency if early else 1.0
            for layer, gradient in present:
                for block, part in layer.each(gradient):
                    _collect(block, part, (given.beta2, 1 - given.beta2) if decays else (1.0, weight))
        correction = 1 - given.beta2**collections if decays else 1.0
        corrections = correction, 1 - given.beta2**t if decays else 1.0
        if between_steps:
            _step_all(given, present, t, rates[t - 1], corrections)
        if roots.phase is not None and first is not None:
            due = t if t == first or (t > first and t % longest == roots.phase) else None
        if t == due:
            due += interval
            at_once = t == first or early or not roots.asynchronous
            # What waits for its roots is a part of the step.
            for layer in layers if roots.asynchronous else [layer for layer, _ in present]:
                for block in layer.blocks:
                    skipped += _exchange(given, layer, block, correction, at_once)
        if not between_steps:
            _step_all(given, present, t, rates[t - 1], corrections)
        trajectory.append([layer.weight.copy() for layer in layers])
    return trajectory, layers, skipped


def _collect(block, gradient, weights):
    old, new = weights
    for axis, side in block.sides.items():
        side.sum = old * side.sum + new * unfolded(gradient, axis) @ unfolded(gradient, axis).T
    for axis, squares in block.diagonals.items():
        block.diagonals[axis] = old * squares + new * np.sum(unfolded(gradient, axis) ** 2, axis=1)


def _exchange(given, layer, block, correction, at_once):
    """Brings roots that were sent into use, and sends statistics; returns how many roots were kept."""
    roots, skipped = given.roots, 0

    def take_in(axis, side):
        if side.sent is None:
            return
        before = side.root
        if given.method == "eigenvalue_corrected":
            side.root = np.linalg.eigh(side.sent)[1]
            block.moments = multiplied(block.moments, axis, (side.root.T @ before) ** 2)
        else:
            absolute = roots.damping == "absolute"
            side.root = inverse_root(side.sent, layer.exponent, given.epsilon, absolute)
        side.sent, side.drift, side.is_ready = None, 0.0, True

    for axis, side in block.sides.items():
        take_in(axis, side)
        side.drift += np.linalg.norm(side.sum - side.at_exchange)
        side.at_exchange = side.sum
        norm = np.linalg.norm(side.sum)
        if norm == 0:
            continue
        if side.is_ready and side.drift <= roots.drift_bound * norm:
            skipped += 1
            continue
        side.sent = side.sum / correction
        if at_once:
            take_in(axis, side)
    return skipped


def _step_all(given, present, t, rate, corrections):
    for layer, gradient in present:
        layer.weight = layer.weight - rate * _update(given, layer, gradient, t, corrections)


def _update(given, layer, gradient, t, corrections):
    """What a weight moves along."""
    beta1, grafting = given.beta1, given.grafting
    moving = gradient
    if beta1:
        layer.average = beta1 * layer.average + (1 - beta1) * gradient
        moving = layer.average / (1 - beta1**t)
    graft = _graft(given, layer, gradient, moving, t)
    own = _directions(given, layer, gradient, moving, graft, corrections) if layer.blocks else graft
    start = given.start_preconditioning_step
    is_on = layer.ready and start is not None and t >= start
    before = grafting.momentum == "before"
    if before:
        if is_on:
            own, layer.momentum = _moved(given, layer.momentum, own)
        graft, layer.graft_momentum = _moved(given, layer.graft_momentum, graft)
    if grafting.norm == "tensor":
        own = norm_of(own, np.linalg.norm(graft))
    own = (own if is_on and own.any() else graft) + given.weight_decay * layer.weight
    if before:
        return own
    own, layer.momentum = _moved(given, layer.momentum, own)
    return own


def _directions(given, layer, gradient, moving, graft, corrections):
    found = np.zeros(layer.merged)
    for block, part, moved, grafted in layer.each(gradient, moving, graft):
        direction = _direction(given, layer, block, part, moved, corrections)
        by_block = given.grafting.norm == "block"
        found[block.where] = norm_of(direction, np.linalg.norm(grafted)) if by_block else direction
    return found.reshape(layer.weight.shape)


def _direction(given, layer, block, gradient, moving, corrections):
    correction, steps_correction = corrections
    relative, beta2 = given.roots.damping == "relative", given.beta2
    if given.method == "eigenvalue_corrected":
        squared = block.rotated(gradient) ** 2
        old, new = (beta2, 1 - beta2) if beta2 < 1 else (1.0, 1.0)
        block.moments = old * block.moments + new * squared
        powers = (block.moments / steps_correction) ** (1 / (given.exponent_override or 2))
        damped = powers + given.epsilon * (powers.max() if relative else 1.0)
        return block.rotated(block.rotated(moving) / damped, back=True)
    for axis, side in block.sides.items():
        moving = multiplied(moving, axis, side.root)
    for axis, squares in block.diagonals.items():
        values = squares / correction
        damped = values + given.epsilon * (values.max() if relative else 1.0)
        moving = multiplied(moving, axis, np.diag(damped**-layer.exponent))
    return moving


def _graft(given, layer, gradient, moving, t):
    """The direction of the first-order optimizer."""
    grafting, kind = given.grafting, given.grafting.kind
    found = moving
    if kind in ("adagrad", "rmsprop", "adam", "lamb"):
        beta2 = getattr(grafting, "beta2", None)
        old, new = (1.0, 1.0) if beta2 is None else (beta2, 1 - beta2)
        layer.squares = old * layer.squares + new * gradient**2
        corrected = layer.squares / (1 - beta2**t) if kind in ("adam", "lamb") else layer.squares
        found = moving / (np.sqrt(corrected) + grafting.epsilon)
    norms = np.linalg.norm(layer.weight), np.linalg.norm(found)
    return found * norms[0] / norms[1] if kind in ("lars", "lamb") and min(norms) > 0 else found


def _moved(given, average, direction):
    mu = given.momentum
    average = mu * average + (1 - mu) * direction
    return mu * average + (1 - mu) * direction if given.nesterov else average, average


# Gradients, and the optimizer over them.


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


def train(core, history, rate, compiled=False, on_device=False):
    """The weights after each step, of one ``rate`` or one of each step; eager, or each step in one tf.function."""

    def step(gradients, rate):
        core.update(gradients, rate, on_device=on_device)

    if compiled:
        step = tf.function(step)
    trajectory = []
    for gradients, of_step in zip(history, np.broadcast_to(rate, len(history)), strict=True):
        tensors = [
            g if g is None or isinstance(g, tf.IndexedSlices) else tf.constant(g, weight.dtype)
            for g, weight in zip(gradients, core.weights, strict=True)
        ]
        step(tensors, tf.constant(of_step, tf.float64))
        trajectory.append([weight.numpy() for weight in core.weights])
    return trajectory


def gap(found, expected, start):
    """How far off the way is, relative to its length or a thousandth."""
    return max(
        np.linalg.norm(weight - other) / max(np.linalg.norm(other - begin), 1e-3)
        for weights, others in zip(found, expected, strict=True)
        for weight, other, begin in zip(weights, others, start, strict=True)
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
