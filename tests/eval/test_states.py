"""States that merge by addition: one table of them, and the same properties of all."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ctr.eval.arrays import sigmoid
from ctr.eval.auc import StreamingAUC
from ctr.eval.calibration import Calibration, SliceCalibration
from ctr.eval.intervals import Estimate
from ctr.eval.logloss import Logloss
from ctr.eval.per_query_auc import PerQueryAUC
from ctr.eval.prediction_difference import PredictionDifference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.rows import scored_rows
from ctr.eval.states import BUCKETS, query_bucket


def slices_of(log: Any) -> Any:
    return (log.logit * 10).astype(np.int64) % 7 - 3


def feed_rows(state: Any, log: Any) -> None:
    state.update(scored_rows(*log.columns()))


def feed_slices(state: Any, log: Any) -> None:
    state.update(scored_rows(*log.columns()), slices_of(log))


def feed_pairs(state: Any, log: Any) -> None:
    state.update(sigmoid(log.logit), sigmoid(log.logit + log.label), log.query_id)


def feed_all(state: Any, log: Any) -> None:
    state.update(*log.columns(), {"position": slices_of(log), "ad/id": log.query_id % 50})


# How each is made, and given the rows of a log.
STATES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], None]]] = {
    "auc": (StreamingAUC, feed_rows),
    "per_query_auc": (PerQueryAUC, feed_rows),
    "logloss": (Logloss, feed_rows),
    "calibration": (Calibration, feed_rows),
    "slices": (SliceCalibration, feed_slices),
    "prediction_difference": (PredictionDifference, feed_pairs),
    "progressive": (lambda: ProgressiveMetrics(["position", "ad/id"]), feed_all),
}
EACH = pytest.mark.parametrize("name", STATES)


def stream(name: str, *logs: Any) -> Any:
    make, feed = STATES[name]
    state = make()
    for log in logs:
        feed(state, log)
    return state


def check_same(first: Any, second: Any, rtol: float = 0) -> None:
    arrays, others = first.to_arrays(), second.to_arrays()
    assert set(arrays) == set(others)
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype
        np.testing.assert_allclose(array, others[name], rtol=rtol, atol=rtol, err_msg=name)


@EACH
@settings(max_examples=6)
@given(data=st.data())
def test_any_shards_merged_in_any_order_are_one_stream_of_the_rows_in_any_order(make_log, name, data):
    log = make_log(data.draw(st.integers(0, 10**6)), queries=12)
    ids = np.unique(log.query_id)
    shard = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(ids), max_size=len(ids))))
    shards = [stream(name, log[np.isin(log.query_id, ids[shard == index])]) for index in range(4)]
    merged = stream(name)
    for index in data.draw(st.permutations(range(4))):
        merged.merge(shards[index])
    order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(log.label))
    check_same(merged, stream(name, log[order]), rtol=1e-12)
    # What is merged stays as it is.
    check_same(shards[0], stream(name, log[np.isin(log.query_id, ids[shard == 0])]))


@EACH
def test_a_state_that_was_written_goes_on_bit_for_bit_and_a_cleared_one_is_new(make_log, name):
    first, second = make_log(5, queries=100), make_log(6, queries=100)
    # Logits in all bins, and outside them.
    object.__setattr__(first, "logit", first.logit * 8)
    state, file = stream(name, first), io.BytesIO()
    np.savez(file, **state.to_arrays())
    file.seek(0)
    arrays = dict(np.load(file, allow_pickle=False))
    resumed = type(state).from_arrays(arrays)
    for array in (*arrays.values(), *state.to_arrays().values()):
        # They are copies, both ways.
        array += 1
    check_same(state, stream(name, first))
    check_same(resumed, stream(name, first))
    STATES[name][1](resumed, second)
    check_same(resumed, stream(name, first, second))
    resumed.clear()
    check_same(resumed, stream(name))
    STATES[name][1](resumed, second)
    check_same(resumed, stream(name, second))


@EACH
def test_arrays_of_something_else_are_refused(make_log, name):
    state = stream(name, make_log(0, queries=5))
    arrays = state.to_arrays()
    for key, array in arrays.items():
        others = {other: values for other, values in arrays.items() if other != key}
        wrong = [np.zeros((3, *array.shape)), array.astype({"f": np.float32}.get(array.dtype.kind, np.int32))]
        if array.dtype.kind == "f" and "sums" not in key:
            wrong.append(np.full_like(array, np.nan))
        for changed in (others, *({**arrays, key: one} for one in wrong)):
            with pytest.raises(ValueError, match=r"must (be|hold|have)|has (arrays|states)"):
                type(state).from_arrays(changed)


def test_slices_of_keys_that_no_slice_has_are_refused():
    empty = SliceCalibration().to_arrays()
    for arrays in (
        {**empty, "id": np.zeros(2, np.int64)},
        {**empty, "key": np.zeros(1, np.int64), "sums": np.zeros((4, 1))},
        {**empty, "key": np.zeros(2, np.int64)},
    ):
        with pytest.raises(ValueError, match="SliceCalibration"):
            SliceCalibration.from_arrays(arrays)


def estimates(name: str, state: Any) -> dict[str, tuple[float, Estimate]]:
    """Each of a state's metrics, and its estimate."""
    if name == "logloss":
        entropy = state.normalized_entropy(), state.normalized_entropy_estimate()
        return {"loss": (state.result(), state.estimate()), "entropy": entropy}
    if name == "calibration":
        ratio = state.prediction_ratio(), state.ratio_estimate()
        return {"bias": (state.result(), state.estimate()), "ratio": ratio}
    return {"it": (state.result(), state.estimate())}


