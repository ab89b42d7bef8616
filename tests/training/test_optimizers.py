"""Rules by lines of a configuration, priors and gates: runs that are broken off end with the same bits."""

from typing import Any

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.training.config import MetricsConfig, TrainConfig
from ctr.training.session import train
from ctr.training.warm_start.start import InitFrom, warm_start
from growing_logs import lines_of, train_part, weights_of, whole_and_in_parts
from small_runs import make_config

QUICK = {
    "precondition_frequency": 3,
    "start_preconditioning_step": 2,
    "roots": {"early_growth": 0, "drift_bound": 0},
}
# The first one in CI: statistics that a file holds in parts.
RULES: dict[str, dict[str, Any]] = {
    "SOAP": {
        "dense": {
            "shampoo": QUICK
            | {"method": "eigenvalue_corrected", "beta1": 0.9, "beta2": 0.95, "momentum": 0}
            | {"grafting": {"kind": "adam", "beta2": 0.95, "norm": "none"}}
        }
    },
    "one-sided tables": {"embeddings": {"rule": "one_sided"}, "dense": {"shampoo": QUICK}},
}
# As a stranger's run: linear weights and network are two experts, which a gate combines.
DEFAULT: dict[str, Any] = {
    "batch": {"rows": 40, "growth": 0.1},
    "model": {"crosses": {"layers": 1, "rank": 2, "ramp": 100}, "deep": {"units": [4]}, "init_scale": 0.3},
    "optimizer": {"embeddings": {"learning_rate": 0.5}},
    "checkpoint": {"every_examples": 10**6},
    "compute_dtype": "float32",
}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("rule", RULES)
def test_a_run_that_is_broken_off_goes_on_with_the_same_bits(rule, log, tmp_path):
    config = make_config({"optimizer": RULES[rule]})
    summary = whole_and_in_parts(log, config, tmp_path)
    assert summary["skipped_steps"] == 0
    assert summary["auc"] > 0.5
    assert summary["shampoo"]["layers_ready"] > 0 == summary["shampoo"]["failed"]


@pytest.mark.slow
def test_windows_say_the_condition_of_shampoos_statistics_by_weight(log, tmp_path):
    train(log, make_config({"optimizer": {"dense": {"shampoo": QUICK}}}), tmp_path)
    line = lines_of(tmp_path)[-1]
    spectra = line["shampoo_spectra"]
    assert {"quality/cross_0/u", "quality/cross_0/v"} < spectra.keys()
    for end, choose, total in (("smallest", min, "min"), ("largest", max, "max")):
        value = choose(spectrum[end] for spectrum in spectra.values())
        assert value == line[f"shampoo_singular_value_{total}"]
    conditions = [spectrum["condition"] for spectrum in spectra.values()]
    assert max(conditions) == line["shampoo_condition_max"] and min(conditions) >= 1
    # Relative damping of 1e-6.
    assert all(1 <= spectrum["damped"] <= 1e6 + 1 for spectrum in spectra.values())


@pytest.mark.slow
def test_the_default_goes_on_with_its_priors_and_its_gate_in_a_resume_and_in_a_warm_start(log, tmp_path):
    config = parse_model(TrainConfig, DEFAULT, "test")
    whole_and_in_parts(log, config, tmp_path)
    train_part(log, config, tmp_path / "old", 900)
    later = config.model_copy(update={"metrics": MetricsConfig(window_examples=77)})
    warm_start(log, later, tmp_path / "new", InitFrom(tmp_path / "old"))
    old, new = (weights_of(tmp_path / name) for name in ("old", "new"))
    learned = {
        "newton/experts/linear-network/information",
        "prior_precision/quality-4",
        "rows_prior/quality-4",
    }
    assert {f"weights|{name}" for name in learned} <= old.keys()
    for name in old:
        if "/pairs-0" not in name:
            np.testing.assert_array_equal(new[name], old[name], err_msg=name)
    # Rows of ids that grow are taken feature by feature, and stand in another order.
    slots = "weights|ids/pairs-0/slots/fingerprint"
    np.testing.assert_array_equal(np.sort(new[slots]), np.sort(old[slots]))
    rows = [name for name in old if name.startswith("weights|rows") and name.endswith("/pairs-0")]
    assert len(rows) > 1
    order, before = (np.lexsort([weights[name].ravel() for name in sorted(rows)]) for weights in (new, old))
    for name in rows:
        np.testing.assert_array_equal(new[name][order], old[name][before], err_msg=name)


def test_one_sided_rows_take_no_newton_steps_beside_them():
    def parse(**embeddings):
        return parse_model(
            TrainConfig, {"optimizer": {"embeddings": embeddings}}, "test"
        ).optimizer.embeddings

    assert parse().linear_rule == "newton"
    assert parse(rule="one_sided").linear_rule == "adagrad"
    with pytest.raises(InputError, match="rule one_sided needs linear_rule adagrad"):
        parse(rule="one_sided", linear_rule="newton")
