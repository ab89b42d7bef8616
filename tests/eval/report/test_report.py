import json
import math
import re
import shutil
from functools import cache

import numpy as np
import pandas as pd
import pytest

from ctr.cli import main
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.report import render_report, report_context, write_report
from ctr.eval.report.courses import baseline_loglosses
from ctr.eval.report.page import is_page
from ctr.eval.report.sentences import what_was_learned, worst_slice
from ctr.eval.run_files import read_run, read_timeline
from ctr.io.errors import InputError
from report_pages import Html, check_context, figures_of, rows_of, section_of, tables_of, words_of
from run_directories import make_rows, predict, write_run

METRICS = {"per_query_auc": "PerQueryAUC", "auc": "AUC", "calibration_ratio": "predicted / actual clicks"}
METRICS |= {title.replace(" ", "_"): title for title in ("logloss", "normalized entropy", "calibration bias")}


@cache
def page_of(*runs):
    """The context of the page of runs, and what holds of every one."""
    context = report_context(runs)
    check_context(context)
    assert context.title == ("Training report" if len(runs) == 1 else "Comparison of runs")
    return context


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
        more |= {"skipped_ranges": [[512, 1024]], "rejected_rows": 3, "windows": 14}
        made.append(write_run(folder / name, rows, predict(rows, seed, 0.5 + seed / 2), **more))
    return made


def shown(value, low, high):
    digits = math.ceil(-math.log10((high - low) / 2)) + 1
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def test_the_verdict_of_several_runs_has_its_interval_and_the_cost(runs):
    context = page_of(*runs)
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    for text, run, summary in zip(context.verdict, runs[1:], summaries[1:], strict=True):
        match = re.match(
            rf"{run.name} is better than lr: PerQueryAUC \+([.\d]+) \[\+[.\d]+, \+[.\d]+\]; 1.00× the time per step",
            text,
        )
        assert match, text
        wanted = summary["per_query_auc"] - summaries[0]["per_query_auc"]
        assert float(match[1]) == pytest.approx(wanted, abs=10 ** -len(match[1].split(".")[1]))
    results = section_of(context, "Results")
    whole = rows_of(tables_of(results)[0])
    for run, summary in zip(runs, summaries, strict=True):
        wanted = {title: shown(summary[key], *summary[f"{key}_ci95"]) for key, title in METRICS.items()}
        assert wanted.items() <= whole[run.name].items()
    paired = rows_of(tables_of(results)[1])
    assert paired["PerQueryAUC"]["verdict"] == "better" and paired["PerQueryAUC"]["dcn"]
    assert words_of(results).count("The predictions of") == 2
    differing = rows_of(tables_of(section_of(context, "Configuration"))[0])
    assert list(differing["model.deep.units"].values()) == ["model.deep.units", "[]", "[8]", "[8, 8]"]
    assert "difference in PerQueryAUC" in figures_of(context)
    # The runs the other way around: worse.
    assert "lr is worse than dcn: PerQueryAUC -" in page_of(runs[1], runs[0]).verdict[0]


def test_a_run_alone_stands_beside_what_costs_nothing(runs, rows, tmp_path):
    context = page_of(runs[0])
    table = rows_of(tables_of(section_of(context, "Results"))[0])
    assert list(table) == ["lr", "the base rate", "base rate by position", "last window"]
    weight, label = rows["metric_weight"].to_numpy(np.float64), rows["label"].to_numpy()
    rate = np.average(label, weights=weight)
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert float(table["the base rate"]["logloss"].split()[0]) == pytest.approx(entropy, abs=0.001)
    assert table["the base rate"]["normalized entropy"].startswith("1.000")
    last = read_timeline(read_run(runs[0])).last_window()
    ratio = [float(one[0]) for one in last.series("calibration_ratio")]
    assert table["last window"]["predicted / actual clicks"] == shown(*ratio)
    assert f"In the last window, lr has predicted / actual clicks of {shown(*ratio)}" in words_of(context)
    assert "the base rate by position alone, the only feature that the run is sliced by" in words_of(context)
    # Of several features the best one alone, and no table of many features before a click.
    slices, features = ("position", "good", "query_id"), {f"f{number}": {} for number in range(30)}
    log, logit = rows.assign(good=rows["label"]), predict(rows, 0, 1.0)
    context = page_of(write_run(tmp_path / "run", log, logit, slices=slices, features=features))
    table, _, others = map(rows_of, tables_of(section_of(context, "Results")))
    assert list(table) == ["run", "the base rate", "base rate by good", "last window"]
    assert set(others) == {"base rate by position", "base rate by query_id"}
    assert "alone, the best of the 3 features that the run is sliced by" in words_of(context)
    about = section_of(context, "Features")
    assert not about.tables and [len(content) for _, content in about.folded] == [30]


