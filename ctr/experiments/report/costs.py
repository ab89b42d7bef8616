"""Costs of an arm as multiples of its reference's, with their quartiles where they are known.

A pass costs the time, or the FLOPs, of learning from a row, times the rows learned from: one that samples
its log takes the same steps, only fewer. Times are those of steps by turns with the baseline's: quartiles
over the rounds.
"""

from dataclasses import dataclass

from ctr.eval.display import Number
from ctr.experiments.report.files import ArmCosts


@dataclass(frozen=True)
class CostChange:
    """Costs of a pass, and of scoring a row, as multiples of the reference's; None where unknown."""

    train_time: Number | None
    train_flops: Number | None
    inference_time: Number | None
    inference_flops: Number | None


UNKNOWN = CostChange(None, None, None, None)


def train_time(own: ArmCosts, baseline: ArmCosts) -> Number | None:
    """Time of a pass as a multiple of the baseline's; of the baseline itself, 1."""
    if own is baseline:
        return Number(1.0)
    rows = _per_row(own, baseline)
    learned = _over(own.learned_share, baseline.learned_share)
    return _times(own.step_ratio, None if rows is None or learned is None else rows * learned)


def inference_time(own: ArmCosts, baseline: ArmCosts) -> Number | None:
    """Time of scoring a row as a multiple of the baseline's; of the baseline itself, 1."""
    return Number(1.0) if own is baseline else _times(own.inference_ratio, _per_row(own, baseline))


def pass_flops(costs: ArmCosts) -> float | None:
    """FLOPs of learning, for each row of the log."""
    if costs.train_flops is None or costs.learned_share is None:
        return None
    return costs.train_flops * costs.learned_share


def cost_change(own: ArmCosts | None, reference: ArmCosts | None, baseline: ArmCosts | None) -> CostChange:
    """Costs of an arm as multiples of a reference's.

    Times are multiples of the baseline's. Against another reference, the quartiles of both make a range.
    """
    if own is None or reference is None:
        return UNKNOWN
    times: list[Number | None] = [None, None]
    if baseline is not None:
        for place, measure in enumerate((train_time, inference_time)):
            times[place] = measure(own, baseline)
            if reference is not baseline:
                times[place] = _quotient(times[place], measure(reference, baseline))
    return CostChange(
        train_time=times[0],
        train_flops=_multiple(_over(pass_flops(own), pass_flops(reference))),
        inference_time=times[1],
        inference_flops=_multiple(_over(own.inference_flops, reference.inference_flops)),
    )


def _per_row(own: ArmCosts, baseline: ArmCosts) -> float | None:
    return _over(baseline.batch_rows, own.batch_rows)


def _times(quartiles: tuple[float, float, float] | None, factor: float | None) -> Number | None:
    if quartiles is None or factor is None:
        return None
    low, middle, high = quartiles
    return Number(middle * factor, low * factor, high * factor)


def _quotient(part: Number | None, whole: Number | None) -> Number | None:
    if part is None or whole is None or _over(part.value, whole.value) is None:
        return None
    below, above = whole.low or whole.value, whole.high or whole.value
    return Number(_over(part.value, whole.value), _over(part.low, above), _over(part.high, below))


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _multiple(value: float | None) -> Number | None:
    return None if value is None else Number(value)
