"""The whole training step against NumPy in float64, its gradients by finite differences."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.batches import Batch
from ctr.data.features import Category
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.data.stream import TEACHER_LOGIT
from ctr.models.row_curvature import WHOLE
from ctr.objective.config import TERMS
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed, make_feed
from ctr.training.state import TrainState
from ctr.training.step import Scores, Step

SCHEMA = Schema(
    features=(
        Category(name="a", source="a", buckets=5, width=2),
        Category(name="m", source="m", buckets=6, width=2, multivalent=True),
        Category(name="b", source="b", buckets=4, width=2),
        Category(name="p", source="p", buckets=3, width=1, tower="ui"),
    )
)
# First row of each feature in its table; e0 holds a, b, m, then p.
PLACES = {"a": ("quality-2", 0), "b": ("quality-2", 5), "m": ("quality-2", 9), "p": ("ui-1", 0)}

ROWS = {"learning_rate": 0.3, "initial_accumulator": 0.02, "linear_learning_rate": 0.2}
# The reference below is AdaGrad; Shampoo has its own in tests/optim.
ADAGRAD: dict[str, Any] = {"start_preconditioning_step": None, "momentum": 0}
NETWORK = {
    "crosses": {"layers": 2, "rank": 2},
    "deep": {"units": [3], "activation": "tanh"},
    "experts": ["network"],
    "prior": 0.2,
}
SETTINGS: dict[str, Any] = {
    "model": {**NETWORK, "init_scale": 0.5},
    "optimizer": {
        "embeddings": {
            **ROWS,
            "linear_initial_accumulator": 0.05,
            "tower_rates": {"quality": 1.0, "ui": 0.25},
        },
        "dense": {"learning_rate": 0.1, "shampoo": {**ADAGRAD, "grafting": {"initial_accumulator": 0.001}}},
    },
    "compute_dtype": "float32",
}


def make_config(gradient: str = "sum", **settings: Any) -> TrainConfig:
    content = {**SETTINGS, **settings}
    rows = {**content["optimizer"]["embeddings"], "gradient": gradient}
    return parse_model(
        TrainConfig, {**content, "optimizer": {**content["optimizer"], "embeddings": rows}}, "test"
    )


PARTS = ("alpha2", *TERMS)
RAMPED = dict.fromkeys(PARTS, 1.0)
HALF = {**RAMPED, "alpha2": 0.5}


class Example:
    """A batch of six rows, and the same for the reference."""

    def __init__(self, seed: int, weight: list[float] | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.label = rng.integers(0, 2, 6)
        self.weight = np.array([1, 0, 2, 0.5, 1, 3] if weight is None else weight, np.float32)
        # Repeated ids, and bucket 0 both used and as padding.
        self.single = {name: rng.integers(0, buckets, 6) for name, buckets in (("a", 5), ("b", 4), ("p", 3))}
        self.lists = [rng.integers(0, 6, size).tolist() for size in (0, 1, 3, 2, 0, 3)]

    def batch(self) -> Batch:
        zeros = np.zeros(6, np.int64)
        offsets = np.cumsum([0, *(len(values) for values in self.lists)])
        rows = Rows(
            query_time=zeros, timestamp=zeros, query_id=zeros, example_id=np.arange(6),
            label=self.label.astype(np.float32), train_weight=self.weight, metric_weight=np.ones(6, np.float32),
            ids=np.stack([self.single[name] for name in "abp"], axis=1).astype(np.int32),
            multivalent={"m": (np.array([value for values in self.lists for value in values], np.int32), offsets)},
            fault=np.zeros(6, np.int8), position=np.arange(6),
        )  # fmt: skip
        return Batch(rows, rows.slice(0, 0), 6)

    def feed(self, state: TrainState, batch_rows: int = 8) -> Feed:
        return make_feed(self.batch(), state.layouts, batch_rows)


def make_state(config: TrainConfig) -> TrainState:
    return TrainState(config.table_layouts(SCHEMA), config, "float32")


def learner(
    state: TrainState, config: TrainConfig, jit: bool = False, examples: int = 0
) -> Callable[[Feed, Mapping[str, float]], Scores]:
    """A step of its own for ``state``, at the rates after some examples."""
    step = CompiledStep(state, config, jit)
    return lambda feed, ramps: step.learn(feed, ramps, config.rates_at(examples))


def accumulators(state: TrainState) -> list[tf.Variable]:
    """The sums of squares of the tables' rows."""
    variables = state.variables()
    return [variables[f"rows_accumulator/{layout.name}"] for layout in state.layouts]


