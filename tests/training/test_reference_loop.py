"""The pass beside a loop of formulas, which computes the same predictions."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from reference_loop import progressive_logits

SMALL = {
    "compute_dtype": "float32",
    "model": {"crosses": {"rank": 3, "ramp": 500}, "deep": {"units": [8, 5]}},
}
# As printed: statistics of every step, roots at once from all of them.
PRINTED = {
    "statistics": {"frequency": 1},
    "precondition_frequency": 5,
    "start_preconditioning_step": 10,
    "roots": {"early_growth": 0, "asynchronous": False, "drift_bound": 0},
    "exponent_override": None,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": {"dense": {"shampoo": PRINTED}}},
        {"model": {**SMALL["model"], "widths": {"user": 0, "item": 0}}},
    ],
    ids=["default", "shampoo", "features of linear weights alone"],
)
def test_predictions_are_those_of_the_formulas(changes, log, tmp_path, read_predictions):
    config = parse_model(TrainConfig, {**SMALL, **changes}, "test")
    train(log, config, tmp_path / "run")
    expected = progressive_logits(log, config)
    found = read_predictions(tmp_path / "run")["logit"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.std(expected) > 0.1
