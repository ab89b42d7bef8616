"""The rule by which linear weights and calibration learn by default, against the same as a plain loop in float64."""

import math

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.models.query_effect import VARIANCE
from ctr.optim.first_order import online_bias, online_newton
from ctr.optim.rows import newton as row_newton
from ctr.training.config import MetricsConfig, TrainConfig
from ctr.training.loop import open_session, train
from ctr.training.run.checkpoint import read as read_checkpoint
from ctr.training.warm_start.start import InitFrom, warm_start

PRIOR = 0.2
CONFIG = parse_model(
    TrainConfig,
    {
        "batch": {"rows": 40, "growth": 0.1},
        "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "prior": PRIOR},
    },
    "test",
)
FEATURES, ROWS = 4, (30, 50, 8, 40)


def growing_batches(query):
    """Lists of rows: whole queries, of 8 rows or the largest power of two in a tenth of the rows before."""
    starts = [0, *(np.flatnonzero(np.diff(query)) + 1), len(query)]
    batches, begin = [], 0
    while begin < len(query):
        tenth = int(0.1 * begin)
        size = min(40, max(8, 2 ** int(math.log2(tenth)) if tenth else 0))
        fitting = [end for end in starts if begin < end <= begin + size]
        end = fitting[-1] if fitting else next(end for end in starts if end > begin)
        batches.append(range(begin, end))
        begin = end
    return batches


class Biases:
    """Biases that allow for several drifts, and their mean by the losses that they had."""

    def __init__(self, start):
        self.value, self.seen = start, 0.0
        self.values, self.information, self.loss = np.full(3, start), np.zeros(3), np.zeros(3)

    def step(self, gradient, curvature, weight):
        self.seen += weight
        share = weight / self.seen if self.seen else 0.0
        kept = max(0.0, 1 - online_bias.FORGETTING * share)
        for place, walk in enumerate(online_bias.WALKS):
            away = self.values[place] - self.value
            self.loss[place] = kept * self.loss[place] + gradient * away + curvature * away**2 / 2
            known = kept * self.information[place]
            self.information[place] = known / (1 + walk * share * known) + curvature
            slope = gradient + curvature * away
            self.values[place] -= np.clip(slope / (self.information[place] + online_bias.PRIOR), -1, 1)
        share_of_each = np.exp(self.loss.min() - self.loss)
        before, self.value = self.value, share_of_each @ self.values / share_of_each.sum()
        return self.value - before


class Offset:
    """A Newton step of what is added to the prediction; of the past it forgets as much as comes in."""

    def __init__(self):
        self.value, self.information, self.seen = 0.0, 0.0, 0.0

    def step(self, label, weight, logit):
        p = 1 / (1 + np.exp(-logit))
        self.seen += sum(weight)
        kept = max(0.0, 1 - sum(weight) / self.seen) if self.seen else 1.0
        self.information = kept * self.information + sum(weight * np.maximum(p * (1 - p), 1e-6))
        self.value -= np.clip(sum(weight * (p - label)) / (self.information + 100.0), -1, 1)


def query_effects(query, p, label, weight):
    """What each row's query leaves of curvature, and its effect."""
    left, effect = np.ones(len(query)), np.zeros(len(query))
    for number in np.unique(query):
        own = query == number
        total = weight[own].sum()
        middle = (weight * (p + label))[own].sum() / (2 * total) if total else 0.0
        curvature = max((weight * p * (1 - p))[own].sum(), total * middle * (1 - middle))
        left[own] = 1 / (1 + VARIANCE * curvature)
        effect[own] = -VARIANCE * (weight * (p - label))[own].sum() * left[own]
    return left, effect


