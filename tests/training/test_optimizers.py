"""Optimizers of another kind, put where configurations are mapped to optimizers: nothing else has to know them."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.optim.protocol import Cost, TakenOver
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.training import optimizers
from ctr.training.analysis.flops import Touched, count_flops
from ctr.training.config import TrainConfig
from ctr.training.loop import open_session, train
from ctr.training.run.directory import read_warm_start
from ctr.training.warm_start.start import InitFrom, warm_start


class _Descent:
    """What both have in common: weights, and a count of steps."""

    prefix = ""

    def build(self, weights):
        self.weights = list(weights.values())
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def variables(self):
        return {f"{self.prefix}steps": self.steps}

    def exchange(self):
        pass

    def spectra(self):
        return {}

    def timing(self):
        return {}


class DenseDescent(_Descent):
    """Gradient descent for dense weights."""

    name, prefix = "descent", "descent/"

    def __init__(self, options, workers):
        del options, workers

    def update(self, gradients, rate, compiled):
        self.steps.assign_add(1)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(rate * gradient)

    def report(self):
        return {"steps": int(self.steps.numpy())}

    def parts(self):
        return {}

    def cost(self, shapes):
        return Cost(update=2 * sum(float(np.prod(shape)) for shape in shapes))

    def take_over(self, new, before, old, moves):
        if before.name != self.name:
            return TakenOver(dict.fromkeys(moves, "fresh"), why=f"the optimizer was {before.name}")
        new.arrays["descent/steps"][...] = old.arrays["descent/steps"]
        return TakenOver(dict.fromkeys(moves, "taken"))


class RowDescent(_Descent):
    """Gradient descent for the rows of tables."""

    name, prefix, row_state = "descent", "row_descent/", ()
    feature_state, embedding_state, table_state, needs_curvature = (), (), (), False

    def __init__(self, setup):
        self.rates = setup.rates

    def read(self, rows):
        return [None for _ in rows]

    def update(self, gradients, rate, compiled):
        self.steps.assign_add(1)
        for table, rates, one in zip(self.weights, self.rates, gradients, strict=True):
            moved = one.values - rate * rates * one.gradient
            table.scatter_update(tf.IndexedSlices(moved, one.rows))

    def report(self):
        return {}

    def cost(self, shapes):
        return Cost(update=3 * sum(rows * columns for rows, columns in shapes))


@pytest.fixture
def descent(monkeypatch):
    monkeypatch.setattr(optimizers, "DenseShampoo", DenseDescent)
    monkeypatch.setattr(optimizers, "RowAdaGrad", RowDescent)


def weights(run: Path) -> dict[str, np.ndarray]:
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as arrays:
        return {name: arrays[name] for name in arrays if name.startswith("weights|")}


@pytest.mark.slow
def test_a_run_needs_nothing_but_the_protocol(descent, log, make_config, tmp_path):
    config, whole, run = make_config(), tmp_path / "whole", tmp_path / "run"
    summary = train(log, config, whole)
    found = weights(whole)
    steps = int(found["weights|descent/steps"])
    assert steps == found["weights|row_descent/steps"] > 10
    assert summary["shampoo"] == {"steps": steps}
    assert not [name for name in found if "accumulator" in name]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["shampoo_steps"] == steps
    batches: list[int] = []
    with open_session(log, config, run, lambda position, _: batches.append(position)) as session:
        session.advance(stop=lambda: len(batches) == 7)
        session.save()
    train(log, config, run)
    resumed = weights(run)
    assert resumed.keys() == found.keys()
    assert [name for name in found if found[name].tobytes() != resumed[name].tobytes()] == []


def test_its_operations_are_counted(descent):
    layouts = lay_out_tables([FeatureRows("user", 100, 8, "quality", 0)])
    touched = {layouts[0].name: Touched(single=1, values=0, multivalent=0, distinct=0.25)}
    config = parse_model(TrainConfig, {"optimizer": {"embeddings": {"linear_rule": "adagrad"}}}, "test")
    flops = count_flops(config, layouts, touched, 64)
    assert flops.rows == 3 * 0.25 * 9
    assert (flops.statistics, flops.preconditioning, flops.roots) == (0, 0, 0)


@pytest.mark.slow
def test_a_warm_start_takes_weights_without_the_state_of_another_optimizer(
    log, make_config, monkeypatch, tmp_path
):
    train(log, make_config(), tmp_path / "old")
    monkeypatch.setattr(optimizers, "DenseShampoo", lambda *given: next(made)(*given))
    # The new run's state, then at the warm start the new optimizer and the old one.
    made = iter([DenseDescent, DenseDescent, DenseShampoo])
    warm_start(log, make_config({"seed": 2}), tmp_path / "new", InitFrom(tmp_path / "old"), waits=True)
    content = read_warm_start(tmp_path / "new")
    assert content is not None
    reported = [line for line in content["table"] if line["part"] == "weight"]
    assert {(line["status"], line["optimizer"]) for line in reported} == {("taken", "fresh")}
    assert {line["why"] for line in reported} == {"the optimizer was shampoo"}