def test_a_baseline_by_feature_knows_the_rate_of_other_queries_alone():
    rng, count = np.random.default_rng(3), 4000
    query, place = np.repeat(np.arange(count // 4) * 7919, 4), rng.integers(0, 3, count)
    label = (rng.random(count) < np.array([0.1, 0.3, 0.6])[place]).astype(int)
    weight = rng.choice([0.0, 1.0, 2.5], count)
    metrics = ProgressiveMetrics(["place", "user", "constraint:mix"])
    # Of values that occur once, a rate that had seen its own row would be perfect.
    slices = {"place": place, "user": np.arange(count), "constraint:mix": place}
    metrics.update(label, np.zeros(count), weight, query, slices)
    found = {name: float(one.point) for name, one in baseline_loglosses(metrics).items()}
    from ctr.eval.states import query_bucket

    bucket, base = query_bucket(query), np.average(label, weights=weight)
    losses = []
    for row in range(count):
        others = (place == place[row]) & (bucket != bucket[row])
        rate = (weight[others] @ label[others] + base) / (weight[others].sum() + 1)
        losses.append(-math.log(rate if label[row] else 1 - rate))
    assert found["base rate by place"] == pytest.approx(np.average(losses, weights=weight), rel=1e-9)
    assert found["base rate by user"] == pytest.approx(found["the base rate"], rel=1e-9)
    assert found["base rate by place"] < found["the base rate"]
    # Slices of a family of bias constraints may be of the run's predictions.
    assert list(found) == ["the base rate", "base rate by place", "base rate by user"]


def test_slices_have_names_and_the_worst_calibrated_one_is_said(runs):
    summary = json.loads((runs[0] / "summary.json").read_text())
    section = section_of(page_of(runs[0]), "Slices")
    slices = rows_of(tables_of(section)[0])
    heaviest = summary["calibration_slices"]["position"]["heaviest"]
    assert {"third", "id 1"} <= set(slices)
    for row in heaviest:
        cells = slices["third" if row["id"] == 3 else f"id {row['id']}"]
        assert cells["AUC"] == ("–" if row["auc"] is None else f"{row['auc']:.3f}")
        if None not in row["calibration_ratio_ci95"]:
            ratio = row["calibration_ratio"], *row["calibration_ratio_ci95"]
            assert cells["predicted / actual clicks"] == shown(*ratio)
    columns = ["name", "calibration_ratio", "calibration_ratio_low", "calibration_ratio_high"]
    values = [["a", 1.3, 1.2, 1.4], ["<b>", 0.5, 0.4, 0.7], ["c", 3.0, 0.9, 9.0]]
    table = pd.DataFrame(values, columns=columns)
    ratio = "predicted / actual clicks 0.50 [0.40, 0.70], it under-predicts by 50.0%"
    assert worst_slice([("city", table)]) == f"The worst calibrated slice is city <b>: {ratio}."
    assert worst_slice([("city", table.tail(1))]).startswith("No slice is miscalibrated for certain")
    # Runs side by side keep the order of the values.
    both = tables_of(section_of(page_of(*runs), "Slices"))[0][:3]
    assert both["value"].tolist() == [next(iter(slices))] * 3
    assert both["run"].tolist() == ["lr", "dcn", "dcn-2"]


def test_days_sum_up_their_windows(rows, tmp_path):
    run = write_run(tmp_path / "run", rows, predict(rows, 1, 1.0), windows=40)
    table = rows_of(tables_of(section_of(page_of(run), "By day"))[0])
    timeline = read_timeline(read_run(run))
    middle = (timeline.windows[:, 1] + timeline.windows[:, 2]) // 2
    days = pd.to_datetime(middle, unit="us").strftime("%Y-%m-%d")
    counts = pd.Series(timeline.windows[:, 3]).groupby(days).sum()
    assert {day: int(cells["rows"].replace(",", "")) for day, cells in table.items()} == counts.to_dict()
    assert len(table) == 7 or len(table) == 8
    sums = timeline.sums[days == "2025-10-10"].sum(axis=(0, 1))
    assert float(table["2025-10-10"]["logloss"].split()[0]) == pytest.approx(sums[3] / sums[0], abs=0.006)


@pytest.mark.slow
def test_the_file_is_whole_and_replaces_reports_alone(runs, capsys, tmp_path):
    path = write_report(runs, tmp_path / "new" / "report.html")
    html = path.read_text()
    # The same runs give the same bytes.
    assert html == render_report(runs) and list(path.parent.iterdir()) == [path]
    page = Html(html)
    page.check()
    assert len(page.images()) == 4 + 2 + 1
    for namespace in ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"):
        html = html.replace(namespace, "")
    assert not re.search(r"https?://", html) and "<dc:date>" not in html
    assert main(["report", *map(str, runs), "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n" and is_page(path)
    for other in ("<!DOCTYPE html>\n<title>mine</title>", path.read_text()[1:], "seed: 1"):
        path.write_text(other)
        with pytest.raises(InputError, match="already exists, and is not a report of ctr"):
            write_report(runs, path)
        assert path.read_text() == other


def test_a_run_of_one_class_and_one_time(rows, tmp_path):
    table, run = rows.assign(label=np.int8(0), query_time=0), tmp_path / "run"
    more = {"calibration_warning": "too few; look at <model.prior>", "notes": ["ids became <auto>"]}
    write_run(run, table, predict(rows, 1, 1.0), network_gate=0.0, **more)
    context = page_of(run)
    words = words_of(context)
    assert context.warnings == ["run: too few; look at <model.prior>"] and "ids became <auto>" in words
    assert "the share of network is 0.00 on this log" in words
    assert "event times" not in words and "By day" not in [section.title for section in context.sections]
    assert not {"PerQueryAUC", "AUC"} & set(figures_of(context))
    assert "there were no clicks to compare the predictions with" in context.verdict[0]
    assert re.search(r"AUC over [\d,]+ rows is undefined, because all rows are clicks, or none is", words)
    # No plot is a single dot, either.
    single = page_of(write_run(tmp_path / "single", rows, predict(rows, 1, 1.0), windows=1))
    assert "Over time" not in [section.title for section in single.sections]


@pytest.mark.slow
def test_a_log_without_queries_is_drawn_by_auc(rows, tmp_path):
    alone = rows.assign(query_id=np.arange(len(rows)))
    run = write_run(tmp_path / "run", alone, predict(rows, 1, 1.0), windows=12)
    assert figures_of(page_of(run))[:2] == ["AUC", "logloss"]
    assert "PerQueryAUC" not in figures_of(page_of(run))
    worse = write_run(tmp_path / "worse", alone, predict(rows, 1, 0.2), windows=12, config={"a": 1})
    assert page_of(run, worse).verdict[0].startswith("worse is worse than run: AUC -")


def test_the_first_sentence_says_what_was_learned(runs):
    summary = json.loads((runs[0] / "summary.json").read_text())
    for entropy, interval, says in (
        (0.9, [0.85, 0.95], "learned more than the base rate: its logloss is 10.0% below"),
        (1.1, [1.05, 1.15], "predicts worse than the base rate alone: its logloss is 10.0% above"),
        (0.99, [0.95, 1.03], "is open: its logloss is 1.0% below"),
        (0.99, [None, None], "too little data for an interval"),
        (None, [None, None], "no base rate to compare with"),
    ):
        changed = {"normalized_entropy": entropy, "normalized_entropy_ci95": interval}
        text = what_was_learned({**summary, **changed})
        assert says in text and "; predicted / actual clicks are" in text and text.count(". ") == 0


def test_runs_unlike_the_first(rows, runs, tmp_path):
    logit = predict(rows, 1, 1.0)
    single = write_run(tmp_path / "single", rows, logit, windows=1, parts=0)
    other = write_run(tmp_path / "other", rows, logit, log_sha256="b" * 64)
    context = page_of(runs[0], single, other, runs[1])
    assert f"unknown: no predictions were recorded in {single}" in words_of(context)
    assert context.verdict[1].startswith("other and lr are not comparable: ")
    assert "read different logs" in context.verdict[1] and len(context.verdict) == 3


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
    (run / "config.yaml").unlink()
    assert main(["report", str(run)]) == 1
    error = capsys.readouterr().err
    assert error == f"error: {run / 'config.yaml'}: no such file; a finished run has one\n"
    assert not (run / "report.html").exists()
