"""Presets take the steps of the implementations that they stand for, replayed here from these' own order of work."""

import itertools
import math
import types

import numpy as np
import pytest

import shampoo_reference as reference
from ctr.optim.contrib import presets
from ctr.optim.shampoo.blocks import lay_out_tensor
from ctr.optim.shampoo.options import ShampooOptions

SHAPES = [(7, 5), (6,), (3, 2, 4), (1,), (9, 1)]
STEPS = 30


def along(tensor, axis, matrix):
    return np.moveaxis(np.tensordot(matrix, np.moveaxis(tensor, axis, 0), axes=1), 0, axis)


def blocks_of(shape, limit, merge, until=1):
    """The shape, merged if asked to, and the slices of blocks of exactly ``limit``, with what is left over."""
    merged = []
    sizes = [size for size in shape if size != 1 or not merge]
    sizes = sizes[::-1] if merge == "right" else sizes
    for later, size in reversed(list(enumerate(reversed(sizes)))):
        if merge and merged and len(merged) + 1 + later > until and merged[-1] * size <= limit:
            merged[-1] *= size
        else:
            merged.append(size)
    merged = (merged[::-1] if merge == "right" else merged) or [1]
    cuts = [[slice(b, min(b + limit, n)) for b in range(0, n, limit)] for n in merged]
    return merged, list(itertools.product(*cuts))


def power(matrix, exponent, epsilon):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * (values + epsilon) ** -exponent) @ vectors.T


class Torch:
    """One block of DistributedShampoo: factor matrices, their roots or eigenvectors, graft, average and momentum."""

    def __init__(self, shape, c):
        self.c = c
        self.factors = [np.zeros((n, n)) for n in shape]
        self.roots = [np.eye(n) for n in shape]
        self.eigenvalues, self.graft, self.average, self.momentum = (np.zeros(shape) for _ in range(4))

    def step(self, w, g, t):
        c, order = self.c, g.ndim
        beta1, beta2 = c["betas"]
        if not c["decoupled"]:
            g = g + c["weight_decay"] * w
        w1, w2 = (1.0, 1.0) if beta2 == 1 else (beta2, 1 - beta2)
        for k in range(order):
            outer = g
            if c["method"] == "kl":
                for other in set(range(order)) - {k}:
                    outer = along(outer, other, self.roots[other])
            outer = np.moveaxis(outer, k, 0).reshape(g.shape[k], -1)
            self.factors[k] = w1 * self.factors[k] + w2 * outer @ outer.T
        correction = 1 - beta2**t if beta2 < 1 and c["bias"] else 1.0
        start, frequency = c["start"], c["frequency"]
        if t == start or (t > start and t % frequency == 0):
            for k, factor in enumerate(self.factors):
                if c["method"] == "soap":
                    self.roots[k] = np.linalg.eigh(factor / correction)[1]
                else:
                    exponent = c["exponent"] or 1 / (2 * order)
                    self.roots[k] = power(factor / correction, exponent, c["epsilon"])
        if c["method"] == "soap":
            self.eigenvalues = w1 * self.eigenvalues + w2 * self.rotated(g) ** 2
        kind, beta_g, eps_g = c["graft"]
        if kind:
            self.graft = self.graft + g**2 if kind == "adagrad" else beta_g * self.graft + (1 - beta_g) * g**2
        direction = g
        if beta1:
            beta3 = c["beta3"]
            direction = beta3 * self.average + (1 - beta3) * g
            self.average = beta1 * self.average + (1 - beta1) * g
            direction = direction / (1 - beta3 * beta1 ** (t - 1)) if c["bias"] else direction
        grafted = None
        if kind:
            moment = self.graft / (1 - beta_g**t) if kind == "adam" else self.graft
            grafted = direction if kind == "sgd" else direction / (np.sqrt(moment) + eps_g)
        p = grafted
        if t >= start or not kind:
            if c["method"] == "soap":
                p = self.rotated(direction) / (np.sqrt(self.eigenvalues / correction) + c["epsilon"])
                for k in range(order):
                    p = along(p, k, self.roots[k])
            else:
                p = direction
                for k in range(order):
                    p = along(p, k, self.roots[k])
            if kind:
                p = p * (np.linalg.norm(grafted) / (np.linalg.norm(p) + 1e-16))
        if c["decoupled"]:
            p = p + c["weight_decay"] * w
        mu, dampening = c["momentum"]
        if mu:
            self.momentum = mu * self.momentum + (1 - dampening) * p
            p = (1 - dampening) * p + mu * self.momentum if c["nesterov"] else self.momentum
        return w - c["lr"] * p

    def rotated(self, g):
        for k, vectors in enumerate(self.roots):
            g = along(g, k, vectors.T)
        return g


