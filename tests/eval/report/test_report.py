import json
import math
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ctr.cli import main
from ctr.eval.display import with_margin
from ctr.eval.report import render_report, run_page, write_report
from ctr.eval.report.comparison import _bar
from ctr.eval.report.draw import draw
from ctr.eval.report.groups import gain, prediction_range
from ctr.eval.report.html import check_page as check_file
from ctr.eval.report.over_time import metric_panel, uses_event_time
from ctr.eval.report.page import Cards, Figure
from ctr.eval.report.shown_run import point_starts, show_runs, subject_of
from ctr.eval.run_files import read_windows
from ctr.io.errors import InputError
from report_pages import Html, blocks_of, check_page, figures_of, missing_of, rows_of, tables_of, words_of
from run_directories import make_rows, predict, write_run

SECTIONS = ["results", "time", "calibration", "query-size", "predictions", "configuration"]
SOMETIMES = ("comparison", "faults", "gain", "slices", "data")
OF_RUNS = 8 + 4 + 1 + 1 + 1
"""Figures of a report about runs over one log, without the predictions of each run and paired differences."""
PAIRED = 3
METRICS = ("per_query_auc", "auc", "logloss", "normalized_entropy", "calibration_bias", "calibration_ratio")


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
        more = {"config": config, "slices": ("position",), "rejects": ("label", "ids", "label")}
        more |= {"skipped_ranges": [[512, 1024]], "rejected_rows": 3}
        made.append(write_run(folder / name, rows, predict(rows, seed, 0.5 + seed / 2), **more))
    return made


@pytest.fixture(scope="module")
def page(runs):
    return page_of(*runs)


def test_several_runs_are_compared_with_the_first(runs, page):
    alone = page_of(runs[0])
    assert "comparison" not in {section.name for section in alone.sections}
    # Five metrics, traffic, click rates and throughput; four of calibration; gain; slices; query size.
    assert len(figures_of(alone)) == OF_RUNS + 1
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

    def shown(value, low, high):
        digits = math.ceil(-math.log10((high - low) / 2)) + 1
        return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    cells = table_with(results, ("run", "PerQueryAUC"))["lr"]
    assert cells[:6] == [shown(summary[metric], *summary[f"{metric}_ci95"]) for metric in METRICS]
    [cards] = [block for block in blocks_of(results) if isinstance(block, Cards)]
    for card, metric in zip(cards.cards, (*METRICS[:3], METRICS[-1]), strict=True):
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
    for reported in (summary["config_sha256"], summary["log_sha256"], "label: 2", "rows [512, 1024]"):
        assert reported in words
    assert "versions: numpy" in words and '{"numpy"' not in words
    [figure] = figures_of(page.section("slices"))
    assert {"third", "id 1"} <= set(figure.panels[0].x.names)


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


@pytest.mark.slow
def test_the_file_is_whole_and_its_colors_and_runs_are_those_of_the_page(runs, tmp_path):
    path = write_report(runs, tmp_path / "new" / "report.html")
    html = path.read_text()
    # The same runs give the same bytes.
    assert html == render_report(runs) and list(path.parent.iterdir()) == [path]
    page = Html(html)
    page.check()
    images = page.images()
    assert len(images) == OF_RUNS + PAIRED + 3 and len(html) < 2_000_000
    of_runs = {attributes["data-run"] for _, attributes in page.elements if "data-run" in attributes}
    assert of_runs == {"0", "1", "2"}
    assert [one["data-legend"] for one in page.all("span") if "data-legend" in one] == ["0", "1", "2"]
    assert not {color for svg in images for color in re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg)}
    used = {name for svg in images for name in re.findall(r"var\((--[a-z0-9-]+)\)", svg)}
    style = re.search(r"<style>(.*?)</style>", html, flags=re.DOTALL)[1]
    # In the light page, in the dark one of the system's choice, and in that of the button.
    assert all(style.count(f"{name}: ") == 3 for name in used)
    for namespace in ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"):
        html = html.replace(namespace, "")
    assert not re.search(r"https?://", html) and "<dc:date>" not in html


def test_a_run_of_one_class_and_one_time(rows, tmp_path):
    table, run = rows.assign(label=np.int8(0), query_time=0), tmp_path / "run"
    more = {"calibration_warning": "too few; look at <model.prior>", "terms": ("logistic", "ranking")}
    write_run(run, table, predict(rows, 1, 1.0), **more)
    ingested = {"inputs": [{"name": f"day/{number}.csv"} for number in (1, 2, 3)], "label": "stars >= 4"}
    for path, state in (
        (run / "checkpoints/1/state.json", {"log": str(tmp_path / "log<1>")}),
        (tmp_path / "log<1>/.ingest/state.json", ingested),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(state))
    page = page_of(run)
    words = words_of(page)
    assert "stars >= 4 in 1.csv and 2 more files" in words and "run: too few; look at <model.prior>" in words
    (run / "checkpoints/1/state.json").write_text("{")
    assert str(subject_of(run)) == ""
    [figure] = [one for one in figures_of(page) if one.title == "terms of the loss"]
    assert "In the last window: logistic 0.1000, ranking 0.2000." in figure.alt
    assert "No query has both a click and a non-click" in words
    assert "event times" not in words
    assert {"PerQueryAUC", "AUC", "normalized entropy"} <= set(missing_of(page))
    # No plot is a single dot, either.
    single = page_of(write_run(tmp_path / "single", rows, predict(rows, 1, 1.0), windows=1))
    assert {"PerQueryAUC", "AUC", "calibration bias"} <= set(missing_of(single))
    [cards] = [block for block in blocks_of(page.section("results")) if isinstance(block, Cards)]
    assert cards.cards[-1].entries[0][-1] == "undefined: no clicks"
    assert re.search(r"AUC over [\d,]+ rows is undefined, because all rows are clicks, or none is", words)


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


