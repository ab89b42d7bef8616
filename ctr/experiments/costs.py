"""OUT/costs.json: costs of each arm of an experiment, for the axis of FF's figure 1.

   arms          for each arm what ``ctr.experiments.measure`` found, and ``learned_share``: the rows that its first
                 finished run learned from over all rows of the log
   teacher_flops operations of each teacher for an example that it learns from
   rounds        of turns that were timed; 0: none
   log_sha256, configs   of what was measured; measured again only when that changes

``step_ratio`` relates batches; where arms differ in ``batch_rows``, a row's ratio is that times the ratio of
these.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr.data.log import log_sha256, read_manifests
from ctr.experiments.config import BASELINE
from ctr.experiments.tasks import Tasks, Training, read_object
from ctr.io.files import write_atomic_bytes
from ctr.pipelines.processes import safe_environment
from ctr.training.config import TrainConfig

ROUNDS = 6
_ARMS_AT_ONCE = 8
"""Arms beside the baseline in one process, in whose memory all their tables are."""


class _MeasureError(RuntimeError):
    """The process that measures failed; one line."""


def write_costs(out: Path, log: Path, tasks: Tasks, timing: bool) -> dict[str, str]:
    """Measures all arms of which a run is finished, on a machine that has nothing else to do now.

    Counts operations alone unless ``timing``. Returns why arms were not measured, one line for each group of
    names.
    """
    summaries = {name: _first_summary(out, runs) for name, runs in tasks.arms.items()}
    # All others are related to the baseline, which therefore is measured even where its runs failed.
    configs = {
        name: runs[0].config for name, runs in tasks.arms.items() if name == BASELINE or summaries[name]
    }
    teachers = {f"teacher {name}": run.config for name, run in tasks.teachers.items()}
    measured = {
        "log_sha256": log_sha256(read_manifests(log)),
        "configs": {name: config.sha256() for name, config in {**configs, **teachers}.items()},
    }
    costs = read_object(out / "costs.json")
    failures: dict[str, str] = {}
    if {key: costs.get(key) for key in measured} != measured or (timing and not costs.get("rounds")):
        rounds = ROUNDS if timing else 0
        found, failures = _measure_all(log, configs, rounds)
        of_teachers, more = _measure_all(log, teachers, 0) if teachers else ({}, {})
        failures |= more
        arms = {name: found[name] for name in configs if name in found}
        flops = {name.removeprefix("teacher "): cost["train_flops"] for name, cost in of_teachers.items()}
        costs = {"arms": arms, "rounds": rounds, "teacher_flops": flops}
        # What failed is tried again.
        costs |= {**measured, "configs": {} if failures else measured["configs"]}
    for name, cost in costs["arms"].items():
        summary = summaries.get(name) or {}
        rows = summary.get("log_rows")
        cost["learned_share"] = summary["trained_rows"] / rows if rows else None
    write_atomic_bytes(out / "costs.json", (json.dumps(costs, indent=1) + "\n").encode())
    return failures


def _measure_all(
    log: Path, configs: Mapping[str, TrainConfig], rounds: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    base = BASELINE if BASELINE in configs else next(iter(configs))
    arms = [name for name in configs if name != base]
    found: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    for begin in range(0, max(1, len(arms)), _ARMS_AT_ONCE):
        group = [base, *arms[begin : begin + _ARMS_AT_ONCE]]
        try:
            costs = _measure(log, {name: configs[name] for name in group}, base, rounds)
        except _MeasureError as error:
            failures[", ".join(group)] = str(error)
            continue
        # Only ratios, of the same rounds, compare arms: milliseconds are the first group's baseline times them.
        for kind in ("step", "inference") if rounds else ():
            first = (found or costs)[base][f"{kind}_ms"]
            for cost in costs.values():
                cost[f"{kind}_ms"] = first * cost[f"{kind}_ratio"][1]
        found = {**costs, **found}
    return found, failures


def _measure(
    log: Path, configs: Mapping[str, TrainConfig], base: str, rounds: int
) -> dict[str, dict[str, Any]]:
    wanted = {
        "log": str(log),
        "configs": {name: config.model_dump(mode="json") for name, config in configs.items()},
        "base": base,
        "rounds": rounds,
    }
    environment = {**safe_environment(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [sys.executable, "-m", "ctr.experiments.measure"],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    if ended.returncode:
        errors = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode} without a message"]
        raise _MeasureError(errors[-1].strip().removeprefix("error: "))
    result: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    return result


def _first_summary(out: Path, runs: Sequence[Training]) -> dict[str, Any]:
    found = (read_object(out / run.folder / "summary.json") for run in runs)
    return next((summary for summary in found if summary), {})
