"""How well a search by weight sharing ranks architectures, beside training each of them alone.

    python benchmarks/search.py --out runs/search [--rows 120000] [--log-seed 11] [--seeds 10]

A space of 81 architectures (``search_world.py``). Each is trained alone with three seeds over the log, and judged by
its progressive logloss over the last fifth, which no search reads. Then the supernet is trained on the first four
fifths, by the same code as ``ctr search`` runs, with several seeds:

    fair       the controller does not learn: does the ranking of all 81 by the shared weights agree (Kendall's tau)?
    penalty    at a target of cost: which architecture does the search end with, and how far is it from the best?
    rejection  the same with candidates above the target drawn again (TabNAS)
    random     what training as many candidates alone as the search costs would have found, expected over all draws

An architecture alone is the supernet under its masks, which tests prove to be the smaller network, with weights that
begin as those of the smaller network do; so one compiled step trains all. The same command again goes on after what is
done. ``--set key=value`` changes the controller.
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from convergence import only_process
from scipy.stats import kendalltau
from search_world import BASE, SPACE, make_log

from ctr.config import apply_settings, parse_model
from ctr.io.files import write_atomic_bytes
from ctr.models.initial_weights import init_weights
from ctr.search.config import SearchConfig
from ctr.search.controller import Policy
from ctr.search.cost import cost_of, counted
from ctr.search.shared_weights import Plan, SharedState, SharedTrainer, batch_loss
from ctr.search.space import Choice, space_of
from ctr.search.supernet import check_supernet, search_supernet
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic
from ctr.training.inputs import open_inputs, read_feeds
from ctr.training.run import checkpoint
from ctr.training.state import architecture

ALONE_SEEDS = (1, 2, 3)
HELD_BACK = 0.2


class Bench:
    """The log, the space and one compiled step for everything that is trained or scored here."""

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
        self.largest = check_supernet(self.space, self.base)
        self._trainer: SharedTrainer | None = None

    def config(self, mode: str, seed: int, **changes: Any) -> SearchConfig:
        content = {"mode": mode, **self.controller, **changes}
        given = {"space": SPACE, "target": self.target, "seed": seed, "controller": content}
        return parse_model(SearchConfig, given, "benchmark")

    @property
    def trainer(self) -> SharedTrainer:
        """Steps of the supernet on a state that is set anew for each run."""
        if self._trainer is None:
            inputs = open_inputs(self.log, self.largest)
            config = self.config("penalty", 1, learners=1, extremes="none")
            policy = Policy(self.space, self.cost, self.target, config.controller, 1)
            plan = Plan(config, self.space, self.base, policy, self.rows, self.out / "unused.jsonl")
            make_deterministic(1)
            state = SharedState(plan, self.largest, inputs.schema, inputs.families)
            self.layouts, self.start = state.layouts, {k: np.array(v) for k, v in state.arrays().items()}
            self.feeds = list(read_feeds(inputs, state.layouts, 0, {}))
            self._trainer = SharedTrainer(plan, state, self.largest, None)
        return self._trainer

    @property
    def held_back(self) -> int:
        """The number of the first batch that no search reads."""
        _ = self.trainer
        ends = [feed.batch.end for feed in self.feeds]
        return next(at for at, end in enumerate(ends) if end > self.rows * (1 - HELD_BACK))

    def alone(self, choice: Choice, seed: int) -> float:
        """The progressive logloss over the held-back part of a candidate trained alone."""
        trainer = self.trainer
        trainer.state.restore(self._first_weights(choice, seed))
        losses, examples = [], 0
        for feed in self.feeds:
            ramps, rates = self.largest.ramps_at(examples), self.largest.rates_at(examples)
            losses.append(batch_loss(feed, trainer.learn_by([choice], feed, ramps, rates).logit))
            examples += len(feed.batch.rows)
        return float(np.mean(losses[self.held_back :]))

    def _first_weights(self, choice: Choice, seed: int) -> dict[str, np.ndarray]:
        """The beginning of a run of a candidate alone, in the places that its masks leave."""
        config = self.space.apply(self.base, choice)
        kept = {name: min(width, 12) for name, width in config.model.widths.items()}
        columns, begin = [], 0
        for layout in self.layouts:
            for feature in layout.features:
                columns += range(begin, begin + kept[feature.name])
                begin += layout.width
        small = init_weights(architecture(config, "float32"), {"quality": len(columns)}, seed)
        arrays = {name: array.copy() for name, array in self.start.items()}
        names = list(self.trainer.state.weights)
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
        """The logloss of every candidate over the held-back part, by the weights that a supernet has come to."""
        arrays, _ = checkpoint.read(run / "checkpoints")
        weights = {n.removeprefix("weights|"): a for n, a in arrays.items() if n.startswith("weights|")}
        trainer = self.trainer
        trainer.state.restore(weights)
        ramps = self.largest.ramps_at(self.rows)
        return [
            float(
                np.mean(
                    [batch_loss(f, trainer.score_by(c, f, ramps).logit) for f in self.feeds[self.held_back :]]
                )
            )
            for c in self.every
        ]

    def search(self, mode: str, seed: int) -> dict[str, Any]:
        """A whole search, and the ranking by its weights."""
        changes = {"learning_rate": 1e-9} if mode == "fair" else {}
        config = self.config("penalty" if mode == "fair" else mode, seed, **changes)
        folder = self.out / "supernets" / self.name / f"{mode}-{seed}"
        base = self.prefix.model_copy(update={"seed": seed})
        found = search_supernet(config, self.space, self.cost, base, self.log, folder, lambda line: None)
        losses = self.shared(folder / f"pass-{math.ceil(config.controller.passes)}")
        return {"choice": self.every.index(found.choice), "passes": found.passes, "losses": losses}


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """What is in a file, computed where it is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic_bytes(path, json.dumps(compute()).encode())
    return json.loads(path.read_text())


