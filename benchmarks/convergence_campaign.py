"""Which runs are made, in which order; each stage follows from the results before it, so all can be resumed."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from convergence_search import EXTRA_TRIES, Point, best_point, is_settled, next_point
from convergence_settings import (
    OPTIMIZERS,
    PARENT,
    RETUNED,
    Plan,
    train_config,
)
from convergence_store import Record, Runner, SimulatedLog

from ctr.optim.shampoo.options import ShampooOptions

Changes = Mapping[str, Any]

# Examples a second, until runs of the same kind tell better.
_GUESSED_SPEED = {64: 12_000, 512: 35_000, 2048: 55_000, 8192: 65_000, 32768: 65_000}
SWEEP_WORLD, CONFIRM_WORLD = 1, 2
SWEEP_SEED, ABLATION_SEED = 1, 2
START = Point(embedding=2, accumulator=-2)
"""Where the search begins at the first batch size, with the optimizer's own rate: 0.2 for embeddings, an accumulator of
1e-8."""


@dataclass
class Sweep:
    """The tries of an optimizer at a batch size, in their order.

    Attributes:
        start: where the search began.
        accumulator: whether the accumulator is tuned.
        tries: points and their records.
    """

    start: Point
    accumulator: bool = True
    tries: dict[Point, Record] = field(default_factory=dict)

    @property
    def results(self) -> dict[Point, float]:
        """What the search minimizes."""
        return {point: finite(record["objective"]) for point, record in self.tries.items()}

    @property
    def best(self) -> Point:
        """The winner so far."""
        return best_point(self.results)

    @property
    def settled(self) -> bool:
        """Whether the winner is inside of what was tried."""
        return is_settled(self.results, self.start, self.accumulator)


@dataclass
class Confirmation:
    """The long runs of an optimizer at a batch size.

    Attributes:
        tried: with the first seed, by factors of the sweep's dense and embedding rates.
        runs: of the best of them, by seed.
    """

    tried: dict[tuple[float, float], Record] = field(default_factory=dict)
    runs: dict[int, Record] = field(default_factory=dict)

    @property
    def best(self) -> tuple[float, float]:
        """The factors of the best run."""
        return min(self.tried, key=lambda one: finite(self.tried[one]["objective"]))


@dataclass
class Results:
    """All that is there; of what is missing there is no entry."""

    sweeps: dict[int, dict[str, Sweep]] = field(default_factory=dict)
    confirmations: dict[int, dict[str, Confirmation]] = field(default_factory=dict)
    ablations: dict[int, dict[str, Record]] = field(default_factory=dict)
    logistic_regression: Record | None = None


def finite(value: float | None) -> float:
    """The value; infinity for one that JSON could not hold."""
    return float("inf") if value is None or value != value else value


def search_alike(
    starts: Mapping[str, Point], tries: int, limit: int, run: Callable[[str, Point], Record | None]
) -> dict[str, Sweep]:
    """Tunes all optimizers, turn by turn, by one rule and with the same number of tries.

    Args:
        starts: where each optimizer's search begins.
        tries: of each.
        limit: of tries, when one of them is not settled.
        run: makes a run; None when it is not there and shall not be computed.
    """
    sweeps = {name: Sweep(start, OPTIMIZERS[name].accumulator) for name, start in starts.items()}
    while True:
        for name, sweep in sweeps.items():
            while len(sweep.tries) < tries:
                point = next_point(sweep.results, sweep.start, sweep.accumulator)
                if point is None or (record := run(name, point)) is None:
                    break
                sweep.tries[point] = record
        if tries >= limit or all(sweep.settled for sweep in sweeps.values()):
            return {name: sweep for name, sweep in sweeps.items() if sweep.tries}
        tries = min(tries + EXTRA_TRIES, limit)


class Clock:
    """Tells how far the work is and how long the rest may take."""

    def __init__(self, records: Mapping[str, Record], say: Callable[[str], None]) -> None:
        self._records = records
        self._say = say
        self._planned: Counter[tuple[str, int, int]] = Counter()
        self._total = 0

    def plan(self, optimizer: str, batch: int, examples: int, runs: int) -> None:
        """Announces runs."""
        self._planned[optimizer, batch, examples] += runs
        self._total += runs

    def drop(self, optimizer: str, batch: int, examples: int, runs: int) -> None:
        """Takes runs back that are not needed."""
        known = self._planned[optimizer, batch, examples]
        self._planned[optimizer, batch, examples] = max(known - runs, 0)
        self._total -= min(known, runs)

    def done(self, optimizer: str, batch: int, examples: int, text: str | None) -> None:
        """A run is done; ``text`` is shown, unless it was there before."""
        key = optimizer, batch, examples
        if self._planned[key]:
            self._planned[key] -= 1
        else:
            self._total += 1
        if text is not None:
            left = sum(self._planned.values())
            minutes = sum(self._seconds(*key) * runs for key, runs in self._planned.items()) / 60
            self._say(
                f"{time.strftime('%H:%M:%S')} [{self._total - left}/{self._total}, {minutes:.0f} min left] {text}"
            )

    def _seconds(self, optimizer: str, batch: int, examples: int) -> float:
        alike = [record for record in self._records.values() if record["batch"] == batch]
        same = [record for record in alike if record["optimizer"] == optimizer] or alike
        if not same:
            return examples / _GUESSED_SPEED.get(batch, 40_000)
        return examples * sum(r["seconds"] for r in same) / sum(r["examples"] for r in same)


class Campaign:
    """The runs on simulated logs.

    Args:
        plan: how much is computed.
        runner: makes the runs.
        compute: whether runs that are missing are made.
        changes: of the options of all Shampoo runs.
        say: shows a line.
    """

    def __init__(
        self, plan: Plan, runner: Runner, compute: bool, changes: Changes, say: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.changes = changes
        self.results = Results()
        self._runner = runner
        self._compute = compute
        self._clock = Clock(runner.store.records, say)

    def run(self) -> Results:
        """Everything of the plan, or as much of it as is there."""
        for batch in self.plan.batches:
            for name in self.plan.optimizers:
                self._clock.plan(name, batch, self.plan.sweep_examples[batch], self.plan.tries)
                long_runs = len(self.plan.confirm_rates) + len(self.plan.seeds) - 1
                self._clock.plan(name, batch, self.plan.confirm_examples, long_runs)
        for batch in self.plan.ablation_batches:
            variants = len(self._variants()) + 1
            self._clock.plan("shampoo_nesterov", batch, self.plan.sweep_examples[batch], variants)
        for batch in self.plan.batches:
            self._sweep(batch)
            self._confirm(batch)
            if self.results.logistic_regression is None:
                self.results.logistic_regression = self._logistic_regression(batch)
        for batch in self.plan.ablation_batches:
            if "shampoo_nesterov" in self.results.sweeps.get(batch, {}):
                self._ablate(batch)
        return self.results

    def _obtain(
        self,
        stage: str,
        name: str,
        batch: int,
        values: Mapping[str, float],
        seed: int,
        changes: Changes | None = None,
        title: str = "",
    ) -> Record | None:
        plan, optimizer = self.plan, OPTIMIZERS[name]
        examples = plan.confirm_examples if stage == "confirm" else plan.sweep_examples[batch]
        log = self._log(CONFIRM_WORLD if stage == "confirm" else SWEEP_WORLD, examples)
        if log is None:
            return None
        changes = {**self.changes, **(changes or {})} if optimizer.precondition else {}
        config = train_config(plan, optimizer, batch, values, seed, changes)
        facts: Record = {"stage": stage, "optimizer": name, "batch": batch, **values}
        facts |= {"changes": dict(changes), "title": title}
        record, fresh = self._runner.run(log, config, facts, self._compute)
        if record is None:
            return None
        record = {**record, "objective": record["excess_half"]}
        shown = f"{stage} {title} {optimizer.title} batch {batch} seed {seed}: rate {values['rate']:g}, "
        shown += f"embedding {values['embedding']:g}, accumulator {values['accumulator']:g} -> excess "
        shown += f"{record['excess']}, last half {record['excess_half']}, {record['seconds']} s"
        self._clock.done(name, batch, examples, shown if fresh else None)
        return record

    def _log(self, world: int, examples: int) -> SimulatedLog | None:
        settings = self.plan.simulator(examples, world)
        return self._runner.log(f"world-{world}-{examples}", settings, self._compute)

    def _logistic_regression(self, batch: int) -> Record | None:
        """How far the long log's truth is from main effects."""
        log = self._log(CONFIRM_WORLD, self.plan.confirm_examples)
        if log is None:
            return None
        model = {"prior": self.plan.model["prior"], "crosses": {"layers": 0}, "deep": {"units": []}}
        plan = replace(self.plan, model=model)
        config = train_config(
            plan,
            OPTIMIZERS["adagrad"],
            batch,
            replace(START, rate=OPTIMIZERS["adagrad"].start).values,
            self.plan.seeds[0],
            {},
        )
        facts = {"stage": "reference", "optimizer": "logistic_regression", "batch": batch}
        return self._runner.run(log, config, facts, self._compute)[0]

    def _sweep(self, batch: int) -> None:
        before = self.results.sweeps.get(PARENT.get(batch, -1), {})
        starts = {
            name: before[name].best if name in before else replace(START, rate=OPTIMIZERS[name].start)
            for name in self.plan.optimizers
        }
        self.results.sweeps[batch] = search_alike(
            starts,
            self.plan.tries,
            self.plan.limit,
            lambda name, point: self._obtain("sweep", name, batch, point.values, SWEEP_SEED),
        )

    def _confirm(self, batch: int) -> None:
        found = self.results.confirmations.setdefault(batch, {})
        first, *others = self.plan.seeds
        for name, sweep in self.results.sweeps[batch].items():

            def attempt(factors: tuple[float, float], seed: int, name: str = name, sweep: Sweep = sweep):
                return self._obtain("confirm", name, batch, _scaled(sweep.best, *factors), seed)

            found[name] = confirmation = Confirmation(tried=self._tune_on_long_log(attempt))
            if len(confirmation.tried) < len(self.plan.confirm_rates):
                continue
            best = confirmation.best
            confirmation.runs[first] = confirmation.tried[best]
            for seed in others:
                record = attempt(best, seed)
                if record is not None:
                    confirmation.runs[seed] = record

    def _tune_on_long_log(
        self, attempt: Callable[[tuple[float, float], int], Record | None]
    ) -> dict[tuple[float, float], Record]:
        """What was tried around the winner of the short log: a longer pass may want other rates."""
        first, tried = self.plan.seeds[0], {}
        for factor in self.plan.confirm_rates:
            record = attempt((factor, 1.0), first)
            if record is not None:
                tried[factor, 1.0] = record
        if len(tried) < len(self.plan.confirm_rates):
            return tried
        for _ in range(self.plan.confirm_extensions):
            rate, embedding = Confirmation(tried).best
            neighbours = [(rate * f, embedding) for f in (2.0, 0.5)] + [
                (rate, embedding * f) for f in (2.0, 0.5)
            ]
            missing = next((point for point in neighbours if point not in tried), None)
            record = attempt(missing, first) if missing is not None else None
            if missing is None or record is None:
                break
            tried[missing] = record
        return tried

    def _variants(self) -> list[tuple[str, float, Changes]]:
        known = set(ShampooOptions.names())
        return [
            (title, factor, change)
            for title, change in self.plan.ablations.items()
            if set(change) <= known
            for factor in ((1.0, 2.0, 0.5) if title in RETUNED else (1.0,))
        ]

    def _ablate(self, batch: int) -> None:
        if "shampoo_nesterov" not in self.plan.optimizers:
            return
        best = self.results.sweeps[batch]["shampoo_nesterov"].best
        found = self.results.ablations.setdefault(batch, {})
        for title, factor, change in [("as tuned", 1.0, {}), *self._variants()]:
            shown = title if factor == 1 else f"{title}, rate x {factor:g}"
            values = _scaled(best, factor)
            record = self._obtain("ablation", "shampoo_nesterov", batch, values, ABLATION_SEED, change, shown)
            if record is not None:
                found[shown] = record


def _scaled(point: Point, rate: float, embedding: float = 1.0) -> dict[str, float]:
    values = point.values
    scaled = {"rate": values["rate"] * rate, "embedding": values["embedding"] * embedding}
    return values | {name: float(f"{value:.3g}") for name, value in scaled.items()}
