"""Steps timed by turns: what is taken, in which order, and models of every objective."""

from itertools import islice

import numpy as np
import pytest

from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.stream import Selection, read_selection
from ctr.training.speed import TimedModel, take_turns
from small_runs import make_config


def test_turns_are_taken_together_and_the_first_ones_forgotten():
    taken = []

    def turn(name, seconds):
        return lambda: taken.append(name) or seconds * (1 if len(taken) > 2 else 100)

    turns = {"a": turn("a", 1.0), "b": turn("b", 3.0)}
    assert take_turns(turns, 2) == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    assert taken == ["a", "b", "b", "a", "a", "b"]


@pytest.mark.slow
def test_learns_and_scores_under_every_objective_without_its_sidecars(log, schema):
    objective = {
        "ranking": {"setup": "multi_task"},
        "distillation": {"teacher": "nobody"},
        "bias_constraints": {
            "families": [
                {"name": "ctr", "estimated_ctr": [0.1, 0.3]},
                {"name": "random", "features": {"position": "all"}, "log": "randomized"},
            ],
            "logs": [{"name": "randomized", "path": "nowhere"}],
        },
    }
    config = make_config({"objective": objective})
    blocks = read_selection(log, schema, read_manifests(log), Selection())
    batches = list(islice(whole_query_batches(blocks, config.batch.rows, config.batch.max_query_rows), 3))
    model = TimedModel(config, schema, batches)
    before = model.state.arrays()
    assert model.scoring_seconds() > 0
    assert all(np.array_equal(value, before[name]) for name, value in model.state.arrays().items())
    assert model.seconds() > 0
    moved = [name for name, value in model.state.arrays().items() if not np.array_equal(value, before[name])]
    assert any(name.startswith("dense/") for name in moved)
    assert any(name.startswith("rows/") for name in moved)
