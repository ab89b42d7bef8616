"""Comparison of a search's result with the baseline: on rows that the search has not read, and on all rows."""

from collections.abc import Mapping
from pathlib import Path

from ctr.data.log import MAX_TIME_US
from ctr.eval.compare import same_examples
from ctr.eval.intervals import mean
from ctr.eval.run_files import metrics_between, read_run
from ctr.eval.tidy import Row, as_records, row, tidy
from ctr.experiments.plan import read_plan
from ctr.experiments.report.arms import CHANGED, change_rows
from ctr.experiments.report.files import open_run
from ctr.search.record import BASELINE, REST, SEARCHED, WHOLE, JudgedNumber, Judgement


def judge(folder: Path, rest_from: int | None) -> Judgement:
    """Compares the two arms of a replay, seed by seed, on the rest of the log and on all of it.

    ``rest_from``: the first query time, in microseconds, that the search has not read; None: it has read
    all. Raises InputError where the plan or a run is damaged.
    """
    plan = read_plan(folder)
    ended: list[dict[int, Path]] = []
    for name in (BASELINE, SEARCHED):
        runs = {planned.seed: open_run(folder, name, planned)[0] for planned in plan.arm(name).runs}
        ended.append({seed: run.folder for seed, run in runs.items() if run is not None})
    baseline, searched = ended
    pairs = {seed: (run, searched[seed]) for seed, run in baseline.items() if seed in searched}
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for part, start in ((REST, rest_from), (WHOLE, None)):
        if part == WHOLE or start is not None:
            of_part, reason = _judge_part(part, pairs, start)
            rows += of_part
            missing |= {part: reason} if reason else {}
    return Judgement(results=[JudgedNumber(**one) for one in as_records(tidy(rows))], missing=missing)


def _judge_part(part: str, runs: Mapping[int, tuple[Path, Path]], start: int | None) -> tuple[list[Row], str]:
    """Returns the metrics of both, and their changes; or why these are not known."""
    metrics = {
        seed: [
            read_run(run).metrics if start is None else metrics_between(run, start, MAX_TIME_US)
            for run in pair
        ]
        for seed, pair in runs.items()
    }
    if not runs:
        return [], "no seed was finished by both"
    if any(not same_examples(*pair) for pair in metrics.values()):
        return [], "the two scored different rows"
    estimates = {seed: [one.estimates() for one in pair] for seed, pair in metrics.items()}
    rows = [row("rows", next(int(pair[0].traffic.examples) for pair in metrics.values()), window=part)]
    for name in CHANGED:
        baseline, searched = (
            {seed: pair[place][name] for seed, pair in estimates.items()} for place in (0, 1)
        )
        rows += [
            row(name, mean([*baseline.values()]), arm=BASELINE, window=part),
            row(name, mean([*searched.values()]), arm=SEARCHED, window=part),
            *change_rows(name, searched, baseline, arm=SEARCHED, window=part),
        ]
    return rows, ""
