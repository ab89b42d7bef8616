"""The whole objective and its gradients against float64 NumPy with every pair enumerated."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.features import Category
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.data.stream import TEACHER_LOGIT
from ctr.models.click_model import Scores
from ctr.objective.bias_constraints import resolve_families
from ctr.objective.config import AntiDistillationConfig, ObjectiveConfig
from ctr.objective.losses import BatchObjective, loss_and_terms, loss_terms, next_duals, slices_of
from ctr.objective.targets import make_targets, target_signature

SCHEMA = Schema(
    features=(
        Category(name="position", source="position", vocabulary=("1", "2", "3")),
        Category(name="user", source="user", buckets=10),
    )
)
LOW = {"position": ["2", "3"]}
CONTENT: dict[str, Any] = {
    "ranking": {"weight": 0.3},
    "distillation": {"teacher": "t", "weight": 0.7},
    "bias_constraints": {
        "learning_rate": 0.2,
        "regularization": 0.05,
        "families": [
            {"name": "ctr", "estimated_ctr": [0.3, 0.6]},
            {"name": "low", "estimated_ctr": [0.5], "features": LOW, "learning_rate": 0.1},
            {"name": "other", "log": "exposure"},
        ],
        "logs": [{"name": "exposure", "path": "somewhere"}],
    },
}
CONFIG = parse_model(ObjectiveConfig, CONTENT, "test")
RAMPS = dict(alpha2=1.0, ranking=0.8, distillation=0.5, anti_distillation=0.4, bias_constraints=0.6)
DUALS = [np.array([0.4, -0.7, 0.2]), np.array([0.3, -0.2, 0.5, 0.9]), np.array([-1.1])]
OWN = 9  # rows of the training log; the rest are of the constraint log


def draw(seed: int) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Rows of five queries, two of them of the constraint log; their source; logits."""
    rng = np.random.default_rng(seed)
    query = np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 7, 7, 7, 8])
    count = len(query)
    teacher = rng.normal(size=count).astype(np.float32)
    teacher[[2, 8, 10]] = np.nan
    rows = Rows(
        query_time=query, timestamp=query, query_id=query, example_id=np.arange(count),
        label=rng.integers(0, 2, count).astype(np.float32),
        train_weight=rng.choice([0.0, 0.5, 1.0, 3.0], count).astype(np.float32),
        metric_weight=np.ones(count, np.float32),
        ids=np.stack([rng.integers(0, 4, count), rng.integers(0, 10, count)], axis=1).astype(np.int32),
        fault=np.zeros(count, np.int8), position=np.arange(count), multivalent={}, joined={TEACHER_LOGIT: teacher},
    )  # fmt: skip
    source = (np.arange(count) >= OWN).astype(np.int8)
    return rows, source, 1.5 * rng.normal(size=(2, count))


def sigmoid(value: Any) -> Any:
    return 1 / (1 + np.exp(-value))


def slices(rows: Rows, source: np.ndarray, logit: np.ndarray) -> list[list[int]]:
    """By the definition: -1, or the slice, of each row in each family."""
    p, found = sigmoid(logit), []
    found.append([-1 if s else sum(p[i] >= b for b in (0.3, 0.6)) for i, s in enumerate(source)])
    positions = {2: 0, 3: 1}  # ids of the vocabulary's second and third value
    low = []
    for i, s in enumerate(source):
        place = positions.get(int(rows.ids[i, 0]), -1)
        low.append(-1 if s or place < 0 else 2 * place + int(p[i] >= 0.5))
    found.append(low)
    found.append([0 if s else -1 for s in source])
    return found


