"""The churn of ads between two loops, against sums written out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctr.eval.ads_churn import AdsChurn, compare_loops
from ctr.io.errors import InputError


def plain(first: Any, second: Any) -> dict[str, float]:
    mean_a, mean_b = np.mean(first), np.mean(second)
    absolute = sum(abs(int(a) - int(b)) for a, b in zip(first, second, strict=True))
    return {
        "mean_churn": abs(mean_a - mean_b) / ((mean_a + mean_b) / 2),
        "query_churn": absolute / ((sum(map(int, first)) + sum(map(int, second))) / 2),
    }


def make_loop(
    folder: Path,
    seed: int = 0,
    days: tuple[int, ...] = (5, 6),
    queries: int = 300,
    world: int = 0,
    **columns: Any,
) -> Path:
    rng = np.random.default_rng(seed)
    rows = len(days) * queries
    table = {
        "day": np.repeat(np.array(days, np.int32), queries),
        "query_id": np.ravel([day * 10**6 + np.arange(queries) for day in days]).astype(np.int64),
        "randomized": np.arange(rows) % 7 == 0,
        "ads": rng.integers(0, 7, rows).astype(np.int16),
        **columns,
    }
    (folder / "log").mkdir(parents=True)
    (folder / "log" / "world.yaml").write_text(f"seed: {world}\n")
    pd.DataFrame(table).to_parquet(folder / "shown.parquet")
    return folder


def churn(state: AdsChurn) -> dict[str, float]:
    return {name: float(estimate.point) for name, estimate in state.estimates().items()}


def test_churn_of_a_few_queries_is_that_worked_by_hand():
    state = AdsChurn()
    # 1 + 0 + 4 + 0 of differences; 8 ads against 9.
    state.update([2, 6, 0, 0], [3, 2, 4, 0], [1, 2, 3, 4])
    assert state.ads_per_query() == (2.0, 2.25)
    assert churn(state) == {"mean_churn": pytest.approx(1 / 8.5), "query_churn": pytest.approx(9 / 8.5)}
    # Equal loops, and a mean that stays while every query changes; of no ads there is no churn.
    for first, second, wanted in (([3], [3], (0, 0)), ([0, 5], [5, 0], (0, 2)), ([0], [0], (math.nan,) * 2)):
        state = AdsChurn()
        state.update(first, second, list(range(len(first))))
        assert tuple(churn(state).values()) == pytest.approx(wanted, abs=0, nan_ok=True)
    with pytest.raises(ValueError, match="first must hold counts of at least 0, got -1"):
        state.update([-1], [2], [3])
    with pytest.raises(ValueError, match="columns must have one length, got first 1, second 2, query_id 2"):
        state.update([1], [2, 3], [3, 4])


def test_two_loops_by_day_without_randomized_queries(tmp_path):
    a, b = make_loop(tmp_path / "a", 1), make_loop(tmp_path / "b", 2)
    tables = [pd.read_parquet(loop / "shown.parquet").query("not randomized") for loop in (a, b)]
    reported = json.loads(json.dumps(compare_loops(a, b).as_dict(), allow_nan=False))
    assert [day["day"] for day in reported["days"]] == [5, 6]
    for part, day in ((reported, None), (reported["days"][0], 5), (reported["days"][1], 6)):
        first, second = (table[(table["day"] == day) | (day is None)]["ads"] for table in tables)
        assert part["queries"] == len(first)
        means = part["ads_per_query"]
        assert (means["a"], means["b"]) == pytest.approx((first.mean(), second.mean()))
        for name, value in plain(first, second).items():
            assert part[name]["value"] == pytest.approx(value)
            low, high = part[name]["ci95"]
            assert low < value < high
    assert reported["query_churn"]["ci95"][0] > 0
    text = compare_loops(a, b).as_text().splitlines()
    assert [line.split()[0] for line in text[-3:]] == ["5", "6", "all"]
    assert f"{100 * reported['query_churn']['value']:.1f}"[:-1] in text[-1]


def test_loops_that_cannot_be_compared_are_refused(tmp_path):
    good, all_drawn = make_loop(tmp_path / "good"), np.ones(600, bool)
    for number, (columns, message) in enumerate(
        (
            ({"days": (5, 6, 7)}, "different queries, 600 on the days 5 to 6 and 900 on the days 5 to 7"),
            ({"randomized": np.arange(600) % 7 == 1}, "served different queries"),
            ({"days": ()}, "600 on the days 5 to 6 and none"),
            # Queries have the same numbers in all worlds.
            ({"world": 1}, "are of different worlds, see log/world.yaml of each"),
            ({"ads": np.full(600, 1.5)}, "ads must hold whole numbers without nulls, got float64"),
            ({"ads": np.full(600, -1)}, "ads must be at least 0, got -1"),
            ({"randomized": np.zeros(600, np.int8)}, "randomized must hold true or false without nulls"),
            ({"query_id": np.zeros(600, np.int64)}, "a query appears twice; allowed: each once"),
        )
    ):
        bad = make_loop(tmp_path / f"bad{number}", **columns)
        with pytest.raises(InputError, match=message) as refusal:
            compare_loops(good, bad)
        assert "\n" not in str(refusal.value)
    with pytest.raises(InputError, match=r"absent/shown\.parquet: no such file; allowed: a finished output"):
        compare_loops(tmp_path / "absent", good)
    path = bad / "shown.parquet"
    pd.DataFrame({"day": [1]}).to_parquet(path)
    with pytest.raises(InputError, match="not readable as the queries of a loop"):
        compare_loops(good, bad)
    path.write_bytes((good / "shown.parquet").read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{path}: not readable as the queries of a loop"):
        compare_loops(good, bad)
    # Logs without a world are of any; and what showed nothing or served nothing has no churn.
    (good / "log" / "world.yaml").unlink()
    assert compare_loops(good, make_loop(tmp_path / "other", world=1)).as_dict()["queries"] == 514
    for name, columns in (
        ("nothing", {"ads": np.zeros(600, np.int16)}),
        ("drawn", {"randomized": all_drawn}),
    ):
        loop = make_loop(tmp_path / name, **columns)
        comparison = compare_loops(loop, loop)
        assert comparison.as_dict()["mean_churn"] == {"value": None, "ci95": [None, None]}
        assert comparison.as_dict()["queries"] == (0 if name == "drawn" else 514)
        assert comparison.as_text()
