"""Presets take the steps of the implementations that they stand for, replayed here from these' own order of work."""

import itertools
import types

import numpy as np
import pytest

import shampoo_reference as reference
from ctr.optim.contrib import presets
from ctr.optim.shampoo.blocks import lay_out_tensor
from ctr.optim.shampoo.options import ShampooOptions

SHAPES = [(7, 5), (6,), (3, 2, 4), (1,), (9, 1)]
STEPS = 18


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
        (beta1, beta2), start, is_soap = c["betas"], c["start"], c["method"] == "soap"
        if not c["use_decoupled_weight_decay"]:
            g = g + c["weight_decay"] * w
        w1, w2 = (1.0, 1.0) if beta2 == 1 else (beta2, 1 - beta2)
        for k in range(order):
            outer = np.moveaxis(g, k, 0).reshape(g.shape[k], -1)
            self.factors[k] = w1 * self.factors[k] + w2 * outer @ outer.T
        correction = 1 - beta2**t if beta2 < 1 and c["use_bias_correction"] else 1.0
        if t == start or (t > start and t % c["precondition_frequency"] == 0):
            for k, factor in enumerate(self.factors):
                if is_soap:
                    self.roots[k] = np.linalg.eigh(factor / correction)[1]
                else:
                    self.roots[k] = power(factor / correction, c["exponent"] or 1 / (2 * order), c["epsilon"])
        if is_soap:
            self.eigenvalues = w1 * self.eigenvalues + w2 * self.rotated(g) ** 2
        kind, beta_g, eps_g = c["graft"]
        if kind:
            self.graft = self.graft + g**2 if kind == "adagrad" else beta_g * self.graft + (1 - beta_g) * g**2
        direction = g
        if beta1:
            beta3 = beta1 if c["beta3"] is None else c["beta3"]
            direction = beta3 * self.average + (1 - beta3) * g
            self.average = beta1 * self.average + (1 - beta1) * g
            direction = direction / (1 - beta3 * beta1 ** (t - 1)) if c["use_bias_correction"] else direction
        grafted = None
        if kind:
            moment = self.graft / (1 - beta_g**t) if kind == "adam" else self.graft
            grafted = direction if kind == "sgd" else direction / (np.sqrt(moment) + eps_g)
        p = grafted
        if t >= start or not kind:
            p = direction
            if is_soap:
                p = self.rotated(direction) / (np.sqrt(self.eigenvalues / correction) + c["epsilon"])
            for k in range(order):
                p = reference.multiplied(p, k, self.roots[k])
            if kind:
                p = p * (np.linalg.norm(grafted) / (np.linalg.norm(p) + 1e-16))
        if c["use_decoupled_weight_decay"]:
            p = p + c["weight_decay"] * w
        mu, dampening = c["momentum"], c["dampening"]
        if mu:
            self.momentum = mu * self.momentum + (1 - dampening) * p
            p = (1 - dampening) * p + mu * self.momentum if c["use_nesterov"] else self.momentum
        return w - c["lr"] * p

    def rotated(self, g):
        for k, vectors in enumerate(self.roots):
            g = reference.multiplied(g, k, vectors.T)
        return g


def config(kind, **fields):
    """A configuration of DistributedShampoo, which may also be an object of a class of this name."""
    return {"type": kind, **fields}


ROOTS = "RootInvShampooPreconditionerConfig"
CORRECTED = "EigenvalueCorrectedShampooPreconditionerConfig"
ADAGRAD = config("AdaGradGraftingConfig", epsilon=1e-3)
RMSPROP = type("RMSpropPreconditionerConfig", (types.SimpleNamespace,), {})(beta2=0.9, epsilon=1e-3)
HALVES = {order: 0.5 for order in (1, 2, 3, 4)}
EIGH = config("EighEigendecompositionConfig", tolerance=0.0)

