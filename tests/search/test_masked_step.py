"""The step under masks: what is masked does not move, and what is not moves as in the smaller network."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.batches import set_rejects_apart
from ctr.data.reader import rows_of_table
from ctr.models.row_curvature import WHOLE
from ctr.objective.config import TERMS
from ctr.search.architecture import Shape
from ctr.search.masks import MaskedPart, masks_of, passed_over
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed, make_feed
from ctr.training.state import TrainState
from sliced_models import sliced
from small_runs import SCHEMA, draw_examples

MODEL = {"crosses": {"layers": 2, "rank": 3}, "deep": {"units": [6, 5], "activation": "smelu"}}
RAMPS = dict.fromkeys(("alpha2", *TERMS), 1.0)
STEPS = 3
CANDIDATE = Shape(
    deep_units=(4, 0), deep_ranks=(0, 0), crosses=1, cross_rank=2, widths={"user": 1}, without={"item"}
)
LARGEST = Shape((6, 5), (0, 0), crosses=2, cross_rank=3, widths={}, without=())


def make_config(linear_rule: str = "auto") -> TrainConfig:
    optimizer = {"embeddings": {"linear_rule": linear_rule}}
    content = {"model": {**MODEL, "init_scale": 0.5}, "optimizer": optimizer, "compute_dtype": "float32"}
    return parse_model(TrainConfig, content, "test")


def make_state(config: TrainConfig, sources=()) -> TrainState:
    towers = {"quality": sources} if sources else None
    state = TrainState(config.table_layouts(SCHEMA), config, "float32", sources=towers)
    rng = np.random.default_rng(0)
    for weight in [*state.tables.weights, *state.dense]:
        weight.assign_add(rng.normal(size=weight.shape) * 0.3)
    return state


def feeds(state: TrainState) -> list[Feed]:
    tables = [draw_examples(queries=8, seed=seed).table() for seed in range(STEPS)]
    return [
        make_feed(set_rejects_apart(rows_of_table(table, SCHEMA, 0)), state.layouts, 64) for table in tables
    ]


def learn(state: TrainState, config: TrainConfig, *learners: Shape, steps: int = STEPS):
    masks = [masks_of(candidate, state.architecture, state.layouts) for candidate in learners]
    step = CompiledStep(state, config, False, parts=[MaskedPart(own) for own in masks] or [WHOLE])
    for feed in feeds(state)[:steps]:
        result = step.learn(feed, RAMPS, config.rates_at(0))
        assert result.applied
    return result


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("linear_rule", ["newton", "adagrad"])
def test_what_is_masked_does_not_move(linear_rule):
    config = make_config(linear_rule)
    state = make_state(config, passed_over([(6,), (0, 5)]))
    before = {name: variable.numpy() for name, variable in state.variables().items()}
    learn(state, config, CANDIDATE)
    moved = {name: variable.numpy() != before[name] for name, variable in state.variables().items()}

    layout = state.layouts[0]
    offsets = layout.offsets()
    rows = {one.name: slice(offsets[one.name], offsets[one.name] + one.buckets) for one in layout.features}
    for name, changed in moved.items():
        if name.endswith("/quality-4") and len(changed) == layout.rows:
            # A feature that is absent keeps its rows, and all that is remembered of them.
            assert not changed[rows["item"]].any(), name
            assert changed[rows["user"]].any(), name
    for kind in ("rows", "rows_accumulator"):
        changed = moved[f"{kind}/quality-4"]
        assert not changed[rows["user"], 1:4].any() and changed[rows["user"]][:, [0, 4]].any(axis=0).all()
        assert changed[rows["tags"]].any(axis=0).all()

    weights = state.weights
    names = list(weights)
    kept_columns = np.concatenate([np.arange(4) < 1, np.zeros(4, bool), np.ones(6, bool)])
    for key in ("dense/{:03d}", "shampoo/tensor{}/accumulator"):
        changes = {name: moved[key.format(at)].reshape(weights[name].shape) for at, name in enumerate(names)}
        inside = sliced(changes, CANDIDATE, kept_columns)
        assert sum(map(np.sum, changes.values())) == sum(map(np.sum, inside.values()))
    if linear_rule == "newton":
        (item,) = (at for at, one in enumerate(layout.features) if one.name == "item")
        for kind in ("prior_precision", "forgetting"):
            changed = moved[f"{kind}/quality-4"].any(axis=1)
            assert not changed[item] and changed.sum() == 2
    for name in ("quality/head_from_1", "quality/deep_0/w"):
        assert moved[f"dense/{names.index(name):03d}"].any()


@pytest.mark.slow
def test_several_learners_move_weights_by_the_mean_of_their_gradients():
    config, sources = make_config(), passed_over([(6,), (0, 5)])
    found, logits = [], []
    for chosen in ([CANDIDATE], [LARGEST], [CANDIDATE, LARGEST]):
        state = make_state(config, sources)
        before = {name: variable.numpy() for name, variable in state.variables().items()}
        result = learn(state, config, *chosen, steps=1)
        after = {name: variable.numpy() for name, variable in state.variables().items()}
        gradients = []
        for index in range(len(state.dense)):
            weight, total = f"dense/{index:03d}", f"shampoo/tensor{index}/accumulator"
            # AdaGrad adds the square of the gradient, and moves against its sign.
            size = np.sqrt(after[total].astype(np.float64) - before[total])
            gradients.append(-np.sign(after[weight] - before[weight]).reshape(size.shape) * size)
        found.append(gradients)
        logits.append(result.logit)
    one, other, both = found
    assert len(both) > 8
    for number, gradient in enumerate(both):
        np.testing.assert_allclose(gradient, (one[number] + other[number]) / 2, atol=2e-3)
    # The first one's predictions are those of record.
    np.testing.assert_array_equal(logits[2], logits[0])
    assert not np.array_equal(logits[2], logits[1])
