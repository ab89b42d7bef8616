"""The presets of papers take the steps of these papers' algorithms, written here in NumPy float64."""

import itertools
from functools import partial

import numpy as np
import pytest

import shampoo_reference as reference
from ctr.optim.contrib.presets import PSO, preset
from other_shampoos import torch_replay

SHAPES = [(7, 5), (6,), (4, 3)]
STEPS, EVERY, BLOCK, RATE = 18, 4, 4, 0.1


def power(matrix, exponent, damping=0.0):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * (values + damping) ** exponent) @ vectors.T


def norm(tensor):
    return np.sqrt(np.sum(tensor**2))


def cuts(shape):
    """Slices of the blocks of a tensor."""
    return itertools.product(*(reference.parts_of(size, BLOCK, "balanced") for size in shape))


class Block:
    """L, R of a block of a matrix, and the roots in use."""

    def __init__(self, rows, columns, initial=0.0, beta2=1.0):
        self.sides = [initial * np.eye(rows), initial * np.eye(columns)]
        self.sent = self.roots = None
        self.beta2, self.weight = beta2, 1 - beta2 if beta2 < 1 else 1.0

    def collect(self, g):
        found = zip(self.sides, (g @ g.T, g.T @ g), strict=True)
        self.sides = [self.beta2 * side + self.weight * products for side, products in found]

    def precondition(self, g):
        return self.roots[0] @ g @ self.roots[1]


def follow(weights, history, make_layer):
    """The weights after each step of layers of their own."""
    layers = [make_layer(np.array(weight)) for weight in weights]
    return [
        [layer.step(t, gradient) for layer, gradient in zip(layers, gradients, strict=True)]
        for t, gradients in enumerate(history, 1)
    ]


class PsoLayer:
    """PSO algorithm II with tau2 = 1 and L_0 = R_0 = 1e-6 I, in blocks (3.1); vectors have no L and R."""

    beta1 = 0.9

    def __init__(self, weight, beta2=1.0):
        self.w, self.d, self.m, self.p = weight, *(np.zeros(weight.shape) for _ in range(3))
        self.blocks = []
        for where in cuts(weight.shape) if weight.ndim == 2 else ():
            block = Block(*weight[where].shape, 1e-6, beta2)
            block.sent = [power(side, -1 / 4) for side in block.sides]
            self.blocks.append((where, block))

    def step(self, t, g):
        for where, block in self.blocks:
            block.collect(g[where])
        self.d = self.d + g**2
        self.m = self.beta1 * self.m + (1 - self.beta1) * g / np.sqrt(self.d)
        if t % EVERY == 0:
            for _, block in self.blocks:
                # Lines 14-15: of t - tau1, whose roots were computed meanwhile; then L_t is sent.
                block.roots, block.sent = block.sent, [power(side, -1 / 4) for side in block.sides]
        if t > EVERY and self.blocks:
            found = np.empty(g.shape)
            for where, block in self.blocks:
                found[where] = block.precondition(g[where])
            self.p = self.beta1 * self.p + (1 - self.beta1) * found
            self.w = self.w - RATE * norm(self.m) / norm(self.p) * self.p
        else:
            self.w = self.w - RATE * self.m
        return self.w


class FfLayer:
    """FF 4.2: AdaGrad's size for the layer, then Nesterov momentum; roots every N steps, of N steps ago."""

    mu, initial, epsilon = 0.9, 1e-6, 1e-6

    def __init__(self, weight):
        self.w, self.m, self.d = weight, np.zeros(weight.shape), np.full(weight.shape, self.initial)
        places = cuts(weight.shape) if weight.ndim == 2 else ()
        self.blocks = [(where, Block(*weight[where].shape)) for where in places]

    def roots(self, block):
        return [power(a, -1 / 4, self.epsilon * np.linalg.eigvalsh(a)[-1]) for a in block.sides]

    def step(self, t, g):
        self.d = self.d + g**2
        direction = g / np.sqrt(self.d)
        found = np.empty(g.shape)
        for where, block in self.blocks:
            block.collect(g[where])
            if t % EVERY == 0:
                # The first ones are waited for.
                block.roots, block.sent = block.sent or self.roots(block), self.roots(block)
            if block.roots:
                found[where] = block.precondition(g[where])
        if self.blocks and t >= EVERY:
            direction = norm(direction) * found / norm(found)
        self.m = self.mu * self.m + (1 - self.mu) * direction
        self.w = self.w - RATE * (self.mu * self.m + (1 - self.mu) * direction)
        return self.w


# PT algorithm 2 with beta2 = 1, AdaGrad's graft and no momentum, each block by itself (4.2).
PT = {"lr": RATE, "betas": (0.9, 1.0), "epsilon": 1e-12, "graft": ("adagrad", 1.0, 1e-10)}
PT |= {"max_preconditioner_dim": BLOCK, "precondition_frequency": EVERY}


def small(name, **changes):
    """A preset with blocks of BLOCK, and exchanges every EVERY steps."""
    if name == "pt":
        changes["blocking"] = {"merge": BLOCK}
    if name != "pso":
        changes["start_preconditioning_step"] = EVERY
    return preset(name, block_size=BLOCK, precondition_frequency=EVERY, **changes)


@pytest.mark.parametrize(
    ("name", "layer", "changes"),
    [
        ("ff", FfLayer, {}),
        ("pso", PsoLayer, {}),
        ("pso", partial(PsoLayer, beta2=0.9), {"beta2": 0.9}),
        ("pt", None, {}),
    ],
    ids=["ff", "pso", "pso, decayed", "pt"],
)
def test_every_step_is_that_of_the_paper(name, layer, changes):
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, STEPS, condition=10.0)
    expected = follow(start, history, layer) if layer else torch_replay(PT, start, history)
    core = reference.make_core(small(name, **changes), start)
    found = reference.train(core, history, RATE)
    assert reference.gap(found, expected, start) < 1e-9
    report = core.report()
    assert report["layers_ready"] == report["layers"] and not report["failed"]


def test_a_preset_that_is_not_there_is_refused_and_a_given_first_exchange_stays():
    with pytest.raises(ValueError, match="preset is 'x'; allowed: ff, pso, pt"):
        preset("x")
    assert preset("pso", precondition_frequency=400, roots={"first": 3}).roots.first == 3
    # PSO's lines 13-16 in 50 steps: roots at t % tau1 = 0, Shampoo's direction where t > tau1.
    assert (PSO.roots.first, PSO.roots.phase, PSO.start_preconditioning_step) == (50, 0, 51)