def test_the_first_sentence_says_what_was_learned(runs):
    [shown] = show_runs(runs[:1])
    for entropy, interval, says in (
        (0.9, [0.85, 0.95], "learned more than the base rate: its logloss is 10.0% below"),
        (1.1, [1.05, 1.15], "predicts worse than the base rate alone: its logloss is 10.0% above"),
        (0.99, [0.95, 1.03], "is open: its logloss is 1.0% below"),
        (0.99, [None, None], "too little data for an interval"),
        (None, [None, None], "no base rate to compare with"),
    ):
        summary = {**shown.summary, "normalized_entropy": entropy, "normalized_entropy_ci95": interval}
        first, second = replace(shown, summary=summary).headline_sentence.split(". ")
        assert says in first and "; predicted / actual clicks are" in first
        assert second == f"AUC over {summary['examples']:,} rows is {shown.number('auc').margin()}."


def test_runs_unlike_the_first(rows, runs, tmp_path):
    logit = predict(rows, 1, 1.0)
    single = write_run(tmp_path / "single", rows, logit, windows=1, parts=0)
    other = write_run(tmp_path / "other", rows, logit, log_sha256="b" * 64)
    assert read_windows(single)["examples_per_second"].isna().all()
    words = words_of(page_of(runs[0], single, other, runs[1]).section("comparison"))
    assert f"unknown: no predictions were recorded in {single}" in words
    counts = [
        words.count(text) for text in ("not comparable", "read different logs", "Prediction difference")
    ]
    assert counts == [1, 1, 2]


def test_any_stretch_of_time_has_its_ticks(runs):
    windows, begin = read_windows(runs[0]), 1_767_571_200_000_000
    # Times that tell nothing give way to examples.
    assert uses_event_time([windows]) and uses_event_time([windows[:1]])
    for useless in (windows[::-1], windows.assign(window_begin=2**62, window_end=2**62)):
        assert not uses_event_time([windows, useless])
    windows = windows.head(2).copy()
    for hours in (1e-4, 2, 30, 71, 97, 24 * 20, 24 * 300, 24 * 9000):
        windows["window_begin"] = [begin, begin + int(hours * 1.8e9)]
        windows["window_end"] = windows["window_begin"] + int(hours * 1.8e9)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = Figure("AUC", [metric_panel([windows], "auc")], "of each window", near=True)
            assert "<svg" in draw(figure), hours


def test_the_running_mean_ends_at_the_metric_of_the_run(runs):
    windows = read_windows(runs[1])
    summary = json.loads((runs[1] / "summary.json").read_text())
    for metric, weight in (("per_query_auc", "queries_scored"), ("logloss", "weight_sum")):
        mean = np.average(windows[metric], weights=windows[weight])
        assert mean == pytest.approx(summary[metric], abs=1e-12)
        each, so_far = metric_panel([windows], metric).series
        assert so_far.y[-1] == pytest.approx(mean, abs=1e-12)
        assert list(each.low) == list(windows[f"{metric}_low"]) and all(each.low < each.y)
        assert list(each.high) == list(windows[f"{metric}_high"]) and all(each.y < each.high)


def test_the_histogram_leaves_out_the_tails_and_a_bar_is_drawn_to_scale():
    # From 0 to 120, the longest end 56 from the middle, whichever side of 0 it is on.
    assert _bar(-0.5, 0.25, 1.0) == (32.0, 74.0, 116.0)
    assert _bar(-1.0, -0.5, -0.25) == (4.0, 32.0, 46.0)
    assert _bar(0.0, 0.0, 0.0) is None and _bar(0.0, 1.0, math.inf) is None
    histogram = np.zeros((2**16, 2))
    histogram[30_000:30_100] = 10.0
    histogram[0, 0] = histogram[-1, 1] = 0.5
    assert prediction_range([histogram]) == (30_000, 30_100)
    assert prediction_range([np.zeros((2**16, 2))]) == (0, 2**16)


def test_bad_arguments(runs, tmp_path, capsys):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], None)
    with pytest.raises(InputError, match="given twice"):
        write_report([runs[0], runs[0]], None)
    with pytest.raises(InputError, match=f"{tmp_path}: is a directory"):
        write_report(runs[:1], tmp_path)
    with pytest.raises(InputError, match=r"summary\.json: is a file; allowed: a directory"):
        write_report(runs[:1], runs[0] / "summary.json" / "report.html")
    assert list(tmp_path.iterdir()) == []
    run = shutil.copytree(runs[0], tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    assert main(["report", str(run)]) == 1
    error = capsys.readouterr().err
    assert error == f"error: {run / 'metrics.jsonl'}: no such file; a finished run has one\n"
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_a_report_replaces_reports_alone(runs, capsys):
    assert main(["report", str(runs[0])]) == 0
    page = runs[0] / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    Html(text).check()
    for own in (text, ""):
        page.write_text(own)
        check_file(page)
    for other in ("<!DOCTYPE html>\n<title>mine</title>", text[1:], "seed: 1"):
        page.write_text(other)
        with pytest.raises(InputError, match="already exists, and is not a report of ctr"):
            write_report(runs[:1], page)
        assert page.read_text() == other
    page.unlink()
