"""Costs of the arms of an experiment, for the axis of FF's figure 1: OUT/costs.json.

   arms          for each arm what ``ctr.experiments.measure`` returns, and ``learned_share``: the rows that its first
                 finished run learned from over all rows of the log
   teacher_flops operations of each teacher for an example that it learns from
   rounds        of turns that were timed; 0: none
   log_sha256, configs   of what was measured; measured again only when that changes

``step_ratio`` relates batches; where arms differ in ``batch_rows``, a row's ratio is that times the ratio of these.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.experiments.calls import Folders
from ctr.experiments.config import BASELINE
from ctr.experiments.jobs import Failure, Job, Outcome, run_jobs
from ctr.experiments.planning import Calls
from ctr.io.files import write_atomic_bytes
from ctr.training.config import TrainConfig

ROUNDS = 6
_ARMS_AT_ONCE = 8  # arms beside the baseline in one process, in whose memory all their tables are


def write_costs(folders: Folders, calls: Calls, timing: bool) -> dict[str, Failure]:
    """Writes the costs of each arm of which a run is finished; counts operations alone unless ``timing``.

    Returns why arms were not measured, by group of names.
    """
    summaries = {
        name: next(filter(None, (folders.read(run.folder, "summary.json") for run in runs)), {})
        for name, runs in calls.arms.items()
    }
    # All others are related to the baseline, which therefore is measured even where its runs failed.
    configs = {name: calls.configs[name] for name in calls.arms if name == BASELINE or summaries[name]}
    teachers = {f"teacher {name}": calls.configs[call.owner] for name, call in calls.teachers.items()}
    measured = {
        "log_sha256": folders.log_sha256,
        "configs": {name: config.sha256() for name, config in {**configs, **teachers}.items()},
    }
    costs = folders.read("costs.json")
    failures: dict[str, Failure] = {}
    if {key: costs.get(key) for key in measured} != measured or (timing and not costs.get("rounds")):
        rounds = ROUNDS if timing else 0
        arms, failures = _measure_all(folders, configs, rounds)
        of_teachers, more = _measure_all(folders, teachers, 0) if teachers else ({}, {})
        failures |= more
        flops = {name.removeprefix("teacher "): cost["train_flops"] for name, cost in of_teachers.items()}
        costs = {
            "arms": {name: arms[name] for name in configs if name in arms},
            "rounds": rounds,
            "teacher_flops": flops,
            **measured,
            # What failed is tried again.
            "configs": {} if failures else measured["configs"],
        }
    for name, cost in costs["arms"].items():
        summary = summaries.get(name) or {}
        rows = summary.get("log_rows")
        cost["learned_share"] = summary["trained_rows"] / rows if rows else None
    write_atomic_bytes(folders.out / "costs.json", (json.dumps(costs, indent=1) + "\n").encode())
    return failures


def _measure_all(
    folders: Folders, configs: Mapping[str, TrainConfig], rounds: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Failure]]:
    base = BASELINE if BASELINE in configs else next(iter(configs))
    arms = [name for name in configs if name != base]
    costs: dict[str, dict[str, Any]] = {}
    failures: dict[str, Failure] = {}
    for begin in range(0, max(1, len(arms)), _ARMS_AT_ONCE):
        group = [base, *arms[begin : begin + _ARMS_AT_ONCE]]
        result = _measure_apart(folders, {name: configs[name] for name in group}, base, rounds)
        if isinstance(result, Failure):
            failures[", ".join(group)] = result
            continue
        # Only ratios, of the same rounds, compare arms: milliseconds are the first group's baseline times them.
        for kind in ("step", "inference") if rounds else ():
            first = (costs or result)[base][f"{kind}_ms"]
            for cost in result.values():
                cost[f"{kind}_ms"] = first * cost[f"{kind}_ratio"][1]
        costs = {**result, **costs}
    return costs, failures


def _measure_apart(
    folders: Folders, configs: Mapping[str, TrainConfig], base: str, rounds: int
) -> dict[str, dict[str, Any]] | Failure:
    """Runs ``ctr.experiments.measure`` in a separate process."""
    dumped = {name: config.model_dump(mode="json") for name, config in configs.items()}
    wanted = {"log": str(folders.log), "configs": dumped, "base": base, "rounds": rounds}
    ended: list[Outcome | None] = []
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary) / "wanted.json", Path(temporary) / "result.json"
        files[0].write_text(json.dumps(wanted))
        job = Job("costs", tuple(map(str, files)), module="ctr.experiments.measure")
        run_jobs([job], 1, lambda _, outcome: ended.append(outcome), "", folders.out / "outcomes")
        if (outcome := ended[-1]) is not None and outcome.failure is not None:
            return outcome.failure
        costs: dict[str, dict[str, Any]] = json.loads(files[1].read_bytes())
    return costs