@pytest.mark.parametrize("name", [name for name in STATES if name not in ("slices", "progressive")])
def test_a_replicate_is_the_metric_without_a_bucket_of_queries(make_log, name):
    log = make_log(4, queries=60)
    # In the middle of the coarse bins of the replicates of AUC.
    object.__setattr__(log, "logit", np.floor(log.logit * 32) / 32 + 1 / 64)
    # Without the bucket of the first query, whose weight dwarfs all others', these still count.
    log.weight[log.query_id == log.query_id[0]] *= 1e25
    bucket = query_bucket(log.query_id)
    whole = estimates(name, stream(name, log))
    for left_out in np.unique(bucket):
        without = estimates(name, stream(name, log[bucket != left_out]))
        for metric, (point, estimate) in whole.items():
            expected = pytest.approx(without[metric][0], rel=1e-12, abs=1e-12, nan_ok=True)
            assert estimate.replicates[left_out] == expected, metric
            assert float(estimate.point) == point
    counts = (log.weight > 0) | (name == "prediction_difference")
    for _, estimate in whole.values():
        if name == "per_query_auc":
            assert estimate.occupied.sum() < len(np.unique(bucket))
        else:
            assert np.flatnonzero(estimate.occupied).tolist() == np.unique(bucket[counts]).tolist()


# ---------------------------------------------------------------- buckets of queries


def test_the_bucket_of_a_query_is_the_high_byte_of_splitmix64():
    # The published first outputs of splitmix64 seeded with 1234567; a seed's n-th output is the first output
    # of the seed advanced n-1 times.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    gamma = 0x9E3779B97F4A7C15
    seeds = np.array([(1234567 + n * gamma) % 2**64 for n in range(4)], np.uint64).view(np.int64)
    given_in = seeds.copy()
    assert query_bucket(seeds).tolist() == [output >> 56 for output in outputs]
    assert (seeds == given_in).all()
    for ids in (np.arange(50_000), np.arange(50_000) * 2**20, -np.arange(50_000)):
        counts = np.bincount(query_bucket(ids), minlength=BUCKETS)
        assert counts.shape == (BUCKETS,) and stats.chisquare(counts).pvalue > 1e-3
