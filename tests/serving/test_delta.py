"""What differs between two exports' weights, against dictionaries of rows."""

import hashlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr.serving.weights import apply_changes, change_counts, find_changes, hash_weights

LAST = np.iinfo(np.int64).max
FIXED = 3
KEYS = st.integers(-5, 5) | st.sampled_from([-(2**63), 2**63 - 2])
NUMBERS = st.sampled_from([0.0, -0.0, 1.5, float("nan")])
TABLES = st.dictionaries(KEYS, NUMBERS)


def make_weights(ids: dict[int, float], fixed: list[float], dense: list[float]) -> dict[str, np.ndarray]:
    keys = sorted(ids)
    rows = np.array([*fixed, *(ids[key] for key in keys)], np.float32)
    return {
        "rows/quality-1": np.stack([rows, np.full_like(rows, 2)], axis=1),
        "keys/quality-1": np.array([*keys, LAST], np.int64),
        "rows/ui-1": np.array(fixed, np.float32)[:, np.newaxis],
        "dense/000": np.array(dense, np.float32),
        "dense/001": tf.constant(dense, tf.bfloat16).numpy(),
        "alpha2": np.array(0.5, np.float32),
    }


WEIGHTS = st.builds(
    make_weights,
    TABLES,
    st.lists(NUMBERS, min_size=FIXED, max_size=FIXED),
    st.lists(NUMBERS, min_size=2, max_size=2),
)


def as_bytes(weights: dict[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(v.dtype), v.shape, v.tobytes()) for name, v in weights.items()}


@given(WEIGHTS, WEIGHTS)
def test_changes_lead_from_one_to_the_other_bit_by_bit(before, after):
    changes = find_changes(before, after)
    made = apply_changes(before, changes)
    assert as_bytes(made) == as_bytes(after)
    assert hash_weights(made) == hash_weights(after)
    assert (hash_weights(before) == hash_weights(after)) == (as_bytes(before) == as_bytes(after))


def rows_by_key(weights: dict[str, np.ndarray]) -> dict[int, bytes]:
    rows = weights["rows/quality-1"][FIXED:]
    return {int(key): row.tobytes() for key, row in zip(weights["keys/quality-1"][:-1], rows, strict=True)}


@given(WEIGHTS, WEIGHTS)
def test_changes_hold_the_rows_that_differ_and_no_others(before, after):
    changes, old, new = find_changes(before, after), rows_by_key(before), rows_by_key(after)
    assert changes["rows/quality-1/keys"].tolist() == [key for key in new if old.get(key) != new[key]]
    assert changes["rows/quality-1/removed"].tolist() == [key for key in old if key not in new]
    differing = [row for row in range(FIXED) if as_row(before, row) != as_row(after, row)]
    assert changes["rows/ui-1/numbers"].tolist() == differing
    assert change_counts(changes) == {
        "quality-1": {
            "fixed": len(differing),
            "ids": len(changes["rows/quality-1/own"]),
            "removed": len(old.keys() - new.keys()),
        },
        "ui-1": {"fixed": len(differing)},
    }


def as_row(weights: dict[str, np.ndarray], row: int) -> bytes:
    return weights["rows/ui-1"][row].tobytes()


def test_the_hash_covers_name_type_shape_and_every_byte():
    weights = make_weights({1: 1.0}, [0.0] * FIXED, [1.0, 2.0])
    text = b"a float32 (2, 1)\n" + np.array([1, 2], np.float32).tobytes()
    assert hash_weights({"a": np.array([[1], [2]], np.float32)}) == hashlib.sha256(text).hexdigest()
    changed: list[dict[str, Any]] = [
        {"alpha2": np.array(0.25, np.float32)},
        {"dense/000": weights["dense/000"].view(np.int32)},
        {"dense/000": weights["dense/000"].reshape(2, 1)},
        {"rows/quality-1": weights["rows/quality-1"] * np.float32(-1)},
        {"keys/quality-1": np.array([2, LAST])},
    ]
    hashes = {hash_weights({**weights, **change}) for change in changed}
    assert len({hash_weights(weights), *hashes}) == len(changed) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"dense/002": np.zeros(1, np.float32)},
        {"dense/000": np.zeros(3, np.float32)},
        {"dense/000": np.zeros(2, np.float64)},
        {"rows/ui-1": np.zeros((4, 1), np.float32)},
        {"rows/quality-1": np.zeros((5, 2), np.float32)},
    ],
)
def test_weights_of_another_model_have_no_changes(change):
    weights = make_weights({1: 1.0}, [0.0] * FIXED, [1.0, 2.0])
    with pytest.raises(ValueError, match="different variables"):
        find_changes(weights, {**weights, **change})
    with pytest.raises(ValueError, match="different variables"):
        find_changes({**weights, **change}, weights)
