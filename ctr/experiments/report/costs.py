"""Costs of an arm as multiples of another one's, with their quartiles where they are known.

A pass costs the time, or the FLOPs, of learning from a row, times the rows learned from: one that samples
its log takes the same steps, only fewer. Times are those of steps by turns with the baseline's: quartiles
over the rounds.
"""

from ctr.eval.display import Number
from ctr.experiments.report.files import ArmCosts

COST_KINDS = ("train_time", "train_flops", "inference_time", "inference_flops")


def train_time(own: ArmCosts, baseline: ArmCosts) -> Number | None:
    """Returns the time of a pass as a multiple of the baseline's; of the baseline itself, 1."""
    if own is baseline:
        return Number(1.0)
    rows = _over(baseline.batch_rows, own.batch_rows)
    learned = _over(own.learned_share, baseline.learned_share)
    return _times(own.step_ratio, None if rows is None or learned is None else rows * learned)


def pass_flops(costs: ArmCosts) -> float | None:
    """Returns the FLOPs of learning, for each row of the log."""
    if costs.train_flops is None or costs.learned_share is None:
        return None
    return costs.train_flops * costs.learned_share


def cost_ratios(
    own: ArmCosts | None, reference: ArmCosts | None, baseline: ArmCosts | None
) -> dict[str, Number]:
    """Returns the known costs of an arm as multiples of a reference's, by `COST_KINDS`.

    Times are multiples of the baseline's. Against another reference, the quartiles of both make a range.
    """
    if own is None or reference is None:
        return {}
    ratios = {
        "train_flops": Number(_over(pass_flops(own), pass_flops(reference))),
        "inference_flops": Number(_over(own.inference_flops, reference.inference_flops)),
    }
    for kind, measure in (("train_time", train_time), ("inference_time", _inference_time)):
        time = None if baseline is None else measure(own, baseline)
        if baseline is not None and reference is not baseline:
            time = _quotient(time, measure(reference, baseline))
        ratios[kind] = time or Number(None)
    return {kind: ratios[kind] for kind in COST_KINDS if ratios[kind].value is not None}


def _inference_time(own: ArmCosts, baseline: ArmCosts) -> Number | None:
    if own is baseline:
        return Number(1.0)
    return _times(own.inference_ratio, _over(baseline.batch_rows, own.batch_rows))


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