def parameters(state: TrainState) -> dict[str, np.ndarray]:
    """All weights in float64, under the reference's names."""
    named = {
        layout.name: table.numpy() for layout, table in zip(state.layouts, state.tables.weights, strict=True)
    }
    named |= {name: weight.numpy() for name, weight in state.weights.items()}
    return {name: np.array(np.atleast_1d(value), np.float64) for name, value in named.items()}


def reference_logits(weights: dict[str, np.ndarray], example: Example, alpha2: float) -> np.ndarray:
    logits = []
    for row in range(6):
        looked_up = []
        for name in ("a", "b", "m", "p"):
            table, first = PLACES[name]
            own = example.lists[row] if name == "m" else [example.single[name][row]]
            values = [weights[table][first + i] for i in own]
            looked_up.append(np.mean(values, axis=0) if values else np.zeros(weights[table].shape[1]))
        e0 = np.concatenate([value[:-1] for value in looked_up])
        hidden = e0
        for index in range(2):
            u, v, bias = (weights[f"quality/cross_{index}/{name}"] for name in ("u", "v", "v_bias"))
            hidden = alpha2 * e0 * (hidden @ u @ v + bias) + hidden
        hidden = np.tanh(hidden @ weights["quality/deep_0/w"] + weights["quality/deep_0/w_bias"])
        linear = sum(value[-1] for value in looked_up)
        logits.append((hidden @ weights["quality_head"]).item() + linear + weights["output_bias"].item())
    return np.array(logits)


def reference_loss(weights: dict[str, np.ndarray], example: Example, alpha2: float) -> float:
    logit = reference_logits(weights, example, alpha2)
    losses = np.logaddexp(0, np.where(example.label == 1, -logit, logit))
    return float((losses * example.weight).sum() / example.weight.sum())


def reference_rank_loss(weights: dict[str, np.ndarray], example: Example, alpha2: float) -> float:
    """Of six rows that are one query: the mean over its pairs, divided by the sum of all weights."""
    logit, weight = reference_logits(weights, example, alpha2), example.weight.astype(float)
    total = pairs = 0.0
    for one in np.flatnonzero(example.label == 1):
        for other in np.flatnonzero(example.label == 0):
            pairs += weight[one] * weight[other]
            total += weight[one] * weight[other] * np.logaddexp(0, logit[other] - logit[one])
    return float(total / pairs / weight.sum())


def reference_gradients(
    weights: dict[str, np.ndarray],
    example: Example,
    alpha2: float,
    loss: Callable[[dict[str, np.ndarray], Example, float], float] = reference_loss,
) -> dict[str, np.ndarray]:
    """Of a loss, by central differences."""
    gradients = {}
    for name, value in weights.items():
        gradient = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            around = []
            for change in (1e-5, -1e-5):
                moved = value.copy()
                moved[place] += change
                around.append(loss({**weights, name: moved}, example, alpha2))
            gradient[place] = (around[0] - around[1]) / 2e-5
        gradients[name] = gradient
    return gradients


class Reference:
    """The step in NumPy: AdaGrad on what the finite differences say."""

    def __init__(self, state: TrainState) -> None:
        self.weights = parameters(state)
        self.sums = {name: np.full(value.shape, 0.001) for name, value in self.weights.items()}
        self.rates: dict[str, Any] = dict.fromkeys(self.weights, 0.1)
        for table, tower_rate in (("quality-2", 1.0), ("ui-1", 0.25)):
            columns = self.weights[table].shape[1]
            self.sums[table][:] = [*[0.02] * (columns - 1), 0.05]
            self.rates[table] = np.array([*[0.3] * (columns - 1), 0.2]) * tower_rate

    def step(self, example: Example, alpha2: float) -> None:
        for name, gradient in reference_gradients(self.weights, example, alpha2).items():
            self.sums[name] += gradient**2
            self.weights[name] -= self.rates[name] * gradient / np.sqrt(self.sums[name])


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=tolerance, err_msg=name)


def all_bytes(state: TrainState) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in state.arrays().items()}


