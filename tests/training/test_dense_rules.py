"""Each optimizer by lines of a configuration: a run, and one that is broken off and goes on, end with the same bits."""

from pathlib import Path

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import open_session, train
from ctr.training.run.snapshot import read_snapshot
from ctr.training.state import dense_weights

QUICK = {
    "precondition_frequency": 3,
    "start_preconditioning_step": 2,
    "roots": {"early_growth": 0, "drift_bound": 0},
}
ROWS = {"precondition_frequency": 3, "start_preconditioning_step": 2, "graft_rows": True}
RULES = {
    "SOAP": {
        "dense": {
            "shampoo": QUICK
            | {"method": "eigenvalue_corrected", "gradient": {"beta1": 0.9}, "beta2": 0.95, "momentum": 0}
            | {"grafting": {"kind": "adam", "beta2": 0.95, "norm": "none"}}
        }
    },
    "KL-Shampoo": {"dense": {"shampoo": QUICK | {"method": "kl", "beta2": 0.95}}},
    "one-sided tables": {
        "embeddings": {"rule": "one_sided", "one_sided": ROWS},
        "dense": {"shampoo": QUICK},
    },
    "K-FAC": {"dense": {"rule": "kfac", "kfac": {"inverse_frequency": 3, "momentum": 0.9}}},
    "K-FAC by eigenvectors": {
        "dense": {"rule": "kfac", "kfac": {"inverse_frequency": 3, "form": "eigen", "fisher": "empirical"}}
    },
    "Muon": {"dense": {"rule": "muon", "learning_rate": 0.005, "muon": {"weight_decay": 0.01}}},
    "schedule-free Muon": {
        "dense": {"rule": "muon", "learning_rate": 0.005, "schedule_free": 0.9, "muon": {"momentum": 0}}
    },
    "schedule-free Shampoo": {"dense": {"shampoo": QUICK | {"momentum": 0}, "schedule_free": 0.8}},
    "Adafactor": {
        "dense": {"rule": "adafactor", "adafactor": {"clipping": 0.5}},
        "embeddings": {"rule": "adafactor", "learning_rate": 0.02},
    },
}


def weights(run: Path) -> dict[str, np.ndarray]:
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as arrays:
        return {name: arrays[name] for name in arrays if name.startswith("weights|")}


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("rule", RULES)
def test_a_run_that_is_broken_off_goes_on_with_the_same_bits(rule, log, make_config, tmp_path):
    config, whole, run = make_config({"optimizer": RULES[rule]}), tmp_path / "whole", tmp_path / "run"
    summary = train(log, config, whole)
    assert summary["skipped_steps"] == 0
    assert summary["auc"] > 0.5
    found = weights(whole)
    own = {"Adafactor": "rows_moment/", "Muon": "muon/", "schedule-free Muon": "averaging/"}.get(rule)
    if own is None:
        assert summary["shampoo"]["layers_ready"] > 0 == summary["shampoo"]["failed"]
    else:
        assert any(name.startswith(f"weights|{own}") for name in found)
        assert not any("shampoo" in name for name in found)
    batches: list[int] = []
    with open_session(log, config, run, lambda position, _: batches.append(position)) as session:
        session.advance(stop=lambda: len(batches) == 7)
        session.save()
    train(log, config, run)
    resumed = weights(run)
    assert resumed.keys() == found.keys()
    assert [name for name in found if found[name].tobytes() != resumed[name].tobytes()] == []


@pytest.mark.soak
def test_what_is_served_is_the_average(log, make_config, tmp_path):
    rule = {"dense": {"schedule_free": 0.75, "shampoo": {"start_preconditioning_step": None, "momentum": 0}}}
    train(log, make_config({"optimizer": rule}), tmp_path / "run")
    found = weights(tmp_path / "run")
    served = read_snapshot(tmp_path / "run").weights
    distances = [name for name in found if name.startswith("weights|averaging/distance/")]
    assert len(distances) == sum(name.startswith("weights|dense/") for name in found)
    by_name = dense_weights(served)
    for name in distances:
        weight = name.removeprefix("weights|averaging/distance/")
        learned, distance = found[f"weights|{weight}"], found[name]
        assert np.any(distance != 0)
        np.testing.assert_allclose(by_name[weight].numpy(), learned - distance / 3, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("dense", "words"),
    [
        ({"rule": "adam"}, "'shampoo', 'adafactor', 'kfac' or 'muon'"),
        ({"adafactor": {"rate": 1}}, "unknown key rate; allowed: beta1, "),
        ({"adafactor": {"clipping": -1}}, "clipping is -1; allowed"),
    ],
)
def test_what_is_not_allowed_is_refused(dense, words):
    with pytest.raises(InputError, match=words):
        parse_model(TrainConfig, {"optimizer": {"dense": dense}}, "test")


def test_rows_take_no_averages_and_no_newton_steps_beside_them():
    def parse(**embeddings):
        return parse_model(
            TrainConfig, {"optimizer": {"embeddings": embeddings}}, "test"
        ).optimizer.embeddings

    assert parse().linear_rule == "newton"
    assert parse(rule="adafactor").linear_rule == "adagrad"
    rates = [parse(rule=rule).learning_rate for rule in ("adagrad", "adafactor", "one_sided")]
    assert rates == [0.2, 0.01, 0.2]
    assert parse(rule="adafactor", learning_rate=0.2).learning_rate == 0.2
    with pytest.raises(InputError, match="rule adafactor needs linear_rule adagrad"):
        parse(rule="adafactor", linear_rule="newton")
    with pytest.raises(InputError, match="unknown key beta1"):
        parse(rule="adafactor", adafactor={"beta1": 0.5})