TORCH = {
    "adagrad": (
        {"grafting_config": {"type": "AdaGradGraftingConfig", "epsilon": 1e-3}},
        {"graft": ("adagrad", 0, 1e-3)},
    ),
    "adam, averages, two betas": (
        {
            "betas": (0.8, 0.9),
            "beta3": 0.5,
            "grafting_config": {"type": "AdamGraftingConfig", "beta2": 0.9, "epsilon": 1e-4},
        },
        {"betas": (0.8, 0.9), "beta3": 0.5, "graft": ("adam", 0.9, 1e-4)},
    ),
    "rmsprop by an object, momentum, nesterov": (
        {
            "grafting_config": type("RMSpropPreconditionerConfig", (types.SimpleNamespace,), {})(
                beta2=0.9, epsilon=1e-3
            ),
            "momentum": 0.8,
            "use_nesterov": True,
            "weight_decay": 0.1,
            "betas": (0.0, 0.95),
        },
        {
            "graft": ("rmsprop", 0.9, 1e-3),
            "momentum": (0.8, 0.0),
            "nesterov": True,
            "weight_decay": 0.1,
            "betas": (0.0, 0.95),
        },
    ),
    "no graft, coupled decay, dampened": (
        {
            "weight_decay": 0.1,
            "use_decoupled_weight_decay": False,
            "momentum": 0.5,
            "dampening": 0.2,
            "lr": 0.01,
        },
        {"weight_decay": 0.1, "decoupled": False, "momentum": (0.5, 0.2), "lr": 0.01},
    ),
    "no merging, no correction, another root": (
        {
            "use_merge_dims": False,
            "use_bias_correction": False,
            "betas": (0.9, 0.9),
            "inv_root_override": 2,
            "grafting_config": {"type": "AdaGradGraftingConfig", "epsilon": 1e-3},
            "start_preconditioning_step": 7,
        },
        {
            "merge": False,
            "bias": False,
            "betas": (0.9, 0.9),
            "beta3": 0.9,
            "exponent": 1 / 2,
            "graft": ("adagrad", 0, 1e-3),
            "start": 7,
        },
    ),
    "SOAP": (
        {
            "betas": (0.9, 0.95),
            "preconditioner_config": {"type": "EigenvalueCorrectedShampooPreconditionerConfig"},
            "use_merge_dims": False,
        },
        {"betas": (0.9, 0.95), "beta3": 0.9, "method": "soap", "merge": False},
    ),
    "SOAP without correction": (
        {
            "betas": (0.9, 0.95),
            "use_bias_correction": False,
            "preconditioner_config": {
                "type": "EigenvalueCorrectedShampooPreconditionerConfig",
                "factor_matrix_dtype": "float64",
                "amortized_computation_config": {"type": "EighEigendecompositionConfig", "tolerance": 0.0},
            },
            "use_merge_dims": False,
        },
        {"betas": (0.9, 0.95), "beta3": 0.9, "method": "soap", "merge": False, "bias": False},
    ),
    "KL-Shampoo": (
        {
            "betas": (0.0, 0.9),
            "preconditioner_config": {
                "type": "RootInvKLShampooPreconditionerConfig",
                "inverse_exponent_override": {2: 0.5, 3: 0.5, 4: 0.5},
            },
            "grafting_config": {"type": "SGDGraftingConfig"},
        },
        {"betas": (0.0, 0.9), "method": "kl", "exponent": 1 / 2, "graft": ("sgd", 0, 0)},
    ),
    "merging from the right, a sum as graft, newest names": (
        {
            "max_preconditioner_dim": 8,
            "betas": (0.0, 0.9),
            "grafting_config": {"type": "RMSpropPreconditionerConfig", "beta2": 1.0, "epsilon": 1e-3},
            "iterate_averaging_config": {"type": "ClassicMomentumConfig", "momentum": 0.6, "dampening": 0.1},
            "weight_decay": 0.01,
            "weight_decay_type": "INDEPENDENT",
            "distributed_config": {
                "type": "SingleDeviceDistributedConfig",
                "target_parameter_dimensionality": 1,
            },
        },
        {
            "merge": "right",
            "limit": 8,
            "betas": (0.0, 0.9),
            "graft": ("adagrad", 0, 1e-3),
            "momentum": (0.6, 0.1),
            # Times the rate, it is what is given.
            "weight_decay": 0.01 / 0.05,
        },
    ),
    "matrices stay matrices": (
        {
            "max_preconditioner_dim": 40,
            "preconditioner_config": {
                "type": "RootInvShampooPreconditionerConfig",
                "inverse_exponent_override": {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5},
            },
            "distributed_config": types.SimpleNamespace(target_parameter_dimensionality=2),
        },
        {"merge": "right", "limit": 40, "until": 2, "exponent": 1 / 2},
    ),
}


