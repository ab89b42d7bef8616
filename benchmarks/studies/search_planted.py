"""Tests whether a search by weight sharing finds a known optimum, and compares rejection with the penalty.

    python benchmarks/study.py search_planted [--out runs/planted] [--rows 12000] [--seeds 10] [--set learners=1]

A world has seven features with effects of different sizes (``Planted``), one of them a noisy copy of the strongest: it
is worth more than any other without the original, and nothing beside it. The search decides which features the model
has besides one that it always has; the target is the cost of two of them, times ``--slack``, too small for a third. So
the optimum is the strongest and the second-strongest feature without the copy. This is checked with the world's own
probabilities, without any training: ``margin`` is the excess logloss of the next best candidate. Each seed has a
different world.
"""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from reference import category_schema, publish_log
from runner import cached_json, main

from ctr.config import apply_settings, parse_model
from ctr.search.config import SearchConfig
from ctr.search.problem import cost_of, counted
from ctr.search.space import Choice, Space, space_of
from ctr.search.supernet import search_supernet
from ctr.training.config import TrainConfig

EFFECTS = {"a": 0.5, "b": 1.2, "b_copy": 0.0, "c": 0.8, "d": 0.4, "e": 0.2, "f": 0.0}
"""The standard deviation of each feature's effects; ``b_copy`` has b's id in a share ``COPIED`` of the rows."""
COPIED = 0.85
EFFECT_IDS = 40
SCHEMA = category_schema(dict.fromkeys(EFFECTS, EFFECT_IDS))
CONTENT: dict[str, Any] = {
    "batch": {"rows": 100},
    "model": {
        "crosses": {"layers": 0},
        "deep": {"units": [16]},
        "init_scale": 0.05,
        "experts": ["network"],
        "prior": 0.2,
        "widths": dict.fromkeys(EFFECTS, 8),
    },
    "optimizer": {"dense": {"learning_rate": 0.02}},
    "compute_dtype": "float32",
}
SPACE: dict[str, list[Any]] = {f"features.{name}": [True, False] for name in EFFECTS if name != "a"}
"""Space of 64 architectures: every model has the feature a."""


class Planted:
    """Log of a world whose clicks depend on the sum of independent effects of features.

    Attributes:
        optimum: the best candidate with at most two features besides a.
    """

    optimum = frozenset({"b", "c"})

    def __init__(self, rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._ids = {name: rng.integers(1, EFFECT_IDS, rows) for name in EFFECTS}
        self._ids["b_copy"] = np.where(rng.random(rows) < COPIED, self._ids["b"], self._ids["b_copy"])
        self._effects = {name: rng.normal(size=EFFECT_IDS) * size for name, size in EFFECTS.items()}
        parts = [self._effects[name][self._ids[name]] for name in EFFECTS]
        self._logit = np.sum(parts, axis=0) - 1.5
        self._label = rng.random(rows) < 1 / (1 + np.exp(-self._logit))

    def logloss(self, features: Collection[str], draws: int = 400) -> float:
        """Estimates the expected logloss of the best prediction from a and ``features``, on the first 4000 rows.

        Effects of other features are averaged over random ids; for b with its copy known, mostly the copy's id.
        """
        rows = slice(0, 4000)
        seen = {"a", *features}
        count = len(self._logit[rows])
        logit = np.full((draws, count), -1.5)
        rng = np.random.default_rng(0)
        for name, effects in self._effects.items():
            if name in seen:
                logit += effects[self._ids[name][rows]]
                continue
            drawn = rng.integers(1, EFFECT_IDS, (draws, count))
            if name == "b" and "b_copy" in seen:
                drawn = np.where(rng.random((draws, count)) < COPIED, self._ids["b_copy"][rows], drawn)
            logit += effects[drawn]
        predicted = (1 / (1 + np.exp(-logit))).mean(axis=0)
        truth = 1 / (1 + np.exp(-self._logit[rows]))
        return float(-np.mean(truth * np.log(predicted) + (1 - truth) * np.log1p(-predicted)))

    def publish(self, folder: Path) -> Path:
        """Publishes the log, with four rows per query; returns its folder."""
        ids = np.stack([self._ids[name] for name in EFFECTS], axis=1).astype(np.int32)
        return publish_log(folder, SCHEMA, ids, self._label)


BASE = parse_model(TrainConfig, CONTENT, "benchmark")


def features_of(space: Space, choice: Choice) -> set[str]:
    """Returns the optional features that a candidate has."""
    return {name.partition(".")[2] for name, has_it in space.values(choice).items() if has_it}


def search(rows: int, seed: int, slack: float, controller: Mapping[str, Any]) -> dict[str, Any]:
    """Searches in the world of a seed; returns the choice and its distance from the optimum."""
    world = Planted(rows, seed)
    space = space_of(parse_model(SearchConfig, {"space": SPACE}, "benchmark"))
    planted = next(choice for choice in space.candidates() if features_of(space, choice) == world.optimum)
    with tempfile.TemporaryDirectory() as folder:
        log = world.publish(Path(folder) / "log")
        cost = cost_of(space, BASE, counted(log, "training"))
        # The operations per example depend slightly on the ids in a batch.
        target = 1.001 * slack * cost(planted)
        settings = {"space": SPACE, "target": target, "seed": seed, "controller": dict(controller)}
        config = parse_model(SearchConfig, settings, "benchmark")
        base = BASE.model_copy(update={"seed": seed})
        result = search_supernet(config, space, cost, base, log, Path(folder) / "out", lambda line: None)
    allowed = [choice for choice in space.candidates() if cost(choice) <= target]
    losses = {choice: world.logloss(features_of(space, choice)) for choice in allowed}
    first, second = sorted(losses.values())[:2]
    return {
        "planted": result.choice == planted,
        "is_optimum": losses[planted] == first,
        "margin": second - first,
        "regret": world.logloss(features_of(space, result.choice)) - first,
        "features": sorted(features_of(space, result.choice)),
        "cost": cost(result.choice) / target,
        "passes": result.passes,
    }


def measure(
    out: Path = Path("runs/planted"),
    rows: int = 12_000,
    seeds: int = 10,
    slack: tuple[float, ...] = (1.0, 1.2),
    modes: tuple[str, ...] = ("rejection", "penalty"),
    set: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Returns a row for each slack and mode; finished searches are read from ``out``."""
    changes = apply_settings({}, set)
    names = "-".join([str(rows), *set])

    results: dict[str, Any] = {}
    margins: list[float] = []
    for times in slack:
        for mode in modes:
            runs = [
                cached_json(
                    out / f"{names}-{mode}-{times:g}-{seed}.json",
                    lambda m=mode, t=times, s=seed: search(rows, s, t, {**changes, "mode": m}),
                )
                for seed in range(1, seeds + 1)
            ]
            margins += [run["margin"] for run in runs if run["is_optimum"]]
            results[f"{mode}, target {times:g} of the optimum's cost"] = {
                "optimum found": f"{sum(run['planted'] for run in runs)} of {len(runs)}",
                "above target": sum(run["cost"] > 1 for run in runs),
                "cost over target": float(np.mean([run["cost"] for run in runs])),
                "regret": float(np.mean([run["regret"] for run in runs])),
                "passes": float(np.mean([run["passes"] for run in runs])),
                "worlds in which another candidate is better": sum(not run["is_optimum"] for run in runs),
            }
    return {
        "searches": results,
        "margin to the second best": [min(margins, default=None), max(margins, default=None)],
    }


if __name__ == "__main__":
    main(measure, {"rows": 2000, "seeds": 1, "slack": (1.0,), "modes": ("rejection",)})
