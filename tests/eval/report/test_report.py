import json
import math
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctr.cli import main
from ctr.eval.display import with_margin
from ctr.eval.report import render_report, run_page, write_report
from ctr.eval.report.data_health import read_data_health
from ctr.eval.report.draw import draw
from ctr.eval.report.groups import gain, prediction_range
from ctr.eval.report.html import check_page as check_file
from ctr.eval.report.over_time import metric_panel, uses_event_time
from ctr.eval.report.page import Cards, Figure, color_of, dashes_of
from ctr.eval.report.shown_run import point_starts, show_runs, subject_of
from ctr.eval.report.spectra import cumulative_spectra
from ctr.eval.run_files import read_windows
from ctr.io.errors import InputError
from report_pages import Html, blocks_of, check_page, figures_of, missing_of, rows_of, tables_of, words_of
from run_directories import make_rows, predict, write_run

SECTIONS = ["results", "time", "calibration", "query-size", "predictions", "weights", "configuration"]
SOMETIMES = ("comparison", "faults", "gain", "slices", "data")
OF_RUNS = 8 + 4 + 1 + 1 + 1 + 2
"""Figures of a report about runs over one log, without the predictions of each run and paired differences."""
PAIRED = 3


def page_of(*runs):
    """The page of runs, and what holds of every one."""
    page = run_page(show_runs(runs))
    check_page(page)
    assert [section.name for section in page.sections if section.name not in SOMETIMES] == SECTIONS
    return page


def table_with(section, head):
    """Rows of the table whose first columns have these heads."""
    [found] = [table for table in tables_of(section) if table.texts()[0][: len(head)] == list(head)]
    return rows_of(found)


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=100)


