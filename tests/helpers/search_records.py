"""What a search leaves, made by hand."""

from typing import Any

from ctr.eval.display import Number
from ctr.eval.tidy import row
from ctr.search.record import ControllerRecord, JudgedNumber, Judgement, SearchRecord, Tried


def record(**entries: Any) -> SearchRecord:
    """A random search with one candidate that failed; ``entries`` replace its own."""
    judged = _judgement()
    given = {
        "title": "A <search>", "note": "note & more", "method": "random", "command": "ctr search search.yaml",
        "ctr_version": "0.1.0", "log": "logs/clicks", "log_sha256": "a" * 64, "seed": 3, "target": 0.8,
        "purpose": "training", "space": {"rank": [0, 1, 2, 3], "layers": [1, 2]}, "size": 8,
        "baseline": {"rank": 3, "layers": 2}, "rows": 5000, "prefix_rows": 2500, "prefix_end": "2026-01-01T00:00:00Z",
        "tried": _trials(), "passes": 2.345, "chosen": "c3", "values": {"rank": 3}, "cost": 0.9, "judged": judged,
    }  # fmt: skip
    return SearchRecord(**(given | entries))


def course() -> list[ControllerRecord]:
    """A controller that learns; nothing was drawn before its first record."""
    drawn = [{}, *({"mean_reward": -0.5 + 0.01 * step, "mean_cost": 1 - 0.01 * step} for step in range(1, 8))]
    choices = {"rank": [0.1, 0.2, 0.3, 0.4], "layers": [0.5, 0.5]}
    none = {"baseline": 0.1, "mean_reward": None, "mean_cost": None, "probabilities": choices}
    return [
        ControllerRecord(examples=1000 * step, steps=step, entropy=2 / (step + 1), **(none | own))
        for step, own in enumerate(drawn)
    ]


def _trials() -> list[Tried]:
    tried = [_tried("c3", 0.9, -0.02), _tried("c1", 0.6, -0.01), _tried("baseline", 1.0, 0.0)]
    tried += [_tried(f"c{place}", 0.5 + place / 20, 0.01 * place) for place in range(4, 16)]
    tried.append(Tried(name="c99", values={"rank": 1, "layers": 1}, cost=2.0, failure="out of <memory>"))
    return tried


def _tried(name: str, cost: float, difference: float) -> Tried:
    values = {} if name == "baseline" else {"rank": int(name[1:]) % 4, "layers": 2}
    ends = {"difference": difference, "low": difference - 0.002, "high": difference + 0.002}
    return Tried(name=name, values=values, cost=cost, logloss=0.5 + difference, **ends)


def _judgement() -> Judgement:
    rows = [row("rows", 2500, window="rest")]
    for metric, difference, significant in (("per_query_auc", 0.01, 1.0), ("logloss", -0.004, 0.0)):
        of = {"arm": "searched", "window": "rest"}
        rows += [
            row(metric, 0.5, arm="baseline", window="rest"),
            row(metric, 0.5 + difference, **of),
            row(f"{metric}_difference", Number(difference, difference - 0.001, difference + 0.001), **of),
            row(f"{metric}_change_percent", 200 * difference, **of),
            row(f"{metric}_difference", difference, seed=1, **of),
            row(f"{metric}_difference", 1.1 * difference, seed=2, **of),
            row(f"{metric}_significant", significant, **of),
        ]
    results = [JudgedNumber(**one) for one in rows]
    return Judgement(results=results, missing={"whole": "no <run>"})