def torch_replay(c, weights, history):
    c = {
        "lr": 0.05,
        "betas": (0.0, 1.0),
        "beta3": None,
        "epsilon": 1e-3,
        "momentum": (0.0, 0.0),
        "nesterov": False,
        "weight_decay": 0.0,
        "decoupled": True,
        "bias": True,
        "exponent": None,
        "graft": (None, 0, 0),
        "method": "root",
        "merge": True,
        "start": 4,
        "frequency": 4,
        "limit": 5,
        "until": 1,
    } | c
    layouts = [blocks_of(w.shape, c["limit"], c["merge"], c["until"]) for w in weights]
    states = [[Torch(np.zeros(m)[w].shape, c) for w in where] for m, where in layouts]
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


def jax_replay(c, weights, history):
    c = {
        "lr": 0.05,
        "limit": 5,
        "beta1": 0.9,
        "beta2": 0.9,
        "diagonal": 1e-3,
        "matrix": 1e-2,
        "decay": 0.0,
        "start": 5,
        "every": 3,
        "graft": "SGD",
        "nesterov": True,
        "exponent": 0,
        "average": False,
        "skip": 100,
        "rank": 1,
        "relative": True,
        "merge": True,
    } | c
    layouts, states, weights = [], [], [np.array(w) for w in weights]
    for w in weights:
        skipped = w.ndim < c["rank"] or any(n > c["skip"] for n in w.shape)
        merged, where = blocks_of(w.shape, c["limit"], False)
        layouts.append((merged, [] if skipped else where))
        sides = [[n.stop - n.start for n in place] for place in where]
        states.append(
            {
                "statistics": [[c["matrix"] * np.eye(n) for n in shape] for shape in sides],
                "roots": [[np.eye(n) for n in shape] for shape in sides],
                "diagonal": np.zeros(w.shape),
                "momentum": np.zeros(w.shape),
                "graft": np.zeros(w.shape),
            }
        )
    trajectory = []
    for count, gradients in enumerate(history):
        for i, gradient in enumerate(gradients):
            weights[i] = _jax_step(c, layouts[i], states[i], weights[i], gradient, count)
        trajectory.append([w.copy() for w in weights])
    return trajectory


