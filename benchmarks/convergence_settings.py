"""Settings of the convergence study: optimizers, logs and models; and the configuration of a point of the grid.

The world has few users, ads and words, each seen thousands of times, so that a run is not limited by rare ids;
most of the logit comes from products of two factors (age x topic, advertiser x device, query topic x ad
topic, taste x topic, ...), and nothing drifts. A logistic regression stays at two to three times the excess loss
of DCNv2, which still falls at the end of the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ctr.config import parse_model
from ctr.simulator.config import SimulatorConfig
from ctr.training.config import TrainConfig

MOMENTUM = 0.9


@dataclass(frozen=True)
class Optimizer:
    """An optimizer in the comparison.

    Attributes:
        title: its name in tables.
        precondition: whether it belongs to Shampoo's family; if not, it is the grafted optimizer alone.
        nesterov: whether it has Nesterov momentum.
        options: options of Shampoo.
        accumulator: whether it has an initial accumulator to be tuned.
        start: where the search for its rate begins, as in ``convergence_search.Point``: near the default of its paper
            or library.
        rows: ``optimizer.embeddings.rule``.
    """

    title: str
    precondition: bool
    nesterov: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    accumulator: bool = True
    start: int = 2
    rows: str = "adagrad"


_ADAM = {"grafting": "adam", "beta1": 0.9}
_SOAP = {
    "method": "eigenvalue_corrected",
    "grafting": {"kind": "adam", "norm": "none", "beta2": 0.95},
    "beta1": 0.95,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "roots": {"damping": "absolute"},
}
OPTIMIZERS = {
    "adagrad": Optimizer("AdaGrad", False, False),
    "adagrad_nesterov": Optimizer("AdaGrad + Nesterov", False, True),
    "shampoo": Optimizer("Shampoo", True, False),
    "shampoo_nesterov": Optimizer("Shampoo + Nesterov", True, True),
    "shampoo_one_sided": Optimizer("Shampoo, one-sided for tables", True, False, rows="one_sided"),
    "adam": Optimizer("Adam", False, False, options=_ADAM, accumulator=False, start=-6),
    "shampoo_quarter": Optimizer("Shampoo, exponents 1/4", True, False, options={"exponent_override": None}),
    "soap": Optimizer("SOAP", True, False, options=_SOAP, accumulator=False, start=-4),
    "eigenvalue_corrected": Optimizer(
        "Shampoo, eigenvalue-corrected", True, False, options={"method": "eigenvalue_corrected"}
    ),
}
BASELINES = ("adagrad", "adagrad_nesterov")
MAIN = (*BASELINES, "shampoo", "shampoo_nesterov")
"""The optimizers that are compared by default."""

# All other options of Shampoo are the defaults.
_SHAMPOO = {
    "exponent_override": 2,
    "start_preconditioning_step": 1,
    "roots": {"early_growth": 0.25, "drift_bound": 0.02},
}
_ADAGRAD = {"exponent_override": None, "start_preconditioning_step": None}
# The default is every tenth step, once exchanges of roots are tau1 apart; that is one of the ablations.
_STATISTICS_FREQUENCY = 1

PARENT = {8192: 2048, 32768: 8192}
"""By batch size, the batch size at whose best point each optimizer's search begins."""

ABLATIONS: dict[str, dict[str, Any]] = {
    "exponent -1/4": {"exponent_override": None},
    "statistics every 10 steps": {"statistics": {"frequency": 10}},
    "first roots at step 25": {"start_preconditioning_step": 25},
    "no early roots": {"roots": {"early_growth": 0.0, "drift_bound": 0.02}},
    "roots every 5 steps": {"precondition_frequency": 5},
    "roots every 200 steps": {"precondition_frequency": 200},
    "roots always anew": {"roots": {"early_growth": 0.25, "drift_bound": 0.0}},
    "damping 1e-8": {"epsilon": 1e-8},
    "damping 1e-4": {"epsilon": 1e-4},
    "damping 1e-2": {"epsilon": 1e-2},
    "decay 0.99": {"beta2": 0.99},
    "blocks of 128": {"block_size": 128},
    "momentum 0.8": {"momentum": 0.8},
    "momentum 0.95": {"momentum": 0.95},
}
"""Changes to the tuned Shampoo + Nesterov."""
RETUNED = ("exponent -1/4", "first roots at step 25")
"""Ablations that change the direction so much that the doubled and the halved rate are tried, too."""


