"""Existing runs and costs of an experiment. Faults become an `InputError` that names file and key.

The costs of an arm are multiples of another arm's, with quartiles if they are measured. A pass costs the time,
or the FLOPs, of learning from a row, times the rows learned from: an arm that samples its log takes the same
steps, only fewer. Steps are timed in rounds that alternate with the baseline's; quartiles are over the rounds.
"""

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from ctr.eval.arrays import FloatArray
from ctr.eval.auc import StreamingAUC
from ctr.eval.calibration import calibration_buckets
from ctr.eval.compare import ScoredExamples, scored_examples
from ctr.eval.display import Number
from ctr.eval.intervals import Estimate
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.run_files import Run, metrics_between, read_constraint_metrics, read_run
from ctr.eval.tidy import Row, row
from ctr.experiments.plan import Plan, PlannedArm, PlannedFamily, PlannedRun, Record, read_record
from ctr.io.errors import InputError

COST_KINDS = ("train_time", "train_flops", "inference_time", "inference_flops")
CHANGED = ("per_query_auc", "auc", "logloss")  # metrics whose change is reported

Amount = Annotated[float, Field(ge=0)]
Quartiles = tuple[Amount, Amount, Amount]


class ArmCosts(Record):
    """Costs of an arm; None if not measured."""

    train_flops: Amount | None = None  # for each example learned from
    inference_flops: Amount | None = None  # for each example scored
    dense_parameters: Amount | None = None
    embedding_parameters: Amount | None = None
    step_ms: Amount | None = None  # median of a training step
    step_ratio: Quartiles | None = None  # quartiles, relative to the baseline's step in the same round
    batch_rows: Amount | None = None
    inference_ms: Amount | None = None  # median of a forward pass over a batch
    inference_ratio: Quartiles | None = None  # as step_ratio
    learned_share: Amount | None = None  # share of the log's rows that are learned from


class Costs(Record):
    """Costs of the arms, by name; ``rounds`` of timing, and FLOPs of the teachers."""

    arms: dict[str, ArmCosts] = {}
    rounds: int | None = None
    teacher_flops: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ending:
    """State in which a planned run ended, and why."""

    seed: int
    folder: str  # relative to the experiment's
    state: str  # finished, failed, missing, or unreadable
    reason: str = ""  # why it is not finished; else empty
    config_sha256: str | None = None  # of a finished run

    def line(self, owner: str) -> str:
        return f"{owner} seed {self.seed} {self.state}: {self.reason}"


@dataclass(frozen=True)
class FamilyBias:
    """Calibration of the S slices of a family in one run."""

    weight: FloatArray  # [S]
    bias: Estimate  # mean label minus mean prediction, [S]; NaN without data
    relative: Estimate  # the same over the mean prediction, [S]


@dataclass(frozen=True)
class MeasuredRun:
    """Metrics of a finished run of an arm, and the calibration of its slices."""

    folder: Path
    estimates: Mapping[str, Estimate]  # of `CHANGED`
    scored: ScoredExamples
    biases: Mapping[str, FamilyBias]  # by family


@dataclass
class MeasuredArm:
    """Finished runs of an arm by seed, and how all of them ended."""

    plan: PlannedArm
    endings: list[Ending] = field(default_factory=list)
    runs: dict[int, MeasuredRun] = field(default_factory=dict)
    deciles: pd.DataFrame | None = None  # calibration of all finished runs together


def read_costs(folder: Path) -> Costs:
    """Reads costs.json; without the file, the result is empty."""
    path = folder / "costs.json"
    return read_record(path, Costs) if path.exists() else Costs()


def measure_arms(folder: Path, plan: Plan) -> dict[str, MeasuredArm]:
    """Reads the runs of all arms; only predictions of the plan's query times count.

    Raises InputError if a run read another log than the rest, or its calibration by slice is damaged.
    """
    log = (plan.log_sha256, str(folder / "plan.json")) if plan.log_sha256 else None
    arms = {}
    for planned_arm in plan.arms:
        arm = arms[planned_arm.name] = MeasuredArm(planned_arm)
        together = StreamingAUC()
        for planned in planned_arm.runs:
            run, ending = open_run(folder, planned_arm.name, planned)
            arm.endings.append(ending)
            if run is None:
                continue
            log = log or (run.log_sha256, str(run.folder))
            if run.log_sha256 != log[0]:
                raise NotComparableError(
                    f"{run.folder}: read another log (log_sha256 {run.log_sha256[:12]}) than {log[1]} "
                    f"({log[0][:12]}); allowed: runs over the same log, because the comparison pairs their queries"
                )
            metrics = run.metrics if plan.scored_us is None else metrics_between(run.folder, *plan.scored_us)
            biases = family_biases(run, planned_arm.families)
            estimates = metrics.estimates()
            changed = {name: estimates[name] for name in CHANGED}
            arm.runs[planned.seed] = MeasuredRun(run.folder, changed, scored_examples(metrics), biases)
            together.merge(metrics.auc)
        arm.deciles = calibration_buckets(together) if arm.runs else None
    return arms


