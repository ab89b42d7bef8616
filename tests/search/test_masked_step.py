"""The step under masks: what is masked does not move, and what is not moves as in the smaller network."""

from typing import Any

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
from ctr.training.config import OptimizerConfig, TrainConfig
from ctr.training.feed import Feed, make_feed
from ctr.training.state import TrainState
from sliced_models import sliced
from small_runs import SCHEMA, draw_examples

MODEL: dict[str, Any] = {
    "crosses": {"layers": 2, "rank": 3},
    "deep": {"units": [6, 5], "activation": "smelu"},
    "init_scale": 0.5,
}
RAMPS = dict.fromkeys(("alpha2", *TERMS), 1.0)
STEPS = 3
CANDIDATE = Shape(
    deep_units=(4, 0), deep_ranks=(0, 0), crosses=1, cross_rank=2, widths={"user": 1}, without={"item"}
)
LARGEST = Shape((6, 5), (0, 0), crosses=2, cross_rank=3, widths={}, without=())


def make_config(linear_rule: str = "auto", **model: Any) -> TrainConfig:
    content = {
        "model": {**MODEL, **model},
        "optimizer": {"embeddings": {"linear_rule": linear_rule}},
        "compute_dtype": "float32",
    }
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


SHAMPOO: dict[str, Any] = {
    "preconditioned_from_rows": 1,
    "shampoo": {
        "epsilon": 1e-3,
        "momentum": 0.0,
        "start_preconditioning_step": 1,
        "precondition_frequency": 1,
        "statistics": {"frequency": 1},
        "roots": {"asynchronous": False, "early_growth": 0.0, "drift_bound": 0.0},
    },
}
DESCENT: dict[str, Any] = {
    "preconditioned_from_rows": None,
    "learning_rate": 1.0,
    "shampoo": {"grafting": {"kind": "sgd"}, "momentum": 0.0},
}


def inverse_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return vectors * (values + SHAMPOO["shampoo"]["epsilon"] * values[-1]) ** -0.25 @ vectors.T


def steps_by_hand(gradients: list[np.ndarray], initial: float) -> np.ndarray:
    """Shampoo's last direction in float64, with the norm of AdaGrad's."""
    left = sum(gradient @ gradient.T for gradient in gradients)
    right = sum(gradient.T @ gradient for gradient in gradients)
    direction = inverse_root(left) @ gradients[-1] @ inverse_root(right)
    adagrad = gradients[-1] / np.sqrt(initial + sum(np.square(gradient) for gradient in gradients))
    return direction * np.linalg.norm(adagrad) / np.linalg.norm(direction)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learners", "moves_masked"),
    [([[CANDIDATE]] * STEPS, False), ([[LARGEST], [CANDIDATE]], True)],
    ids=["a candidate alone", "after the largest"],
)
def test_shampoo_of_masked_gradients_is_that_of_the_units_that_are_there(learners, moves_masked):
    configs = [
        make_config().model_copy(update={"optimizer": parse_model(OptimizerConfig, {"dense": dense}, "test")})
        for dense in (SHAMPOO, DESCENT)
    ]
    states = [make_state(config, passed_over([(6,), (0, 5)])) for config in configs]
    masks = [
        [masks_of(one, states[0].architecture, states[0].layouts) for one in chosen] for chosen in learners
    ]
    parts = [[MaskedPart(own) for own in masks[0]] for _ in states]
    steps = [
        CompiledStep(state, config, False, parts=own)
        for state, config, own in zip(states, configs, parts, strict=True)
    ]
    state, descent = states
    initial = configs[0].optimizer.dense.shampoo.grafting.initial_accumulator
    gradients: dict[str, list[np.ndarray]] = {name: [] for name in state.weights}
    for feed, chosen in zip(feeds(state), masks, strict=False):
        before = {name: variable.numpy().astype(np.float64) for name, variable in state.weights.items()}
        common = state.variables()
        for name, variable in descent.variables().items():
            if name in common and not name.startswith("shampoo/"):
                variable.assign(common[name])
        for step, own, config in zip(steps, parts, configs, strict=True):
            for part, one in zip(own, chosen, strict=True):
                part.set_to(part.packed(one))
            assert step.learn(feed, RAMPS, config.rates_at(0)).applied
        checked = 0
        for name, weight in before.items():
            gradients[name].append(weight - descent.weights[name].numpy())
            last = gradients[name][-1]
            if len(weight.shape) < 2 or min(weight.shape) < 2 or not last.any():
                continue
            # Without what no step had: the matrix of the smaller network.
            rows, columns = (sum(np.abs(one) for one in gradients[name]).any(axis=axis) for axis in (1, 0))
            small = [one[np.ix_(rows, columns)] for one in gradients[name]]
            moved = (weight - state.weights[name].numpy()) / configs[0].optimizer.dense.learning_rate
            expected = np.zeros_like(weight)
            expected[np.ix_(rows, columns)] = steps_by_hand(small, initial)
            np.testing.assert_allclose(moved, expected, atol=1e-3 * np.abs(expected).max(), err_msg=name)
            checked += 1
        assert checked >= 3
        mask = chosen[0]["columns/quality/deep_0/w"] == 0
        moved = before["quality/deep_0/w"] - state.weights["quality/deep_0/w"].numpy()
        assert not mask.any() or (np.abs(moved[:, mask]).max() > 1e-4) == moves_masked
