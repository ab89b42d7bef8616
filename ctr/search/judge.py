"""Comparison of a search's result with the baseline: on rows that the search has not read, and on all rows."""

from collections.abc import Mapping
from pathlib import Path

from ctr.data.log import MAX_TIME_US
from ctr.eval.compare import same_examples
from ctr.eval.intervals import Estimate, mean
from ctr.eval.run_files import metrics_between, read_run
from ctr.experiments.plan import read_plan
from ctr.experiments.report.arms import CHANGED, MetricChange, metric_change
from ctr.experiments.report.files import open_run
from ctr.io.documents import json_number
from ctr.search.record import BASELINE, SEARCHED, JudgedMetric, Judgement


def judge(folder: Path, rest_from: int | None) -> list[Judgement]:
    """Compares the two arms of a replay, seed by seed, on the rest of the log and on all of it.

    ``rest_from``: the first query time, in microseconds, that the search has not read; None: it has read
    all. Raises InputError where the plan or a run is damaged.
    """
    plan = read_plan(folder)
    found: list[dict[int, Path]] = []
    for name in (BASELINE, SEARCHED):
        arm = plan.arm(name)
        ended = {planned.seed: open_run(folder, arm.name, planned)[0] for planned in arm.runs}
        found.append({seed: run.folder for seed, run in ended.items() if run is not None})
    baseline, searched = found
    runs = {seed: (run, searched[seed]) for seed, run in baseline.items() if seed in searched}
    rest = [] if rest_from is None else [_judgement("rest", runs, rest_from)]
    return [*rest, _judgement("whole", runs, None)]


def _judgement(part: str, runs: Mapping[int, tuple[Path, Path]], start: int | None) -> Judgement:
    metrics = {
        seed: [
            read_run(run).metrics if start is None else metrics_between(run, start, MAX_TIME_US)
            for run in pair
        ]
        for seed, pair in runs.items()
    }
    missing = "" if runs else "no seed was finished by both"
    if any(not same_examples(*pair) for pair in metrics.values()):
        missing = "the two scored different rows"
    if missing:
        return Judgement(part=part, rows=0, missing=missing)
    estimates = {seed: [one.estimates() for one in pair] for seed, pair in metrics.items()}
    judged = {}
    for name in CHANGED:
        baseline, searched = (
            {seed: pair[place][name] for seed, pair in estimates.items()} for place in (0, 1)
        )
        judged[name] = _judged(metric_change(searched, baseline), mean([*baseline.values()]), searched)
    rows = next(int(pair[0].traffic.examples) for pair in metrics.values())
    return Judgement(part=part, rows=rows, metrics=judged)


def _judged(change: MetricChange, baseline: Estimate, searched: Mapping[int, Estimate]) -> JudgedMetric:
    low, high = change.difference.interval()
    return JudgedMetric(
        baseline=json_number(baseline.point),
        searched=json_number(mean([*searched.values()]).point),
        difference=json_number(change.difference.point),
        low=json_number(low),
        high=json_number(high),
        percent=json_number(change.percent.point),
        by_seed={str(seed): json_number(value) for seed, value in change.by_seed.items()},
        significant=None if change.significant is None else bool(change.significant),
    )
