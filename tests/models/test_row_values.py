"""Initial values of rows: near-normal, and the same wherever and whenever they are drawn."""

import hashlib

import numpy as np

from ctr.models.row_values import initial_rows
from slow_id_map import MASK, splitmix64


def test_a_value_by_hand():
    digest = hashlib.sha256(b"3/1/user").digest()
    first, second = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8))
    fingerprints = [1, -1, -(2**63), 2**63 - 1]
    expected = []
    for value in fingerprints:
        key = splitmix64(splitmix64((value & MASK) ^ first) ^ second)
        row = []
        for column in range(5):
            bits = splitmix64((key + column * 0x9E3779B97F4A7C15) & MASK)
            total = sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 131070
            row.append(np.float32(total) * np.float32(0.1 / ((65536**2 - 1) / 3) ** 0.5))
        expected.append(row)
    found = initial_rows(np.array(fingerprints), "user", 5, 0.1, seed=3, copy=1)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_values_depend_neither_on_the_order_nor_on_other_ids_nor_on_the_number_of_columns():
    fingerprints = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000)
    rows = initial_rows(fingerprints, "user", 7, 0.1, seed=1)
    order = np.random.default_rng(1).permutation(len(rows))
    np.testing.assert_array_equal(initial_rows(fingerprints[order], "user", 7, 0.1, seed=1), rows[order])
    np.testing.assert_array_equal(initial_rows(fingerprints[5:6], "user", 3, 0.1, seed=1), rows[5:6, :3])
