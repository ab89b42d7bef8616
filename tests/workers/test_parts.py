"""Arrays in parts: divided, written down, put together, and divided otherwise."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.workers.parts import Deal, Part, Sharding, reshard, reshard_to, shard


@settings(max_examples=40)
@given(
    st.integers(1, 4).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.tuples(*[st.integers(0, size - 1)] * 2), min_size=1, max_size=12)
        )
    )
)
def test_rows_in_any_order_and_written_down(given_):
    """Of each row who has it before, and who after."""
    size, owners = given_
    total = len(owners)

    def divided(turn: int) -> list[Part]:
        rows = [[row for row in reversed(range(total)) if owners[row][turn] == rank] for rank in range(size)]
        parts = [Part(np.array(own, np.int64), total) for own in rows]
        again = [Part.from_json(json.loads(json.dumps(part.as_json()))) for part in parts]
        assert [(part.total, part.rows.tolist()) for part in again] == [(total, own) for own in rows]
        return again

    whole = np.arange(2.0 * total).reshape(total, 2)
    saved = [(part, shard(whole, part)) for part in divided(0)]
    np.testing.assert_array_equal(reshard(saved), whole)
    for wanted in divided(1):
        # File by file.
        found = None
        for one in saved:
            found = reshard_to(wanted, [one], found)
        np.testing.assert_array_equal(found, shard(whole, wanted))


def test_the_rows_of_a_large_table_take_no_room():
    in_runs = Part((np.arange(50)[:, np.newaxis] * 1000 + np.arange(100)).ravel(), 10**6)
    for part, most in ((Deal(2, 7).part(10**6), 100), (Deal(2, 7).part(0), 100), (in_runs, 1000)):
        text = json.dumps(part.as_json())
        assert len(text) < most
        np.testing.assert_array_equal(Part.from_json(json.loads(text)).rows, part.rows)
    assert Deal(2, 7).part(20).rows.tolist() == [2, 9, 16]


def test_single_elements_of_an_array_of_any_shape():
    whole = np.arange(12.0).reshape(3, 4)
    parts = [Part(np.array(rows), 12, (3, 4)) for rows in ([0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11])]
    saved = [(part, shard(whole, part)) for part in parts]
    np.testing.assert_array_equal(reshard(saved), whole)
    wanted = Part(np.array([11, 0]), 12, (3, 4))
    assert reshard_to(wanted, saved).tolist() == [11, 0]
    assert Part.from_json(json.loads(json.dumps(wanted.as_json()))).shape == (3, 4)


def test_a_row_in_two_parts_or_in_none_and_a_part_of_another_array():
    parts = [(Part(np.array(rows), 4), np.zeros((2, 1))) for rows in ([0, 1], [1, 2])]
    with pytest.raises(ValueError, match="row 1 is in 2 parts"):
        reshard(parts)
    with pytest.raises(ValueError, match="row 2 is in 0 parts"):
        reshard(parts[:1])
    with pytest.raises(ValueError, match="4 rows"):
        shard(np.zeros(5), Part(np.array([3, 0]), 4))


def test_a_worker_has_every_so_manyth_row_of_some_arrays_parts_of_others_and_the_rest_whole():
    own = Part(np.array([3, 0]), 4)
    sharding = Sharding(Deal(1, 3), {"rows": 7, "sums": 7}, {"roots": own})
    assert [name in sharding for name in ("rows", "roots", "step")] == [True, True, False]
    assert sharding.parts().keys() == {"rows", "sums", "roots"}
    assert sharding.parts()["rows"] is sharding.parts()["sums"]
    assert sharding.parts()["rows"].rows.tolist() == [1, 4]
    # Of an array that was longer where it was written.
    assert sharding.part("rows", 9).rows.tolist() == [1, 4, 7]
    assert sharding.part("roots", 4) is own and sharding.part("step", 0) is None
