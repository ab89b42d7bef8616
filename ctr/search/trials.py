"""Random search: candidates drawn at random, each trained alone and ranked by its progressive logloss (FF 3.2).

All are trained by one experiment of ``ctr replay`` over a prefix of the log: its runs go side by side or on a cluster,
and those that exist are not repeated. Everything is drawn by hashes of the seed and compared after the last run, so
that neither a kill nor the order in which runs end changes the result.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.eval.compare import compare, same_examples
from ctr.eval.run_files import read_run
from ctr.experiments.config import ExperimentConfig
from ctr.experiments.plan import read_plan
from ctr.io.documents import json_number
from ctr.io.errors import InputError
from ctr.io.hashing import uniform_hash
from ctr.search.problem import Cost, Problem
from ctr.search.record import BASELINE, TRIALS, Tried
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


def run_trials(problem: Problem, candidates: Sequence[Tried]) -> list[Tried]:
    """Trains candidates, and the baseline, on the prefix; returns them by progressive logloss, the best first.

    Losses of two runs over the same rows are paired, query by query. Candidates whose run failed come last. Raises
    InputError: a configuration is not possible, or the baseline failed.
    """
    seed, folder = problem.search.seed, problem.out / TRIALS
    others = [candidate for candidate in candidates if candidate.name != BASELINE]
    experiment = ExperimentConfig(
        title=TRIALS,
        config=problem.on_prefix(),
        seeds=(seed,),
        arms={candidate.name: problem.arm(candidate, described(candidate.values)) for candidate in others},
    )
    failures = problem.replay(TRIALS, experiment, costs=False)
    if failure := failures.get(f"{BASELINE} seed {seed}"):
        text = f"{folder}: the baseline could not be trained: {failure}"
        raise InputError(text).ending_with(failure.status)
    runs = {arm.name: folder / arm.runs[0].folder for arm in read_plan(folder).arms}
    tried = []
    for candidate in [problem.candidate(None), *others]:
        failure = failures.get(f"{candidate.name} seed {seed}")
        result = {"failure": failure} if failure else _compared(runs[BASELINE], runs[candidate.name])
        tried.append(candidate.model_copy(update=result))
    return sorted(
        tried, key=lambda one: (float("inf") if one.difference is None else one.difference, one.cost)
    )


def _compared(baseline: Path, run: Path) -> dict[str, Any]:
    """Returns what ``Tried`` holds of the progressive logloss of a run, against that of the baseline."""
    ours, theirs = read_run(run).metrics, read_run(baseline).metrics
    if not same_examples(theirs, ours):
        raise InputError(f"{run}: scored other rows than {baseline}; candidates must score the same")
    row = compare(theirs, ours).loc["logloss"]
    columns = {"logloss": "b", "difference": "difference", "low": "ci95_low", "high": "ci95_high"}
    found: dict[str, Any] = {key: json_number(row[column]) for key, column in columns.items()}
    return found if found["difference"] is not None else {**found, "failure": "its logloss is undefined"}