def _jax_step(c, layout, state, w, gradient, count):
    merged, where = layout
    w2 = 1.0 if c["beta2"] == 1 else 1 - c["beta2"]
    blocks = [gradient.reshape(merged)[place] for place in where]
    for block, statistics, roots in zip(blocks, state["statistics"], state["roots"], strict=bool(where)):
        for k in range(block.ndim):
            flat = np.moveaxis(block, k, 0).reshape(block.shape[k], -1)
            statistics[k] = c["beta2"] * statistics[k] + w2 * flat @ flat.T
            if count % c["every"] == 0:
                largest = np.linalg.eigvalsh(statistics[k])[-1] if c["relative"] else 1.0
                roots[k] = power(statistics[k], 1 / (c["exponent"] or 2 * block.ndim), c["matrix"] * largest)
    graft = {"SGD": gradient, "NONE": gradient, "SQRT_N": np.sign(gradient)}.get(c["graft"])
    if graft is None:
        scale, own = (1.0, 1.0) if c["graft"] == "ADAGRAD" else (c["beta2"], w2)
        state["diagonal"] = scale * state["diagonal"] + own * gradient**2
        graft = gradient / (np.sqrt(state["diagonal"]) + c["diagonal"])
    direction = graft
    if where:
        whole = np.zeros(merged)
        for place, block, roots in zip(where, blocks, state["roots"], strict=True):
            for k, root in enumerate(roots):
                block = along(block, k, root)
            whole[place] = block
        direction = whole.reshape(w.shape)
    if c["graft"] != "NONE":
        direction = direction * (np.linalg.norm(graft) / (np.linalg.norm(direction) + 1e-25))
    direction, graft = direction + c["decay"] * w, graft + c["decay"] * w
    mu, own = c["beta1"], (1 - c["beta1"]) if c["average"] else 1.0
    state["momentum"] = mu * state["momentum"] + own * direction
    state["graft"] = mu * state["graft"] + own * graft
    averaged, plain = (state["momentum"], direction) if count >= c["start"] else (state["graft"], graft)
    return w - c["lr"] * (own * plain + mu * averaged if c["nesterov"] else averaged)


JAX = {
    "defaults": ({}, {}),
    "adagrad, decay, averaged": (
        {"graft_type": "ADAGRAD", "weight_decay": 0.1, "moving_average_for_momentum": True, "beta2": 1.0},
        {"graft": "ADAGRAD", "decay": 0.1, "average": True, "beta2": 1.0},
    ),
    "rmsprop by a member, heavy ball": (
        {"graft_type": types.SimpleNamespace(name="RMSPROP"), "nesterov": False, "beta1": 0.8},
        {"graft": "RMSPROP", "nesterov": False, "beta1": 0.8},
    ),
    "no graft, no momentum": ({"graft_type": "NONE", "beta1": 0.0}, {"graft": "NONE", "beta1": 0.0}),
    "sign, absolute, another exponent": (
        {"graft_type": "SQRT_N", "relative_matrix_epsilon": False, "exponent_override": 2},
        {"graft": "SQRT_N", "relative": False, "exponent": 2},
    ),
    "long and flat ones skipped": (
        {"skip_preconditioning_dim_size_gt": 6, "skip_preconditioning_rank_lt": 2, "graft_type": "ADAGRAD"},
        {"skip": 6, "rank": 2, "graft": "ADAGRAD"},
    ),
}


JAX_COMMON = {
    "learning_rate": 0.05,
    "block_size": 5,
    "beta2": 0.9,
    "diagonal_epsilon": 1e-3,
    "matrix_epsilon": 1e-2,
    "preconditioning_compute_steps": 3,
    "skip_preconditioning_dim_size_gt": 100,
    "best_effort_shape_interpretation": False,
    "eigh": True,
}


def compare(preset, expected, start, history):
    core = reference.make_core(preset.options, start)
    found = reference.train(core, history, preset.learning_rate)
    for weights, others in zip(found, expected, strict=True):
        for weight, other in zip(weights, others, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-8, atol=1e-8)
    assert not core.report()["failed"]


@pytest.mark.slow(first=4)
@pytest.mark.parametrize("case", TORCH)
def test_the_steps_are_those_of_pytorchs(case):
    given, c = TORCH[case]
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, STEPS, condition=10.0)
    preset = presets.torch_shampoo(
        **{
            "lr": 0.05,
            "betas": (0.0, 1.0),
            "epsilon": 1e-3,
            "max_preconditioner_dim": 5,
            "precondition_frequency": 4,
        }
        | given
    )
    compare(preset, torch_replay(c, start, history), start, history)


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("case", JAX)
def test_the_steps_are_those_of_jax(case):
    given, c = JAX[case]
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, STEPS, condition=10.0)
    compare(presets.jax_shampoo(**JAX_COMMON | given), jax_replay(c, start, history), start, history)


