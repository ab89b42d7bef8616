"""What the benchmark makes of what it measured: which part an operation belongs to, and which targets are met."""

from typing import Any

import bench
from parts import profile


def test_an_event_counts_without_those_within_it():
    events = [(0, 100, "outer"), (10, 30, "inner"), (15, 5, "innermost"), (60, 10, "inner"), (100, 7, "next")]
    found: dict[str, int] = {}
    for name, own in profile.own_times(reversed(events)):
        found[name] = found.get(name, 0) + own
    assert found == {"outer": 60, "inner": 35, "innermost": 5, "next": 7}
    assert list(profile.own_times([])) == []
    parts = profile.by_part({"deep/a:A": 1.0, "gradient_tape/deep/a:B": 2.0, "x:C": 1.0})
    assert parts["deep"] == {"forward_ms": 1.0, "backward_ms": 2.0, "share": 0.75}
    assert sum(part["share"] for part in parts.values()) == 1 and parts["row_update"]["share"] == 0


def measured(step: float, row_update: float) -> dict[str, Any]:
    times = {"ratio": step, "low": None, "high": None}
    return {
        "environment": {},
        "step": {
            "over_fastest_bfloat16": {"times_as_fast": times},
            "over_fastest_float32": {"times_as_fast": times | {"ratio": 1.29}},
        },
        "profile": {"adagrad": {"parts": {"row_update": {"share": row_update}}}},
    }


def test_targets_are_met_from_their_own_side():
    met = [one["met"] for one in bench.judge(measured(1.6, 0.15))]
    assert met == [True, False, True]
    # With matrix units and without.
    missed = bench.judge(measured(1.19, 0.151))
    assert [one["met"] for one in missed] == [False, False, False]
    assert missed[0]["limit"] in ("at least 1.20x", "at least 1.50x")
    assert missed[1]["limit"] == "at least 1.30x" and missed[2]["limit"] == "at most 15.0%"
    assert "| 15.1% | NOT met |" in bench.targets_report(missed)
    # What no operation was found for is not met, and an overhead is a ratio without its 1.
    unknown = bench.judge(measured(2.0, 0.0))[2]
    assert unknown["measured"] == "not measured" and not unknown["met"]
    assert bench.judge({"environment": {}}) == []
    found = {"shampoo": {str(batch): {"over_adagrad": {"ratio": 1.12}} for batch in (4096, 16384)}}
    assert [(one["measured"], one["limit"], one["met"]) for one in bench.judge(found)] == [
        ("12.0%", "at most 25.0%", True),
        ("12.0%", "at most 10.0%", False),
    ]
