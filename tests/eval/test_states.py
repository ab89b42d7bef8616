import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ctr.eval.auc import StreamingAUC
from ctr.eval.calibration import Calibration
from ctr.eval.logloss import Logloss
from ctr.eval.per_query_auc import PerQueryAUC
from ctr.eval.rows import scored_rows
from ctr.eval.states import SumState

STATES = [StreamingAUC, PerQueryAUC, Logloss, Calibration]


def stream(kind: Any, *logs: Any) -> Any:
    state = kind()
    for log in logs:
        state.update(scored_rows(*log.columns()))
    return state


def assert_states_equal(first: SumState, second: SumState, rtol: float = 0) -> None:
    assert type(first) is type(second)
    for name in first.LAYOUT:
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=rtol, atol=0)


@pytest.mark.parametrize("kind", STATES)
def test_merge_is_commutative_and_associative(kind: Any, make_log: Callable[..., Any]) -> None:
    logs = [make_log(seed) for seed in range(3)]
    a, b, c = (stream(kind, log) for log in logs)
    left, right, backward = (stream(kind) for _ in range(3))
    left.merge(a), left.merge(b), left.merge(c)
    right.merge(b), right.merge(c)
    right.merge(a)
    backward.merge(c), backward.merge(b), backward.merge(a)
    whole = stream(kind, *logs)
    for merged in (left, right, backward):
        assert_states_equal(merged, whole, rtol=1e-12)
    assert_states_equal(b, stream(kind, logs[1]))


@pytest.mark.parametrize("kind", STATES)
def test_round_trip_is_exact(kind: Any, make_log: Callable[..., Any]) -> None:
    state = stream(kind, make_log(0))
    file = io.BytesIO()
    np.savez(file, **state.to_arrays())
    file.seek(0)
    again = kind.from_arrays(np.load(file, allow_pickle=False))
    assert_states_equal(again, state)
    again.update(scored_rows(*make_log(1).columns()))
    assert_states_equal(again, stream(kind, make_log(0), make_log(1)))


@pytest.mark.parametrize("kind", STATES)
def test_arrays_are_copies_both_ways(kind: Any, make_log: Callable[..., Any]) -> None:
    state = stream(kind, make_log(0))
    arrays = state.to_arrays()
    again = kind.from_arrays(arrays)
    for array in arrays.values():
        array += 1
    assert_states_equal(state, stream(kind, make_log(0)))
    assert_states_equal(again, state)


def test_foreign_arrays_are_refused() -> None:
    arrays = Logloss().to_arrays()
    with pytest.raises(ValueError, match=r"Logloss has arrays \['class_weight', 'loss'\], got \['loss'\]"):
        Logloss.from_arrays({"loss": arrays["loss"]})
    with pytest.raises(ValueError, match=r"Logloss.loss must be float64 \(256,\), got float32 \(256,\)"):
        Logloss.from_arrays(arrays | {"loss": arrays["loss"].astype(np.float32)})
    with pytest.raises(ValueError, match=r"Logloss.loss must be float64 \(256,\), got float64 \(1,\)"):
        Logloss.from_arrays(arrays | {"loss": np.zeros(1)})
