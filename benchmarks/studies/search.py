"""Measures how well a search by weight sharing ranks architectures, compared with training each of them alone.

    python benchmarks/study.py search [--out runs/search] [--rows 120000] [--seeds 10] [--set KEY=VALUE ...]

In a small world the architecture of a network matters, because clicks depend on products of two features' vectors. Each
of 81 architectures is trained alone with three seeds over the log, and judged by its progressive logloss over the last
fifth, which no search reads. Then the supernet is trained on the first four fifths, by the same code as in
``ctr search``, with several seeds:

    fair       the controller does not learn: does the ranking of all 81 by the shared weights agree (Kendall's tau)?
    penalty    at a target cost: which architecture does the search return, and how far is it from the best?
    rejection  the same with candidates above the target drawn again (TabNAS)
    random     the expected result of training as many candidates alone as the search costs

An architecture alone is the supernet under its masks, which tests prove to be the smaller network, with weights
initialized as in the smaller network; so one compiled step trains all. Repeating the command continues with the
missing results. ``--set KEY=VALUE ...`` changes the controller.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from reference import SLATE, category_schema, publish_log
from runner import cached_json, main
from scipy.stats import kendalltau

from ctr.config import apply_settings, parse_model
from ctr.models.initial_weights import init_weights
from ctr.search.config import SearchConfig
from ctr.search.controller import Policy
from ctr.search.problem import cost_of, counted
from ctr.search.shared_weights import Plan, SharedState, SharedStep, batch_loss
from ctr.search.space import Choice, space_of
from ctr.search.supernet import check_supernet, search_supernet
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic
from ctr.training.experts.forward import make_experts
from ctr.training.inputs import open_inputs, read_feeds
from ctr.training.run import checkpoint

ALONE_SEEDS = (1, 2, 3)
HELD_BACK = 0.2

IDS = {"user": 40, "item": 60, "hour": 24, "noise": 500}
SCHEMA = category_schema(IDS)

BASE: dict[str, Any] = {
    "batch": {"rows": 200},
    "model": {
        "crosses": {"layers": 2, "rank": 8, "ramp": 2000},
        "deep": {"units": [32, 32]},
        "init_scale": 0.1,
        "experts": ["network"],
        "prior": 0.2,
        "widths": {"user": 12, "item": 12, "hour": 2, "noise": 2},
    },
    "optimizer": {"dense": {"learning_rate": 0.02}},
    "compute_dtype": "float32",
}
SPACE: dict[str, list[Any]] = {
    "model.crosses.layers": [0, 1, 2],
    "model.deep.units.0": [2, 8, 32],
    "model.deep.units.1": [2, 8, 32],
    "model.widths.user,item": [1, 4, 12],
}
"""Space of 81 architectures, of which the base is the largest."""


def make_log(folder: Path, rows: int, seed: int) -> Path:
    """Publishes a log with linear effects, products of user and item vectors, and of first entries of hour and user."""
    rng = np.random.default_rng(seed)
    queries = rows // SLATE
    query = np.repeat(np.arange(queries), SLATE)
    users, hours = rng.integers(1, IDS["user"], queries)[query], rng.integers(1, IDS["hour"], queries)[query]
    items, noise = (rng.integers(1, IDS[name], len(query)) for name in ("item", "noise"))
    vectors = {name: rng.normal(size=(IDS[name], 4)) for name in ("user", "item", "hour")}
    linear = {name: rng.normal(size=IDS[name]) * 0.4 for name in ("user", "item", "hour")}
    logit = linear["user"][users] + linear["item"][items] + linear["hour"][hours] - 1.8
    logit += 0.8 * np.sum(vectors["user"][users] * vectors["item"][items], axis=1)
    logit += 0.5 * np.maximum(vectors["hour"][hours, 0] * vectors["user"][users, 0], 0)
    label = rng.random(len(query)) < 1 / (1 + np.exp(-logit))
    ids = np.stack([users, items, hours, noise], axis=1).astype(np.int32)
    return publish_log(folder, SCHEMA, ids, label)


class Bench:
    """The log, the search space, and one compiled step for all training and scoring."""

    def __init__(
        self, out: Path, rows: int, log_seed: int, controller: Mapping[str, Any], target: float
    ) -> None:
        self.out, self.controller, self.target = out, dict(controller), target
        self.name = "_".join([f"target={target:g}", *(f"{key}={value}" for key, value in controller.items())])
        self.log = out / "log"
        if not (self.log / "schema.json").exists():
            make_log(self.log, rows, log_seed)
        self.rows = rows
        end_us = int(rows * (1 - HELD_BACK)) // 4 * 1000
        self.end = f"1970-01-01T00:00:{end_us / 1e6:09.6f}+00:00"
        self.base = parse_model(TrainConfig, BASE, "benchmark")
        self.prefix = self.base.model_copy(
            update={"time_range": parse_model(TrainConfig, {"time_range": {"end": self.end}}, "b").time_range}
        )
        config = self.config("penalty", 1)
        self.space = space_of(config)
        self.every = list(self.space.candidates())
        self.cost = cost_of(self.space, self.base, counted(self.log, "training"))
        self.costs = np.array([self.cost(choice) for choice in self.every])
        self.largest = check_supernet(self.space, self.base, config.controller.extremes != "none")

    def config(self, mode: str, seed: int, **changes: Any) -> SearchConfig:
        content = {"mode": mode, **self.controller, **changes}
        settings = {"space": SPACE, "target": self.target, "seed": seed, "controller": content}
        return parse_model(SearchConfig, settings, "benchmark")

    @cached_property
    def step(self) -> SharedStep:
        """Returns the supernet's compiled step, whose state is reset for each run."""
        inputs = open_inputs(self.log, self.largest)
        config = self.config("penalty", 1, learners=1, extremes="none")
        policy = Policy(self.space, self.cost, self.target, config.controller, 1)
        plan = Plan(config, self.space, self.base, policy, self.rows, self.out / "unused.jsonl")
        make_deterministic(1)
        state = SharedState(plan, self.largest, inputs.schema, inputs.families)
        self.layouts, self.start = state.layouts, {k: np.array(v) for k, v in state.arrays().items()}
        self.feeds = list(read_feeds(inputs, lambda: state.layouts))
        # The first batch that no search reads.
        ends = [feed.batch.end for feed in self.feeds]
        self.held_back = next(at for at, end in enumerate(ends) if end > self.rows * (1 - HELD_BACK))
        return SharedStep(plan, state, self.largest, None)

    def alone(self, choice: Choice, seed: int) -> float:
        """Trains a candidate alone; returns its progressive logloss over the held-back part."""
        step = self.step
        step.state.restore(self._first_weights(choice, seed))
        losses, examples = [], 0
        for feed in self.feeds:
            ramps, rates = self.largest.ramps_at(examples), self.largest.rates_at(examples)
            losses.append(batch_loss(feed, step.learn_by([choice], feed, ramps, rates).logit))
            examples += len(feed.batch.rows)
        return float(np.mean(losses[self.held_back :]))

    def _first_weights(self, choice: Choice, seed: int) -> dict[str, np.ndarray]:
        """Returns the supernet's state with a candidate's own initial weights in the entries that its masks keep."""
        config = self.space.apply(self.base, choice)
        widths = {name: min(width, 12) for name, width in config.model.widths.items()}
        columns, begin = [], 0
        for layout in self.layouts:
            for feature in layout.features:
                columns += range(begin, begin + widths[feature.name])
                begin += layout.width
        network = make_experts(config.model, config.objective, "float32", ()).network
        small = init_weights(network, {"quality": len(columns)}, seed)
        arrays = {name: array.copy() for name, array in self.start.items()}
        names = list(self.step.state.weights)
        for name, weight in small.items():
            big = arrays[f"dense/{names.index(name):03d}"]
            value, where = weight.numpy(), [np.arange(size) for size in weight.shape]
            if "cross" in name or name == "quality/deep_0/w":
                for axis, size in enumerate(value.shape):
                    if size == len(columns) and big.shape[axis] == begin:
                        where[axis] = np.array(columns)
            big[np.ix_(*where) if where else ...] = value
        rng = np.random.default_rng(seed)
        for layout in self.layouts:
            table = arrays[f"rows/{layout.name}"]
            table[:, : layout.width] = (
                rng.normal(size=(len(table), layout.width)) * self.base.model.init_scale
            )
        return arrays

    def shared(self, run: Path) -> list[float]:
        """Returns the logloss of every candidate over the held-back part with the weights of a trained supernet."""
        arrays, _ = checkpoint.read(run / "checkpoints")
        weights = {n.removeprefix("weights|"): a for n, a in arrays.items() if n.startswith("weights|")}
        step = self.step
        step.state.restore(weights)
        ramps, feeds = self.largest.ramps_at(self.rows), self.feeds[self.held_back :]
        return [
            float(np.mean([batch_loss(feed, step.score_by(choice, feed, ramps).logit) for feed in feeds]))
            for choice in self.every
        ]

    def search(self, mode: str, seed: int) -> dict[str, Any]:
        """Makes a whole search; returns its choice, its cost in passes, and the losses of all candidates."""
        changes = {"learning_rate": 1e-9} if mode == "fair" else {}
        config = self.config("penalty" if mode == "fair" else mode, seed, **changes)
        folder = self.out / "supernets" / self.name / f"{mode}-{seed}"
        base = self.prefix.model_copy(update={"seed": seed})
        result = search_supernet(config, self.space, self.cost, base, self.log, folder, lambda line: None)
        losses = self.shared(folder / "run")
        return {"choice": self.every.index(result.choice), "passes": result.passes, "losses": losses}