def gradients_of(state, config, feed, ramps):
    """What a step would learn by: the gradients of each table's distinct rows and of each dense weight."""
    gathered = state.tables.gather(feed.plan_tensors)
    numbers = {name: tf.constant(value, tf.float32) for name, value in ramps.items()}
    step = Step(state, config.objective, config.optimizer, (WHOLE,), by_products=True)
    batch = step.differentiate(feed.target_tensors, gathered.views, gathered.rows, numbers, [], WHOLE)
    return batch.row_gradients, batch.dense_gradients


def test_steps_follow_the_reference():
    """Rows learn from the mean of the losses; in tests/training/test_loop.py they learn from the sum."""
    config = make_config("mean")
    state = make_state(config)
    step, reference = CompiledStep(state, config, jit=False), Reference(state)
    for number, alpha2 in enumerate((0.0, 0.4, 1.0)):
        example, ramps = Example(number), {**RAMPED, "alpha2": alpha2}
        before = {name: value.copy() for name, value in reference.weights.items()}
        feed = example.feed(state)
        of_rows, of_dense = gradients_of(state, config, feed, ramps)
        assert [part.shape for part in of_dense] == [weight.shape for weight in state.dense]
        sums = [variable.numpy() for variable in accumulators(state)]
        result = step.learn(feed, ramps, config.rates_at(0))
        for plan, found, old, new in zip(feed.plans, of_rows, sums, accumulators(state), strict=True):
            squares = np.zeros_like(old)
            squares[plan.distinct] = found.numpy() ** 2
            np.testing.assert_allclose(new.numpy() - old, squares, rtol=1e-4, atol=1e-6)
        # The prediction of record and the loss are those of the weights before the update.
        expected = reference_logits(before, example, alpha2)
        np.testing.assert_allclose(result.logit, expected, atol=2e-5)
        assert result.terms.sum() == pytest.approx(reference_loss(before, example, alpha2), abs=1e-5)
        assert bool(result.applied)
        reference.step(example, alpha2)
        assert_close(parameters(state), reference.weights, 1e-4)
    moved = {name: np.abs(value - before[name]).max() for name, value in reference.weights.items()}
    assert min(moved.values()) > 1e-3, moved


@pytest.mark.slow
def test_pairs_that_train_outside_embeddings_leave_those_to_the_loss_without_them():
    ranking = {"weight": 0.4, "query_exponent": 1, "trains": "outside_embeddings"}
    config = make_config(objective={"ranking": ranking})
    state, example = make_state(config), Example(2)
    weights, ramps = parameters(state), {**RAMPED, "alpha2": 0.5, "ranking": 0.7}
    feed = make_feed(example.batch(), state.layouts, 8, config.objective)
    step = CompiledStep(state, config, jit=False)
    of_rows, of_dense = gradients_of(state, config, feed, ramps)
    share = 0.4 * 0.7
    logistic, ranked = (
        reference_gradients(weights, example, 0.5, loss) for loss in (reference_loss, reference_rank_loss)
    )
    both = {name: logistic[name] + share / (1 - share) * ranked[name] for name in weights}
    found = dict(zip(state.weights, (part.numpy() for part in of_dense), strict=True))
    for name, value in found.items():
        np.testing.assert_allclose(np.atleast_1d(value), both[name], atol=2e-5, err_msg=name)
    scale = example.weight.sum()
    for layout, plan, rows in zip(state.layouts, feed.plans, of_rows, strict=True):
        expected = np.array(logistic[layout.name])
        expected[:, -1] = both[layout.name][:, -1]
        np.testing.assert_allclose(rows.numpy(), scale * expected[plan.distinct], atol=2e-4)
        # Not because there is nothing to leave out.
        assert np.abs(ranked[layout.name][:, :-1]).max() > 1e-3
    # Embeddings learn what they learn without ranking, to the last bits.
    plain = gradients_of(state, make_config(), example.feed(state), ramps)[0]
    for layout, rows, alone in zip(state.layouts, of_rows, plain, strict=True):
        np.testing.assert_allclose(rows[:, : layout.width], alone[:, : layout.width], rtol=1e-5, atol=1e-7)
    result = step.learn(feed, ramps, config.rates_at(0))
    losses = [loss(weights, example, 0.5) for loss in (reference_loss, reference_rank_loss)]
    expected_terms = [losses[0], share / (1 - share) * losses[1]]
    np.testing.assert_allclose(result.terms[0], expected_terms, rtol=1e-4)
    assert result.terms.sum() == pytest.approx(sum(expected_terms), rel=1e-5)


