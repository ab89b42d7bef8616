"""Report of one or more runs: one offline HTML file, the same bytes for the same results.

`courses` reads the sums, `figures` draws, `sentences` formulates the verdicts, and `page` fills the one
template; the reports of experiments and of searches are in `ctr.experiments` and `ctr.search`.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from ctr.eval import display, run_files
from ctr.eval.click_ratio import describe
from ctr.eval.display import Number
from ctr.eval.intervals import difference
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.report import figures, sentences
from ctr.eval.report.courses import baseline_loglosses, by_day, has_event_time, merged_course, middle_times
from ctr.eval.report.figures import Figure, Line
from ctr.eval.report.page import PageContext, Section, is_page, render_page
from ctr.eval.report.runs import FeatureFacts, ReportedRun, reported_runs
from ctr.eval.run_comparison import (
    COSTS,
    SEED_NOTE,
    NotComparableError,
    RunComparison,
    compare_read_runs,
    differing_keys,
)
from ctr.eval.run_files import COMPARED
from ctr.eval.timeline import Timeline
from ctr.io.errors import InputError
from ctr.io.files import check_output_file, make_folder, write_atomic_bytes

_FEATURES_DRAWN, _FEWEST_SLICES = 15, 5
_ROWS_SHOWN, _ROWS_COMPARED = 25, 12  # of a table that does not open on a click: of a run, and of several
_RATIO = ("calibration_ratio", "calibration_ratio_low", "calibration_ratio_high")
_PAIRED = {"per_query_auc": "PerQueryAUC", "logloss": "logloss"}
_COUNTS = {
    "log_rows": "rows of the log",
    "batches": "batches",
    "queries_one_class": "queries without both a click and a non-click",
    "auc_error_bound": "maximum error of AUC from its bins",
}

Comparisons = Mapping[int, RunComparison | str]
"""Comparisons of each other run with the first, by index, or why they are not comparable."""


def write_report(runs: Sequence[Path], out: Path | None) -> Path:
    """Writes a report of finished runs, each compared with the first; returns its path, by default FIRST/report.html.

    The file is written atomically, and replaces only another report. Raises InputError if a run is unreadable,
    the file cannot be written, or an existing file is not a report.
    """
    if not runs:
        raise InputError("a report needs at least one run directory, got none")
    path = runs[0] / "report.html" if out is None else out
    check_output_file(path, "a report of ctr", is_page)
    page = render_report(runs)
    make_folder(path.parent)
    write_atomic_bytes(path, page.encode())
    return path


def render_report(folders: Sequence[Path]) -> str:
    """Renders the report as HTML. Raises InputError where a run cannot be read."""
    return render_page(report_context(folders))


def report_context(folders: Sequence[Path]) -> PageContext:
    """Returns the content of the report's page. Raises InputError if a run cannot be read."""
    runs = reported_runs(folders)
    compared = _compare(runs)
    lead = (
        f"{', '.join(run.name for run in runs)}{_period(runs)}. Every example was scored before the model was "
        "trained on it, so all metrics are on data not yet trained on. Intervals are 95%, over queries."
    )
    warnings = [
        f"{run.name}: {text}"
        for run in runs
        for text in (run.facts.calibration_warning, *run.facts.warnings)
        if text
    ]
    sections = (
        _results(runs, compared),
        _over_time(runs),
        _calibration(runs),
        _slices(runs),
        _days(runs),
        _features(runs),
        _faults(runs),
        _configuration(runs),
    )
    return PageContext(
        title="Training report" if len(runs) == 1 else "Comparison of runs",
        lead=[lead],
        verdict=_verdicts(runs, compared),
        warnings=warnings,
        sections=[section for section in sections if section is not None],
        marks=[run.name for run in runs],
    )


def _compare(runs: Sequence[ReportedRun]) -> dict[int, RunComparison | str]:
    compared: dict[int, RunComparison | str] = {}
    for index, run in enumerate(runs[1:], 1):
        try:
            compared[index] = compare_read_runs(runs[0].results, run.results)
        except NotComparableError as error:
            compared[index] = f"{run.name} and {runs[0].name} are not comparable: {error}"
    return compared


