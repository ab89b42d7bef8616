"""Presets of Shampoo's options for published algorithms: ``Shampoo(0.02, **vars(presets.FF))``."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ctr.optim.first_order.options import AdaGrad
from ctr.optim.option_types import merged
from ctr.optim.shampoo.options import Blocking, Roots, ShampooOptions, Statistics

FF = ShampooOptions(
    momentum=0.9,
    nesterov=True,
    statistics=Statistics(frequency=1),
    roots=Roots(early_growth=0.0, drift_bound=0.0),
    start_preconditioning_step=50,
)
"""FF 4.2: AdaGrad's step size for each layer, Nesterov momentum of the preconditioned gradient, blocks, and roots
L^(-1/4) in float64 on the host, every 50 steps and while the device continues. FF gives neither the number of steps
nor the damping, which is relative here."""

PSO = ShampooOptions(
    momentum=0.9,
    epsilon=0.0,
    grafting=AdaGrad(initial_accumulator=0.0, momentum="before"),
    statistics=Statistics(frequency=1, initial=1e-6, bias_correction=False),
    roots=Roots(damping="absolute", early_growth=0.0, drift_bound=0.0, first=50, phase=0, identity=True),
    start_preconditioning_step=51,
)
"""PSO algorithm II with tau2 = 1 and tau1 = 50 (in PSO's runs 400 to 1000): statistics begin at 1e-6 I, a size that
PSO does not give, and steps have the norm of AdaGrad's momentum."""

PT = ShampooOptions(
    block_size=1024,
    beta1=0.9,
    epsilon=1e-12,
    grafting=AdaGrad(norm="block", initial_accumulator=0.0, epsilon=1e-10),
    blocking=Blocking(split="full", max_dimension=65536, merge=1024, vectors=True),
    statistics=Statistics(frequency=1),
    roots=Roots(
        damping="absolute", phase=0, asynchronous=False, early_growth=0.0, drift_bound=0.0, identity=True
    ),
    start_preconditioning_step=50,
    precondition_frequency=50,
)
"""PT algorithm 2 with AdaGrad's step sizes: roots are computed within the step, and averages bias-corrected. Steps
are counted from 1, as in the code of PT; the algorithm as printed counts from 0. ``epsilon`` and the 50 steps are from
PT table 2; averages of gradients, blocks and the graft's epsilon are the defaults of PT's code."""

PRESETS = {"ff": FF, "pso": PSO, "pt": PT}


def preset_values(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a preset, with ``changes`` merged in, as a dict of plain values, not validated yet.

    In ``pso`` a changed ``precondition_frequency`` is also the step of the first exchange; as in the algorithm,
    Shampoo's direction is used from the next step on.
    """
    values, tau1 = asdict(PRESETS[name]), changes.get("precondition_frequency")
    if name == "pso" and isinstance(tau1, int):
        values = merged(values, {"roots": {"first": tau1}, "start_preconditioning_step": tau1 + 1})
    return merged(values, changes)


def preset(name: str, **changes: Any) -> ShampooOptions:
    """Returns the options of a preset, ``ff``, ``pso`` or ``pt``, with ``changes`` merged in, recursively for groups.

        >>> preset("pso", precondition_frequency=400).start_preconditioning_step
        401

    Raises:
        ValueError: the preset is unknown, or a value is not allowed.
        TypeError: an option is unknown.
    """
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; allowed: {', '.join(PRESETS)}")
    return ShampooOptions(**preset_values(name, changes))