@pytest.fixture(scope="module")
def runs(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for seed, name in enumerate(("lr", "dcn", "dcn-2")):
        config = {"seed": seed, "model": {"deep": {"units": [8] * seed}}}
        more = {
            "config": config,
            "slices": ("position",),
            "rejects": ("label", "ids", "label"),
            "skipped_ranges": [[512, 1024]],
        }
        made.append(
            write_run(folder / name, rows, predict(rows, seed, 0.5 + seed / 2), **more, rejected_rows=3)
        )
    return made


@pytest.fixture(scope="module")
def page(runs):
    return page_of(*runs)


@pytest.fixture(scope="module")
def html(runs):
    return render_report(runs)


def test_the_report_of_one_run_has_its_plots_and_no_comparison(runs):
    page = page_of(runs[0])
    assert "comparison" not in {section.name for section in page.sections}
    # Five metrics, traffic, click rates and throughput; four of calibration; gain; slices; query size; ids.
    assert len(figures_of(page)) == OF_RUNS + 1


def test_several_runs_are_compared_with_the_first(page):
    assert len(figures_of(page)) == OF_RUNS + PAIRED + 3
    comparison = page.section("comparison")
    assert words_of(comparison).count("Prediction difference") == 2
    overview, first, *_ = tables_of(comparison)
    assert list(rows_of(overview)) == ["dcn", "dcn-2"]
    [verdict] = [row[1] for row in first.cells if str(row[0]) == "PerQueryAUC"]
    assert (str(verdict), verdict.verdict, verdict.sign) == ("better", "better", "▲")
    # Each difference of the overview is that of the table of its run, under the same name.
    of_first = {name: f"{cells[3]} {cells[4]}" for name, cells in rows_of(first).items()}
    in_overview = dict(zip(overview.texts()[0][1:], rows_of(overview)["dcn"], strict=True))
    assert in_overview.items() >= of_first.items()
    assert table_with(comparison, ("key", "lr", "dcn"))["model.deep.units"] == ["[]", "[8]"]


def test_the_numbers_are_those_of_the_summary(runs, page):
    summary = json.loads((runs[0] / "summary.json").read_text())
    results = page.section("results")
    metrics = (
        "per_query_auc",
        "auc",
        "logloss",
        "normalized_entropy",
        "calibration_bias",
        "calibration_ratio",
    )

    def shown(value, low, high):
        digits = math.ceil(-math.log10((high - low) / 2)) + 1
        return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    cells = table_with(results, ("run", "PerQueryAUC"))["lr"]
    assert cells[:6] == [shown(summary[metric], *summary[f"{metric}_ci95"]) for metric in metrics]
    [cards] = [block for block in blocks_of(results) if isinstance(block, Cards)]
    for card, metric in zip(
        cards.cards, ("per_query_auc", "auc", "logloss", "calibration_ratio"), strict=True
    ):
        for run, (mark, _, number, _, words) in zip(runs, card.entries, strict=True):
            own = json.loads((run / "summary.json").read_text())
            assert mark.name == run.name and number == with_margin(own[metric], *own[f"{metric}_ci95"])
            assert metric != "calibration_ratio" or words
    sizes = table_with(page.section("query-size"), ("rows",))
    for row in summary["per_query_auc_by_size"]:
        if row["auc_ci95"][0] is not None:
            assert sizes[row["size"]][0] == f"{shown(row['auc'], *row['auc_ci95'])} {row['queries']} queries"
    slices = {row[0]: row for row in table_with(page.section("slices"), ("row", "value")).values()}
    for row in summary["calibration_slices"]["position"]["heaviest"]:
        cells = slices["third" if row["id"] == 3 else f"id {row['id']}"]
        assert cells[5].startswith("–" if row["auc"] is None else f"{row['auc']:.3f}")
    words = words_of(page)
    for reported in (
        summary["config_sha256"],
        summary["log_sha256"],
        "label: 2",
        "ids: 1",
        "rows [512, 1024]",
    ):
        assert reported in words


def test_the_warning_about_calibration_is_shown(rows, tmp_path):
    warning = "too many predicted clicks; look at <model.prior>"
    run = write_run(tmp_path / "run", rows, predict(rows, 1, 1.0), calibration_warning=warning)
    section = page_of(run).section("calibration")
    assert f"run: {warning}" in words_of(section)
    [figure] = [one for one in figures_of(section) if "in each window over time" in one.alt]
    assert "at the end of the pass" in figure.alt


@pytest.mark.parametrize(
    ("shift", "expected", "says"),
    [
        (-3.0, "wrong", "under-predicts by 9"),
        (3.0, "wrong", "over-predicts by"),
        (None, "good", "the interval contains 1"),
    ],
)
def test_the_card_of_calibration_is_colored_by_what_it_says(rows, tmp_path, shift, expected, says):
    # The log of a known rate, predicted as it is or far from it.
    rate = rows["label"].mean()
    logit = np.full(len(rows), np.log(rate / (1 - rate)) + (shift or 0.0), np.float32)
    page = page_of(write_run(tmp_path / "run", rows.assign(metric_weight=1.0), logit))
    [cards] = [block for block in blocks_of(page.section("results")) if isinstance(block, Cards)]
    [(_, _, _, style, words)] = cards.cards[-1].entries
    assert cards.cards[-1].style == style == expected and says in words


def test_the_terms_of_a_loss_of_several(rows, tmp_path):
    run = write_run(tmp_path / "run", rows, predict(rows, 1, 1.0), terms=("logistic", "ranking"))
    [figure] = [one for one in figures_of(page_of(run)) if one.title == "terms of the loss"]
    assert "In the last window: logistic 0.1000, ranking 0.2000." in figure.alt
    assert [one.label for one in figure.panels[0].series] == ["logistic", "ranking"]


def test_paired_differences_end_at_that_of_the_whole_runs(runs, page):
    first, second = (json.loads((run / "summary.json").read_text()) for run in runs[:2])
    for metric, title in (("per_query_auc", "PerQueryAUC"), ("logloss", "logloss")):
        [figure] = [one for one in figures_of(page) if f"Paired difference in {title}" in one.alt]
        reported = re.search(r"dcn: ([+-][0-9.]+) ± ([0-9.]+) over all windows", figure.alt)
        wanted = second[metric] - first[metric]
        assert float(reported[1]) == pytest.approx(wanted, abs=10 ** -len(reported[1].split(".")[1]))
        so_far = figure.panels[0].series[1]
        assert so_far.run == 1 and so_far.y[-1] == pytest.approx(wanted, abs=1e-9)


def test_the_gain_is_that_of_the_sorted_predictions(runs):
    [shown] = show_runs(runs[:1])
    table = pd.concat(map(pd.read_parquet, sorted(runs[0].glob("predictions/*"))))
    table = table.sort_values("logit", ascending=False)
    weight, clicks = table["metric_weight"].to_numpy(), table["metric_weight"] * table["label"]
    examples = np.cumsum(weight) / weight.sum()
    wanted = np.interp([0.1, 0.5], examples, np.cumsum(clicks) / clicks.sum())
    found = gain(shown.run.metrics.auc.fine, [0.1, 0.5])
    np.testing.assert_allclose(found, wanted, atol=0.01)


def test_data_health_says_how_many_values_share_an_id(tmp_path):
    # 3,000 values hashed to 999 ids leave about exp(-3) of them unused.
    rng = np.random.default_rng(1)
    used = len(np.unique(rng.integers(1, 1000, 3000)))
    entry = {"name": "ad", "kind": "category", "hashed": True, "buckets": 1000, "distinct_ids": used}
    counts = {
        "rows": 10,
        "missing": 1,
        "values": 9,
        "new": 3,
        "counted": 4,
        "top": [{"id": 7, "value": "x", "count": 1}],
    }
    (tmp_path / "data_health.json").write_text(json.dumps({"features": [entry | counts], "slice_values": {}}))
    [feature] = read_data_health(tmp_path).features
    assert feature.distinct_values == pytest.approx(3000, rel=0.1)
    assert feature.shared_share == pytest.approx(1 - np.exp(-3), abs=0.02)
    assert (feature.missing_share, feature.new_share, feature.top[0].share) == (0.1, 3 / 9, 0.25)


@pytest.mark.slow
def test_the_file_is_whole_and_its_series_carry_their_run(html):
    page = Html(html)
    page.check()
    assert len(page.images()) == OF_RUNS + PAIRED + 3 and len(html) < 2_000_000
    runs = {attributes["data-run"] for _, attributes in page.elements if "data-run" in attributes}
    assert runs == {"0", "1", "2"}
    assert [one["data-legend"] for one in page.all("span") if "data-legend" in one] == ["0", "1", "2"]
    for namespace in ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"):
        html = html.replace(namespace, "")
    assert not re.search(r"https?://", html) and "<dc:date>" not in html


@pytest.mark.slow
def test_colors_are_variables_of_the_page(html):
    images = Html(html).images()
    assert not {color for svg in images for color in re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg)}
    used = {name for svg in images for name in re.findall(r"var\((--[a-z0-9-]+)\)", svg)}
    style = re.search(r"<style>(.*?)</style>", html, flags=re.DOTALL)[1]
    # In the light page, in the dark one of the system's choice, and in that of the button.
    assert all(style.count(f"{name}: ") == 3 for name in used)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(runs, html, tmp_path):
    path = write_report(runs, tmp_path / "new" / "report.html")
    assert path.read_text() == html
    assert list(path.parent.iterdir()) == [path]


