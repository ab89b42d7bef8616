"""Costs of the arms of an experiment, for the axis of FF's figure 1: OUT/costs.json.

   arms          for each arm the result of ``ctr.experiments.measure``, and ``learned_share``: the rows that its first
                 finished run learned from over all rows of the log
   teacher_flops operations of each teacher per example that it learns from
   rounds        number of timed rounds; 0: none
   log_sha256, configs   hashes of the measured log and configurations; only their change causes a new measurement

``step_ratio`` is per batch; if arms differ in ``batch_rows``, divide it by their ratio to get a row's ratio.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.experiments.calls import Call, Folders, settings_key
from ctr.experiments.config import BASELINE
from ctr.experiments.jobs import Job, Outcome, run_jobs
from ctr.experiments.planning import Calls
from ctr.training.run.directory import write_json

ROUNDS = 6
_ARMS_AT_ONCE = 8  # arms beside the baseline in one process, which holds all their tables in memory


def write_costs(folders: Folders, calls: Calls, timing: bool) -> dict[str, Outcome]:
    """Writes costs.json: costs of the baseline and of every arm with a finished run, and the teachers' FLOPs.

    Without ``timing``, only counts operations; keeps valid costs. Returns failures, by the names measured together.
    """
    summaries = {
        name: next(filter(None, (folders.read(run.folder, "summary.json") for run in runs)), {})
        for name, runs in calls.arms.items()
    }
    # All others are related to the baseline, which therefore is measured even where its runs failed.
    arms = {name: run for name, (run, *_) in calls.arms.items() if name == BASELINE or summaries[name]}
    teachers = {call.owner.replace("-", " ", 1): call for call in calls.teachers.values()}
    measured = {
        "log_sha256": folders.log_sha256,
        "configs": {name: settings_key(call.config) for name, call in {**arms, **teachers}.items()},
    }
    costs = folders.read("costs.json")
    failures: dict[str, Outcome] = {}
    if {key: costs.get(key) for key in measured} != measured or (timing and not costs.get("rounds")):
        rounds = ROUNDS if timing else 0
        of_arms = _measure_all(folders, arms, rounds, failures)
        of_teachers = _measure_all(folders, teachers, 0, failures)
        costs = {
            "arms": {name: of_arms[name] for name in arms if name in of_arms},
            "rounds": rounds,
            "teacher_flops": {
                name.removeprefix("teacher "): cost["train_flops"] for name, cost in of_teachers.items()
            },
            **measured,
            # Failures are tried again.
            "configs": {} if failures else measured["configs"],
        }
    for name, cost in costs["arms"].items():
        summary = summaries.get(name) or {}
        rows = summary.get("log_rows")
        cost["learned_share"] = summary["trained_rows"] / rows if rows else None
    write_json(folders.out / "costs.json", costs)
    return failures


def _measure_all(
    folders: Folders, calls: Mapping[str, Call], rounds: int, failures: dict[str, Outcome]
) -> dict[str, dict[str, Any]]:
    """Measures a few arms and the baseline in each process; ``failures`` gets the reasons for missing ones."""
    costs: dict[str, dict[str, Any]] = {}
    base, others = [*calls][:1], [*calls][1:]
    for begin in range(0, max(len(others), len(base)), _ARMS_AT_ONCE):
        group = [*base, *others[begin : begin + _ARMS_AT_ONCE]]
        configs = {name: calls[name].config.model_dump(mode="json") for name in group}
        wanted = {"log": str(folders.log), "configs": configs, "base": group[0], "rounds": rounds}

        def report(_: Job, outcome: Outcome | None, names: str = ", ".join(group)) -> None:
            if outcome is not None and outcome.error:
                failures[names] = outcome

        with tempfile.TemporaryDirectory() as temporary:
            files = Path(temporary) / "wanted.json", Path(temporary) / "result.json"
            files[0].write_text(json.dumps(wanted))
            job = Job("costs", tuple(map(str, files)), module="ctr.experiments.measure")
            run_jobs([job], 1, report, "", folders.out / "outcomes")
            if ", ".join(group) in failures:
                continue
            result: dict[str, dict[str, Any]] = json.loads(files[1].read_bytes())
        # Only ratios over the same rounds compare arms: milliseconds are ratios times the first group's baseline.
        for kind in ("step", "inference") if rounds else ():
            first = (costs or result)[group[0]][f"{kind}_ms"]
            for cost in result.values():
                cost[f"{kind}_ms"] = first * cost[f"{kind}_ratio"][1]
        costs = {**result, **costs}
    return costs