def open_run(folder: Path, owner: str, planned: PlannedRun) -> tuple[Run | None, Ending]:
    """Returns a planned run, or None unless finished, and how it ended; ``owner``: its arm, or ``ARM~RETRAIN``."""

    def ending(state: str, reason: str) -> tuple[None, Ending]:
        return None, Ending(planned.seed, planned.folder, state, reason)

    run_dir, failure = folder / planned.folder, folder / "failures" / f"{owner}-seed-{planned.seed}.txt"
    if not (run_dir / "summary.json").exists():
        if failure.exists():
            return ending("failed", _last_line(failure))
        return ending("missing", f"{planned.folder}: not run, or not finished")
    try:
        run = read_run(run_dir)
    except InputError as error:
        return ending("unreadable", str(error))
    if (cause := run.summary.get("learning_failure")) is not None:
        return ending("failed", str(cause))
    return run, Ending(planned.seed, planned.folder, "finished", config_sha256=run.config_sha256)


def family_biases(run: Run, families: list[PlannedFamily]) -> dict[str, FamilyBias]:
    """Returns a run's calibration by slice for each family that the run measured, by the family's name."""
    biases = {}
    for family in families:
        name, count = f"constraint:{family.name}", len(family.slices)
        metrics = run.metrics if family.log is None else read_constraint_metrics(run, family.log)
        if metrics is not None and name in metrics.slices:
            biases[family.name] = FamilyBias(*metrics.slices[name].estimate(count))
    return biases


def seed_rows(metric: str, whole: Estimate, by_seed: Mapping[Any, Estimate], **keys: object) -> list[Row]:
    """Returns rows of a metric: one for all seeds, with an interval, and one for each seed or pair of seeds."""
    values = [row(metric, float(estimate.point), seed=seed, **keys) for seed, estimate in by_seed.items()]
    return [row(metric, whole, **keys), *values]


def shared_failures(folder: Path, plan: Plan) -> list[str]:
    """Returns a line for each teacher and sampling that failed; runs that need them are missing."""
    files = {
        f"teacher {name}": f"teacher-{glob.escape(name)}-seed-*.txt"
        for name, run in plan.teachers.items()
        if not (folder / run / "summary.json").exists()
    }
    files |= {f"sampling {name}": f"sampling-{glob.escape(name)}.txt" for name in plan.samplings}
    return [
        f"{name} failed: {_last_line(path)}"
        for name, pattern in files.items()
        for path in sorted((folder / "failures").glob(pattern))
    ]


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").split("\n")]
    return next(filter(None, reversed(lines)), "no reason was recorded").removeprefix("error: ")


def pass_flops(costs: ArmCosts) -> float | None:
    """Returns the FLOPs of learning per row of the log; None if unknown."""
    return _product(costs.train_flops, costs.learned_share)


def pass_time(costs: ArmCosts, baseline: ArmCosts, kind: str = "train_time") -> Number | None:
    """Returns the time of a pass, or of scoring (``inference_time``), as a multiple of the baseline's."""
    if costs is baseline:
        return Number(1.0)
    quartiles, factor = costs.inference_ratio, _over(baseline.batch_rows, costs.batch_rows)
    if kind == "train_time":
        quartiles = costs.step_ratio
        factor = _product(factor, _over(costs.learned_share, baseline.learned_share))
    if quartiles is None or factor is None:
        return None
    low, middle, high = quartiles
    return Number(middle * factor, low * factor, high * factor)


def cost_ratios(
    costs: ArmCosts | None, reference: ArmCosts | None, baseline: ArmCosts | None
) -> dict[str, Number]:
    """Returns the measured costs of an arm as multiples of a reference's, by `COST_KINDS`.

    Times are multiples of the baseline's. Against another reference, the range covers the quartiles of both.
    """
    if costs is None or reference is None:
        return {}
    ratios = {
        "train_flops": Number(_over(pass_flops(costs), pass_flops(reference))),
        "inference_flops": Number(_over(costs.inference_flops, reference.inference_flops)),
    }
    for kind in ("train_time", "inference_time"):
        if baseline is None:
            break
        part, whole = (pass_time(arm_costs, baseline, kind) for arm_costs in (costs, reference))
        if part is None or whole is None:
            continue
        below, above = whole.low or whole.value, whole.high or whole.value
        if reference is not baseline:
            part = Number(_over(part.value, whole.value), _over(part.low, above), _over(part.high, below))
        ratios[kind] = part
    return {kind: ratios[kind] for kind in COST_KINDS if kind in ratios and ratios[kind].value is not None}


def _product(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left * right


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