def without_some(history, steps):
    """Gradients that are zero at first, in some blocks of a matrix and in a vector."""
    for gradients in history[:steps]:
        gradients[0][:5] = 0.0
        gradients[1][:] = 0.0
    return history


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("given", [{}, {"grafting_config": {"type": "SGDGraftingConfig"}}])
def test_blocks_without_gradients_have_the_roots_of_their_damping(given):
    start = reference.initial(SHAPES)
    history = without_some(reference.drifting(SHAPES, STEPS, condition=10.0), 13)
    c = {"graft": ("sgd", 0, 0) if given else (None, 0, 0), "betas": (0.0, 0.9)}
    preset = presets.torch_shampoo(
        lr=0.05,
        betas=(0.0, 0.9),
        epsilon=1e-3,
        max_preconditioner_dim=5,
        precondition_frequency=4,
        **given,
    )
    compare(preset, torch_replay(c, start, history), start, history)
    compare(presets.jax_shampoo(**JAX_COMMON), jax_replay({}, start, history), start, history)


def with_gaps(history):
    """Gradients that are missing in some steps: each at its first exchange, the last ones for long."""
    for t, gradients in enumerate(history, 1):
        for i in range(len(gradients)):
            if t % 7 == i or t in (3 + i, 16 - i) or (i == 4 and t < 9):
                gradients[i] = None
    return history


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("case", "frequency"),
    [
        ("adam, averages, two betas", 4),
        ("rmsprop by an object, momentum, nesterov", 1),
        ("SOAP", 4),
        ("KL-Shampoo", 4),
    ],
)
def test_missing_gradients_are_masked_as_pytorch_masks_them(case, frequency):
    given, c = TORCH[case]
    start, history = reference.initial(SHAPES), with_gaps(reference.drifting(SHAPES, 18, condition=10.0))
    base = {"lr": 0.05, "epsilon": 1e-3, "max_preconditioner_dim": 5, "precondition_frequency": frequency}
    preset = presets.torch_shampoo(**base | given)
    c = {"start": frequency, "frequency": frequency} | c
    compare(preset, torch_replay(c, start, history), start, history)


@pytest.mark.parametrize(
    ("overrides", "exponent"),
    [
        ({1: 0.5}, None),
        ({2: 0.25, 1: 0.5}, None),
        ({2: {0: 0.25, 1: 0.25}}, None),
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5}, 2),
        ({2: 0.5, 3: {0: 0.5, 1: 0.5, 2: 0.5}, 4: 0.5}, 2),
    ],
)
def test_exponents_by_order(overrides, exponent):
    config = {"type": "RootInvShampooPreconditionerConfig", "inverse_exponent_override": overrides}
    preset = presets.torch_shampoo(preconditioner_config=config)
    assert preset.options.exponent_override == exponent


