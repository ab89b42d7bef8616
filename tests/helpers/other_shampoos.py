"""Shampoo as other implementations compute it, in NumPy float64, in their own order of work.

``torch_replay`` takes the steps of ``DistributedShampoo`` of facebookresearch/optimizers, ``jax_replay`` those of
``distributed_shampoo`` of google-research/precondition. Settings have the names that these give their arguments.
"""

import itertools

import numpy as np

from shampoo_reference import multiplied, unfolded

TORCH = {
    "betas": (0.9, 1.0),
    "epsilon": 1e-12,
    "momentum": 0.0,
    "dampening": 0.0,
    "use_nesterov": False,
    "weight_decay": 0.0,
    "max_preconditioner_dim": 1024,
    "use_merge_dims": True,
    "precondition_frequency": 1,
    "start_preconditioning_step": None,  # that of `precondition_frequency`
    "exponent": None,  # of roots, for tensors of any order
    "graft": (None, 0.0, 0.0),  # its kind, beta2 and epsilon
}
JAX = {
    "beta1": 0.9,
    "beta2": 0.999,
    "diagonal_epsilon": 1e-10,
    "matrix_epsilon": 1e-6,
    "weight_decay": 0.0,
    "preconditioning_compute_steps": 1,
    "graft_type": "SGD",
    "nesterov": True,
    "exponent_override": 0,
    "moving_average_for_momentum": False,
    "skip_preconditioning_rank_lt": 1,
    "relative_matrix_epsilon": True,
}


def blocks_of(shape, limit, merges=False):
    """The shape, merged if asked to, and the slices of blocks of exactly ``limit``, with what is left over."""
    merged = []
    for size in (size for size in shape if size != 1 or not merges):
        if merges and merged and merged[-1] * size <= limit:
            merged[-1] *= size
        else:
            merged.append(size)
    merged = merged or [1]
    cuts = [[slice(b, min(b + limit, n)) for b in range(0, n, limit)] for n in merged]
    return merged, list(itertools.product(*cuts))


def power(matrix, exponent, epsilon):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * (values + epsilon) ** -exponent) @ vectors.T


class TorchBlock:
    """One block of DistributedShampoo: factor matrices, their roots, graft, average and momentum."""

    def __init__(self, shape, c):
        self.c = c
        self.factors = [np.zeros((n, n)) for n in shape]
        self.roots = [np.eye(n) for n in shape]
        self.graft, self.average, self.momentum = (np.zeros(shape) for _ in range(3))

    def step(self, w, g, t):
        c, order = self.c, g.ndim
        (beta1, beta2), start = c["betas"], c["start_preconditioning_step"] or c["precondition_frequency"]
        w1, w2 = (1.0, 1.0) if beta2 == 1 else (beta2, 1 - beta2)
        for k in range(order):
            self.factors[k] = w1 * self.factors[k] + w2 * unfolded(g, k) @ unfolded(g, k).T
        correction = 1 - beta2**t if beta2 < 1 else 1.0
        if t == start or (t > start and t % c["precondition_frequency"] == 0):
            for k, factor in enumerate(self.factors):
                self.roots[k] = power(factor / correction, c["exponent"] or 1 / (2 * order), c["epsilon"])
        kind, beta_g, eps_g = c["graft"]
        if kind:
            self.graft = self.graft + g**2 if kind == "adagrad" else beta_g * self.graft + (1 - beta_g) * g**2
        direction = g
        if beta1:
            self.average = beta1 * self.average + (1 - beta1) * g
            direction = self.average / (1 - beta1**t)
        grafted = None
        if kind:
            moment = self.graft / (1 - beta_g**t) if kind == "adam" else self.graft
            grafted = direction if kind == "sgd" else direction / (np.sqrt(moment) + eps_g)
        p = grafted
        if t >= start or not kind:
            p = direction
            for k in range(order):
                p = multiplied(p, k, self.roots[k])
            if kind:
                p = p * (np.linalg.norm(grafted) / (np.linalg.norm(p) + 1e-16))
        p = p + c["weight_decay"] * w
        mu, dampening = c["momentum"], c["dampening"]
        if mu:
            self.momentum = mu * self.momentum + (1 - dampening) * p
            p = (1 - dampening) * p + mu * self.momentum if c["use_nesterov"] else self.momentum
        return w - c["lr"] * p


