"""Costs of the arms of an experiment, for the axis of FF's figure 1: OUT/costs.json.

   arms          for each arm what ``ctr.experiments.measure`` found, and ``learned_share``: the rows that its first
                 finished run learned from over all rows of the log
   teacher_flops operations of each teacher for an example that it learns from
   rounds        of turns that were timed; 0: none
   log_sha256, configs   of what was measured; measured again only when that changes

``step_ratio`` relates batches; where arms differ in ``batch_rows``, a row's ratio is that times the ratio of these.
"""

import json
from collections.abc import Mapping
from typing import Any

from ctr.experiments.config import BASELINE
from ctr.experiments.jobs import Failure, Job, Outcome, run_jobs
from ctr.experiments.tasks import Place, Tasks
from ctr.io.files import write_atomic_bytes
from ctr.training.config import TrainConfig

ROUNDS = 6
_ARMS_AT_ONCE = 8  # arms beside the baseline in one process, in whose memory all their tables are


def write_costs(place: Place, tasks: Tasks, timing: bool) -> dict[str, Failure]:
    """Writes the costs of each arm of which a run is finished; counts operations alone unless ``timing``.

    Returns why arms were not measured, by group of names.
    """
    summaries = {
        name: next(filter(None, (place.read(run.folder, "summary.json") for run in runs)), {})
        for name, runs in tasks.arms.items()
    }
    # All others are related to the baseline, which therefore is measured even where its runs failed.
    configs = {
        name: runs[0].config for name, runs in tasks.arms.items() if name == BASELINE or summaries[name]
    }
    teachers = {f"teacher {name}": run.config for name, run in tasks.teachers.items()}
    measured = {
        "log_sha256": place.log_sha256,
        "configs": {name: config.sha256() for name, config in {**configs, **teachers}.items()},
    }
    costs = place.read("costs.json")
    failures: dict[str, Failure] = {}
    if {key: costs.get(key) for key in measured} != measured or (timing and not costs.get("rounds")):
        rounds = ROUNDS if timing else 0
        found, failures = _measure_all(place, configs, rounds)
        of_teachers, more = _measure_all(place, teachers, 0) if teachers else ({}, {})
        failures |= more
        arms = {name: found[name] for name in configs if name in found}
        flops = {name.removeprefix("teacher "): cost["train_flops"] for name, cost in of_teachers.items()}
        # What failed is tried again.
        tried = {**measured, "configs": {} if failures else measured["configs"]}
        costs = {"arms": arms, "rounds": rounds, "teacher_flops": flops, **tried}
    for name, cost in costs["arms"].items():
        summary = summaries.get(name) or {}
        rows = summary.get("log_rows")
        cost["learned_share"] = summary["trained_rows"] / rows if rows else None
    write_atomic_bytes(place.out / "costs.json", (json.dumps(costs, indent=1) + "\n").encode())
    return failures


def _measure_all(
    place: Place, configs: Mapping[str, TrainConfig], rounds: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Failure]]:
    base = BASELINE if BASELINE in configs else next(iter(configs))
    arms = [name for name in configs if name != base]
    found: dict[str, dict[str, Any]] = {}
    failures: dict[str, Failure] = {}
    for begin in range(0, max(1, len(arms)), _ARMS_AT_ONCE):
        group = [base, *arms[begin : begin + _ARMS_AT_ONCE]]
        outcome = measure_apart(place, {name: configs[name] for name in group}, base, rounds)
        if not outcome.ok:
            failures[", ".join(group)] = outcome.failure
            continue
        costs: dict[str, dict[str, Any]] = json.loads(outcome.found)
        # Only ratios, of the same rounds, compare arms: milliseconds are the first group's baseline times them.
        for kind in ("step", "inference") if rounds else ():
            first = (found or costs)[base][f"{kind}_ms"]
            for cost in costs.values():
                cost[f"{kind}_ms"] = first * cost[f"{kind}_ratio"][1]
        found = {**costs, **found}
    return found, failures


def measure_apart(place: Place, configs: Mapping[str, TrainConfig], base: str, rounds: int) -> Outcome:
    """Lets ``ctr.experiments.measure`` measure in a process of its own."""
    wanted = {
        "log": str(place.log),
        "configs": {name: config.model_dump(mode="json") for name, config in configs.items()},
        "base": base,
        "rounds": rounds,
    }
    job = Job("costs", (), module="ctr.experiments.measure", given=json.dumps(wanted))
    ended: list[Outcome] = []
    run_jobs([job], 1, lambda _, outcome: ended.append(outcome), "", place.out / "outcomes")
    return ended[0]
