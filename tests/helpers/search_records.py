"""What a search leaves, made by hand."""

from typing import Any

from ctr.search.record import ControllerRecord, JudgedMetric, Judgement, SearchRecord, Tried


def record(**entries: Any) -> SearchRecord:
    """A random search with one candidate that failed; ``entries`` replace its own."""
    metrics = {"per_query_auc": _judged(0.01, True), "logloss": _judged(-0.004, False)}
    judged = [Judgement(part="rest", rows=2500, metrics=metrics)]
    judged.append(Judgement(part="whole", rows=5000, missing="no <run>"))
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


def _judged(difference: float, significant: bool) -> JudgedMetric:
    ends = {"difference": difference, "low": difference - 0.001, "high": difference + 0.001}
    by_seed = {"1": difference, "2": 1.1 * difference}
    values = {"baseline": 0.5, "searched": 0.5 + difference, "percent": 200 * difference}
    return JudgedMetric(**values, **ends, by_seed=by_seed, significant=significant)
