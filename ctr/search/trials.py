"""Candidates trained by themselves: which are drawn, and who goes on (FF 3.2).

Successive halving trains candidates on longer and longer prefixes, and the best by progressive logloss go on
to the next, where they learn from the log's beginning: the result is the same as if they had gone on, to the
same bits. Random search is its one rung. A rung is an experiment of ``ctr replay`` over a prefix of the log:
its runs go side by side or on a cluster, and what is there already is not made again.

Everything is drawn by hashes of the seed and compared after the whole rung, so that neither a kill nor the order in
which runs end changes a decision. (Optuna's halving decides as reports arrive, and its random sampler begins anew.)

    Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.eval.compare import compare, same_examples
from ctr.eval.run_files import read_run
from ctr.experiments.config import ExperimentConfig
from ctr.experiments.jobs import Failure
from ctr.experiments.plan import read_plan
from ctr.io.documents import json_number
from ctr.io.errors import INPUT, InputError, joined
from ctr.io.hashing import uniform_hash
from ctr.search.cost import Cost
from ctr.search.problem import Problem
from ctr.search.record import BASELINE, Rung, Tried
from ctr.search.space import Choice, Content, Space, described

_LISTED = 2**20  # largest space whose candidates are put in an order; of larger ones places are drawn
_MOST_TRIES = 2**14


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
        if cost(choice) > target:
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


def halve(
    candidates: Sequence[Tried], rungs: int, eta: int, run: Callable[[int, Sequence[Tried]], Rung]
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
            failures = [f"{one.name}: {one.failure}" for one in rung.tried if one.failure]
            text = f"{rung.folder}: no candidate of the search could be trained: {joined(failures)}"
            statuses = [one.failure.status for one in rung.tried if isinstance(one.failure, Failure)]
            raise InputError(text).ending_with(max(statuses, default=INPUT))
        kept = ranked[: 1 if number == rungs - 1 else max(1, len(candidates) // eta)]
        candidates = [candidate for candidate in candidates if candidate.name in kept]
        found.append(rung.model_copy(update={"kept": kept}))
    return found


def run_rung(problem: Problem, number: int, candidates: Sequence[Tried]) -> Rung:
    """Trains candidates, and the baseline, on a prefix of the log, and ranks them by progressive logloss.

    Losses of two runs over the same rows are paired, query by query. Raises InputError: a configuration is
    not possible, or the baseline failed.
    """
    folder, prefix, seed = f"rungs/{number + 1}", problem.prefixes[number], problem.search.seed
    others = [one for one in candidates if one.name != BASELINE]
    experiment = ExperimentConfig(
        title=folder,
        config=problem.on_prefix(prefix),
        seeds=(seed,),
        arms={one.name: problem.arm(one, described(one.values)) for one in others},
    )
    failures = problem.replay(folder, experiment, costs=False)
    if failed := failures.get(f"{BASELINE} seed {seed}"):
        text = f"{problem.out / folder}: the baseline could not be trained: {failed}"
        raise InputError(text).ending_with(failed.status)
    arms = read_plan(problem.out / folder).arms
    runs = {arm.name: problem.out / folder / arm.runs[0].folder for arm in arms}
    tried = []
    for one in [problem.candidate(None), *others]:
        failure = failures.get(f"{one.name} seed {seed}")
        found = {"failure": failure} if failure else _compared(runs[BASELINE], runs[one.name])
        tried.append(one.model_copy(update=found))
    tried.sort(key=lambda one: (float("inf") if one.difference is None else one.difference, one.cost))
    return Rung(folder=folder, end=prefix.end, rows=prefix.rows, tried=tried, kept=[])


def _compared(baseline: Path, run: Path) -> dict[str, Any]:
    """Returns what ``Tried`` holds of the progressive logloss of a run, against that of the baseline."""
    ours, theirs = read_run(run).metrics, read_run(baseline).metrics
    if not same_examples(theirs, ours):
        raise InputError(f"{run}: scored other rows than {baseline}; candidates must score the same")
    row = compare(theirs, ours).loc["logloss"]
    columns = {"logloss": "b", "difference": "difference", "low": "ci95_low", "high": "ci95_high"}
    found: dict[str, Any] = {key: json_number(row[column]) for key, column in columns.items()}
    return found if found["difference"] is not None else {**found, "failure": "its logloss is undefined"}