def test_how_tensors_are_laid_out():
    def axes(options, shape):
        layout = lay_out_tensor(shape, options)
        return layout.merged, layout.axes

    torch = presets.torch_shampoo(max_preconditioner_dim=8).options
    single = presets.torch_shampoo(max_preconditioner_dim=8, use_merge_dims=False).options
    jax = presets.jax_shampoo(
        learning_rate=0.1,
        block_size=8,
        merge_small_dims_block_size=16,
        skip_preconditioning_rank_lt=2,
        skip_preconditioning_dim_size_gt=10,
    ).options
    assert axes(torch, (4, 1, 2)) == ((8,), (0,)) and axes(torch, ()) == ((1,), (0,))
    assert axes(single, (4, 1)) == ((4, 1), (0, 1)) and axes(single, ()) == ((), ())
    # By the tensor itself, not by what is left of it: its order, and its longest dimension.
    assert axes(jax, (4, 4)) == ((16,), (0,)) and axes(jax, (16,))[1] == () and axes(jax, (11, 2))[1] == ()
    assert axes(ShampooOptions(), (4, 1)) == ((4,), ())


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (
            "torch_shampoo",
            {"grafting_config": {"type": "LionGraftingConfig"}},
            "grafting_config is LionGraftingConfig",
        ),
        (
            "torch_shampoo",
            {"preconditioner_config": {"type": "SpectralDescentPreconditionerConfig"}},
            "is Spectral",
        ),
        (
            "torch_shampoo",
            {
                "preconditioner_config": {
                    "type": "EigenvalueCorrectedShampooPreconditionerConfig",
                    "inverse_exponent_override": {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25},
                },
                "start_preconditioning_step": 9,
            },
            "allowed: start_preconditioning_step 1",
        ),
        (
            "torch_shampoo",
            {
                "preconditioner_config": {
                    "type": "RootInvShampooPreconditionerConfig",
                    "inverse_exponent_override": {1: 0.5, 2: 0.5, 3: 0.5},
                }
            },
            "allowed: all orders up to 4",
        ),
        (
            "torch_shampoo",
            {"distributed_config": {"type": "DDPDistributedConfig", "target_parameter_dimensionality": 1.5}},
            "merge_until is 1.5",
        ),
        ("torch_shampoo", {"lr": 0.0, "weight_decay": 0.1, "weight_decay_type": "INDEPENDENT"}, "lr is 0.0"),
        *(
            (
                "torch_shampoo",
                {"iterate_averaging_config": {"type": "ClassicMomentumConfig", "momentum": 0.6}, **more},
                "iterate_averaging_config excludes momentum, dampening and use_nesterov",
            )
            for more in ({"momentum": 0.9}, {"dampening": 0.3}, {"use_nesterov": True})
        ),
        (
            "jax_shampoo",
            {"best_effort_memory_usage_reduction": True},
            "of best_effort_memory_usage_reduction; allowed: False",
        ),
        ("jax_shampoo", {"beta1": 1.0}, "beta1 1.0; allowed: from 0 to below 1"),
        (
            "jax_shampoo",
            {"preconditioning_compute_steps": 0},
            "preconditioning_compute_steps below 1; allowed",
        ),
        (
            "torch_shampoo",
            {"iterate_averaging_config": {"type": "GeneralizedPrimalAveragingConfig"}},
            "allowed: ClassicMomentumConfig",
        ),
        ("jax_shampoo", {"learning_rate": lambda step: 0.1}, "a learning_rate that is no number"),
        ("torch_shampoo", {"weight_decay_type": "LION"}, "weight_decay_type is LION; allowed: DECOUPLED"),
        *(
            ("jax_shampoo", {name: value}, f"no equal here of {name} {value!r}; allowed: {allowed!r}")
            for name, value, allowed in (
                ("frequent_directions", True, False),
                ("decay_preconditioning_compute_steps", True, False),
                ("compression_rank", 4, 0),
                ("precondtioner_type", "INPUT", "ALL"),
            )
        ),
        (
            "torch_shampoo",
            {
                "preconditioner_config": {
                    "type": "ShampooPreconditionerConfig",
                    "inverse_exponent_override": {2: 0.3},
                }
            },
            "inverse_exponent_override is",
        ),
        (
            "torch_shampoo",
            {"grafting_config": {"type": "SGDGraftingConfig", "epsilon": 1e-3}},
            "no equal here of epsilon of SGDGraftingConfig",
        ),
        *(
            (
                "torch_shampoo",
                {"preconditioner_config": {"type": "RootInvShampooPreconditionerConfig", **fields}},
                words,
            )
            for fields, words in (
                ({"use_trace_scaling": True}, "no equal here of use_trace_scaling"),
                ({"adaptive": 1}, "no equal here of adaptive of RootInvShampooPreconditionerConfig"),
                (
                    {"amortized_computation_config": {"type": "QREigendecompositionConfig"}},
                    "amortized_computation_config is QREigendecompositionConfig; allowed: EigenConfig",
                ),
                (
                    {"amortized_computation_config": {"type": "EigenConfig", "exponent_multiplier": 2.0}},
                    "no equal here of exponent_multiplier of EigenConfig",
                ),
                (
                    {
                        "amortized_computation_config": {
                            "type": "EigenConfig",
                            "rank_deficient_stability_config": {"type": "PseudoInverseConfig"},
                        }
                    },
                    "is PseudoInverseConfig; allowed: PerturbationConfig",
                ),
            )
        ),
        ("jax_shampoo", {"graft_type": "RMSPROP_NORMALIZED"}, "graft_type is RMSPROP_NORMALIZED"),
        ("jax_shampoo", {"statistics_compute_steps": 2}, "no equal here of statistics_compute_steps"),
        ("jax_shampoo", {"clip_by_scaled_gradient_norm": 1.0}, "no equal here of clip_by_scaled"),
    ],
)
def test_what_has_no_equal_is_refused(make, given, words):
    base = {"learning_rate": 0.1, "block_size": 8} if make == "jax_shampoo" else {}
    with pytest.raises(ValueError, match=words):
        getattr(presets, make)(**base | given)