def interval(values: Sequence[float], seed: int = 0) -> str:
    """Formats the mean with its 95% bootstrap interval over seeds."""
    drawn = np.random.default_rng(seed).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{np.mean(values):.4f} [{low:.4f}, {high:.4f}]"


def random_regret(alone: np.ndarray, allowed: np.ndarray, count: int, draws: int = 20_000) -> np.ndarray:
    """Simulates searches that train ``count`` random allowed candidates once and take the best run; returns regrets."""
    rng, means = np.random.default_rng(0), alone.mean(axis=1)
    best, regrets = means[allowed].min(), []
    for _ in range(draws):
        tried = rng.choice(np.flatnonzero(allowed), count, replace=False)
        seen = alone[tried, rng.integers(0, alone.shape[1], count)]
        regrets.append(means[tried[seen.argmin()]] - best)
    return np.array(regrets)


def rows_of(bench: Bench, alone: np.ndarray, searches: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns a row for each kind of search, and one for random search with equally many passes."""
    means, allowed = alone.mean(axis=1), bench.costs <= bench.target
    order, best = np.argsort(np.argsort(means)) + 1, means[allowed].min()
    rows: dict[str, Any] = {}
    for mode, runs in searches.items():
        chosen = np.array([run["choice"] for run in runs])
        # The controller of a fair supernet has no preference: the best by the shared weights is taken.
        if mode == "fair":
            chosen = np.array([np.argmin(np.where(allowed, run["losses"], np.inf)) for run in runs])
        passes = float(np.mean([run["passes"] for run in runs]))
        rows[mode] = {
            "tau of each seed": [round(float(kendalltau(run["losses"], means)[0]), 2) for run in runs],
            "rank": order[chosen].tolist(),
            "above target": float(np.mean(~allowed[chosen])),
            "cost": float(bench.costs[chosen].mean()),
            "regret": interval(means[chosen] - best),
            "passes": passes,
        }
        count = max(1, math.floor(passes / bench.costs[allowed].mean()))
        regrets = random_regret(alone, allowed, count)
        low, high = np.percentile(regrets, [2.5, 97.5])
        rows[f"random beside {mode}, {count} alone"] = {
            "regret": f"{regrets.mean():.4f}, of single searches {low:.4f} to {high:.4f}",
            "passes": count * float(bench.costs[allowed].mean()),
        }
    return rows


def measure(
    out: Path = Path("runs/search"),
    rows: int = 120_000,
    log_seed: int = 11,
    seeds: int = 10,
    target: float = 0.5,
    modes: tuple[str, ...] = ("fair", "penalty", "rejection"),
    set: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Makes missing runs of single architectures and missing searches; returns the tables."""
    bench = Bench(out, rows, log_seed, apply_settings({}, set), target)
    alone = np.array(
        [
            [
                cached_json(out / "alone" / f"{at}-{seed}.json", lambda c=choice, s=seed: bench.alone(c, s))
                for seed in ALONE_SEEDS
            ]
            for at, choice in enumerate(bench.every)
        ]
    )
    folder = out / "searches" / bench.name
    searches = {
        mode: [
            cached_json(folder / f"{mode}-{seed}.json", lambda m=mode, s=seed: bench.search(m, s))
            for seed in range(1, seeds + 1)
        ]
        for mode in modes
    }
    return {
        "alone": {
            "architectures": len(alone),
            "logloss": [float(alone.mean(axis=1).min()), float(alone.mean(axis=1).max())],
            "deviation between seeds": float(alone.std(axis=1, ddof=1).mean()),
            "tau between seeds": float(
                np.mean([kendalltau(alone[:, i], alone[:, j])[0] for i in range(3) for j in range(i)])
            ),
            "at most the target": int((bench.costs <= target).sum()),
        },
        "searches": rows_of(bench, alone, searches),
    }


if __name__ == "__main__":
    main(measure, {"rows": 4000, "seeds": 1, "modes": ("fair",)})
