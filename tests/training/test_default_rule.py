"""The rule by which linear weights and calibration learn by default, against the same as a plain loop in float64."""

import math

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.models.query_effect import VARIANCE
from ctr.optim import online_newton, row_newton
from ctr.training.config import TrainConfig
from ctr.training.loop import train

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


class Scalars:
    """Weights that are fitted by Newton's steps with all of the information, or with what is not forgotten."""

    def __init__(self, start, prior, forgetting):
        self.values, self.prior, self.forgetting = np.array(start, float), np.diag(prior), forgetting
        self.information, self.seen = np.zeros((len(start), len(start))), 0.0

    def step(self, inputs, label, weight, logit):
        inputs, p = np.array(inputs, float).T, 1 / (1 + np.exp(-np.array(logit)))
        self.seen += sum(weight)
        kept = max(0.0, 1 - self.forgetting * sum(weight) / self.seen) if self.seen else 1.0
        curvature = weight * np.maximum(p * (1 - p), 1e-6)
        self.information = kept * self.information + (inputs * curvature[:, None]).T @ inputs
        total = inputs.T @ (weight * (p - label))
        move = np.clip(-np.linalg.solve(self.information + self.prior, total), -1, 1)
        self.values += move
        return move


def progressive_pass(examples):
    """The logits, in float64, of an implementation in loops."""
    weights, information = [np.zeros(rows) for rows in ROWS], [np.zeros(rows) for rows in ROWS]
    shrunk_by = [np.full(rows, float(FEATURES)) for rows in ROWS]
    log_prior, known = np.full(FEATURES, math.log(FEATURES)), np.ones(FEATURES)
    bias = Scalars([math.log(PRIOR / (1 - PRIOR))], [0.3], 0.5)
    prediction = Scalars([0.0], [100.0], 1.0)

    def entries(row):
        yield from ((column, examples.ids[row, column], 1.0) for column in range(3))
        tags = examples.tags[row]
        yield from ((3, tag, 1 / len(tags)) for tag in tags)

    recorded = np.zeros(len(examples))
    for batch in growing_batches(examples.query):
        label, weight = examples.label[batch], examples.train_weight[batch]
        alone = np.array([sum(weights[f][i] * x for f, i, x in entries(row)) for row in batch])
        alone += bias.values[0]
        final = alone + prediction.values[0]
        recorded[batch] = final
        (shift,) = bias.step([np.ones(len(batch))], label, weight, alone)
        prediction.step([np.ones(len(batch))], label, weight, final)
        alone = alone + shift
        p = 1 / (1 + np.exp(-alone))
        query = examples.query[batch]
        effect = np.zeros(len(batch))
        for number in np.unique(query):
            own = query == number
            total = (weight * np.maximum(p * (1 - p), 1e-6))[own].sum()
            effect[own] = -VARIANCE * (weight * (p - label))[own].sum() / (1 + VARIANCE * total)
        p = 1 / (1 + np.exp(-(alone + effect)))
        curvature = weight * np.maximum(p * (1 - p), 1e-6)
        left, shared = np.ones(len(batch)), np.zeros((len(batch), 3), bool)
        for number in np.unique(query):
            own = (query == number) & (weight > 0)
            left[own] = 1 / (1 + VARIANCE * curvature[own].sum())
            shared[own] = [
                len(set(examples.ids[np.array(batch)[own], column])) == 1 for column in range(3)
            ]
        gradients, curvatures = ([np.zeros(rows) for rows in ROWS] for _ in range(2))
        for at, (row, g, h) in enumerate(zip(batch, weight * (p - label), curvature, strict=True)):
            for f, i, x in entries(row):
                gradients[f][i] += g * x
                curvatures[f][i] += h * x * x * (left[at] if f < 3 and shared[at, f] else 1)
        for f in range(FEATURES):
            precision, slope, bend = math.exp(log_prior[f]), 0.0, 0.0
            for i in np.flatnonzero(curvatures[f] > 0):
                g, h, w, s = gradients[f][i], curvatures[f][i], weights[f][i], information[f][i]
                u = -w * precision / (precision + s)
                slope, bend = slope + g * u, bend + h * u * u
                shrunk = w * (shrunk_by[f][i] + s) / (precision + s)
                lost = row_newton.FORGETTING * (precision + s) / precision * h / (s + h)
                kept = max(precision, (precision + s) / (1 + lost))
                gained = h + row_newton.OVERDISPERSION * g * g / (1 + h / kept)
                weights[f][i] = (shrunk * kept + w * gained - g) / (kept + gained)
                information[f][i], shrunk_by[f][i] = kept + gained - precision, precision
            known[f] += bend
            log_prior[f] = np.clip(log_prior[f] - np.clip(slope / known[f], -0.5, 0.5), -3, 12)
    return recorded, np.exp(log_prior)


@pytest.fixture(scope="module")
def default_run(log, tmp_path_factory):
    run = tmp_path_factory.mktemp("default") / "run"
    return run, train(log, CONFIG, run)


def test_predictions_are_those_of_the_plain_loop(examples, default_run, read_predictions):
    expected, precision = progressive_pass(examples)
    found = read_predictions(default_run[0])["logit"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    assert np.std(expected) > 0.3
    assert np.ptp(np.log(precision)) > 0.1  # What is learned of the features differs.


def test_the_limits_are_those_of_the_module():
    assert online_newton.MAX_STEP == 1.0