def progressive_pass(examples):
    """The logits, in float64, of an implementation in loops."""
    weights, information = [np.zeros(rows) for rows in ROWS], [np.zeros(rows) for rows in ROWS]
    shrunk_by = [np.full(rows, float(FEATURES)) for rows in ROWS]
    by_drift = [np.zeros((rows, 2)) for rows in ROWS]  # Derivatives of variances and weights by log k.
    log_prior, known = np.full(FEATURES, math.log(FEATURES)), np.ones(FEATURES)
    log_drift, known_drift = np.full(FEATURES, math.log(row_newton.FORGETTING)), np.full(FEATURES, 0.3)
    bias, prediction = Biases(math.log(PRIOR / (1 - PRIOR))), Offset()

    def entries(row):
        yield from ((column, examples.ids[row, column], 1.0) for column in range(3))
        tags = examples.tags[row]
        yield from ((3, tag, 1 / len(tags)) for tag in tags)

    recorded = np.zeros(len(examples))
    for batch in growing_batches(examples.query):
        label, weight = examples.label[batch], examples.train_weight[batch]
        alone = np.array([sum(weights[f][i] * x for f, i, x in entries(row)) for row in batch])
        alone += bias.value
        final = alone + prediction.value
        recorded[batch] = final
        query = examples.query[batch]
        p = 1 / (1 + np.exp(-alone))
        curvature = weight * np.maximum(p * (1 - p), 1e-6)
        share = np.array([1 / (1 + VARIANCE * curvature[query == number].sum()) for number in query])
        shift = bias.step(sum(share * weight * (p - label)), sum(share * curvature), sum(weight))
        prediction.step(label, weight, final)
        alone = alone + shift
        left, effect = query_effects(query, 1 / (1 + np.exp(-alone)), label, weight)
        p = 1 / (1 + np.exp(-(alone + effect)))
        curvature = weight * np.maximum(p * (1 - p), 1e-6)
        shared = np.zeros((len(batch), 3), bool)
        for number in np.unique(query):
            own = (query == number) & (weight > 0)
            shared[own] = [len(set(examples.ids[np.array(batch)[own], column])) == 1 for column in range(3)]
        gradients, curvatures = ([np.zeros(rows) for rows in ROWS] for _ in range(2))
        for at, (row, g, h) in enumerate(zip(batch, weight * (p - label), curvature, strict=True)):
            for f, i, x in entries(row):
                gradients[f][i] += g * x
                curvatures[f][i] += h * x * x * (left[at] if f < 3 and shared[at, f] else 1)
        for f in range(FEATURES):
            precision, forgetting = math.exp(log_prior[f]), math.exp(log_drift[f])
            slopes, bends = np.zeros(2), np.zeros(2)
            for i in np.flatnonzero(curvatures[f] > 0):
                g, h, w, s = gradients[f][i], curvatures[f][i], weights[f][i], information[f][i]
                derivatives = np.array([-w * precision / (precision + s), by_drift[f][i, 1]])
                slopes, bends = slopes + g * derivatives, bends + h * derivatives**2
                shrunk = w * (shrunk_by[f][i] + s) / (precision + s)
                drift = forgetting / precision * h / (s + h)
                variance = 1 / (precision + s) + drift
                kept = max(precision, 1 / variance)
                gained = h + row_newton.OVERDISPERSION * g * g / (1 + h / kept)
                after = kept + gained
                weights[f][i] = (shrunk * kept + w * gained - g) / after
                information[f][i], shrunk_by[f][i] = after - precision, precision
                steeper = drift / (s + h) * (precision + s) ** 2
                by_drift[f][i, 0] = (kept / after) ** 2 * (by_drift[f][i, 0] * (1 + steeper) + drift)
                if 1 / variance <= precision:
                    by_drift[f][i, 0] = 0.0
                by_drift[f][i, 1] = (1 - h / after) * by_drift[f][i, 1] - g * by_drift[f][i, 0]
            known[f] += bends[0]
            log_prior[f] = np.clip(log_prior[f] - np.clip(slopes[0] / known[f], -0.5, 0.5), -3, 12)
            known_drift[f] += bends[1]
            log_drift[f] = np.clip(log_drift[f] - np.clip(slopes[1] / known_drift[f], -0.5, 0.5), -9, 0)
    return recorded, np.exp(log_prior), np.exp(log_drift)


