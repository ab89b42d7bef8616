"""The noise of gradients beside those of single rows; and a run that reports it."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.training.gradient_noise import noise_numbers, squared_norms
from ctr.training.loop import train
from growing_logs import lines_of
from small_runs import make_config


def test_norms_are_those_of_single_rows_without_padding():
    rng = np.random.default_rng(0)
    inputs, gradients = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 6, 4))
    present = np.array([1, 1, 1, 0, 1, 0], np.float32)
    shared = inputs[:1]
    found = squared_norms(
        [tf.constant(inputs), tf.constant(shared)],
        [tf.constant(gradients)] * 2,
        present,
    )
    for own, (mean, total) in zip((inputs, np.repeat(shared, 2, 0)), found.numpy(), strict=True):
        rows = np.einsum("kni,knj->nkij", own, gradients)[present > 0].reshape(4, -1)
        assert mean == pytest.approx(np.sum(rows.mean(0) ** 2), rel=1e-5)
        assert total == pytest.approx(np.mean(np.sum(rows**2, 1)), rel=1e-5)


def test_the_noise_scale_is_unbiased_within_its_interval():
    rng = np.random.default_rng(1)
    truth, rows = np.full(10, 0.3), 50
    found = []
    for _ in range(400):
        drawn = truth + rng.normal(size=(rows, 10))
        norms = np.array([[np.sum(drawn.mean(0) ** 2), np.mean(np.sum(drawn**2, 1))]])
        found.append(noise_numbers(["w"], norms, rows))
    signals = [(one["signal_to_noise/w"]) for one in found]
    # |G|^2 N / T, in the mean (|g|^2 + T / N) N / T = 1 + 50 * 0.9 / 10.
    assert np.mean(signals) == pytest.approx(5.5, rel=0.05)
    assert np.median([one["noise_scale/w"] for one in found]) == pytest.approx(10 / 0.9, rel=0.1)
    # What is not defined is left out.
    assert noise_numbers(["w"], np.array([[1.0, 2.0]]), 1) == {}
    assert noise_numbers(["w"], np.array([[1.0, 1.0]]), 8) == {}
    assert set(noise_numbers(["w"], np.array([[1e-9, 2.0]]), 8)) == {"signal_to_noise/w"}


@pytest.mark.slow
def test_a_run_reports_it_by_matrix_and_learns_the_same(log, tmp_path):
    lines = {}
    for shown in (False, True):
        run = tmp_path / str(shown)
        train(log, make_config({"tensorboard": {"gradient_noise": shown}}), run)
        lines[shown] = lines_of(run)
    assert [line["logloss"] for line in lines[False]] == [line["logloss"] for line in lines[True]]
    assert not any("/" in name for line in lines[False] for name in line)
    names = [name for name in lines[True][-1] if name.startswith("signal_to_noise/")]
    assert any("deep_0/w" in name for name in names)
    assert all(lines[True][-1][name] > 0 for name in names)
