"""Numbers as the network reads them: statistics as of a stream, in float64, whatever it is like."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.numbers import look_up_numbers, next_statistics, split_values
from ctr.models.rows import FIRST_NUMBERS, FeatureRows, Numbers, lay_out_tables

NAN = np.float32(np.nan)
PLAIN = Numbers("plain", "quality", 1, 1, 0)
AMOUNT = Numbers("amount", "quality", 1, 2, 1, log=True)
VECTOR = Numbers("vector", "quality", 2, None, 2)
RAW = Numbers("raw", "quality", 2, None, 4, normalize=False)
LAYOUTS = lay_out_tables([FeatureRows("user", 9, 4, "quality", 0)], numbers=[PLAIN, AMOUNT, VECTOR, RAW])
STREAMS = {
    "drifting": lambda rng, step: rng.normal(step * 3, 1 + step / 50, 6),
    "far from 0": lambda rng, step: 1.7e9 + rng.normal(0, 1e4, 6),
    "huge": lambda rng, step: rng.normal(0, 1, 6) * 1e37,
    "tiny": lambda rng, step: rng.normal(0, 1, 6) * 1e-30,
    "constant": lambda rng, step: np.full(6, 0.1),
}


@functools.cache
def compiled_statistics(workers: int) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """``next_statistics`` of so many workers, each with its part of the rows, as one graph for all streams."""

    signature = (
        tf.TensorSpec([3, 6], tf.float64),
        tf.TensorSpec([3 + FIRST_NUMBERS, 6], tf.float64),
        [tf.TensorSpec([None, 6])] * workers,
        [tf.TensorSpec([None], tf.bool)] * workers,
    )

    @tf.function(input_signature=signature, autograph=False)
    def learn(
        statistics: tf.Tensor, apart: tf.Tensor, values: list[tf.Tensor], learned: list[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        exchanges: dict[int, list[tf.Tensor]] = {}

        def gather(part: tf.Tensor) -> list[tf.Tensor]:
            parts = exchanges.setdefault(part.shape[0], [])
            parts.append(part)
            # What has counted nothing changes nothing.
            return parts + [tf.zeros_like(part)] * (workers - len(parts))

        results = [
            next_statistics(LAYOUTS, statistics, apart, *rows, gather if workers > 1 else None)
            for rows in zip(values, learned, strict=True)
        ]
        # The last worker has heard of what the others found.
        return results[-1]

    return learn


def passed(stream, workers: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """All rows of a hundred batches that were learned from, and the statistics after these."""
    rng, seen = np.random.default_rng(3), []
    statistics, apart = tf.zeros([3, 6], tf.float64), tf.zeros([3 + FIRST_NUMBERS, 6], tf.float64)
    for step in range(100):
        values = np.stack([stream(rng, step) for _ in range(rng.integers(1, 40))]).astype(np.float32)
        values[rng.random(values.shape) < 0.2] = NAN
        values[rng.random(values.shape) < 0.02] = np.inf
        learned = rng.random(len(values)) < 0.8
        seen.append(np.where(learned[:, np.newaxis], values, NAN))
        divided = (np.array_split(rows, workers) for rows in (values, learned))
        statistics, apart = compiled_statistics(workers)(statistics, apart, *divided)
    assert not apart[:3].numpy().any()
    return np.concatenate(seen).astype(np.float64), statistics.numpy()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("stream", STREAMS)
def test_statistics_are_those_of_all_rows_so_far(stream, workers):
    rows, (count, mean, squares) = passed(STREAMS[stream], workers)
    rows[:, 1] = np.sign(rows[:, 1]) * np.log1p(np.abs(rows[:, 1]))
    rows[~np.isfinite(rows)] = np.nan
    np.testing.assert_array_equal(count, np.isfinite(rows).sum(axis=0))
    scale = np.nanstd(rows, axis=0)
    np.testing.assert_allclose(mean, np.nanmean(rows, axis=0), rtol=1e-12, atol=1e-12 * scale.max())
    if stream == "constant":
        # Exactly, so that no later number is a deviation of rounding away.
        assert squares.tolist()[0] == 0 and squares.tolist()[2:] == [0] * 4
    else:
        np.testing.assert_allclose(np.sqrt(squares / count), scale, rtol=1e-9)


@functools.cache
def compiled_statistics_of_a_number() -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    layouts = lay_out_tables([FeatureRows("user", 9, 4, "quality", 0)], numbers=[PLAIN])
    kept = [tf.TensorSpec([rows, 1], tf.float64) for rows in (3, 3 + FIRST_NUMBERS)]

    @tf.function(input_signature=[*kept, tf.TensorSpec([None, 1])])
    def learn(statistics: tf.Tensor, apart: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return next_statistics(layouts, statistics, apart, values, tf.fill([tf.shape(values)[0]], True))

    return learn


def statistics_of(rows: list[float], single_rows: bool) -> tuple[np.ndarray, np.ndarray]:
    """The statistics of a number, and those of what is no part of it; the first batches may be single rows."""
    statistics, apart = tf.zeros([3, 1], tf.float64), tf.zeros([3 + FIRST_NUMBERS, 1], tf.float64)
    ends = [*(range(1, 150) if single_rows else ()), *range(150, len(rows), 100)]
    for part in np.split(np.array(rows, np.float32), ends):
        statistics, apart = compiled_statistics_of_a_number()(statistics, apart, part[:, np.newaxis])
    return statistics.numpy()[:, 0], apart.numpy()[:3, 0]


SENTINELS = {
    "-9999": (-9999, 0, 1),
    "-999999999": (-999999999, 0, 1000),
    "3.4e38": (3.4e38, 50, 10),
    "0 for a time": (0, 1.7e9, 1e5),
}


AT_ONCE, EARLY, LATE = [0], [20, 21, 22, 90], [700, 701, 1300]


@pytest.mark.parametrize(
    ("name", "first", "single_rows"),
    [
        ("-9999", AT_ONCE, True),
        ("-9999", EARLY, False),
        ("-999999999", EARLY, True),
        ("3.4e38", AT_ONCE, False),
        ("3.4e38", LATE, True),
        ("0 for a time", EARLY, True),
        ("0 for a time", LATE, False),
    ],
)
def test_values_that_stand_for_none_are_no_part_of_the_statistics(name, first, single_rows):
    value, mean, deviation = SENTINELS[name]
    rows = (mean + deviation * np.random.default_rng(4).standard_normal(1500)).astype(np.float32)
    rows[first] = value
    found, apart = statistics_of(rows, single_rows)
    others = np.delete(rows, first).astype(np.float64)
    expected = [len(others), others.mean(), ((others - others.mean()) ** 2).sum()]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert apart.tolist() == [len(first), np.float32(value), 0]


@pytest.mark.parametrize("change", [300, 20])
def test_values_count_again_once_they_are_no_exception(change):
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.normal(0, 1, change), rng.normal(1e6, 1, 1200 - change)]).astype(np.float32)
    found, apart = statistics_of(rows, True)
    assert found[0] == len(rows) and not apart.any()
    np.testing.assert_allclose(
        found[1:], [rows.mean(dtype=float), rows.var(dtype=float) * len(rows)], rtol=1e-9
    )
    # Where most are the same, another one is no exception.
    rows = np.zeros(1200)
    rows[100::100] = 5000
    assert statistics_of(rows, True)[0][0] == 1200


def inputs_of(statistics: np.ndarray, values: list[list[float]]) -> list[list[list[float]]]:
    given = split_values(LAYOUTS, tf.constant(values, tf.float32))
    found = look_up_numbers(given, tf.constant(statistics, tf.float64))
    assert all(np.array_equal(one.linear[0], np.zeros([len(values), 1, 1])) for one in found)
    return [one.embeddings[0].numpy()[:, 0].tolist() for one in found]


def test_the_network_reads_numbers_normalized_and_clipped_and_whether_they_are_missing():
    statistics = np.array([[4.0] * 6, [2.0, 0.0, 1.0, 1.0, 50.0, 50.0], [16.0, 4.0, 16.0, 0.0, 1.0, 1.0]])
    rows = [
        [6, np.e - 1, 5, 1.5, -3, 4],
        [1e30, 1 - np.e, 1, 1, 0, 0],
        [-np.inf, NAN, NAN, 1, 7, NAN],
        [NAN, np.inf, 1e9, -1e9, NAN, NAN],
    ]
    plain, amount, vector, raw = inputs_of(statistics, rows)
    assert plain == [[2, 0], [10, 0], [-10, 0], [0, 1]]
    np.testing.assert_allclose(amount, [[1, 0], [-1, 0], [0, 1], [10, 0]], rtol=1e-6)
    # Of the second element all numbers were 1: its deviation is 1.
    assert vector == [[2, 0.5, 0], [0, 0, 0], [0, 0, 1], [10, -10, 0]]
    assert raw == [[-3, 4, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]
    # Before the first row.
    assert inputs_of(np.zeros([3, 6]), rows)[0] == [[6, 0], [10, 0], [-10, 0], [0, 1]]
