"""The whole family of Shampoo replayed in NumPy float64, from the papers' formulas, block by block.

``replay`` is written beside ``shampoo_reference.replay`` and shares nothing with it or with the optimizer but the names
of the settings. Exchanges wait for their roots (``asynchronous=False``) and none is skipped (``drift_bound=0``).
"""

import itertools

import numpy as np

import shampoo_options


def along(tensor, axis, matrix):
    """sum_j M_ij T_..j.. along an axis."""
    return np.moveaxis(np.tensordot(matrix, np.moveaxis(tensor, axis, 0), axes=1), 0, axis)


def unfold(tensor, axis):
    return np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)


def cuts(size, limit, balanced):
    if balanced:
        parts = np.array_split(np.arange(size), -(-size // limit))
        return [slice(part[0], part[-1] + 1) for part in parts]
    return [slice(begin, min(begin + limit, size)) for begin in range(0, size, limit)]


def merged_shape(shape, limit):
    merged = []
    for size in shape:
        if size == 1:
            continue
        if limit and merged and merged[-1] * size <= limit:
            merged[-1] *= size
        else:
            merged.append(size)
    return merged


class Block:
    """A block of a tensor: statistics of its axes, and what is made of them."""

    def __init__(self, settings, where, shape, full, diagonal, exponents):
        self.settings, self.where, self.full, self.diagonal = settings, where, full, diagonal
        self.exponents = exponents
        self.sums = {axis: settings.initial_statistics * np.eye(shape[axis]) for axis in full}
        self.diagonals = {axis: np.full(shape[axis], settings.initial_statistics) for axis in diagonal}
        self.roots = {axis: np.eye(shape[axis]) for axis in full}
        self.moments = np.zeros(shape)
        self.ready = not full

    def collect(self, gradient):
        beta2 = self.settings.beta2
        old, new = (1.0, 1.0) if beta2 == 1 else (beta2, 1 - beta2)
        products = {}
        for axis in self.full:
            scaled = gradient
            if self.settings.factor_update != "shampoo":
                for other in self.full:
                    if other != axis:
                        scaled = along(scaled, other, self.roots[other])
            products[axis] = unfold(scaled, axis) @ unfold(scaled, axis).T
            if self.settings.factor_update == "kl":
                sizes = {other: np.mean(np.linalg.eigvalsh(root) ** 2) for other, root in self.roots.items()}
                balance = sizes[axis] / np.prod(list(sizes.values())) ** (1 / len(sizes))
                products[axis] *= balance / unfold(scaled, axis).shape[1]
        for axis, product in products.items():
            self.sums[axis] = old * self.sums[axis] + new * product
        for axis in self.diagonal:
            self.diagonals[axis] = old * self.diagonals[axis] + new * np.sum(
                unfold(gradient, axis) ** 2, axis=1
            )

    def exchange(self, correction):
        settings = self.settings
        for axis, total in self.sums.items():
            values, vectors = np.linalg.eigh(total / correction)
            if settings.eigenvalue_correction:
                if settings.basis_change == "project":
                    self.moments = along(self.moments, axis, (vectors.T @ self.roots[axis]) ** 2)
                self.roots[axis] = vectors
                continue
            values = values + settings.epsilon * (values[-1] if settings.damping == "relative" else 1.0)
            self.roots[axis] = (vectors * values ** -self.exponents[axis]) @ vectors.T
        self.ready = True

    def rotate(self, tensor, back=False):
        for axis in self.full:
            tensor = along(tensor, axis, self.roots[axis] if back else self.roots[axis].T)
        return tensor

    def direction(self, gradient, moving, correction, steps_correction):
        settings = self.settings
        if settings.eigenvalue_correction:
            squared, beta2 = self.rotate(gradient) ** 2, settings.beta2
            self.moments = (
                self.moments + squared if beta2 == 1 else beta2 * self.moments + (1 - beta2) * squared
            )
            powers = (self.moments / steps_correction) ** settings.correction_exponent
            damping = settings.epsilon * (powers.max() if settings.damping == "relative" else 1.0)
            return self.rotate(self.rotate(moving) / (powers + damping), back=True)
        for axis in self.full:
            moving = along(moving, axis, self.roots[axis])
        for axis, sums in self.diagonals.items():
            values = sums / correction
            values = values + settings.epsilon * (values.max() if settings.damping == "relative" else 1.0)
            moving = along(moving, axis, np.diag(values ** -self.exponents[axis]))
        return moving


class Layer:
    def __init__(self, settings, weight):
        self.weight = np.array(weight, np.float64)
        self.merged = merged_shape(self.weight.shape, settings.merge_dimensions)
        if settings.precondition_vectors and not self.merged:
            self.merged = [1]
        order = len(self.merged)
        full = [axis for axis, size in enumerate(self.merged) if size <= settings.max_dimension]
        diagonal = [axis for axis in range(order) if axis not in full]
        if settings.large_dimensions != "diagonal" or settings.eigenvalue_correction:
            diagonal = []
        if settings.large_dimensions == "skip" and max(self.weight.shape, default=1) > settings.max_dimension:
            full = []
        if order < (1 if settings.precondition_vectors else 2):
            full = diagonal = []
        if order == 2 and full == [0, 1] and settings.left_share in (0, 1):
            full = [0] if settings.left_share == 1 else [1]
        sides = len(full) + len(diagonal)
        exponent = settings.exponent_multiplier / (settings.exponent_override or 2 * sides) if sides else 0
        exponents = dict.fromkeys(range(order), exponent)
        if order == 2 and sides == 2:
            exponents = {0: 2 * exponent * settings.left_share, 1: 2 * exponent * (1 - settings.left_share)}
        balanced = settings.block_split == "balanced"
        parts = [
            cuts(size, settings.block_size, balanced) if axis in full else [slice(0, size)]
            for axis, size in enumerate(self.merged)
        ]
        self.blocks = [
            Block(settings, where, [s.stop - s.start for s in where], full, diagonal, exponents)
            for where in itertools.product(*parts)
            if sides
        ]
        self.squares = np.full(
            self.weight.shape, settings.initial_accumulator if settings.grafting == "adagrad" else 0.0
        )
        self.average = np.zeros(self.weight.shape)
        self.momentum = np.zeros(self.weight.shape)
        self.graft_momentum = np.zeros(self.weight.shape)

    def parts(self, tensor):
        return [tensor.reshape(self.merged)[block.where] for block in self.blocks]


def replay(settings, weights, history, rate):
    """The weights after each step.

    Args:
        settings: ShampooOptions.
        weights: arrays, at the start.
        history: for each step the gradients; what has none stays as it is, with all that is kept of it.
        rate: the learning rate.
    """
    settings = shampoo_options.names(settings)
    layers = [Layer(settings, weight) for weight in weights]
    trajectory, collections, start = [], 0, settings.start_preconditioning_step
    first, interval = settings.first_exchange or start, settings.precondition_frequency
    for t, gradients in enumerate(history, 1):
        if settings.weight_decay_kind == "coupled":
            gradients = [
                None if gradient is None else gradient + settings.weight_decay * layer.weight
                for layer, gradient in zip(layers, gradients, strict=True)
            ]
        if t % settings.statistics_frequency == 0 or t == first:
            collections += 1
            for layer, gradient in zip(layers, gradients, strict=True):
                if gradient is None:
                    continue
                for block, part in zip(layer.blocks, layer.parts(gradient), strict=True):
                    block.collect(part)
        averaged = settings.beta2 < 1 and settings.bias_correction
        correction = 1 - settings.beta2**collections if averaged else 1.0
        if settings.exchange_phase is None:
            due = t >= first and (t - first) % interval == 0
        else:
            due = t == first or (t > first and t % interval == settings.exchange_phase)
        if due:
            for layer, gradient in zip(layers, gradients, strict=True):
                for block in layer.blocks if gradient is not None else ():
                    block.exchange(correction)
        for layer, gradient in zip(layers, gradients, strict=True):
            if gradient is None:
                continue
            step_layer(
                settings, layer, gradient, t, rate, (correction, 1 - settings.beta2**t if averaged else 1.0)
            )
        trajectory.append([layer.weight.copy() for layer in layers])
    return trajectory


def step_layer(settings, layer, gradient, t, rate, corrections):
    moving = gradient
    if settings.beta1:
        beta1, beta3 = settings.beta1, settings.beta3
        new = beta1 * layer.average + (1 - beta1) * gradient
        if beta3 is None:
            moving, left = new, beta1**t
        else:
            moving, left = beta3 * layer.average + (1 - beta3) * gradient, beta3 * beta1 ** (t - 1)
        layer.average = new
        if settings.bias_correction:
            moving = moving / (1 - left)
    graft = graft_direction(settings, layer, gradient, moving, t)
    own = graft
    if layer.blocks:
        own = np.zeros(layer.merged)
        parts = zip(layer.blocks, layer.parts(gradient), layer.parts(moving), layer.parts(graft), strict=True)
        for block, part, moved, grafted in parts:
            found = block.direction(part, moved, *corrections)
            if settings.grafting_scope == "block":
                found = found * (np.linalg.norm(grafted) / np.linalg.norm(found))
            own[block.where] = found
        own = own.reshape(graft.shape)
        if settings.grafted_norm and settings.grafting_scope == "tensor":
            own = own * (np.linalg.norm(graft) / np.linalg.norm(own))
        if not all(block.ready for block in layer.blocks):
            own = graft
    share = min(max(t - settings.start_preconditioning_step + 1, 0) / (settings.blend_steps + 1), 1.0)
    if not settings.separate_momenta:
        own = share * own + (1 - share) * graft
    own, graft = (clipped(settings, one) for one in (own, graft))
    decay = settings.weight_decay if settings.weight_decay_kind == "decoupled" else 0.0
    own, graft = own + decay * layer.weight, graft + decay * layer.weight
    if settings.momentum:
        own, layer.momentum = averaged_step(settings, layer.momentum, own)
        graft, layer.graft_momentum = averaged_step(settings, layer.graft_momentum, graft)
    if settings.separate_momenta and layer.blocks:
        own = share * own + (1 - share) * graft
    layer.weight = layer.weight - rate * own


def clipped(settings, direction):
    if not settings.update_clipping:
        return direction
    return direction / max(1.0, np.sqrt(np.mean(direction**2)) / settings.update_clipping)


def averaged_step(settings, average, direction):
    mu = settings.momentum
    average = mu * average + (1 - mu) * direction
    return mu * average + (1 - mu) * direction if settings.nesterov else average, average


def graft_direction(settings, layer, gradient, moving, t):
    kind, beta = settings.grafting, settings.grafting_beta2
    if kind == "adagrad":
        layer.squares = layer.squares + gradient**2
        return moving / (np.sqrt(layer.squares) + settings.adagrad_epsilon)
    found = {"sgd": moving, "sign": np.sign(moving), "lars": moving}.get(kind)
    if found is None:
        layer.squares = beta * layer.squares + (1 - beta) * gradient**2
        corrected = layer.squares / (1 - beta**t) if kind in ("adam", "lamb") else layer.squares
        found = moving / (np.sqrt(corrected) + settings.grafting_epsilon)
    if kind in ("lars", "lamb"):
        norms = np.linalg.norm(layer.weight), np.linalg.norm(found)
        found = found * (norms[0] / norms[1] if min(norms) > 0 else 1.0)
    return found