def reference(rows: Rows, source: np.ndarray, logit: np.ndarray, score: np.ndarray, at: np.ndarray) -> float:
    """The loss in float64; which slice a row is in is decided by the logits ``at``."""
    weight = rows.train_weight.astype(float)
    own = np.where(source == 0, weight, 0.0)
    y = rows.label
    teacher = rows.joined[TEACHER_LOGIT].astype(float)
    logistic = distilled = ranked = constraint = 0.0
    for i in range(len(y)):
        losses = np.logaddexp(0, -logit[i]), np.logaddexp(0, logit[i])
        logistic += own[i] * losses[0 if y[i] else 1]
        if not np.isnan(teacher[i]):
            q = sigmoid(teacher[i])
            distilled += own[i] * (q * losses[0] + (1 - q) * losses[1])
        for j in range(len(y)):
            if rows.query_id[i] == rows.query_id[j] and y[i] == 1 and y[j] == 0:
                query = rows.query_id == rows.query_id[i]
                pairs = own[query & (y == 1)].sum() * own[query & (y == 0)].sum()
                if pairs:
                    ranked += own[i] * own[j] / pairs**0.5 * np.logaddexp(0, -(score[i] - score[j]))
    for family, dual in zip(slices(rows, source, at), DUALS, strict=True):
        for i, k in enumerate(family):
            if k >= 0:
                constraint += weight[i] * dual[k] * (y[i] - sigmoid(logit[i]))
    alpha1 = 0.3 * 0.8
    total = (1 - alpha1) * logistic + alpha1 * ranked + 0.7 * 0.5 * distilled + 0.6 * constraint
    return float(total / own.sum())


def graph(rows, source, logit, each=None, score=None, config=CONFIG, ramps=RAMPS, capacity=16):
    """Loss and terms, gradients by logit and by score, slices and next duals, as the step computes them.

    Args:
        each: the logits of the components, where there are several.
    """
    families = resolve_families(config.bias_constraints, SCHEMA)
    targets = make_targets(config, families, rows, source, capacity)
    assert {
        name: (spec.dtype, len(spec.shape)) for name, spec in target_signature(config, families).items()
    } == {name: (tf.as_dtype(array.dtype), array.ndim) for name, array in targets.items()}
    given = {name: tf.constant(array) for name, array in targets.items()}

    def padded(values):
        # What padding predicts must not matter.
        added = (0, 0), (0, capacity - len(rows))
        return tf.constant(np.pad(values, added, constant_values=3.0), tf.float32)

    (logit,) = tf.unstack(padded(logit[np.newaxis]))
    each = logit[tf.newaxis] if each is None else padded(each)
    score = each if score is None else padded(score[np.newaxis])
    ramps = {name: tf.constant(ramp) for name, ramp in ramps.items()}
    duals = [tf.constant(dual, tf.float32) for dual in DUALS]
    with tf.GradientTape() as tape:
        tape.watch([logit, score])
        components = logit[tf.newaxis] if len(each) == 1 else each
        scores = components if score is each else score
        index = slices_of(families, given, logit)
        batch = BatchObjective(config, given, ramps, duals, index)
        loss, terms = loss_and_terms(batch, logit, Scores(components, scores))
    gradients = [
        tf.convert_to_tensor(one).numpy().reshape(-1, capacity)[0] if one is not None else None
        for one in tape.gradient(loss, [logit, score])
    ]
    seen = [tf.zeros([2, len(dual)]) for dual in DUALS]
    moved = next_duals(batch, families, logit, ramps["bias_constraints"], seen)
    return loss.numpy(), terms.numpy(), gradients, index, [dual.numpy() for dual, _ in moved]


@pytest.mark.parametrize("seed", range(3))
def test_loss_gradients_and_duals_are_those_of_the_formula(seed):
    rows, source, (logit, score) = draw(seed)
    count = len(rows)
    loss, terms, gradients, index, after = graph(rows, source, logit, score=score)
    assert loss == pytest.approx(reference(rows, source, logit, score, logit), rel=1e-5)
    assert terms.sum() == pytest.approx(loss, rel=1e-6)
    for which, gradient in enumerate(gradients):
        assert not gradient[count:].any()
        for row in range(count):
            around = []
            for change in (1e-5, -1e-5):
                moved = np.stack([logit, score])
                moved[which, row] += change
                around.append(reference(rows, source, *moved, logit))
            assert gradient[row] == pytest.approx((around[0] - around[1]) / 2e-5, abs=2e-6)
    expected = slices(rows, source, logit)
    for found, of_rows in zip(index, expected, strict=True):
        assert found.numpy()[:count].tolist() == of_rows
        assert (found.numpy()[count:] == -1).all()
    # Duals climb along the mean bias of their slice.
    weight, error = rows.train_weight.astype(float), rows.label - sigmoid(logit)
    for family, dual, found, rate in zip(expected, DUALS, after, (0.2, 0.1, 0.2), strict=True):
        for k, before in enumerate(dual):
            inside = (np.array(family) == k) & (weight > 0)
            step = 0.0
            if inside.any():
                step = rate * 0.6 * (np.average(error[inside], weights=weight[inside]) - 0.05 * before)
            assert found[k] == pytest.approx(before + step, abs=1e-6)


