"""Under a label delay: which labels a prediction may know of, against a plain loop in float64."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train

RATE, START, BIAS_RATE, PRIOR = 0.3, 0.05, 0.1, 0.3
CONTENT: dict[str, Any] = {
    "batch": {"rows": 40, "max_query_rows": 40},
    "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "network_loss": "joint", "prior": PRIOR},
    "optimizer": {
        "embeddings": {"linear_learning_rate": RATE, "linear_initial_accumulator": START},
        "dense": {
            "learning_rate": BIAS_RATE,
            "shampoo": {
                "start_preconditioning_step": None,
                "momentum": 0,
                "grafting": {"initial_accumulator": START},
            },
        },
    },
    "compute_dtype": "float32",
}


def batches_of(predictions: pd.DataFrame) -> list[np.ndarray]:
    """Whole queries packed greedily into 40 rows."""
    batches: list[list[int]] = [[]]
    for _, rows in predictions.groupby("query_time", sort=True):
        if batches[-1] and len(batches[-1]) + len(rows) > 40:
            batches.append([])
        batches[-1] += rows.index.tolist()
    return [np.array(rows) for rows in batches]


def expected_logits(examples, predictions: pd.DataFrame, delay: int) -> tuple[np.ndarray, int]:
    """A logistic regression: scores each batch once those that are old enough were learned from, in order."""
    weights = [np.zeros(size) for size in (30, 50, 8, 40)]
    sums = [np.full(size, START) for size in (30, 50, 8, 40)]
    bias, bias_sum = math.log(PRIOR / (1 - PRIOR)), START
    time = predictions["query_time"].to_numpy()

    def predict(row: int) -> float:
        tags = examples.tags[row]
        logit = bias + sum(weights[column][examples.ids[row, column]] for column in range(3))
        return logit + (sum(weights[3][tag] for tag in tags) / len(tags) if tags else 0.0)

    logits = np.zeros(len(time))
    batches = batches_of(predictions)
    waiting = 0
    for batch in batches:
        while waiting < len(batches) and time[batches[waiting][-1]] + delay <= time[batch[0]]:
            rows = batches[waiting]
            waiting += 1
            gradients = [np.zeros(len(weight)) for weight in weights]
            errors = [
                examples.train_weight[row] * (1 / (1 + math.exp(-predict(row))) - examples.label[row])
                for row in rows
            ]
            for row, error in zip(rows, errors, strict=True):
                for column in range(3):
                    gradients[column][examples.ids[row, column]] += error
                for tag in examples.tags[row]:
                    gradients[3][tag] += error / len(examples.tags[row])
            total = examples.train_weight[rows].sum()
            bias_gradient = sum(errors) / total if total else 0.0
            for weight, squares, gradient in zip(weights, sums, gradients, strict=True):
                squares += gradient**2
                weight -= RATE * gradient / np.sqrt(squares)
            bias_sum += bias_gradient**2
            bias -= BIAS_RATE * bias_gradient / math.sqrt(bias_sum)
        logits[batch] = [predict(row) for row in batch]
    return logits, sum(len(rows) for rows in batches[:waiting])


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("delay", [0.001, 0.02, 0.05, 1.0])
def test_a_label_is_learned_from_when_it_is_known_and_not_before(
    examples, log, tmp_path, read_predictions, delay
):
    config = parse_model(TrainConfig, {**CONTENT, "label_delay": delay}, "test")
    summary = train(log, config, tmp_path / "run")
    predictions = read_predictions(tmp_path / "run")
    expected, learned = expected_logits(examples, predictions, round(delay * 1e6))
    np.testing.assert_allclose(predictions["logit"], expected, rtol=0, atol=1e-5)
    assert summary["examples"] == len(examples)
    assert summary["trained_examples"] == learned
    if delay == 1.0:  # longer than the log: nothing is ever learned
        assert learned == 0 and np.ptp(expected) == 0
    else:
        assert 0 < learned < len(examples) and np.std(expected) > 0.1