def interval(values: Sequence[float], seed: int = 0) -> str:
    """The mean with its 95% interval by the bootstrap over seeds."""
    drawn = np.random.default_rng(seed).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{np.mean(values):.4f} [{low:.4f}, {high:.4f}]"


def random_regret(alone: np.ndarray, allowed: np.ndarray, count: int, draws: int = 20_000) -> np.ndarray:
    """The regrets of random searches: each trains ``count`` allowed candidates once and takes the best run."""
    rng, means = np.random.default_rng(0), alone.mean(axis=1)
    best, regrets = means[allowed].min(), []
    for _ in range(draws):
        tried = rng.choice(np.flatnonzero(allowed), count, replace=False)
        seen = alone[tried, rng.integers(0, alone.shape[1], count)]
        regrets.append(means[tried[seen.argmin()]] - best)
    return np.array(regrets)


def report(bench: Bench, alone: np.ndarray, searches: Mapping[str, list[dict[str, Any]]]) -> str:
    """The table, in Markdown."""
    means, allowed = alone.mean(axis=1), bench.costs <= bench.target
    ceiling = np.mean([kendalltau(alone[:, i], alone[:, j])[0] for i in range(3) for j in range(i)])
    lines = [
        f"{len(means)} architectures alone, {alone.shape[1]} seeds: logloss {means.min():.4f} to {means.max():.4f}, "
        f"deviation between seeds {alone.std(axis=1, ddof=1).mean():.4f}; tau between seeds {ceiling:.2f}",
        f"{allowed.sum()} of them cost at most {bench.target:g} of the baseline",
        "",
        "| search | tau, all | rank of 81 | above target | cost | regret | passes |",
        "|---|---|---|---|---|---|---|",
    ]
    order = np.argsort(np.argsort(means)) + 1
    best = means[allowed].min()
    for mode, runs in searches.items():
        taus = [kendalltau(run["losses"], means)[0] for run in runs]
        chosen = np.array([run["choice"] for run in runs])
        # The controller of a fair supernet has no preference: the best by the shared weights is taken.
        if mode == "fair":
            chosen = np.array([np.argmin(np.where(allowed, run["losses"], np.inf)) for run in runs])
        passes = np.mean([run["passes"] for run in runs])
        lines.append(
            f"| {mode} ({len(runs)}) | {np.mean(taus):.2f} ({min(taus):.2f} to {max(taus):.2f}) | "
            f"{', '.join(map(str, order[chosen]))} | {np.mean(~allowed[chosen]):.0%} | "
            f"{bench.costs[chosen].mean():.2f} | {interval(list(means[chosen] - best))} | {passes:.2f} |"
        )
        count = max(1, math.floor(passes / bench.costs[allowed].mean()))
        regrets = random_regret(alone, allowed, count)
        low, high = np.percentile(regrets, [2.5, 97.5])
        lines.append(
            f"| random, {count} alone | | | 0% | | {regrets.mean():.4f}, of single searches {low:.4f} to {high:.4f} | "
            f"{count * bench.costs[allowed].mean():.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--log-seed", type=int, default=11)
    parser.add_argument("--seeds", type=int, default=10, help="of each search")
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--modes", nargs="+", default=["fair", "penalty", "rejection"])
    parser.add_argument("--set", action="append", default=[], help="of the controller, key=value")
    arguments = parser.parse_args()
    controller = apply_settings({}, arguments.set)
    with only_process(arguments.out):
        bench = Bench(arguments.out, arguments.rows, arguments.log_seed, controller, arguments.target)
        alone = [
            [
                kept(
                    arguments.out / "alone" / f"{at}-{seed}.json", lambda c=choice, s=seed: bench.alone(c, s)
                )
                for seed in ALONE_SEEDS
            ]
            for at, choice in enumerate(bench.every)
        ]
        folder = arguments.out / "searches" / bench.name
        searches = {
            mode: [
                kept(
                    folder / f"{mode}-{seed}.json",
                    lambda m=mode, s=seed: bench.search(m, s),
                )
                for seed in range(1, arguments.seeds + 1)
            ]
            for mode in arguments.modes
        }
        text = report(bench, np.array(alone), searches)
        write_atomic_bytes(arguments.out / "table.md", (text + "\n").encode())
    print(text)


if __name__ == "__main__":
    main()
