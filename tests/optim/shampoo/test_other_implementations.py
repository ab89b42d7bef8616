"""Options take the steps of other implementations' settings, replayed in these' own order of work."""

import pytest

import shampoo_reference as reference
from ctr.optim.shampoo.options import ShampooOptions
from other_shampoos import jax_replay, torch_replay

SHAPES = [(7, 5), (6,), (3, 2, 4), (1,), (9, 2)]
STEPS = 18
RATE = 0.05

SYNCHRONOUS = {"asynchronous": False, "early_growth": 0.0, "drift_bound": 0.0, "identity": True}
"""Every root comes from the statistics of its own step, and is computed anew."""
ADAGRAD = {"norm": "block", "initial_accumulator": 0.0, "epsilon": 1e-3}
LIKE_TORCH = ShampooOptions(
    epsilon=1e-3,
    block_size=5,
    blocking={"split": "full", "max_dimension": 65536, "vectors": True, "merge": 5},
    precondition_frequency=4,
    start_preconditioning_step=4,
    statistics={"frequency": 1},
    roots={"damping": "absolute", "phase": 0} | SYNCHRONOUS,
)
"""PyTorch's arguments that all cases have."""
TORCH_COMMON = {"lr": RATE, "betas": (0.0, 1.0), "epsilon": 1e-3}
TORCH_COMMON |= {"max_preconditioner_dim": 5, "precondition_frequency": 4}
# PyTorch's arguments; the same here; the rate here over that there, as momentum there is a sum and here an average.
TORCH = {
    "adam, averages": (
        {"betas": (0.8, 0.9), "graft": ("adam", 0.9, 1e-4)},
        {"beta2": 0.9, "beta1": 0.8}
        | {"grafting": {"kind": "adam", "norm": "block", "beta2": 0.9, "epsilon": 1e-4}},
        1,
    ),
    "rmsprop, momentum, nesterov, decay": (
        {"graft": ("rmsprop", 0.9, 1e-3), "momentum": 0.8, "use_nesterov": True, "weight_decay": 0.1}
        | {"betas": (0.0, 0.95), "precondition_frequency": 1},
        {"grafting": {"kind": "rmsprop", "norm": "block", "beta2": 0.9, "epsilon": 1e-3}}
        | {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}
        | {"beta2": 0.95, "precondition_frequency": 1, "start_preconditioning_step": 1},
        1 / (1 - 0.8),
    ),
    "adagrad, dampened, no merging, another root, a later start": (
        {"use_merge_dims": False, "betas": (0.0, 0.9), "exponent": 1 / 2, "graft": ("adagrad", 1.0, 1e-3)}
        | {"start_preconditioning_step": 7, "momentum": 0.5, "dampening": 0.2},
        {"blocking": {"merge": None}, "beta2": 0.9, "exponent_override": 2, "grafting": ADAGRAD}
        | {"start_preconditioning_step": 7, "momentum": 0.5},
        (1 - 0.2) / (1 - 0.5),
    ),
}

LIKE_JAX = ShampooOptions(
    grafting="sgd",
    momentum=0.9,
    nesterov=True,
    beta2=0.9,
    epsilon=1e-2,
    block_size=5,
    blocking={"split": "full", "vectors": True},
    precondition_frequency=3,
    start_preconditioning_step=1,
    statistics={"frequency": 1, "initial": 1e-2},
    roots={"phase": 1} | SYNCHRONOUS,
)
JAX_COMMON = {"learning_rate": RATE, "block_size": 5, "beta2": 0.9}
JAX_COMMON |= {"diagonal_epsilon": 1e-3, "matrix_epsilon": 1e-2, "preconditioning_compute_steps": 3}
# What is decayed is corrected for its start here, and not there, which no graft's norm and no relative damping shows.
JAX = {
    "adagrad, decay, averaged": (
        {"graft_type": "ADAGRAD", "weight_decay": 0.1, "beta2": 1.0, "moving_average_for_momentum": True},
        {"grafting": {"kind": "adagrad"} | ADAGRAD | {"norm": "tensor"}, "weight_decay": 0.1, "beta2": 1.0},
        1,
    ),
    "rmsprop, heavy ball, vectors skipped": (
        {"graft_type": "RMSPROP", "nesterov": False, "beta1": 0.8, "skip_preconditioning_rank_lt": 2},
        {"grafting": {"kind": "rmsprop", "beta2": 0.9, "epsilon": 1e-3}}
        | {"nesterov": False, "momentum": 0.8, "blocking": {"vectors": False}},
        1 / (1 - 0.8),
    ),
    "no graft, no momentum, absolute, another exponent": (
        {"graft_type": "NONE", "beta1": 0.0, "beta2": 1.0}
        | {"relative_matrix_epsilon": False, "exponent_override": 2},
        {"grafting": {"norm": "none"}, "beta2": 1.0, "momentum": 0.0, "nesterov": False}
        | {"roots": {"damping": "absolute"}, "exponent_override": 2},
        1,
    ),
}


def with_gaps(history):
    """Gradients that are missing in some steps: each at its first exchange, the last ones for long."""
    for t, gradients in enumerate(history, 1):
        for i in range(len(gradients)):
            if t % 7 == i or t in (3 + i, 16 - i) or (i == 4 and t < 9):
                gradients[i] = None
    return history


def without_some(history):
    """Gradients that are zero at first, in some blocks of a matrix and in a vector."""
    for gradients in history[:13]:
        gradients[0][:5] = 0.0
        gradients[1][:] = 0.0
    return history


def compare(options, rate, replay, given, change):
    """Whether options take the steps of the implementation's settings."""
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, STEPS, condition=10.0)
    history = change(history)
    core = reference.make_core(options, start)
    found = reference.train(core, history, rate)
    assert reference.gap(found, replay(given, start, history), start) < 1e-8
    assert not core.report()["failed"]


@pytest.mark.parametrize("case", TORCH)
def test_the_steps_are_those_of_pytorchs(case):
    given, changed, scale = TORCH[case]
    given = TORCH_COMMON | given
    # Missing gradients are masked as PyTorch masks them; blocks without one have the roots of their damping.
    change = without_some if "adagrad" in case else with_gaps
    compare(LIKE_TORCH.changed(changed), given["lr"] * scale, torch_replay, given, change)


@pytest.mark.parametrize("case", JAX)
def test_the_steps_are_those_of_jax(case):
    given, changed, scale = JAX[case]
    compare(LIKE_JAX.changed(changed), RATE * scale, jax_replay, JAX_COMMON | given, without_some)