SPECTRA = {
    "weights": [
        {"name": "deep_0", "shape": [3, 40], "method": "svd", "singular_values": [2.0, 1.0, 0.5]},
        {"name": "low/uv", "shape": [9, 6], "inner_rank": 2, "singular_values": [3.0, 0.1]},
        {"name": "zero", "shape": [2, 5], "singular_values": [0.0, 0.0]},
        {"name": "broken", "shape": [2, 2], "omitted": "4 of its entries are not finite"},
    ]
}


def with_spectra(run, out, content) -> Path:
    copy = shutil.copytree(run, out)
    (copy / "weight_spectra.json").write_text(json.dumps(content))
    return copy


def test_the_weights_of_each_run(runs, tmp_path):
    spectra = with_spectra(runs[1], tmp_path / "spectra", SPECTRA)
    undrawn = with_spectra(runs[1], tmp_path / "undrawn", {"weights": SPECTRA["weights"][2:]})
    none = with_spectra(runs[1], tmp_path / "none", {"weights": []})
    page = page_of(runs[0], spectra, undrawn, none)
    section = page.section("weights")
    first, second = tables_of(section)
    # Of 2, 1, 1/2: 4, 5, 5.25 and 2, 3, 3.5. A bottleneck of rank 2 takes 2 * 43 of 3 * 40 multiply-adds.
    rows = {name: " ".join(cells) for name, cells in rows_of(first).items()}
    assert rows["deep_0"] == "3 × 40 3 120 97.6% 85.7% 2 0.72× 3 1.07×"
    # The bottleneck that is there takes 2 * 15 of 54.
    assert rows["low/uv"] == "9 × 6 product, inner rank 2 2 30 0.56× of m n 99.9% 96.8% 1 0.50× 1 0.50×"
    assert rows["zero"] == "2 × 5 2 10 – – 0 0.000× 0 0.000×"
    assert rows["broken"] == "2 × 2 2 4 4 of its entries are not finite"
    assert list(rows_of(second)) == ["zero", "broken"]
    words = words_of(section)
    assert words.count("the run has no weight_spectra.json") == 1
    assert words.count("no weight matrix with both sides above 1") == 1
    # One plot, of two lines; the others have none to draw.
    [figure] = figures_of(section)
    assert "spectra. deep_0: 90% of the norm at rank 2 of 3, of the sum at 3." in figure.alt
    assert "zero" not in figure.alt
    assert [row[0].look for row in first.cells] == [0, 1, None, None]


