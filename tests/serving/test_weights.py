"""What differs between two exports' weights, against dictionaries of rows."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.io.arrays import hash_arrays
from ctr.serving.weights import apply_changes, change_counts, find_changes

LAST = np.iinfo(np.int64).max
FIXED = 3
KEYS = st.integers(-5, 5) | st.sampled_from([-(2**63), 2**63 - 2])
NUMBERS = st.sampled_from([0.0, -0.0, 1.5, float("nan")])


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


PLAIN = make_weights({1: 1.0}, [0.0] * FIXED, [1.0, 2.0])
WEIGHTS = st.builds(
    make_weights,
    st.dictionaries(KEYS, NUMBERS),
    st.lists(NUMBERS, min_size=FIXED, max_size=FIXED),
    st.lists(NUMBERS, min_size=2, max_size=2),
)


def as_bytes(weights: dict[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(v.dtype), v.shape, v.tobytes()) for name, v in weights.items()}


def rows_by_key(weights: dict[str, np.ndarray]) -> dict[int, bytes]:
    rows = weights["rows/quality-1"][FIXED:]
    return {int(key): row.tobytes() for key, row in zip(weights["keys/quality-1"][:-1], rows, strict=True)}


@settings(max_examples=60)
@given(WEIGHTS, WEIGHTS)
def test_changes_lead_from_one_to_the_other_bit_by_bit_and_hold_nothing_else(before, after):
    changes, old, new = find_changes(before, after), rows_by_key(before), rows_by_key(after)
    made = apply_changes(before, changes)
    assert as_bytes(made) == as_bytes(after) == as_bytes(apply_changes(made, changes))
    assert hash_arrays(made) == hash_arrays(after)
    assert (hash_arrays(before) == hash_arrays(after)) == (as_bytes(before) == as_bytes(after))
    assert changes["rows/quality-1/keys"].tolist() == [key for key in new if old.get(key) != new[key]]
    assert changes["rows/quality-1/removed"].tolist() == [key for key in old if key not in new]
    fixed = [weights["rows/ui-1"] for weights in (before, after)]
    differing = [row for row in range(FIXED) if fixed[0][row].tobytes() != fixed[1][row].tobytes()]
    assert changes["rows/ui-1/numbers"].tolist() == differing
    assert change_counts(changes) == {
        "quality-1": {
            "fixed": len(differing),
            "ids": len(changes["rows/quality-1/own"]),
            "removed": len(old.keys() - new.keys()),
        },
        "ui-1": {"fixed": len(differing)},
    }


def test_the_hash_covers_name_type_shape_and_every_byte():
    text = b"a float32 (2, 1)\n" + np.array([1, 2], np.float32).tobytes()
    assert hash_arrays({"a": np.array([[1], [2]], np.float32)}) == hashlib.sha256(text).hexdigest()
    changed = [
        {"alpha2": np.array(0.25, np.float32)},
        {"dense/000": PLAIN["dense/000"].view(np.int32)},
        {"dense/000": PLAIN["dense/000"].reshape(2, 1)},
        {"rows/quality-1": PLAIN["rows/quality-1"] * np.float32(-1)},
        {"keys/quality-1": np.array([2, LAST])},
    ]
    hashes = {hash_arrays({**PLAIN, **change}) for change in changed}
    assert len({hash_arrays(PLAIN), *hashes}) == len(changed) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"dense/002": np.zeros(1, np.float32)},
        {"dense/000": np.zeros(3, np.float32)},
        {"dense/000": np.zeros(2, np.float64)},
        {"rows/ui-1": np.zeros((4, 1), np.float32)},
    ],
)
def test_weights_of_another_model_have_no_changes(change):
    for before, after in ((PLAIN, {**PLAIN, **change}), ({**PLAIN, **change}, PLAIN)):
        with pytest.raises(ValueError, match="different variables"):
            find_changes(before, after)
