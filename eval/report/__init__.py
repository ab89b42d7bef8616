"""Reports: one HTML file each, offline, the same for the same results.

`page` is the vocabulary (`Table`, `Series`, `Figure`, `Page`, ...), `draw` makes images of figures and `html` the file
of a page: begin there. The rest is the report of one or more runs, a function from what `shown_run` reads to a
`Page`, here and section by section in `comparison`, `importance`, `over_time`, `groups` and
`features`; the reports of experiments and of searches are in their rooms.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ctr.eval import display
from ctr.eval.report import page
from ctr.eval.report.comparison import comparison_section
from ctr.eval.report.features import shares_section, slices_section
from ctr.eval.report.groups import calibration_section, gain_section, predictions_section, query_size_section
from ctr.eval.report.html import check_page, render_page, write_page
from ctr.eval.report.importance import importance_section
from ctr.eval.report.over_time import loss_figures, metric_figures, traffic_figures, uses_event_time
from ctr.eval.report.shown_run import COUNTS, ShownRun, show_runs
from ctr.eval.run_comparison import COSTS
from ctr.eval.run_files import COMPARED
from ctr.io.errors import InputError

_MEANINGS = {
    "PerQueryAUC": "ROC AUC inside each query that has both a click and a non-click (these are scored), averaged over "
    "the scored queries. Higher is better.",
    "AUC": "ROC AUC over all examples. Higher is better.",
    "logloss": "Weighted mean of the logistic loss, in nats. Lower is better.",
    "normalized entropy": "Logloss divided by the entropy of the average click rate: 1 for the best constant "
    "prediction. Lower is better.",
    "calibration bias": "Observed minus predicted CTR, weighted. 0 is best; below 0 the model over-predicts.",
    "predicted / actual clicks": "Sum of the predictions over the number of clicks. 1 is best; above 1 the model "
    "over-predicts. Green: the 95% interval reaches to within 3% of 1. Red: all of it lies outside 0.9 to 1.1. Amber: "
    "neither.",
    "prediction difference": "Mean of |p₁ − p₂| / ((p₁ + p₂) / 2) over the examples of both runs: from 0, equal "
    "predictions, to 2.",
    "intervals": "Queries, not examples, are resampled: they fall by hash into 256 buckets, which the jackknife leaves "
    "out one at a time. Two runs over one log are paired bucket by bucket. Numbers have as many digits as their "
    "interval justifies.",
}


def write_report(runs: Sequence[Path], out: Path | None) -> Path:
    """Writes the report of finished runs, comparing the others with the first, in whose folder it is by default.

    The file appears whole or not at all, and replaces nothing but a report. Raises InputError: a run cannot
    be read, or the file cannot be written, or is there and is no report.
    """
    if not runs:
        raise InputError("a report needs at least one run directory, got none")
    path = runs[0] / "report.html" if out is None else out
    check_page(path)
    write_page(path, render_report(runs))
    return path


def render_report(runs: Sequence[Path]) -> str:
    """Renders the report as HTML; raises InputError where a run cannot be read."""
    return render_page(run_page(show_runs(runs)))


def run_page(runs: Sequence[ShownRun]) -> page.Page:
    """Report of at least one run, the others compared with the first."""
    subjects = {shown.subject for shown in runs}
    table = str(next(iter(subjects))) if len(subjects) == 1 else ""
    subject = f"Prediction of {table}" if table else ""
    period = _period(runs)
    many = len(runs) > 1
    lead = (
        f"Training report of {len(runs)} run{'s' if many else ''}{f', event times from {period}' if period else ''}. "
        "Every example was scored before the model was trained on it, so all metrics are on data not yet trained on."
    )
    sections = (
        _results(runs),
        comparison_section(runs),
        importance_section(runs),
        _time(runs),
        calibration_section(runs),
        gain_section(runs),
        slices_section(runs),
        query_size_section(runs),
        predictions_section(runs),
        shares_section(runs),
        _faults(runs),
        _configuration(runs),
    )
    return page.Page(
        title=f"{subject or ', '.join(shown.name for shown in runs)} – training report",
        heading=subject or "Training report",
        lead=[
            page.Words(lead, "quiet"),
            *(
                page.Words(((shown.mark, ": ") if many else (), shown.headline_sentence), run=shown.index)
                for shown in runs
            ),
        ],
        sections=[section for section in sections if section is not None],
        legend=[shown.mark for shown in runs],
    )


def _period(runs: Sequence[ShownRun]) -> str:
    """Range of event times of the windows; empty when their times do not spread them out."""
    windows = pd.concat([shown.windows for shown in runs])
    if windows.empty or not uses_event_time([shown.windows for shown in runs]):
        return ""
    times = pd.to_datetime([windows["window_begin"].min(), windows["window_end"].max()], unit="us")
    return " to ".join(f"{time:%Y-%m-%d %H:%M}" for time in times) + " UTC"


def _results(runs: Sequence[ShownRun]) -> page.Section:
    marks = [shown.mark if len(runs) > 1 else None for shown in runs]
    cards = [
        page.Card(
            display.METRIC_TITLES[metric],
            [
                (mark, shown.index, shown.number(metric).margin(), "", "")
                for mark, shown in zip(marks, runs, strict=True)
            ],
        )
        for metric in ("per_query_auc", "auc", "logloss")
    ]
    ratio = "calibration_ratio"
    calibrated = [
        (mark, shown.index, shown.number(ratio).margin(), *shown.calibration)
        for mark, shown in zip(marks, runs, strict=True)
    ]
    style = calibrated[0][3] if len(runs) == 1 else ""
    cards.append(page.Card(display.METRIC_TITLES[ratio], calibrated, style))
    values: list[page.Row] = [
        [
            shown.mark,
            *(page.Cell(one.text(), (one.bounds(),)) for one in map(shown.number, COMPARED)),
            display.amount(shown.summary["examples"]),
            page.Cell(
                display.amount(shown.summary["queries"]),
                (f"{display.amount(shown.summary['queries_scored'])} scored",),
            ),
        ]
        for shown in runs
    ]
    heads = (*(display.METRIC_TITLES[metric] for metric in COMPARED), "examples", "queries")
    costs: list[page.Row] = [
        [shown.mark, *(display.amount(shown.run.number(key)) for key in COSTS)] for shown in runs
    ]
    blocks: list[page.Block] = [
        page.Cards(cards),
        page.Table(("run", *heads), values, "Over all examples, with 95% intervals over queries"),
        *_labels(runs),
        page.Table(("run", *COSTS.values()), costs, "Cost"),
        page.Details(
            "What the numbers mean", [page.Definitions([(term, (text,)) for term, text in _MEANINGS.items()])]
        ),
    ]
    return page.Section("results", "Results", "Results", blocks)


def _labels(runs: Sequence[ShownRun]) -> list[page.Block]:
    """Metrics of further labels; nothing where no run has any."""
    rows: list[page.Row] = []
    for shown in runs:
        labels = shown.run.summary.get("labels", {})
        if not isinstance(labels, dict) or not all(isinstance(one, dict) for one in labels.values()):
            raise InputError(f"{shown.run.folder / 'summary.json'}: labels must be a JSON object of objects")
        for name, label in labels.items():
            numbers = [
                display.Number(label.get(metric), *(label.get(f"{metric}_ci95") or (None, None)))
                for metric in COMPARED
            ]
            cells = [page.Cell(one.text(), (one.bounds(),)) for one in numbers]
            rows.append([(shown.mark, " ", page.code(name)), *cells, display.amount(label.get("examples"))])
    if not rows:
        return []
    heads = ("run and label", *(display.METRIC_TITLES[metric] for metric in COMPARED), "examples")
    return [page.Table(heads, rows, "Further labels, over the rows of which they are known")]


def _time(runs: Sequence[ShownRun]) -> page.Section:
    about = [
        "Each point is a window of the log; dashed: cumulative. Bands are 95% intervals and may reach beyond the frame."
    ]
    about += [
        f"Of {shown.name}, {display.amount(shown.windows_read)} windows are drawn as "
        f"{display.amount(len(shown.windows))} points, means of neighbors."
        for shown in runs
        if len(shown.windows) < shown.windows_read
    ]
    blocks: list[page.Block] = [
        page.Words(" ".join(about), "quiet"),
        page.Figures(metric_figures(runs)),
        page.heading("Traffic and speed"),
        page.Figures(traffic_figures(runs)),
    ]
    if losses := loss_figures(runs):
        terms = (
            "What each term contributes to the training loss, with its weight and its ramp: the terms add up to the "
            "loss."
        )
        blocks += [page.heading("Loss by term"), page.Words(terms, "quiet"), page.Figures(losses)]
    return page.Section("time", "Over time", "Metrics over time", blocks)


def _faults(runs: Sequence[ShownRun]) -> page.Section | None:
    if not any(shown.faults for shown in runs):
        return None
    about = "What could not be used or failed, and what the run did about it."
    blocks: list[page.Block] = [page.Words(about, "quiet")]
    for shown in runs:
        rows: list[page.Row] = [
            [fault.title, display.amount(fault.count), page.Cell("", tuple(fault.details))]
            for fault in shown.faults
        ]
        table = page.Table(("fault", "number", page.Column("which", words=True)), rows)
        blocks += [page.heading(shown.mark), table if rows else page.Words("No faults.")]
    return page.Section("faults", "Faults", "Faults", blocks)


def _configuration(runs: Sequence[ShownRun]) -> page.Section:
    counts: list[page.Row] = [
        [title, *(display.amount(shown.run.number(key)) for shown in runs)] for key, title in COUNTS.items()
    ]
    learned_by = [str(shown.run.summary.get("dense_optimizer", display.ABSENT)) for shown in runs]
    counts.append(["dense weights learned by", *learned_by])
    left_out = "queries without both a click and a non-click, not in PerQueryAUC"
    counts += [
        [left_out, *(display.amount(shown.summary["queries_one_class"]) for shown in runs)],
        [
            "maximum error of AUC from its bins",
            *(display.fixed(shown.summary["auc_error_bound"]) for shown in runs),
        ],
    ]
    keys = dict.fromkeys(key for shown in runs for key in shown.environment)
    environment = [[key, *(shown.environment.get(key, display.ABSENT) for shown in runs)] for key in keys]
    hashes = [
        (
            shown.mark,
            (
                ("configuration ", page.code(shown.run.config_sha256)),
                ("log ", page.code(shown.run.log_sha256)),
                page.quiet(f"from {shown.run.folder}"),
            ),
        )
        for shown in runs
    ]
    marks = [shown.mark for shown in runs]
    blocks: list[page.Block] = [
        page.Table(("", *marks), counts, "Counts"),
        page.Table(("", *(page.Column(mark, words=True) for mark in marks)), environment, "Environment"),
        *(
            page.Details(("Configuration of ", shown.mark), [page.Words(shown.config, "file")])
            for shown in runs
        ),
        page.heading("To repeat a run"),
        page.Words(
            (
                *("Save its configuration above as ", page.code("config.yaml"), "; then "),
                page.code("ctr train LOG --config config.yaml --out NEW_RUN"),
                " in the same environment gives the same bits from the same log. ",
                *(page.code("summary.json"), " of the new run must show these hashes:"),
            )
        ),
        page.Definitions(hashes),
    ]
    return page.Section("configuration", "Configuration", "Configuration, environment and counts", blocks)
