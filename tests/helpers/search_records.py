"""What a search leaves, made by hand."""

from typing import Any

from ctr.search.record import ControllerRecord, SearchRecord


def record(**entries: Any) -> SearchRecord:
    """A search that ended; ``entries`` replace its own."""
    given = {
        "title": "A <search>", "note": "note & more", "command": "ctr search search.yaml",
        "ctr_version": "0.1.0", "log": "logs/clicks", "log_sha256": "a" * 64, "seed": 3, "target": 0.8,
        "purpose": "training", "space": {"rank": [0, 1, 2, 3], "layers": [1, 2]}, "size": 8,
        "baseline": {"rank": 3, "layers": 2}, "rows": 5000, "prefix_rows": 2500, "prefix_end": "2026-01-01T00:00:00Z",
        "examples": 2500, "passes": 2.345, "chosen": "c3", "values": {"rank": 1}, "cost": 0.9,
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
