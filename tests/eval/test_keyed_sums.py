import math
from collections import defaultdict

import numpy as np

from ctr.eval.calibration import KeyedSums


def test_agrees_with_a_dict_while_it_grows() -> None:
    rng = np.random.default_rng(0)
    table = KeyedSums(width=2)
    expected: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for batch in range(40):
        # Old keys, new keys, repeated keys, negative keys; enough to overflow the small table many times.
        keys = rng.zipf(1.15, 300).clip(max=10**9) * rng.choice([-1, 1], 300)
        values = rng.normal(size=(2, 300))
        table.add(keys, values)
        for key, first, second in zip(keys.tolist(), *values.tolist(), strict=True):
            expected[key].append((first, second))
        if batch % 13 == 0 or batch == 39:
            found, sums = table.items()
            assert found.tolist() == sorted(expected)
            exact = [
                [math.fsum(column) for column in zip(*expected[key], strict=True)] for key in found.tolist()
            ]
            np.testing.assert_allclose(sums.T, exact, rtol=0, atol=1e-11)
    assert len(found) > 3 * 1024


def test_sums_do_not_depend_on_when_the_table_is_read_or_restored() -> None:
    rng = np.random.default_rng(1)
    batches = [(rng.integers(0, 3000, 500), rng.normal(size=(1, 500))) for _ in range(20)]
    steady, restored = KeyedSums(width=1), KeyedSums(width=1)
    for keys, values in batches:
        steady.add(keys, values)
        restored.add(keys, values)
        copy = KeyedSums(width=1)
        copy.add(*restored.items())
        restored = copy
    np.testing.assert_array_equal(steady.items()[0], restored.items()[0])
    np.testing.assert_array_equal(steady.items()[1], restored.items()[1])


def test_items_are_copies() -> None:
    table = KeyedSums(width=1)
    table.add(np.array([1, 2]), np.array([[1.0, 2.0]]))
    table.items()[1][:] = 9
    assert table.items()[1].tolist() == [[1.0, 2.0]]
    assert KeyedSums(width=3).items()[1].shape == (3, 0)
