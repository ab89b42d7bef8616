"""Costs of an arm as multiples of another one's, with their quartiles where they are known.

A pass costs the time, or the FLOPs, of learning from a row, times the rows learned from: one that samples
its log takes the same steps, only fewer. Times are those of steps by turns with the baseline's: quartiles
over the rounds.
"""

from ctr.eval.display import Number
from ctr.experiments.report.runs import ArmCosts

COST_KINDS = ("train_time", "train_flops", "inference_time", "inference_flops")


def pass_flops(costs: ArmCosts) -> float | None:
    """Returns the FLOPs of learning, for each row of the log."""
    return _product(costs.train_flops, costs.learned_share)


def pass_time(costs: ArmCosts, baseline: ArmCosts, kind: str = "train_time") -> Number | None:
    """Returns the time of a pass, or of scoring (``inference_time``), as a multiple of the baseline's."""
    if costs is baseline:
        return Number(1.0)
    quartiles, factor = costs.inference_ratio, _over(baseline.batch_rows, costs.batch_rows)
    if kind == "train_time":
        quartiles = costs.step_ratio
        factor = _product(factor, _over(costs.learned_share, baseline.learned_share))
    if quartiles is None or factor is None:
        return None
    low, middle, high = quartiles
    return Number(middle * factor, low * factor, high * factor)


def cost_ratios(
    costs: ArmCosts | None, reference: ArmCosts | None, baseline: ArmCosts | None
) -> dict[str, Number]:
    """Returns the known costs of an arm as multiples of a reference's, by `COST_KINDS`.

    Times are multiples of the baseline's. Against another reference, the quartiles of both make a range.
    """
    if costs is None or reference is None:
        return {}
    ratios = {
        "train_flops": Number(_over(pass_flops(costs), pass_flops(reference))),
        "inference_flops": Number(_over(costs.inference_flops, reference.inference_flops)),
    }
    for kind in ("train_time", "inference_time"):
        if baseline is None:
            break
        part, whole = (pass_time(arm_costs, baseline, kind) for arm_costs in (costs, reference))
        if part is None or whole is None:
            continue
        below, above = whole.low or whole.value, whole.high or whole.value
        if reference is not baseline:
            part = Number(_over(part.value, whole.value), _over(part.low, above), _over(part.high, below))
        ratios[kind] = part
    return {kind: ratios[kind] for kind in COST_KINDS if kind in ratios and ratios[kind].value is not None}


def _product(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left * right


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