def _verdicts(runs: Sequence[ReportedRun], compared: Comparisons) -> list[str]:
    """Returns whether each run is better than the first; for a single run, what it learned."""
    if len(runs) == 1:
        return [sentences.what_was_learned(runs[0].summary)]
    return [
        result if isinstance(result, str) else sentences.compared(result, (runs[0].name, runs[index].name))
        for index, result in compared.items()
    ]


def _period(runs: Sequence[ReportedRun]) -> str:
    if not all(has_event_time(run.timeline) for run in runs):
        return ""
    times = np.concatenate([run.timeline.windows[:, 1:3] for run in runs])
    first, last = pd.to_datetime([times[:, 0].min(), times[:, 1].max()], unit="us")
    return f", event times from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}"


def _results(runs: Sequence[ReportedRun], compared: Comparisons) -> Section:
    heads = ["run", *(display.METRIC_TITLES[metric] for metric in COMPARED)]
    rows = [[run.name, *(run.number(metric).whole() for metric in COMPARED)] for run in runs]
    learned = []
    for run in runs:
        metrics = run.results.metrics
        loss, baselines = metrics.logloss.estimate(), baseline_loglosses(metrics)
        texts = (
            sentences.accuracy(run.summary, run.importance),
            sentences.against_baselines(loss, baselines),
            sentences.gates(run.results.summary),
        )
        learned.append(" ".join(filter(None, texts)))
    folded: list[tuple[str, str | pd.DataFrame]] = []
    if len(runs) == 1:
        said, free = learned, _baseline_rows(runs[0])
        rows += free[:2]
        for _, _, accuracy, logloss, ratio in _course_rows(runs[0].timeline.last_window()):
            rows.append(["last window", accuracy, "–", logloss, "–", "–", ratio])
        if free[2:]:
            others = pd.DataFrame(free[2:], columns=heads)[["run", "logloss", "normalized entropy"]]
            folded.append(("Base rates by other features", others))
    else:
        whole = [
            f"{run.name}: {sentences.what_was_learned(run.summary)} {text}"
            for run, text in zip(runs, learned, strict=True)
        ]
        said = []
        folded.append(("What each run learned", "\n".join(whole)))
    # The metrics of a further label cover only the rows that have the label.
    for run in runs:
        for name, label in run.facts.labels.items():
            numbers = [
                Number(label.get(key), *(label.get(f"{key}_ci95") or (None, None))) for key in COMPARED
            ]
            title = f"{run.name}: {name}, {display.amount(label.get('examples'))} examples"
            rows.append([title, *(number.whole() for number in numbers)])
    tables = [("Over all examples", pd.DataFrame(rows, columns=heads))]
    for index, result in compared.items():
        if isinstance(result, str):
            continue
        names = runs[0].name, runs[index].name
        cells = [*result.metric_cells(), *([*row[:5], "", row[5]] for row in result.cost_cells())]
        # Two runs may have such names, but columns are read by position.
        kinds = ["difference, or ratio", "95% interval, or range", "relative", "verdict"]
        table = pd.DataFrame(cells, columns=["metric", *names, *kinds])
        tables.append((f"{names[1]} minus {names[0]}, paired by query", table))
        said += [_prediction_words(result, names[1]), *([SEED_NOTE] if result.differs_by_seed else [])]
    said += next((result.cost_notes for result in compared.values() if not isinstance(result, str)), [])
    keys = (*COSTS, "wall_seconds", "examples", "queries", "queries_scored")
    costs = [[run.name, *(display.amount(run.results.number(key)) for key in keys)] for run in runs]
    heads = ["run", *COSTS.values(), "seconds in all", "examples", "queries", "queries scored"]
    tables.append(("Cost and size", pd.DataFrame(costs, columns=heads)))
    return Section("Results", said, tables=tables, folded=folded)


def _baseline_rows(run: ReportedRun) -> list[list[str]]:
    """Returns table rows for base-rate predictions: the overall base rate, then base rates by feature, best first."""
    estimates = baseline_loglosses(run.results.metrics)
    rows = []
    for name in sorted(estimates, key=lambda name: (name != "the base rate", float(estimates[name].point))):
        if np.isfinite(estimates[name].point):
            loss = estimates[name].number()
            entropy = run.summary["normalized_entropy"] / run.summary["logloss"] * (loss.value or 0.0)
            rows.append([name, *["–"] * 2, loss.whole(), display.fixed(entropy, loss.decimals), *["–"] * 2])
    return rows