TORCH_COMMON = {
    "lr": 0.05,
    "betas": (0.0, 1.0),
    "epsilon": 1e-3,
    "max_preconditioner_dim": 5,
    "precondition_frequency": 4,
}
SOAP = {"betas": (0.9, 0.95), "use_merge_dims": False, "preconditioner_config": config(CORRECTED)}
TORCH = {
    "adagrad": {"grafting_config": ADAGRAD},
    "adam, averages, two betas": {
        "betas": (0.8, 0.9),
        "beta3": 0.5,
        "grafting_config": config("AdamGraftingConfig", beta2=0.9, epsilon=1e-4),
    },
    "rmsprop by an object, momentum, nesterov": {
        "grafting_config": RMSPROP,
        "momentum": 0.8,
        "use_nesterov": True,
        "weight_decay": 0.1,
        "betas": (0.0, 0.95),
        "precondition_frequency": 1,
    },
    "gradient descent's graft": {"betas": (0.0, 0.9), "grafting_config": config("SGDGraftingConfig")},
    "no graft, coupled decay, dampened": {
        "weight_decay": 0.1,
        "use_decoupled_weight_decay": False,
        "lr": 0.01,
        "momentum": 0.5,
        "dampening": 0.2,
    },
    "no merging, no correction, another root": {
        "use_merge_dims": False,
        "use_bias_correction": False,
        "betas": (0.9, 0.9),
        "inv_root_override": 2,
        "grafting_config": ADAGRAD,
        "start_preconditioning_step": 7,
    },
    "SOAP": SOAP,
    "SOAP without correction": SOAP
    | {
        "use_bias_correction": False,
        "preconditioner_config": config(
            CORRECTED, factor_matrix_dtype="float64", amortized_computation_config=EIGH
        ),
    },
    "merging from the right, a sum as graft, newest names": {
        "max_preconditioner_dim": 8,
        "betas": (0.0, 0.9),
        "grafting_config": config("RMSpropPreconditionerConfig", beta2=1.0, epsilon=1e-3),
        "iterate_averaging_config": config("ClassicMomentumConfig", momentum=0.6, dampening=0.1),
        "weight_decay": 0.01,
        "weight_decay_type": "INDEPENDENT",
        "distributed_config": config("SingleDeviceDistributedConfig", target_parameter_dimensionality=1),
    },
    "matrices stay matrices": {
        "max_preconditioner_dim": 40,
        "preconditioner_config": config(ROOTS, inverse_exponent_override=HALVES),
        "distributed_config": config("SingleDeviceDistributedConfig", target_parameter_dimensionality=2),
    },
}


def read_torch(given):
    """What PyTorch's arguments mean, for ``Torch``."""
    c = {"beta3": None, "momentum": 0.0, "dampening": 0.0, "use_nesterov": False, "weight_decay": 0.0}
    c |= {"use_decoupled_weight_decay": True, "use_bias_correction": True, **TORCH_COMMON, **given}
    c |= c.get("iterate_averaging_config", {})
    c["start"] = c.get("start_preconditioning_step", c["precondition_frequency"])
    if c.get("weight_decay_type") == "INDEPENDENT":
        # Decay times the rate is what is given.
        c["weight_decay"] /= c["lr"]
    of_roots = c.get("preconditioner_config", config(ROOTS))
    c["method"] = {CORRECTED: "soap", ROOTS: "roots"}[of_roots["type"]]
    override = c.get("inv_root_override")
    c["exponent"] = 1 / override if override else of_roots.get("inverse_exponent_override", {}).get(2)
    graft = c.get("grafting_config", {})
    fields = graft if isinstance(graft, dict) else {"type": type(graft).__name__, **vars(graft)}
    beta2, kind = fields.get("beta2", 0), fields.get("type", "").lower()
    names = [name for name in ("adagrad", "adam", "rmsprop", "sgd") if kind.startswith(name)] or [None]
    c["graft"] = ("adagrad" if beta2 == 1 else names[0], beta2, fields.get("epsilon", 0))
    until = c.get("distributed_config", {}).get("target_parameter_dimensionality")
    c["merge"] = ("right" if until else c.get("use_merge_dims", True), until or 1)
    return c


