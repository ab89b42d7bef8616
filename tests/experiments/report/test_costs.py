"""Costs of an arm as multiples of another one's."""

import pytest

from ctr.eval.display import Number
from ctr.experiments.report.runs import ArmCosts, cost_ratios

BASE = ArmCosts(
    **{"train_flops": 1000.0, "step_ms": 10.0, "step_ratio": (1.0, 1.0, 1.0), "learned_share": 1.0},
    **{"inference_flops": 300.0, "inference_ms": 4.0, "inference_ratio": (1.0, 1.0, 1.0)},
    batch_rows=4096.0,
)


def arm(**entries: object) -> ArmCosts:
    return BASE.model_copy(update=entries)


def test_a_pass_costs_a_step_times_the_rows_learned_from_by_the_row():
    own = arm(train_flops=1200.0, step_ratio=(1.1, 1.25, 1.5), learned_share=0.4)
    change = cost_ratios(own, BASE, BASE)
    assert change["train_flops"].value == pytest.approx(1.2 * 0.4)
    assert vars(change["train_time"]) == pytest.approx({"value": 0.5, "low": 0.44, "high": 0.6})
    # A row scored costs the same, however few are learned from.
    assert change["inference_flops"] == Number(1.0)
    assert change["inference_time"] == Number(1.0, 1.0, 1.0)
    # Batches of other sizes.
    own = arm(batch_rows=8192.0, step_ratio=(1.8, 2.0, 2.4), inference_ratio=(2.0, 3.0, 4.0))
    change = cost_ratios(own, BASE, BASE)
    assert vars(change["train_time"]) == pytest.approx({"value": 1.0, "low": 0.9, "high": 1.2})
    assert vars(change["inference_time"]) == pytest.approx({"value": 1.5, "low": 1.0, "high": 2.0})
    # Against another arm the quartiles of both make a range.
    first, second = arm(step_ratio=(1.1, 1.2, 1.3)), arm(step_ratio=(1.7, 1.8, 1.9), learned_share=0.5)
    change = cost_ratios(second, first, BASE)
    assert change["train_time"] == Number(*map(pytest.approx, (0.75, 0.85 / 1.3, 0.95 / 1.1)))
