"""Arrays in parts: written down, and put together."""

import json

import numpy as np
import pytest

from ctr.workers.parts import Deal, Part, reshard, shard


def test_the_rows_of_a_large_table_take_no_room():
    in_runs = Part((np.arange(50)[:, np.newaxis] * 1000 + np.arange(100)).ravel(), 10**6)
    for part, most in ((Deal(2, 7).part(10**6), 100), (Deal(2, 7).part(0), 100), (in_runs, 1000)):
        text = json.dumps(part.as_json())
        assert len(text) < most
        np.testing.assert_array_equal(Part.from_json(json.loads(text)).rows, part.rows)
    assert Deal(2, 7).part(20).rows.tolist() == [2, 9, 16]


def test_a_row_in_two_parts_or_in_none_and_a_part_of_another_array():
    parts = [(Part(np.array(rows), 4), np.zeros((2, 1))) for rows in ([0, 1], [1, 2])]
    with pytest.raises(ValueError, match="row 1 is in 2 parts"):
        reshard(parts)
    with pytest.raises(ValueError, match="row 2 is in 0 parts"):
        reshard(parts[:1])
    with pytest.raises(ValueError, match="4 rows"):
        shard(np.zeros(5), Part(np.array([3, 0]), 4))