@dataclass(frozen=True)
class Plan:
    """Extent of a study.

    Attributes:
        world: settings of the simulator besides ``seed`` and ``examples``.
        model: section ``model`` of the configuration.
        batches: batch sizes, in the order in which they run.
        sweep_examples: length of the log of the sweep, by batch size.
        confirm_examples: length of the confirmation's log, which is from another world.
        tries, limit: number of tries for each optimizer and batch size, and its maximum while one is not settled.
        rates: factors of the dense rate tried on the long log with the first seed.
        seeds: seeds of the confirmation; the sweep's seed is 1.
        ablation_batches: batch sizes of the ablations of Shampoo + Nesterov, if it is compared.
    """

    world: Mapping[str, Any]
    model: Mapping[str, Any]
    batches: tuple[int, ...]
    sweep_examples: Mapping[int, int]
    confirm_examples: int
    tries: int
    limit: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    ablation_batches: tuple[int, ...]
    ablations: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: ABLATIONS)

    def simulator(self, examples: int, seed: int) -> SimulatorConfig:
        """Returns the configuration of a simulated log of ``examples`` rows from the world ``seed``."""
        content = {**self.world, "examples": examples, "seed": seed}
        return parse_model(SimulatorConfig, content, "simulated log")


_WORLD = {
    "queries_per_day": 10_000, "base_ctr": 0.15,
    "users": 300, "ads": 120, "advertisers": 30, "words": 80, "topics": 20,
}  # fmt: skip

HALF = Plan(
    world=_WORLD,
    model={
        "prior": 0.15,
        "crosses": {"layers": 2, "rank": 32, "ramp": 20_000},
        "deep": {"units": [256, 128]},
    },
    batches=(2048, 8192, 32768),
    # 300,000 examples are 9 steps of 32768, too few to say anything of a pass of 31.
    sweep_examples={2048: 300_000, 8192: 300_000, 32768: 600_000},
    confirm_examples=1_000_000,
    tries=8,
    limit=12,
    rates=(1.0, 2.0, 0.5),
    seeds=(2, 3, 4, 5, 6),
    ablation_batches=(2048,),
)
"""A study of all optimizers that takes a night."""

QUICK = Plan(
    world={**_WORLD, "queries_per_day": 200},
    model={
        "prior": 0.15,
        "crosses": {"layers": 1, "rank": 4, "ramp": 500},
        "deep": {"units": [8]},
        "widths": {"query_words": 0},
    },
    batches=(256,),
    sweep_examples={256: 3_000},
    confirm_examples=6_000,
    tries=1,
    limit=1,
    rates=(1.0,),
    seeds=(2,),
    ablation_batches=(256,),
    ablations={"damping 1e-2": ABLATIONS["damping 1e-2"]},
)


def dense_settings(
    optimizer: Optimizer, values: Mapping[str, float], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns section ``optimizer.dense`` of a configuration.

    Args:
        optimizer: the optimizer.
        values: ``rate`` and ``accumulator``.
        changes: changes to Shampoo's options, used only if the optimizer preconditions.
    """
    options: dict[str, Any] = {
        "momentum": MOMENTUM if optimizer.nesterov else 0.0,
        "nesterov": optimizer.nesterov,
    }
    if optimizer.accumulator:
        options["grafting"] = {"initial_accumulator": values["accumulator"]}
    options["statistics"] = {"frequency": _STATISTICS_FREQUENCY}
    if optimizer.precondition:
        options |= {**_SHAMPOO, **optimizer.options, **changes}
    else:
        options |= {**_ADAGRAD, **optimizer.options}
    return {"learning_rate": values["rate"], "preconditioned_from_rows": 1, "shampoo": options}


def train_config(
    plan: Plan,
    optimizer: Optimizer,
    batch: int,
    values: Mapping[str, float],
    seed: int,
    changes: Mapping[str, Any],
) -> TrainConfig:
    """Returns the configuration of a run on a simulated log; ``changes`` are to Shampoo's options."""
    never = 2**40
    content = {
        "seed": seed,
        "batch": {"rows": batch},
        "model": {"experts": ["network"], "init_scale": 0.05, **plan.model},
        "optimizer": {
            "embeddings": {
                "rule": optimizer.rows,
                **{"learning_rate": values["embedding"], "initial_accumulator": 0.1},
                **{"linear_learning_rate": 0.1, "linear_initial_accumulator": 0.1},
            },
            "dense": dense_settings(optimizer, values, changes),
        },
        # One window, one checkpoint: a run costs little besides its training.
        "metrics": {"window_examples": never},
        "checkpoint": {"every_examples": never, "keep": 1},
    }
    return parse_model(TrainConfig, content, "benchmark")