def test_what_is_off_by_default_may_be_given_so():
    jax = {"learning_rate": 0.1, "block_size": 8}
    off = {
        "average_grad": False,
        "compression_rank": 0,
        "decay_preconditioning_compute_steps": False,
        "end_preconditioning_compute_steps": None,
        "frequent_directions": False,
        "generate_fd_metrics": False,
        "lobpcg_max_iter": 0,
        "lobpcg_topk_precondition": 0,
        "precondtioner_type": types.SimpleNamespace(name="ALL"),
        "reset_preconditioner": False,
    }
    assert presets.jax_shampoo(**jax, **off) == presets.jax_shampoo(**jax)
    torch = {"lr": 0.1, "weight_decay": 0.2}
    plain = presets.torch_shampoo(**torch)
    config = {"type": "RootInvShampooPreconditionerConfig", "concurrency_config": None}
    for given in (
        {"concurrency_config": None},
        {"preconditioner_config": config},
        # At a constant rate it is the decoupled one.
        {"weight_decay_type": "CORRECTED"},
    ):
        assert presets.torch_shampoo(**torch, **given) == plain


@pytest.mark.parametrize("make", [presets.torch_shampoo, presets.jax_shampoo])
def test_arguments_that_are_not_known_are_refused(make):
    base = {"learning_rate": 0.1, "block_size": 8} if make is presets.jax_shampoo else {}
    with pytest.raises(TypeError, match=r"has no argument 'lrate' that is known here; ignored are .*"):
        make(**base, lrate=1)


def test_arguments_are_those_of_the_optimizer_for_keras():
    from ctr.optim import Shampoo

    preset = presets.torch_shampoo(lr=0.1, momentum=0.9)
    assert preset.learning_rate == pytest.approx(1.0)
    optimizer = Shampoo(**preset.arguments)
    assert optimizer.options == preset.options
    assert optimizer.tables is None


@pytest.mark.parametrize(
    ("target", "shape", "merged"),
    [
        (2, (512, 64, 3, 3), (512, 576)),
        (2, (300, 300), (300, 300)),
        (2, (7, 1, 1), (7,)),
        (1, (30, 30), (900,)),
        (math.inf, (16, 1, 3), (16, 1, 3)),
    ],
)
def test_weights_have_as_many_dimensions_as_the_newest_versions_leave(target, shape, merged):
    config = types.SimpleNamespace(target_parameter_dimensionality=target)
    exponents = {"type": "RootInvShampooPreconditionerConfig", "inverse_exponent_override": {2: 0.5}}
    given = {"preconditioner_config": exponents} if target == 2 else {}
    preset = presets.torch_shampoo(max_preconditioner_dim=math.inf, distributed_config=config, **given)
    assert lay_out_tensor(shape, preset.options).merged == merged
    assert preset.options.exponent_override == (2 if given else None)


def test_soap_is_made_of_options():
    from ctr.optim import Shampoo

    preset = presets.soap(learning_rate=0.01, beta2=0.9, block_size=64)
    options = preset.options
    assert isinstance(options, ShampooOptions)
    optimizer = Shampoo(**preset.arguments)
    assert (optimizer.options, float(optimizer.learning_rate)) == (options, pytest.approx(0.01))
    assert optimizer.tables is not None
    with pytest.raises(TypeError, match=r"Soap has no option 'foo'; allowed: .*grafting"):
        presets.soap(foo=1)
    assert (options.corrects, options.grafting.norm, options.block_size) == (True, "none", 64)
