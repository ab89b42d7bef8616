"""What a search leaves, made by hand."""

from typing import Any

from ctr.search.record import ControllerRecord


def record(**entries: Any) -> dict[str, Any]:
    """A search by halving over two rungs, with one candidate that failed; ``entries`` replace its own."""
    return {
        "title": "A <search>",
        "note": "note & more",
        "method": "halving",
        "command": "ctr search search.yaml",
        "ctr_version": "0.1.0",
        "log": "logs/clicks",
        "log_sha256": "a" * 64,
        "seed": 3,
        "target": 0.8,
        "purpose": "training",
        "measure": "flops",
        "space": {"rank": [0, 1, 2, 3], "layers": [1, 2]},
        "size": 8,
        "baseline": {"rank": 3, "layers": 2},
        "rows": 5000,
        "prefix_rows": 2500,
        "prefix_end": "2026-01-01T00:00:00Z",
        "rungs": [_rung(1, "2026-01-01", ["c1", "c3"]), _rung(2, None, ["c3"])],
        "passes": 2.345,
        "chosen": "c3",
        "values": {"rank": 3},
        "cost": 0.9,
        "judged": [
            {
                "part": "rest",
                "rows": 2500,
                "metrics": {"per_query_auc": _judged(0.01, True), "logloss": _judged(-0.004, False)},
            },
            {"part": "whole", "rows": 5000, "metrics": {}, "missing": "no <run>"},
        ],
        **entries,
    }


def course() -> list[ControllerRecord]:
    """A controller that learns; nothing was drawn before its first record."""
    return [
        ControllerRecord(
            examples=1000 * step,
            steps=step,
            entropy=2 / (step + 1),
            probabilities={
                "rank": [0.25 - 0.01 * step, 0.25, 0.25, 0.25 + 0.01 * step],
                "layers": [0.5, 0.5],
            },
            baseline=0.1,
            mean_reward=None if step == 0 else -0.5 + 0.01 * step,
            mean_cost=None if step == 0 else 1 - 0.01 * step,
        )
        for step in range(8)
    ]


def _rung(number: int, end: str | None, kept: list[str]) -> dict[str, Any]:
    tried = [_tried("c1", 0.6, -0.01), _tried("c3", 0.9, -0.02), _tried("baseline", 1.0, 0.0)]
    tried += [_tried(f"c{place}", 0.5 + place / 20, 0.01 * place) for place in range(4, 16)]
    failed = {"name": "c99", "values": {"rank": 1, "layers": 1}, "cost": 2.0, "failure": "out of <memory>"}
    return {
        "folder": f"rung{number}",
        "end": end,
        "rows": 1000 * number,
        "tried": [*tried, failed],
        "kept": kept,
    }


def _tried(name: str, cost: float, difference: float) -> dict[str, Any]:
    values = {} if name == "baseline" else {"rank": int(name[1:]) % 4, "layers": 2}
    ends = {"low": difference - 0.002, "high": difference + 0.002}
    return {
        "name": name,
        "values": values,
        "cost": cost,
        "logloss": 0.5 + difference,
        "difference": difference,
    } | ends


def _judged(difference: float, significant: bool) -> dict[str, Any]:
    return {
        "baseline": 0.5,
        "searched": 0.5 + difference,
        "difference": difference,
        "low": difference - 0.001,
        "high": difference + 0.001,
        "percent": 200 * difference,
        "by_seed": {"1": difference, "2": 1.1 * difference},
        "significant": significant,
    }