def test_the_lines_of_many_weights_differ():
    assert len({(color_of(index), dashes_of(index)) for index in range(28)}) == 28


def test_spectra_are_drawn_from_0_to_the_whole():
    norm, total = cumulative_spectra({0: np.array([3.0, 1.0])})
    for panel, first in ((norm, 3 / math.sqrt(10)), (total, 3 / 4)):
        [line] = panel.series
        assert list(line.x) == [0, 0.5, 1] and list(line.y) == pytest.approx([0, first, 1])
    figure = Figure("Largest", [norm, total], "how much of it is in the largest")
    assert draw(figure) == draw(figure) and draw(figure).count("stroke: var(--run-0)") == 2


def test_a_run_of_one_class_and_one_time(rows, tmp_path):
    table = rows.assign(label=np.int8(0), query_time=0)
    page = page_of(write_run(tmp_path / "run", table, predict(rows, 1, 1.0)))
    words = words_of(page)
    assert "No query has both a click and a non-click" in words
    assert "event times" not in words
    assert {"PerQueryAUC", "AUC", "normalized entropy"} <= set(missing_of(page))
    assert "AUC is undefined, because all rows are clicks, or none is" in words


def test_no_plot_is_a_single_dot(tmp_path):
    rows = make_rows(3, queries=40)
    page = page_of(write_run(tmp_path / "run", rows, predict(rows, 1, 1.0), windows=1))
    assert {"PerQueryAUC", "AUC", "calibration bias"} <= set(missing_of(page))
    # By decile, and the gain.
    assert len(figures_of(page)) == 3 + 1 + 1 + 1


def test_a_pass_that_began_with_small_windows_is_drawn_in_points_of_some_size():
    early = [64, 64, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 24372]
    for later in (0, 3, 30, 300, 1000):
        sizes = np.array([*early, *[50_000] * later, *[700] * (later > 0)], np.int64)
        starts = point_starts(sizes)
        points = np.add.reduceat(sizes, starts)
        assert starts[0] == 0 and points.sum() == sizes.sum() and len(points) <= 401
        assert points[:-1].min() >= min(sizes.sum() / 40, 12_000)
        if 0 < later <= 300:
            # Windows of the usual size stand for themselves.
            assert (points == 50_000).sum() >= later - 1
    assert len(point_starts(np.full(30, 120, np.int64))) == 30


