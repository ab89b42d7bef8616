"""Candidates trained by themselves, as arms of experiments: successive halving, and random search as its one rung.

A rung is an experiment of ``ctr replay`` over a prefix of the log; so its runs go side by side or on a cluster, and
what is there already is not made again. The best by progressive logloss go on to the next rung, over a longer prefix,
where they learn from the log's beginning: the result is the same as if they had gone on, to the same bits.

    Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import dump_yaml
from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.eval.compare import compare, same_examples
from ctr.eval.run_files import read_run
from ctr.experiments.config import ArmConfig, Changes, ExperimentConfig, changed
from ctr.experiments.plan import read_plan
from ctr.experiments.run import Progress, run_experiment
from ctr.io.documents import json_number
from ctr.io.errors import InputError, joined
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.io.hashing import uniform_hash
from ctr.search.cost import Cost
from ctr.search.record import BASELINE, Rung, Tried
from ctr.search.space import Choice, Content, Space

_LISTED = 2**20  # largest space whose candidates are put in an order; of larger ones places are drawn
_MOST_TRIES = 2**14
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Prefix:
    """First rows of what a configuration trains on."""

    end: datetime | None  # the first query time that is not in it; None: it is everything
    rows: int
    share: float  # of all rows

    @property
    def end_us(self) -> int | None:
        """Microseconds since 1970, UTC, of the end; None: there is nothing after it."""
        return None if self.end is None else (self.end - _EPOCH) // timedelta(microseconds=1)


def find_prefixes(log: Path, time_range: TimeRange, shares: list[float]) -> list[Prefix]:
    """Finds prefixes with given shares of a log's rows, each up to a query time: no query is divided.

    ``shares``: above 0 and at most 1. Raises InputError: the log is damaged, has no row in the time range,
    or a prefix would have none.
    """
    manifests = read_manifests(log)
    blocks = read_selection(log, read_schema(log), manifests, Selection(time_range=time_range))
    times = np.concatenate([block.query_time for block in blocks] or [np.zeros(0, np.int64)])
    if not len(times):
        raise InputError(f"{log}: the log has no rows in the time range of the configuration")
    found = []
    for share in shares:
        place = int(share * len(times))
        if place >= len(times):
            found.append(Prefix(None, len(times), 1.0))
            continue
        end_us = int(times[place])
        rows = int(np.searchsorted(times, end_us))
        if not rows:
            raise InputError(
                f"{log}: no query ends within the first {share:.3g} of the {len(times)} rows; "
                "a larger prefix is required"
            )
        found.append(Prefix(_EPOCH + timedelta(microseconds=end_us), rows, rows / len(times)))
    return found


@dataclass(frozen=True)
class Candidate:
    """Configuration that can be an arm."""

    name: str
    values: Mapping[str, Any]  # by the names of the decisions
    changes: Changes  # of the baseline, by dotted keys
    cost: float  # in units of the baseline's


@dataclass(frozen=True)
class Runner:
    """Runs experiments of a search; fields are as in ``ctr.search.run.Options``."""

    log: Path
    out: Path
    command: str
    workers: int | None = None
    beam_options: str = ""
    progress: Progress | None = None

    def run(self, name: str, experiment: ExperimentConfig, timing: bool | None = None) -> dict[str, str]:
        """Makes the missing runs of an experiment in ``out/NAME``, and writes ``out/NAME.yaml``.

        ``timing`` is as ``run_experiment`` takes it; None: costs are not measured. Returns what failed, by
        name.
        """
        file = self.out / f"{name}.yaml"
        make_folder(file.parent)
        write_atomic_bytes(file, dump_yaml(experiment).encode())
        return run_experiment(
            file,
            self.log,
            self.out / name,
            self.command,
            self.workers,
            self.beam_options,
            bool(timing),
            self.progress,
            costs=timing is not None,
        )


def halve(
    candidates: Sequence[Candidate], rungs: int, eta: int, run: Callable[[int, Sequence[Candidate]], Rung]
) -> list[Rung]:
    """Successive halving: the best 1 / eta of each rung go on; the last one keeps the result.

    ``run`` runs candidates on a rung, from 0, and ranks them. Raises InputError where all candidates of a
    rung failed.
    """
    found = []
    for number in range(rungs):
        rung = run(number, candidates)
        names = {candidate.name for candidate in candidates}
        ranked = [one.name for one in rung.tried if one.logloss is not None and one.name in names]
        if not ranked:
            failures = joined([f"{one.name}: {one.failure}" for one in rung.tried if one.failure])
            raise InputError(f"{rung.folder}: no candidate of the search could be trained: {failures}")
        is_last = number == rungs - 1
        kept = ranked[: 1 if is_last else max(1, len(candidates) // eta)]
        candidates = [candidate for candidate in candidates if candidate.name in kept]
        found.append(rung.model_copy(update={"kept": kept}))
    return found


def run_rung(
    runner: Runner, folder: str, base: Content, prefix: Prefix, seed: int, candidates: Sequence[Candidate]
) -> Rung:
    """Trains candidates, and the baseline, on a prefix of the log, and ranks them by progressive logloss.

    Losses of two runs over the same rows are paired, query by query. Raises InputError: a configuration is
    not possible, or the baseline failed.
    """
    experiment = ExperimentConfig(
        title=folder,
        config=on_prefix(base, prefix),
        seeds=(seed,),
        arms={
            one.name: ArmConfig(
                title=", ".join(f"{name} {value}" for name, value in one.values.items()), set=one.changes
            )
            for one in candidates
            if one.name != BASELINE
        },
    )
    failures = runner.run(folder, experiment)
    rung_folder = runner.out / folder
    plan = read_plan(rung_folder)
    runs = {arm.name: rung_folder / arm.runs[0].folder for arm in plan.arms}
    if failed := failures.get(f"{BASELINE} seed {seed}"):
        raise InputError(f"{rung_folder}: the baseline could not be trained: {failed}")
    baseline = Candidate(BASELINE, {}, {}, 1.0)
    others = [one for one in candidates if one.name != BASELINE]
    tried = []
    for place, one in enumerate([baseline, *others]):
        if failure := failures.get(f"{one.name} seed {seed}"):
            failed_one = Tried(name=one.name, values=dict(one.values), cost=one.cost, failure=failure)
            tried.append((float("inf"), one.cost, place, failed_one))
        else:
            measured = _measure(one, runs[BASELINE], runs[one.name])
            difference = measured.difference
            tried.append((float("inf") if difference is None else difference, one.cost, place, measured))
    return Rung(
        folder=folder,
        end=prefix.end.isoformat() if prefix.end is not None else None,
        rows=prefix.rows,
        tried=[one for *_, one in sorted(tried, key=lambda entry: entry[:3])],
        kept=[],
    )


def on_prefix(base: Content, prefix: Prefix) -> dict[str, Any]:
    """Configuration that reads the prefix alone, and keeps no predictions."""
    ended = {} if prefix.end is None else {"time_range.end": prefix.end.isoformat()}
    return changed(base, {**ended, "record_predictions": False})


def _measure(candidate: Candidate, baseline: Path, run: Path) -> Tried:
    ours, theirs = read_run(run).metrics, read_run(baseline).metrics
    if not same_examples(theirs, ours):
        raise InputError(f"{run}: scored other rows than {baseline}; candidates must score the same")
    row = compare(theirs, ours).loc["logloss"]
    difference = json_number(row["difference"])
    return Tried(
        name=candidate.name,
        values=dict(candidate.values),
        cost=candidate.cost,
        logloss=json_number(row["b"]),
        difference=difference,
        low=json_number(row["ci95_low"]),
        high=json_number(row["ci95_high"]),
        failure="" if difference is not None else "its logloss is undefined",
    )


def draw_candidates(
    space: Space, base: Content, cost: Cost, target: float, count: int, seed: int
) -> list[Choice]:
    """Draws different candidates that cost at most the target, ``count`` or as many as there are.

    Candidates with the same configuration count as one, and none is the base itself. Raises InputError: a
    candidate's configuration is not possible, or none costs so little.
    """
    known = {space.apply_values(base, {}).sha256()}
    drawn: list[Choice] = []
    is_base_alone = False
    for choice in _in_drawn_order(space, seed):
        if cost.of(choice) > target:
            continue
        config = space.apply(base, choice).sha256()
        is_base_alone |= config in known
        if config not in known:
            known.add(config)
            drawn.append(choice)
        if len(drawn) == count:
            break
    if not drawn and not is_base_alone:
        raise InputError(
            f"space: none of {min(space.size, _MOST_TRIES)} candidates costs at most {target:g} of the baseline's; "
            "a higher target or smaller choices are required"
        )
    return drawn


def _in_drawn_order(space: Space, seed: int) -> Iterator[Choice]:
    salt = f"search {seed}"
    if space.size <= _LISTED:
        places = np.argsort(uniform_hash(np.arange(space.size), salt), kind="stable")[:_MOST_TRIES]
        yield from (space.number(int(place)) for place in places)
        return
    # A product of large spaces exceeds 64 bits: each decision is drawn by itself.
    for number in range(_MOST_TRIES):
        parts = uniform_hash(np.arange(len(space.decisions)), f"{salt} candidate {number}")
        sizes = [len(decision.choices) for decision in space.decisions]
        yield tuple(int(part * size) for part, size in zip(parts, sizes, strict=True))