def torch_replay(given, weights, history):
    c = read_torch(given)
    layouts = [blocks_of(w.shape, c["max_preconditioner_dim"], *c["merge"]) for w in weights]
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
JAX = {
    "defaults": {},
    "adagrad, decay, averaged": {"graft_type": "ADAGRAD", "weight_decay": 0.1, "beta2": 1.0}
    | {"moving_average_for_momentum": True},
    "rmsprop by a member, heavy ball": {"graft_type": types.SimpleNamespace(name="RMSPROP")}
    | {"nesterov": False, "beta1": 0.8},
    "no graft, no momentum": {"graft_type": "NONE", "beta1": 0.0},
    "sign, absolute, another exponent": {"graft_type": "SQRT_N"}
    | {"relative_matrix_epsilon": False, "exponent_override": 2},
    "long and flat ones skipped": {"graft_type": "ADAGRAD"}
    | {"skip_preconditioning_dim_size_gt": 6, "skip_preconditioning_rank_lt": 2},
}


def jax_replay(given, weights, history):
    c = {"beta1": 0.9, "weight_decay": 0.0, "start_preconditioning_step": 5, "graft_type": "SGD"}
    c |= {"nesterov": True, "exponent_override": 0, "moving_average_for_momentum": False}
    c |= {"skip_preconditioning_rank_lt": 1, "relative_matrix_epsilon": True, **JAX_COMMON, **given}
    c["graft_type"] = getattr(c["graft_type"], "name", c["graft_type"])
    layouts, states, weights = [], [], [np.array(w) for w in weights]
    for w in weights:
        is_skipped = w.ndim < c["skip_preconditioning_rank_lt"] or any(
            n > c["skip_preconditioning_dim_size_gt"] for n in w.shape
        )
        merged, where = blocks_of(w.shape, c["block_size"], False)
        layouts.append((merged, [] if is_skipped else where))
        sides = [[n.stop - n.start for n in place] for place in where]
        states.append(
            {
                "statistics": [[c["matrix_epsilon"] * np.eye(n) for n in shape] for shape in sides],
                "roots": [[np.eye(n) for n in shape] for shape in sides],
                **{name: np.zeros(w.shape) for name in ("diagonal", "momentum", "graft")},
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
            flat = np.moveaxis(block, k, 0).reshape(block.shape[k], -1)
            statistics[k] = c["beta2"] * statistics[k] + w2 * flat @ flat.T
            if count % c["preconditioning_compute_steps"] == 0:
                largest = np.linalg.eigvalsh(statistics[k])[-1] if c["relative_matrix_epsilon"] else 1.0
                exponent = 1 / (c["exponent_override"] or 2 * block.ndim)
                roots[k] = power(statistics[k], exponent, c["matrix_epsilon"] * largest)
    graft = {"SGD": gradient, "NONE": gradient, "SQRT_N": np.sign(gradient)}.get(kind)
    if graft is None:
        scale, own = (1.0, 1.0) if kind == "ADAGRAD" else (c["beta2"], w2)
        state["diagonal"] = scale * state["diagonal"] + own * gradient**2
        graft = gradient / (np.sqrt(state["diagonal"]) + c["diagonal_epsilon"])
    direction = graft
    if where:
        whole = np.zeros(merged)
        for place, block, roots in zip(where, blocks, state["roots"], strict=True):
            for k, root in enumerate(roots):
                block = reference.multiplied(block, k, root)
            whole[place] = block
        direction = whole.reshape(w.shape)
    if kind != "NONE":
        direction = direction * (np.linalg.norm(graft) / (np.linalg.norm(direction) + 1e-25))
    direction, graft = (one + c["weight_decay"] * w for one in (direction, graft))
    mu, own = c["beta1"], (1 - c["beta1"]) if c["moving_average_for_momentum"] else 1.0
    state["momentum"] = mu * state["momentum"] + own * direction
    state["graft"] = mu * state["graft"] + own * graft
    is_on = count >= c["start_preconditioning_step"]
    averaged, plain = (state["momentum"], direction) if is_on else (state["graft"], graft)
    return w - c["learning_rate"] * (own * plain + mu * averaged if c["nesterov"] else averaged)


def with_gaps(history):
    """Gradients that are missing in some steps: each at its first exchange, the last ones for long."""
    return [
        [
            None if t % 7 == i or t in (3 + i, 16 - i) or (i == 4 and t < 9) else gradient
            for i, gradient in enumerate(gradients)
        ]
        for t, gradients in enumerate(history, 1)
    ]


def without_some(history):
    """Gradients that are zero at first, in some blocks of a matrix and in a vector."""
    for gradients in history[:13]:
        gradients[0][:5] = 0.0
        gradients[1][:] = 0.0
    return history


def compare(preset, replay, given, change=lambda history: history):
    """Whether a preset takes the steps of the implementation that it stands for."""
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, STEPS, condition=10.0)
    history = change(history)
    core = reference.make_core(preset.options, start)
    found = reference.train(core, history, preset.learning_rate)
    for weights, others in zip(found, replay(given, start, history), strict=True):
        for weight, other in zip(weights, others, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-8, atol=1e-8)
    assert not core.report()["failed"]


CHANGES = {
    "adam, averages, two betas": with_gaps,
    "rmsprop by an object, momentum, nesterov": with_gaps,
    "SOAP": with_gaps,
    "gradient descent's graft": without_some,
}
"""Missing gradients are masked as PyTorch masks them; blocks without one have the roots of their damping."""


def fast(cases, *names):
    """Some cases in the fast tests, the next three in the slow ones."""
    rest = [pytest.param(case, marks=pytest.mark.slow(first=3)) for case in cases if case not in names]
    return pytest.mark.parametrize("case", [*names, *rest])


@fast(TORCH, "adam, averages, two betas", "no graft, coupled decay, dampened")
def test_the_steps_are_those_of_pytorchs(case):
    preset = presets.torch_shampoo(**TORCH_COMMON | TORCH[case])
    compare(preset, torch_replay, TORCH[case], CHANGES.get(case, lambda history: history))


@fast(JAX, "adagrad, decay, averaged")
def test_the_steps_are_those_of_jax(case):
    compare(presets.jax_shampoo(**JAX_COMMON | JAX[case]), jax_replay, JAX[case], without_some)


def test_exponents_by_order():
    for overrides, exponent in (
        ({1: 0.5}, None),
        ({2: {0: 0.25, 1: 0.25}, 1: 0.5}, None),
        ({2: 0.5, 3: {0: 0.5, 1: 0.5, 2: 0.5}, 4: 0.5}, 2),
    ):
        given = config(ROOTS, inverse_exponent_override=overrides)
        assert presets.torch_shampoo(preconditioner_config=given).options.exponent_override == exponent


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


def amortized(kind, **fields):
    return {"preconditioner_config": config(ROOTS, amortized_computation_config=config(kind, **fields))}


AVERAGING = {"iterate_averaging_config": config("ClassicMomentumConfig", momentum=0.6)}
OF_OTHERS = "iterate_averaging_config excludes momentum, dampening and use_nesterov"
EVERY_ORDER = {order: 0.25 for order in (1, 2, 3, 4)}
TORCH_REFUSES = [
    ({"grafting_config": config("LionGraftingConfig")}, "grafting_config is LionGraftingConfig"),
    ({"grafting_config": config("SGDGraftingConfig", epsilon=1e-3)}, "no equal here of epsilon of SGDGraft"),
    ({"preconditioner_config": config("SpectralDescentPreconditionerConfig")}, "is Spectral"),
    (
        {
            "preconditioner_config": config(CORRECTED, inverse_exponent_override=EVERY_ORDER),
            "start_preconditioning_step": 9,
        },
        "allowed: start_preconditioning_step 1",
    ),
    (
        {"preconditioner_config": config(ROOTS, inverse_exponent_override={1: 0.5, 2: 0.5, 3: 0.5})},
        "allowed: all orders up to 4",
    ),
    (
        {"preconditioner_config": config("ShampooPreconditionerConfig", inverse_exponent_override={2: 0.3})},
        "inverse_exponent_override is",
    ),
    (
        amortized("QREigendecompositionConfig"),
        "amortized_computation_config is QREigendecompositionConfig; allowed: EigenConfig",
    ),
    (
        amortized("EigenConfig", exponent_multiplier=2.0),
        "no equal here of exponent_multiplier of EigenConfig",
    ),
    (
        amortized("EigenConfig", rank_deficient_stability_config=config("PseudoInverseConfig")),
        "is PseudoInverseConfig; allowed: PerturbationConfig",
    ),
    (
        {"distributed_config": config("DDPDistributedConfig", target_parameter_dimensionality=1.5)},
        "merge_until is 1.5",
    ),
    ({"lr": 0.0, "weight_decay": 0.1, "weight_decay_type": "INDEPENDENT"}, "lr is 0.0"),
    ({"weight_decay_type": "LION"}, "weight_decay_type is LION; allowed: DECOUPLED"),
    *(
        (AVERAGING | own, OF_OTHERS)
        for own in ({"momentum": 0.9}, {"dampening": 0.3}, {"use_nesterov": True})
    ),
    (
        {"iterate_averaging_config": config("GeneralizedPrimalAveragingConfig")},
        "allowed: ClassicMomentumConfig",
    ),
]
JAX_REFUSES = [
    ({"best_effort_memory_usage_reduction": True}, "of best_effort_memory_usage_reduction; allowed: False"),
    ({"beta1": 1.0}, "beta1 1.0; allowed: from 0 to below 1"),
    ({"preconditioning_compute_steps": 0}, "preconditioning_compute_steps below 1; allowed"),
    ({"learning_rate": lambda step: 0.1}, "a learning_rate that is no number"),
    ({"precondtioner_type": "INPUT"}, "no equal here of precondtioner_type 'INPUT'; allowed: 'ALL'"),
    ({"graft_type": "RMSPROP_NORMALIZED"}, "graft_type is RMSPROP_NORMALIZED"),
    ({"statistics_compute_steps": 2}, "no equal here of statistics_compute_steps"),
]
JAX_GIVEN = {"learning_rate": 0.1, "block_size": 8}


def test_what_has_no_equal_is_refused():
    for make, given, refused in (
        (presets.torch_shampoo, {}, TORCH_REFUSES),
        (presets.jax_shampoo, JAX_GIVEN, JAX_REFUSES),
    ):
        for changes, words in refused:
            with pytest.raises(ValueError, match=words):
                make(**given | changes)
        with pytest.raises(TypeError, match=r"has no argument 'lrate' that is known here; ignored are .*"):
            make(**given, lrate=1)
    with pytest.raises(TypeError, match=r"Soap has no option 'foo'; allowed: .*grafting"):
        presets.soap(foo=1)


def test_what_is_off_by_default_may_be_given_so():
    off = dict.fromkeys(("average_grad", "frequent_directions", "reset_preconditioner"), False)
    off |= {"compression_rank": 0, "end_preconditioning_compute_steps": None}
    off |= {"precondtioner_type": types.SimpleNamespace(name="ALL")}
    assert presets.jax_shampoo(**JAX_GIVEN, **off) == presets.jax_shampoo(**JAX_GIVEN)
    torch = {"lr": 0.1, "weight_decay": 0.2}
    # A corrected decay is at a constant rate the decoupled one.
    for given in ({"concurrency_config": None}, {"weight_decay_type": "CORRECTED"}):
        assert presets.torch_shampoo(**torch, **given) == presets.torch_shampoo(**torch)


def test_arguments_are_those_of_the_optimizer_for_keras():
    from ctr.optim import Shampoo

    torch, soap = presets.torch_shampoo(lr=0.1, momentum=0.9), presets.soap(learning_rate=0.01, block_size=64)
    # PyTorch's momentum is a sum of directions, ours an average.
    assert (torch.learning_rate, soap.learning_rate) == (pytest.approx(1.0), pytest.approx(0.01))
    for preset, has_tables in ((torch, False), (soap, True)):
        optimizer = Shampoo(**preset.arguments)
        assert optimizer.options == preset.options and (optimizer.tables is not None) == has_tables
    assert (soap.options.corrects, soap.options.grafting.norm, soap.options.block_size) == (True, "none", 64)