@pytest.fixture(scope="module")
def default_run(log, tmp_path_factory):
    run = tmp_path_factory.mktemp("default") / "run"
    return run, train(log, CONFIG, run)


def test_predictions_are_those_of_the_plain_loop(examples, default_run, read_predictions):
    expected, precision, forgetting = progressive_pass(examples)
    found = read_predictions(default_run[0])["logit"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    assert np.std(expected) > 0.3
    # What is learned of the features differs.
    assert np.ptp(np.log(precision)) > 0.1 and np.ptp(np.log(forgetting)) > 0.1


def test_the_limits_are_those_of_the_module():
    assert online_newton.MAX_STEP == 1.0


WITH_NETWORK = parse_model(
    TrainConfig,
    {
        "batch": {"rows": 40, "growth": 0.1},
        "model": {
            "crosses": {"layers": 1, "rank": 2, "ramp": 100},
            "deep": {"units": [4]},
            "init_scale": 0.3,
        },
        "optimizer": {"embeddings": {"learning_rate": 0.5}},
        "checkpoint": {"every_examples": 10**6},
        "compute_dtype": "float32",
    },
    "test",
)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(log, tmp_path, read_predictions):
    train(log, WITH_NETWORK, tmp_path / "whole")
    for batches in (3, 25):
        left = iter(range(batches))
        with open_session(log, WITH_NETWORK, tmp_path / "parts") as session:
            session.advance(stop=lambda left=left: next(left, None) is None)
            session.save()
    train(log, WITH_NETWORK, tmp_path / "parts")
    whole, parts = (read_checkpoint(tmp_path / name / "checkpoints")[0] for name in ("whole", "parts"))
    assert {"weights|newton/prediction/information", "weights|prior_precision/quality-4"} <= whole.keys()
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, parts[name], err_msg=name)
    logits = [read_predictions(tmp_path / name)["logit"] for name in ("whole", "parts")]
    np.testing.assert_array_equal(*logits)


@pytest.mark.slow
def test_a_warm_start_goes_on_with_the_priors_and_the_gate(log, tmp_path):
    left = iter(range(30))
    with open_session(log, WITH_NETWORK, tmp_path / "old") as session:
        session.advance(stop=lambda: next(left, None) is None)
        session.save()
    later = WITH_NETWORK.model_copy(update={"metrics": MetricsConfig(window_examples=77)})
    warm_start(log, later, tmp_path / "new", InitFrom(tmp_path / "old"))
    old, new = (read_checkpoint(tmp_path / name / "checkpoints")[0] for name in ("old", "new"))
    names = [name for name in old if name.startswith("weights|")]
    assert any("rows_prior" in name for name in names) and any("newton/" in name for name in names)
    for name in names:
        np.testing.assert_array_equal(new[name], old[name], err_msg=name)
    # Under another rule the weights go on, and their state begins.
    other = parse_model(
        TrainConfig,
        {
            **WITH_NETWORK.model_dump(mode="json"),
            "optimizer": {"embeddings": {"linear_rule": "adagrad", "learning_rate": 0.5}},
        },
        "test",
    )
    warm_start(log, other, tmp_path / "other", InitFrom(tmp_path / "old"))
    found = read_checkpoint(tmp_path / "other" / "checkpoints")[0]
    np.testing.assert_array_equal(found["weights|rows/quality-4"], old["weights|rows/quality-4"])
    assert (found["weights|rows_accumulator/quality-4"][:, -1] == np.float32(0.1)).all()


@pytest.mark.soak
def test_compiled_steps_are_those_of_the_plain_graph(log, tmp_path, read_predictions):
    found = []
    for jit in (False, True):
        config = WITH_NETWORK.model_copy(update={"jit": jit})
        train(log, config, tmp_path / str(jit))
        found.append(read_predictions(tmp_path / str(jit))["logit"][:300])
    np.testing.assert_allclose(*found, atol=1e-3)
    assert np.std(found[0]) > 0.2