def test_a_teacher_is_compared_with_a_prediction_that_knows_no_label():
    model = {"crosses": {"layers": 0}, "deep": {"units": []}, "prior": 0.2}
    config = make_config(model=model, objective={"distillation": {"teacher": "t", "weight": 0.7}})
    example, teacher = Example(3), np.random.default_rng(5).normal(size=6).astype(np.float32)
    state = make_state(config)
    rows = example.batch().rows
    # Of zero weights: the student predicts the prior for every row.
    expected = np.zeros(20)
    for row in range(6):
        slope = 0.7 * example.weight[row] * (0.2 - 1 / (1 + np.exp(-teacher[row])))
        for name in "ab":
            expected[PLACES[name][1] + example.single[name][row]] += slope
        for value in example.lists[row]:
            expected[PLACES["m"][1] + value] += slope / len(example.lists[row])
    assert np.abs(expected).max() > 0.1
    for label in ([0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 1]):
        own = dataclasses.replace(rows, label=np.array(label, np.float32), joined={TEACHER_LOGIT: teacher})
        feed = make_feed(Batch(own, own.slice(0, 0), 6), state.layouts, 8, config.objective)
        with_teacher, alone = (
            gradients_of(state, config, feed, RAMPED | {"distillation": ramp})[0][0].numpy()
            for ramp in (1.0, 0.0)
        )
        found = np.zeros(20)
        found[feed.plan_tensors[0]["distinct"].numpy()] = (with_teacher - alone)[:, -1]
        np.testing.assert_allclose(found, expected, atol=1e-5)


