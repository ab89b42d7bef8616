"""Measurements of the runs of each arm of an experiment, and the changes of one against another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ctr.eval.auc import StreamingAUC
from ctr.eval.calibration import calibration_buckets
from ctr.eval.compare import ScoredExamples, is_beyond_noise, scored_examples
from ctr.eval.intervals import Estimate, difference, mean, quotient
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.run_files import config_text, metrics_between
from ctr.eval.tidy import Row, row
from ctr.experiments.plan import Plan, PlannedArm
from ctr.experiments.report.files import Ending, open_run
from ctr.experiments.report.slices import FamilyBias, family_biases

CHANGED = ("per_query_auc", "auc", "logloss")  # metrics whose change is reported


@dataclass
class MeasuredArm:
    """Measurements of the finished runs of an arm, by seed, and how all of them ended."""

    plan: PlannedArm
    endings: list[Ending] = field(default_factory=list)
    folders: dict[int, Path] = field(default_factory=dict)
    estimates: dict[int, dict[str, Estimate]] = field(default_factory=dict)
    scored: dict[int, ScoredExamples] = field(default_factory=dict)
    biases: dict[int, dict[str, FamilyBias]] = field(default_factory=dict)  # by family
    deciles: pd.DataFrame | None = None  # of all finished runs together
    hashes: dict[int, str] = field(default_factory=dict)  # of the configurations
    config: str = ""  # of the first finished run

    def metric(self, name: str) -> Estimate | None:
        """Returns the mean over finished seeds; None without any."""
        values = [of_seed[name] for of_seed in self.estimates.values()]
        return mean(values) if values else None


def measure_arms(folder: Path, plan: Plan) -> dict[str, MeasuredArm]:
    """Reads the runs of all arms; only predictions of the plan's query times count.

    Raises InputError: a run read another log than the rest, or its calibration by slice is damaged.
    """
    log = (plan.log_sha256, str(folder / "plan.json")) if plan.log_sha256 else None
    arms = {}
    for planned_arm in plan.arms:
        arm = arms[planned_arm.name] = MeasuredArm(planned_arm)
        together: StreamingAUC | None = None
        for planned in planned_arm.runs:
            run, ending = open_run(folder, planned_arm.name, planned)
            arm.endings.append(ending)
            if run is None:
                continue
            seed, log = planned.seed, log or (run.log_sha256, str(run.folder))
            if run.log_sha256 != log[0]:
                raise NotComparableError(
                    f"{run.folder}: read another log (log_sha256 {run.log_sha256[:12]}) than {log[1]} "
                    f"({log[0][:12]}); allowed: runs over the same log, because the comparison pairs their queries"
                )
            metrics = run.metrics if plan.scored_us is None else metrics_between(run.folder, *plan.scored_us)
            estimates = metrics.estimates()
            arm.folders[seed], arm.hashes[seed] = run.folder, run.config_sha256
            arm.estimates[seed] = {name: estimates[name] for name in CHANGED}
            arm.scored[seed] = scored_examples(metrics)
            arm.biases[seed] = family_biases(run, planned_arm.families)
            arm.config = arm.config or config_text(run.folder)
            together = together or StreamingAUC()
            together.merge(metrics.auc)
        arm.deciles = None if together is None else calibration_buckets(together)
    return arms


def metric_rows(arm: MeasuredArm, reference: MeasuredArm) -> list[Row]:
    """Compares each of `CHANGED` of an arm with a reference's, at the seeds that both finished, as `change_rows` does.

    Raises NotComparableError: they have no finished seed in common, or scored different examples.
    """
    seeds = [seed for seed in arm.estimates if seed in reference.estimates]
    if not seeds:
        raise NotComparableError(f"no seed was finished by both {arm.plan.name} and {reference.plan.name}")
    for seed in seeds:
        ours, theirs = arm.scored[seed], reference.scored[seed]
        if not ours.same_as(theirs):
            raise NotComparableError(
                f"{arm.plan.name} and {reference.plan.name} scored different examples of the log with seed {seed} "
                f"({ours.examples} and {theirs.examples}, or with other weights); allowed: runs that scored the same"
            )
    rows = []
    for name in CHANGED:
        values, other = ({seed: side.estimates[seed][name] for seed in seeds} for side in (arm, reference))
        rows += change_rows(name, values, other, arm=arm.plan.name)
    return rows


def change_rows(
    metric: str, ours: Mapping[int, Estimate], theirs: Mapping[int, Estimate], **keys: object
) -> list[Row]:
    """Compares a metric of two arms at the same seeds, at least one, over the same examples.

    ``METRIC_difference`` is the mean over the seeds and the value of each seed; ``METRIC_change_percent`` the same in
    percent of the other one's. ``METRIC_significant`` is 1 where the interval excludes 0 and all seeds have one sign, 0
    where not, and absent where there is no interval.
    """
    differences = {seed: difference(theirs[seed], estimate) for seed, estimate in ours.items()}
    change = mean(list(differences.values()))
    rows = [
        row(f"{metric}_difference", change, **keys),
        row(f"{metric}_change_percent", _percent(change, mean(list(theirs.values()))), **keys),
    ]
    for seed, delta in differences.items():
        rows += [
            row(f"{metric}_difference", float(delta.point), seed=seed, **keys),
            row(f"{metric}_change_percent", float(_percent(delta, theirs[seed]).point), seed=seed, **keys),
        ]
    if not change.no_interval():
        signs = {np.sign(delta.point) for delta in differences.values()}
        rows.append(row(f"{metric}_significant", float(is_beyond_noise(change) and len(signs) == 1), **keys))
    return rows


def _percent(change: Estimate, of: Estimate) -> Estimate:
    share = quotient(change, of)
    return Estimate(100 * share.point, 100 * share.replicates, share.occupied)