def torch_replay(given, weights, history):
    """The weights after each step; ``given`` are settings other than those of ``TORCH``, with ``lr``."""
    c = TORCH | given
    layouts = [blocks_of(w.shape, c["max_preconditioner_dim"], c["use_merge_dims"]) for w in weights]
    states = [[TorchBlock(np.zeros(m)[w].shape, c) for w in where] for m, where in layouts]
    weights = [np.array(w) for w in weights]
    trajectory = []
    for t, gradients in enumerate(history, 1):
        for i, ((merged, where), gradient) in enumerate(zip(layouts, gradients, strict=True)):
            if gradient is None:
                continue
            whole = weights[i].reshape(merged).copy()
            for place, state in zip(where, states[i], strict=True):
                whole[place] = state.step(whole[place], gradient.reshape(merged)[place], t)
            weights[i] = whole.reshape(weights[i].shape)
        trajectory.append([w.copy() for w in weights])
    return trajectory


def jax_replay(given, weights, history):
    """The weights after each step, from the first one preconditioned.

    ``given`` are settings other than those of ``JAX``: block size and rate.
    """
    c = JAX | given
    layouts, states, weights = [], [], [np.array(w) for w in weights]
    for w in weights:
        merged, where = blocks_of(w.shape, c["block_size"])
        layouts.append((merged, where if w.ndim >= c["skip_preconditioning_rank_lt"] else []))
        sides = [[n.stop - n.start for n in place] for place in where]
        states.append(
            {
                "statistics": [[c["matrix_epsilon"] * np.eye(n) for n in shape] for shape in sides],
                "roots": [[np.eye(n) for n in shape] for shape in sides],
                **{name: np.zeros(w.shape) for name in ("diagonal", "momentum")},
            }
        )
    trajectory = []
    for count, gradients in enumerate(history):
        for i, gradient in enumerate(gradients):
            weights[i] = _jax_step(c, layouts[i], states[i], weights[i], gradient, count)
        trajectory.append([w.copy() for w in weights])
    return trajectory


def _jax_step(c, layout, state, w, gradient, count):
    (merged, where), kind = layout, c["graft_type"]
    w2 = 1.0 if c["beta2"] == 1 else 1 - c["beta2"]
    blocks = [gradient.reshape(merged)[place] for place in where]
    for block, statistics, roots in zip(blocks, state["statistics"], state["roots"], strict=bool(where)):
        for k in range(block.ndim):
            statistics[k] = c["beta2"] * statistics[k] + w2 * unfolded(block, k) @ unfolded(block, k).T
            if count % c["preconditioning_compute_steps"] == 0:
                largest = np.linalg.eigvalsh(statistics[k])[-1] if c["relative_matrix_epsilon"] else 1.0
                exponent = 1 / (c["exponent_override"] or 2 * block.ndim)
                roots[k] = power(statistics[k], exponent, c["matrix_epsilon"] * largest)
    graft = gradient
    if kind in ("ADAGRAD", "RMSPROP"):
        scale, own = (1.0, 1.0) if kind == "ADAGRAD" else (c["beta2"], w2)
        state["diagonal"] = scale * state["diagonal"] + own * gradient**2
        graft = gradient / (np.sqrt(state["diagonal"]) + c["diagonal_epsilon"])
    direction = graft
    if where:
        whole = np.zeros(merged)
        for place, block, roots in zip(where, blocks, state["roots"], strict=True):
            for k, root in enumerate(roots):
                block = multiplied(block, k, root)
            whole[place] = block
        direction = whole.reshape(w.shape)
    if kind != "NONE":
        direction = direction * (np.linalg.norm(graft) / (np.linalg.norm(direction) + 1e-25))
    direction = direction + c["weight_decay"] * w
    mu, own = c["beta1"], (1 - c["beta1"]) if c["moving_average_for_momentum"] else 1.0
    averaged = state["momentum"] = mu * state["momentum"] + own * direction
    return w - c["learning_rate"] * (own * direction + mu * averaged if c["nesterov"] else averaged)