class Bench:
    """A step that is traced once, and its state, which can be set back to where it began."""

    def __init__(self, jit: bool = False) -> None:
        self.config = make_config()
        self.state = make_state(self.config)
        self.step = CompiledStep(self.state, self.config, jit)
        self._initial = {name: value.copy() for name, value in self.state.arrays().items()}

    def reset(self, changes: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        self.state.restore({**self._initial, **(changes or {})})
        return {name: value.copy() for name, value in self._initial.items()}

    def learn(
        self, example: "Example", batch_rows: int = 8, ramps: Mapping[str, float] = RAMPED, **factors: float
    ) -> Scores:
        rates = {group: rate * factors.get(group, 1.0) for group, rate in self.config.rates_at(0).items()}
        return self.step.learn(example.feed(self.state, batch_rows), ramps, rates)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


# The last one makes finite gradients, whose squares overflow: AdaGrad would never move these weights again.
NOT_FINITE = ([1, np.nan, 1, 1, 1, 1], [1, np.inf, 1, 1, 1, 1], [1e30, 1, 1, 1, 1, 1])


def test_a_compiled_step_agrees_and_is_not_applied_either_where_it_is_not_finite(bench):
    bench.reset()
    compiled = Bench(jit=True)
    for number in range(2):
        results = [one.learn(Example(number), ramps=HALF) for one in (bench, compiled)]
        np.testing.assert_allclose(results[0].logit, results[1].logit, atol=1e-5)
        np.testing.assert_allclose(results[0].terms, results[1].terms, atol=1e-6)
        assert bool(results[1].applied)
        assert_close(parameters(compiled.state), parameters(bench.state), 1e-5)
    before = all_bytes(compiled.state)
    assert not bool(compiled.learn(Example(3, NOT_FINITE[0])).applied)
    assert all_bytes(compiled.state) == before


def test_a_step_that_is_not_finite_changes_no_bit(bench):
    arrays = bench.reset()
    bench.learn(Example(0))
    before = all_bytes(bench.state)
    for weight in NOT_FINITE:
        assert not bool(bench.learn(Example(1, weight)).applied)
        assert all_bytes(bench.state) == before
    # And the next good one is applied.
    assert bool(bench.learn(Example(2)).applied)
    assert all_bytes(bench.state) != before
    # A weight that is not finite spreads to no other.
    table = "rows/quality-2"
    for value in (np.nan, np.inf):
        broken = arrays[table].copy()
        broken[PLACES["a"][1] + Example(0).single["a"][0], 1] = value
        bench.reset({table: broken})
        before = all_bytes(bench.state)
        result = bench.learn(Example(0))
        assert not np.isfinite(result.logit[0])
        assert not bool(result.applied)
        assert all_bytes(bench.state) == before


def test_padding_and_rows_of_weight_0_teach_nothing(bench):
    learned = []
    for batch_rows in (6, 100):
        bench.reset()
        for number in range(3):
            assert len(Example(number).feed(bench.state, batch_rows).targets["label"]) == batch_rows
            bench.learn(Example(number), batch_rows, HALF)
        learned.append(parameters(bench.state))
    assert_close(learned[1], learned[0], 1e-6)
    bits = []
    for flipped in (False, True):
        bench.reset()
        example = Example(0)
        assert example.weight[1] == 0
        example.label[1] ^= flipped
        bench.learn(example)
        bits.append(all_bytes(bench.state))
    assert bits[0] == bits[1]


def test_a_batch_without_weight_changes_no_bit():
    """Sums of squares begin at 0, so that a step would be 0 / 0."""
    optimizer = {
        "embeddings": {**ROWS, "initial_accumulator": 0.0},
        "dense": {"shampoo": {**ADAGRAD, "grafting": {"initial_accumulator": 0.0}}},
    }
    config = make_config(optimizer=optimizer)
    state = make_state(config)
    before = all_bytes(state)
    result = learner(state, config)(Example(0, [0] * 6).feed(state), RAMPED)
    assert bool(result.applied)
    assert result.terms.sum() == 0
    assert np.isfinite(result.logit).all()
    after = all_bytes(state)
    # It was a step, though one without any gradient.
    assert {name for name in before if after[name] != before[name]} == {"shampoo/step"}


def test_a_step_is_as_long_as_its_rates(bench):
    moved = []
    for factors in ({}, {"dense": 0.5, "embeddings": 0.25}):
        bench.reset()
        before = parameters(bench.state)
        bench.learn(Example(0), **factors)
        after = parameters(bench.state)
        moved.append({name: after[name] - before[name] for name in before})
    for name in moved[0]:
        factor = 0.25 if name in ("quality-2", "ui-1") else 0.5
        assert np.abs(moved[0][name]).max() > 1e-3
        np.testing.assert_allclose(moved[1][name], factor * moved[0][name], atol=1e-6, err_msg=name)


def alone(config: TrainConfig, together: TrainState, component: int) -> TrainState:
    """A model of one component that starts where a component of an ensemble does."""
    single = config.model.model_copy(update={"ensemble": type(config.model.ensemble)()})
    state = make_state(config.model_copy(update={"model": single}))
    for name, weight in state.weights.items():
        weight.assign(together.weights[f"component_{component}/{name}"])
    for layout, table, source in zip(
        state.layouts, state.tables.weights, together.tables.weights, strict=True
    ):
        table.assign(source[:, component * layout.columns : (component + 1) * layout.columns])
    return state


# Damped well: few rows leave the statistics without full rank, where roots make much of the last bits.
SHAMPOO = {
    "start_preconditioning_step": 2,
    "precondition_frequency": 1,
    "roots": {"asynchronous": False},
    "epsilon": 0.01,
    "momentum": 0.9,
    "grafting": {"initial_accumulator": 0.001},
}


@pytest.mark.slow
def test_components_with_their_own_embeddings_learn_as_if_each_were_alone():
    model = {**SETTINGS["model"], "ensemble": {"components": 2, "embeddings": "separate"}}
    dense = {"learning_rate": 0.1, "clip_norm": 0.05, "shampoo": SHAMPOO}
    config = make_config("mean", model=model, optimizer={**SETTINGS["optimizer"], "dense": dense})
    together = make_state(config)
    singles = [alone(config, together, component) for component in range(2)]
    step = learner(together, config)
    steps = [learner(single, config) for single in singles]
    for number in range(5):
        example = Example(number)
        logit = step(example.feed(together), HALF).logit
        own = [one(example.feed(single), HALF).logit for one, single in zip(steps, singles, strict=True)]
        p = np.mean(1 / (1 + np.exp(-np.array(own, np.float64))), axis=0)
        np.testing.assert_allclose(logit, np.log(p / (1 - p)), rtol=1e-4, atol=1e-5)
    found = parameters(together)
    for component, single in enumerate(singles):
        for name, value in parameters(single).items():
            if name in found:
                columns = value.shape[1]
                of_component = found[name][:, component * columns : (component + 1) * columns]
            else:
                of_component = found[f"component_{component}/{name}"]
            np.testing.assert_allclose(of_component, value, rtol=1e-4, atol=1e-5, err_msg=name)