@pytest.mark.parametrize(
    ("inputs", "label", "title"),
    [
        (["shop.csv"], "bought", "bought in shop.csv"),
        (["day/1.csv", "day/2.csv", "day/3.csv"], "stars >= 4", "stars >= 4 in 1.csv and 2 more files"),
        ([], "", "clicks in log<1>"),
        (None, "", "clicks in log<1>"),
    ],
)
def test_the_title_names_the_table_and_the_label(tmp_path, inputs, label, title):
    log, checkpoint = tmp_path / "log<1>", tmp_path / "run" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps({"log": str(log)}))
    if inputs is not None:
        (log / ".ingest").mkdir(parents=True)
        state = {"inputs": [{"name": name} for name in inputs], "label": label}
        (log / ".ingest" / "state.json").write_text(json.dumps(state))
    assert str(subject_of(tmp_path / "run")) == title
    (checkpoint / "state.json").write_text("{")
    assert str(subject_of(tmp_path / "run")) == ""


@pytest.mark.parametrize(
    ("entropy", "interval", "says"),
    [
        (0.9, (0.85, 0.95), "learned more than the base rate: its logloss is 10.0% below"),
        (1.1, (1.05, 1.15), "predicts worse than the base rate alone: its logloss is 10.0% above"),
        (0.99, (0.95, 1.03), "is open: its logloss is 1.0% below"),
        (0.99, (None, None), "too little data for an interval"),
        (None, (None, None), "no base rate to compare with"),
    ],
)
def test_the_first_sentence_says_what_was_learned(runs, entropy, interval, says):
    [shown] = show_runs(runs[:1])
    summary = {**shown.summary, "normalized_entropy": entropy, "normalized_entropy_ci95": list(interval)}
    sentence = replace(shown, summary=summary).headline_sentence
    assert (
        says in sentence
        and f"AUC is {shown.number('auc').margin()}; predicted / actual clicks are" in sentence
    )


def test_the_environment_has_no_json(page):
    _, environment = tables_of(page.section("configuration"))
    assert "versions: numpy" in rows_of(environment) and '{"numpy"' not in words_of(page)


def test_slices_stand_at_the_axis_by_their_values(page):
    [figure] = figures_of(page.section("slices"))
    assert {"third", "id 1"} <= set(figure.panels[0].x.names)


def test_runs_unlike_the_first(rows, runs, tmp_path):
    logit = predict(rows, 1, 1.0)
    single = write_run(tmp_path / "single", rows, logit, windows=1, parts=0)
    other = write_run(tmp_path / "other", rows, logit, log_sha256="b" * 64)
    assert read_windows(single)["examples_per_second"].isna().all()
    words = words_of(page_of(runs[0], single, other, runs[1]).section("comparison"))
    assert f"unknown: no predictions were recorded in {single}" in words
    assert words.count("not comparable") == 1
    assert words.count("read different logs") == 1
    assert words.count("Prediction difference") == 2


def test_more_runs_than_colors(tmp_path):
    rows = make_rows(2, queries=30)
    run = write_run(tmp_path / "0", rows, predict(rows, 1, 1.0), windows=3)
    page = page_of(run, *(shutil.copytree(run, tmp_path / str(index)) for index in range(1, 8)))
    assert len(figures_of(page)) == OF_RUNS - 1 + PAIRED + 8
    assert len({(mark.sign, mark.index % 7) for mark in page.legend}) == 8


def test_times_that_tell_nothing_give_way_to_examples(runs):
    windows = read_windows(runs[0])
    assert uses_event_time([windows])
    assert uses_event_time([windows[:1]])
    for times in (0, 2**62):
        useless = windows.assign(window_begin=times, window_end=times)
        assert not uses_event_time([windows, useless])
    assert not uses_event_time([windows[::-1]])