ONES = dict.fromkeys(RAMPS, 1.0)


def constrained(own_loss: bool = False) -> ObjectiveConfig:
    logs = [{"name": "exposure", "path": "somewhere", "own_loss": own_loss}]
    content = {"bias_constraints": {**CONTENT["bias_constraints"], "logs": logs}}
    return parse_model(ObjectiveConfig, content, "test")


@pytest.mark.parametrize(("seed", "own_loss"), [(0, False), (1, False), (1, True)])
def test_rows_of_a_constraint_log_leave_the_gradient_of_the_others_as_it_is(seed, own_loss):
    rows, source, (logit, _) = draw(seed)
    config = constrained(own_loss)
    # In float64: (w_i (p - y) of rows with losses of their own - w_i p (1 - p) sum_k lambda_k) / their weights.
    weight, p = rows.train_weight.astype(float), sigmoid(logit)
    own = np.where((source == 0) | own_loss, weight, 0.0)
    dual = np.zeros(len(rows))
    for family, values in zip(slices(rows, source, logit), DUALS, strict=True):
        dual += [values[k] if k >= 0 else 0.0 for k in family]
    expected = (own * (p - rows.label) - weight * dual * p * (1 - p)) / own.sum()
    found = graph(rows, source, logit, config=config, ramps=ONES)[2][0][: len(rows)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    alone = rows.slice(0, OWN), source[:OWN], logit[:OWN]
    without = graph(*alone, config=config, ramps=ONES)[2][0][:OWN]
    if own_loss:
        # They are examples like any others then.
        np.testing.assert_allclose(found[:OWN] * own.sum(), without * own[:OWN].sum(), rtol=1e-5)
    else:
        assert np.array_equal(found[:OWN], without)
    assert found[OWN:].any()


def test_a_batch_whose_own_rows_were_all_dropped_still_learns_from_its_constraint_log():
    rows, source, (logit, _) = draw(0)
    dropped = np.where(source == 0, 0, rows.train_weight).astype(np.float32)
    rows = dataclasses.replace(rows, train_weight=dropped)
    weight, p = rows.train_weight.astype(float), sigmoid(logit)
    expected = -weight * DUALS[2][0] * p * (1 - p) / weight.sum()
    found = graph(rows, source, logit, config=constrained(), ramps=ONES)[2][0][: len(rows)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
    assert found.any()


def test_of_an_ensemble_the_losses_are_means_and_the_constraints_are_about_the_prediction():
    rows, source, logits = draw(0)
    components = np.stack([logits[0], logits[1], logits[0] - logits[1]])
    p = sigmoid(components).mean(axis=0)
    prediction = np.log(p / (1 - p))
    config = CONFIG.model_copy(update={"anti_distillation": AntiDistillationConfig(weight=0.25)})
    loss, terms, *_ = graph(rows, source, prediction, components, config=config)
    # With one slice for each row, the reference's constraint is linear in p: its mean is that of the mean.
    expected = np.mean([reference(rows, source, own, own, prediction) for own in components])
    own = np.where(source == 0, rows.train_weight, 0.0)
    covariance = np.cov(components, aweights=own, ddof=0)
    spread = np.sqrt(np.diag(covariance))
    squared = (covariance / np.outer(spread, spread)) ** 2
    expected += 0.25 * 0.4 * (squared[0, 1] + squared[0, 2] + squared[1, 2]) / 3
    assert loss == pytest.approx(expected, rel=1e-5)
    names = ("logistic", "ranking", "distillation", "anti_distillation", "bias_constraints")
    assert loss_terms(config) == names and terms.shape == (5,)
    assert terms.sum() == pytest.approx(loss, rel=1e-6)
    # Without its ramp a term contributes nothing.
    without = graph(rows, source, prediction, components, config=config, ramps={**RAMPS, "distillation": 0.0})
    assert without[1][2] == 0 and np.all(np.delete(without[1], 2) == np.delete(terms, 2))