def _prediction_words(comparison: RunComparison, name: str) -> str:
    if comparison.predictions is None:
        return f"The prediction difference of {name} is unknown: {comparison.no_predictions}."
    number = comparison.predictions.difference.number()
    return (
        f"The predictions of {name} differ by {number.whole()} of their mean, over "
        f"{display.amount(comparison.predictions.examples)} examples of both runs."
    )


def _over_time(runs: Sequence[ReportedRun]) -> Section | None:
    by_time = all(has_event_time(run.timeline) for run in runs)

    def line(run: ReportedRun, metric: str) -> Line:
        timeline = run.course
        x = middle_times(timeline).astype("datetime64[us]") if by_time else timeline.windows[:, 0]
        return Line(x, *timeline.series(metric), look=run.look)

    drawn = [
        figures.courses(title, [line(run, metric) for run in runs], level=level, within=(0.0, most))
        for metric, title, level, most in (
            ("per_query_auc", "PerQueryAUC", 0.5, 1.0),
            ("logloss", "logloss", None, np.inf),
            ("calibration_ratio", "predicted / actual clicks", 1.0, np.inf),
        )
    ]
    if drawn[0] is None:
        windows = [run_files.read_windows(run.results.folder) for run in runs]
        lines = [Line(*merged_course(table, "auc"), look=look) for look, table in enumerate(windows)]
        drawn[0] = figures.courses("AUC", lines, level=0.5, within=(0.0, 1.0))
    observed = line(runs[0], "click_rate")._replace(color=figures.QUIET)
    predicted = [line(run, "predicted_click_rate")._replace(low=None, high=None) for run in runs]
    drawn.append(
        figures.courses("click rate", [observed, *predicted], note="gray: observed", within=(0.0, 1.0))
    )
    first, note = runs[0].course, f"from {runs[0].name}, paired"
    for metric, title in _PAIRED.items():
        lines = []
        for run in runs[1:]:
            if len(first) and run.course.matches(first):
                change = difference(first.estimate(metric), run.course.estimate(metric))
                ends = change.interval()
                lines.append(Line(line(run, metric).x, change.point, *ends, look=run.look))
        drawn.append(figures.courses(f"difference in {title}", lines, level=0.0, note=note))
    present = [figure for figure in drawn if figure is not None]
    if not present:
        return None
    axis = "event time (UTC)" if by_time else "examples"
    last = [
        f"{run.name} has predicted / actual clicks of {cells[-1]}"
        for run in runs
        for cells in _course_rows(run.timeline.last_window())
    ]
    about = f"Over {axis}; a point is a stretch of the pass. In the last window, {'; '.join(last)}."
    return Section("Over time", [about] if last else [], present)


def _calibration(runs: Sequence[ReportedRun]) -> Section:
    said, deciles = [], []
    for run in runs:
        numbers = [Number(*cells) for cells in run.deciles[[*_RATIO]].to_numpy().tolist()]
        deciles.append({f"decile {index}": number for index, number in enumerate(numbers, 1)})
        ratio, top = run.number("calibration_ratio"), numbers[-1]
        tenth = f"; {top.whole()} in the tenth of the highest predictions" if top.value == top.value else ""
        verdict = describe(ratio.value, ratio.low, ratio.high)
        said.append(f"{run.name}: predicted / actual clicks {ratio.whole()}, {verdict}{tenth}.")
    is_known = any(number.value == number.value for numbers in deciles for number in numbers.values())
    title, note = "Predicted / actual clicks", "by decile of prediction"
    drawn = [figures.by_name(title, deciles, [*deciles[0]], level=1.0, note=note)] if is_known else []
    return Section("Calibration", said, drawn)