@pytest.mark.parametrize("hours", [1e-4, 0.05, 2, 30, 71, 89, 97, 24 * 20, 24 * 300, 24 * 1000, 24 * 9000])
def test_any_stretch_of_time_has_its_ticks(runs, hours):
    windows = read_windows(runs[0]).head(2).copy()
    begin = 1_767_571_200_000_000
    windows["window_begin"] = [begin, begin + int(hours * 1.8e9)]
    windows["window_end"] = windows["window_begin"] + int(hours * 1.8e9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = Figure("AUC", [metric_panel([windows], "auc")], "of each window", near=True)
        assert "<svg" in draw(figure)


def test_many_windows_are_drawn_in_fewer_points(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rng = np.random.default_rng(1)
    with (run / "metrics.jsonl").open("w") as file:
        for index in range(1500):
            line = lines[index % 2] | {"examples": index + 1, "auc": 0.7 + 0.05 * rng.random()}
            line |= {"window_begin": index * 10**9, "window_end": (index + 1) * 10**9}
            file.write(json.dumps(line) + "\n")
    section = page_of(run).section("time")
    assert "1,500 windows are drawn as 375 points" in words_of(section)
    assert max(len(one.x) for figure in figures_of(section) for one in figure.panels[0].series) == 375


def test_the_running_mean_ends_at_the_metric_of_the_run(runs):
    windows = read_windows(runs[1])
    summary = json.loads((runs[1] / "summary.json").read_text())
    for metric, weight in (("per_query_auc", "queries_scored"), ("logloss", "weight_sum")):
        mean = np.average(windows[metric], weights=windows[weight])
        assert mean == pytest.approx(summary[metric], abs=1e-12)
        assert metric_panel([windows], metric).series[1].y[-1] == pytest.approx(mean, abs=1e-12)


def test_the_histogram_leaves_out_the_tails():
    histogram = np.zeros((2**16, 2))
    histogram[30_000:30_100] = 10.0
    histogram[0, 0] = histogram[-1, 1] = 0.5
    assert prediction_range([histogram]) == (30_000, 30_100)
    assert prediction_range([np.zeros((2**16, 2))]) == (0, 2**16)


@pytest.mark.slow
def test_command_line(runs, tmp_path, capsys):
    run = shutil.copytree(runs[0], tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    Html((run / "report.html").read_text()).check()
    (run / "metrics.jsonl").unlink()
    assert main(["report", str(run)]) == 1
    error = capsys.readouterr().err
    assert error == f"error: {run / 'metrics.jsonl'}: no such file; a finished run has one\n"


def _spoil_spectra(**change):
    entry = {"name": "w", "shape": [3, 2], "singular_values": [2.0, 1.0], **change}
    return lambda run: (run / "weight_spectra.json").write_text(json.dumps({"weights": [entry]}))


def _append(path, text):
    with path.open("a") as file:
        file.write(text)


FAULTS = {
    "no folder": (shutil.rmtree, "no such run directory"),
    "not finished": (lambda run: (run / "summary.json").unlink(), "the run is not finished"),
    "no windows": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl: no such file"),
    "a torn line": (lambda run: _append(run / "metrics.jsonl", '{"examp'), "metrics.jsonl line 4: not JSON"),
    "a line of text": (lambda run: _append(run / "metrics.jsonl", '"x"\n'), "must be a JSON object, got str"),
    "no count": (
        lambda run: _append(run / "metrics.jsonl", "{}\n"),
        "examples must be a whole number, got None",
    ),
    "no time": (
        lambda run: _append(run / "metrics.jsonl", f'{{"examples": 1, "window_begin": {2**70}}}'),
        "window_begin must be a whole number",
    ),
    "no number": (
        lambda run: (run / "metrics.jsonl").write_text(
            (run / "metrics.jsonl").read_text().replace('"auc": 0', '"auc": "high", "auc_was": 0', 1)
        ),
        "metrics.jsonl line 1: auc must be a number, got 'high'",
    ),
    "no interval": (
        lambda run: (run / "metrics.jsonl").write_text(
            (run / "metrics.jsonl").read_text().replace('"auc_ci95": [', '"auc_ci95": [3, ', 1)
        ),
        "metrics.jsonl line 1: auc_ci95 must hold two numbers",
    ),
    "rejects torn": (lambda run: _append(run / "rejects.jsonl", "{"), "rejects.jsonl line 4: not JSON"),
    "counts no number": (
        lambda run: (run / "summary.json").write_text(
            (run / "summary.json").read_text().replace('"batches": 20', '"batches": [20]')
        ),
        "batches must be a number",
    ),
    "skipped no list": (
        lambda run: (run / "summary.json").write_text(
            (run / "summary.json").read_text().replace("[[512, 1024]]", "null")
        ),
        "skipped_ranges must be a list",
    ),
    "spectra torn": (lambda run: _append(run / "weight_spectra.json", '{"wei'), "spectra.json: not JSON"),
    "spectra no object": (lambda run: _append(run / "weight_spectra.json", "[]"), "must be a JSON object"),
    "spectra no list": (
        lambda run: _append(run / "weight_spectra.json", "{}"),
        "weights must be a list, got",
    ),
    "spectrum no object": (
        lambda run: _append(run / "weight_spectra.json", '{"weights": [[1]]}'),
        "weight 1: must be a JSON object, got list",
    ),
    "spectrum no name": (_spoil_spectra(name=3), "weight 1: name must be a string, got 3"),
    "spectrum no shape": (_spoil_spectra(shape=[3]), "shape must hold two whole numbers above 0"),
    "spectrum of no size": (_spoil_spectra(shape=[3, 0]), "shape must hold two whole numbers above 0"),
    "spectrum no rank": (_spoil_spectra(inner_rank="2"), "inner_rank must be a whole number above 0"),
    "spectrum cut": (_spoil_spectra(singular_values=[2.0]), "singular_values must be a list of 2 numbers"),
    "spectrum absent": (_spoil_spectra(singular_values=None), "singular_values must be a list of 2 numbers"),
    "spectrum of words": (_spoil_spectra(singular_values=[2, "1"]), "must be a list of 2 numbers"),
    "spectrum no number": (_spoil_spectra(singular_values=[2, float("nan")]), "NaN is not a JSON number"),
    "spectrum endless": (_spoil_spectra(singular_values=[float("inf"), 1]), "Infinity is not a JSON number"),
    "spectrum below 0": (_spoil_spectra(singular_values=[2, -1]), "must be finite, descending"),
    "spectrum ascending": (_spoil_spectra(singular_values=[1, 2]), "must be finite, descending"),
    "timeline cut": (
        lambda run: (run / "timeline.npz").write_bytes((run / "timeline.npz").read_bytes()[:300]),
        r"timeline\.npz: damaged",
    ),
    "timeline of other arrays": (
        lambda run: np.savez(run / "timeline.npz", windows=np.zeros(3)),
        r"timeline\.npz: damaged, or of another version: Timeline has arrays",
    ),
    "health torn": (lambda run: _append(run / "data_health.json", "{"), r"data_health\.json: damaged"),
    "health without features": (
        lambda run: (run / "data_health.json").write_text('{"slice_values": {}}'),
        r"data_health\.json: damaged, or of another version: no features",
    ),
    "health of text": (
        lambda run: (run / "data_health.json").write_text(
            (run / "data_health.json").read_text().replace('"missing": ', '"missing": -')
        ),
        "missing must be a whole number",
    ),
    "predictions cut": (
        lambda run: sorted(run.glob("predictions/*"))[0].write_bytes(b"PAR1"),
        "not readable as predictions",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_told_in_one_line(runs, tmp_path, fault):
    spoil, message = FAULTS[fault]
    run = shutil.copytree(runs[1], tmp_path / "run")
    spoil(run)
    with pytest.raises(InputError, match=message) as caught:
        write_report([runs[0], run], tmp_path / "report.html")
    assert "\n" not in str(caught.value)
    assert str(run) in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_bad_arguments(runs, tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], None)
    with pytest.raises(InputError, match="given twice"):
        write_report([runs[0], runs[0]], None)
    with pytest.raises(InputError, match=f"{tmp_path}: is a directory"):
        write_report(runs[:1], tmp_path)
    with pytest.raises(InputError, match=r"summary\.json: is a file; allowed: a directory"):
        write_report(runs[:1], runs[0] / "summary.json" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_report_replaces_reports_alone(runs, tmp_path):
    page = write_report(runs[:1], tmp_path / "report.html")
    check_file(page)
    text = page.read_text()
    page.write_text("")
    check_file(page)
    for other in ("<!DOCTYPE html>\n<title>mine</title>", text[1:], "seed: 1"):
        page.write_text(other)
        with pytest.raises(InputError, match="already exists, and is not a report of ctr"):
            check_file(page)
        with pytest.raises(InputError, match="already exists, and is not a report of ctr"):
            write_report(runs[:1], page)
        assert page.read_text() == other