def _slices(runs: Sequence[ReportedRun]) -> Section | None:
    features = dict.fromkeys(name for run in runs for name in run.results.metrics.slices)
    if not features:
        return None
    worst, slice_tables = [], []
    for feature in features:
        sliced = [run for run in runs if feature in run.results.metrics.slices]
        tables = [run.results.metrics.slices[feature].result().set_index("id") for run in sliced]
        names = next((mapping for run in runs if (mapping := run.facts.slice_names.get(feature))), {})
        # Stable: of equal weight the smaller id.
        most = max(SLICES_SHOWN // len(runs), _FEWEST_SLICES)
        heaviest = tables[0].sort_values("weight", ascending=False, kind="stable").index[:most].tolist()
        if all(value in names for value in heaviest):
            heaviest = [value for value in names if value in heaviest]
        tables = [table.reindex(heaviest) for table in tables]
        texts = [names.get(value, f"id {value}") for value in heaviest]
        rows = [
            [text, run.name, *_slice_cells(table.iloc[index])]
            for index, text in enumerate(texts)
            for run, table in zip(sliced, tables, strict=True)
        ]
        measured = ["observed click rate", "predicted / actual clicks", "logloss", "AUC"]
        heads = ["value", "run", "weight", *measured]
        cells = pd.DataFrame(rows, columns=heads)
        slice_tables.append((f"By {feature}", cells if len(runs) > 1 else cells.drop(columns="run")))
        if sliced[0] is runs[0]:
            worst.append((feature, tables[0].assign(name=texts)))
    about = (
        "The values with the most weight of each feature. AUC is from bins of 1/16 logit and has no interval."
    )
    if any(run.has_default_slices for run in runs):
        about += " No metrics.slices are configured: these are the features whose values differ most in calibration."
    said = (
        f"{runs[0].name}: {sentences.worst_slice(worst)}" if len(runs) > 1 else sentences.worst_slice(worst)
    )
    count = 2 if len(runs) == 1 else 1
    return Section(
        "Slices",
        [said, about] if worst else [about],
        tables=slice_tables[:count],
        folded=slice_tables[count:],
    )


def _slice_cells(row: "pd.Series[float]") -> list[str]:
    clicks, loss = (
        Number(row[key], row[f"{key}_low"], row[f"{key}_high"]) for key in ("calibration_ratio", "logloss")
    )
    texts = [display.amount(row["weight"]), display.fixed(row["mean_label"], 4), clicks.whole(), loss.whole()]
    return [*texts, display.fixed(row["auc"], 3)]


def _days(runs: Sequence[ReportedRun]) -> Section | None:
    rows = []
    for run in runs:
        days, timeline = by_day(run.timeline)
        rows += [[day, run.name, *cells] for day, cells in zip(days, _course_rows(timeline), strict=True)]
    if len({row[0] for row in rows}) < 2:
        return None
    metrics = ["observed click rate", "PerQueryAUC", "logloss", "predicted / actual clicks"]
    heads = ["day (UTC)", "run", "rows", *metrics]
    table = pd.DataFrame(rows, columns=heads).sort_values("day (UTC)", kind="stable")
    about = "A window of the pass counts for the day that its middle lies in."
    return _table_section("By day", [about], [], table if len(runs) > 1 else table.drop(columns="run"))


def _course_rows(timeline: Timeline) -> list[list[str]]:
    """Returns for each entry its row count, observed click rate, PerQueryAUC, logloss and predicted / actual clicks."""
    columns = [[display.amount(int(count)) for count in timeline.windows[:, 3]]]
    for metric in ("click_rate", "per_query_auc", "logloss", "calibration_ratio"):
        numbers = zip(*timeline.series(metric), strict=True)
        columns.append([Number(*map(float, number)).whole() for number in numbers])
    return [list(cells) for cells in zip(*columns, strict=True)]


def _features(runs: Sequence[ReportedRun]) -> Section | None:
    measured = [
        {} if run.importance is None else {entry.name: entry for entry in run.importance.features}
        for run in runs
    ]
    gains = [
        {name: entry.increase for name, entry in entries.items() if entry.verdict.startswith("yes")}
        for entries in measured
    ]
    rows, said = [], []
    if any(measured):
        said.append(
            "Importance is by how much the logloss of a row grows when the model does not know a feature's value. It "
            "says what the model uses, not what causes clicks; of features that carry the same information each looks "
            "dispensable. Only what differs from 0 for certain has a number. Shuffled: a feature without a row for "
            "unknown values, whose values are exchanged between neighboring rows instead."
        )
    for run, entries, certain in zip(runs, measured, gains, strict=True):
        said += [f"{run.name}: no feature differs from 0 for certain."] if entries and not certain else []
    for name in dict.fromkeys(chain(*gains, *measured, *(run.facts.features for run in runs))):
        for run, entries, certain in zip(runs, measured, gains, strict=True):
            about, entry = run.facts.features.get(name, FeatureFacts()), entries.get(name)
            shares = [
                display.ABSENT if share is None else display.percent(share)
                for share in (about.missing, about.out_of_range)
            ]
            effect = ["not measured" if entry is None else "no certain effect", ""]
            if entry is not None and name in certain:
                effect = [entry.increase.whole(signed=True), f"{entry.share.times(100).text(signed=True)}%"]
            way = "shuffled" if entry is not None and entry.is_shuffled else ""
            rows.append([name, run.name, about.kind, *shares, *effect, way])
    if not rows:
        return None
    names = [*dict.fromkeys(chain(*gains))][:_FEATURES_DRAWN]
    drawn = [figures.by_name("Increase of logloss without a feature", gains, names)] if names else []
    heads = ["feature", "run", "kind", "missing", "out of range"]
    table = pd.DataFrame(rows, columns=[*heads, "increase of logloss", "of the logloss", "by"])
    table = table.drop(columns=["by"] * (not table["by"].any()) + ["run"] * (len(runs) == 1))
    return _table_section("Features", said, drawn, table)


def _table_section(title: str, said: Sequence[str], drawn: Sequence[Figure], table: pd.DataFrame) -> Section:
    """Returns a section with one table, which is collapsed if it has many rows."""
    if len(table) <= (_ROWS_COMPARED if "run" in table else _ROWS_SHOWN):
        return Section(title, said, drawn, tables=[("", table)])
    return Section(title, said, drawn, folded=[(f"All {len(table)} rows", table)])


def _faults(runs: Sequence[ReportedRun]) -> Section | None:
    rows = [
        [run.name, title, display.amount(count), "; ".join(details)]
        for run in runs
        for title, count, details in run.faults
    ]
    if not rows:
        return None
    table = pd.DataFrame(rows, columns=["run", "fault", "number", "which"])
    about = "What could not be used or failed, and what the run did about it."
    clean = [f"{run.name}: no faults." for run in runs if not run.faults]
    return Section("Faults", [about, *clean], tables=[("", table)])


def _configuration(runs: Sequence[ReportedRun]) -> Section:
    names = [run.name for run in runs]
    said, tables = [], []
    if len(runs) > 1:
        keys = differing_keys({run.name: run.results.config for run in runs})
        entries = differing_keys({run.name: run.environment for run in runs})
        said += [] if keys else ["The configurations are equal."]
        speeds = "speeds may differ by more than the configuration"
        for title, differences in (
            ("Keys of the configuration that differ", keys),
            (f"Entries of the environment that differ: {speeds}", entries),
        ):
            rows = [[difference.key, *map(difference.text, names)] for difference in differences]
            tables += [(title, pd.DataFrame(rows, columns=["key", *names]))] if rows else []
    said += [f"{run.name}: {note}." for run in runs for note in run.facts.notes]
    said.append(
        "To repeat a run: save its configuration as config.yaml; then ctr train LOG --config config.yaml --out "
        "NEW_RUN in the same environment gives the same bits from the same log."
    )
    values: list[list[str]] = []
    for key, title in _COUNTS.items():
        values.append([title, *(display.amount(run.results.number(key)) for run in runs)])
    learned_by = [str(run.results.summary.get("dense_optimizer", display.ABSENT)) for run in runs]
    values.append(["dense weights learned by", *learned_by])
    values.append(["configuration, SHA-256", *(run.results.config_sha256 for run in runs)])
    values.append(["log, SHA-256", *(run.results.log_sha256 for run in runs)])
    values.append(["folder", *(str(run.results.folder) for run in runs)])
    for key in dict.fromkeys(key for run in runs for key in run.environment):
        cells = [run.environment.get(key, display.ABSENT) for run in runs]
        values.append([key, *(cell if isinstance(cell, str) else json.dumps(cell) for cell in cells)])
    folded: list[tuple[str, str | pd.DataFrame]] = [
        ("Counts and environment", pd.DataFrame(values, columns=["", *names]))
    ]
    folded += [(f"Configuration of {run.name}", run.config) for run in runs]
    return Section("Configuration", said, tables=tables, folded=folded)
