import json
import re
import runpy
import shutil
import warnings
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ctr.cli import main
from ctr.eval import plots
from ctr.eval.report import render_report, write_report
from ctr.eval.report_page import check_page
from ctr.eval.run_files import RunError, read_windows

make = runpy.run_path(str(Path(__file__).with_name("run_directories.py")))
make_rows, predict, write_run = make["make_rows"], make["predict"], make["write_run"]
Page = runpy.run_path(str(Path(__file__).with_name("report_pages.py")))["Page"]

SECTIONS = ["results", "pass", "calibration", "query-size", "predictions", "weights", "configuration"]


def read_page(html: str):
    """Parses a report, and checks what holds of every report."""
    page = Page(html)
    sections = [section["id"] for section in page.all("section")]
    assert [name for name in sections if name not in ("comparison", "faults")] == SECTIONS
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in page.all("a")} == {f"#{name}" for name in ids}
    assert all(len(image["alt"]) > 20 for image in page.all("img"))
    assert not page.all("script")
    assert not re.search(r"https?://|@import|url\(", html)
    for svg in page.images():
        ElementTree.fromstring(svg)
        assert "<dc:date>" not in svg
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", page.words)
    return page


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
def html(runs):
    return render_report(runs)


def test_one_run(runs):
    page = read_page(render_report(runs[:1]))
    assert "comparison" not in {section["id"] for section in page.all("section")}
    # Five metrics and the throughput; two of calibration, one of its slices; query size; predictions.
    assert len(page.images()) == 6 + 3 + 1 + 1


def test_several_runs_are_compared_with_the_first(html):
    page = read_page(html)
    assert len(page.images()) == 6 + 3 + 1 + 3
    assert len(html) < 2_000_000
    assert page.words.count("Prediction difference") == 2
    comparison = page.words[page.words.index("Comparison with") : page.words.index("Over the pass", 2000)]
    assert "▲ better" in comparison
    assert "model.deep.units" in comparison


def test_the_numbers_are_those_of_the_summary(runs, html):
    summary = json.loads((runs[0] / "summary.json").read_text())
    words = read_page(html).words
    for metric in ("per_query_auc", "auc", "logloss", "normalized_entropy", "calibration_bias"):
        low, high = summary[f"{metric}_ci95"]
        assert f"{summary[metric]:.5f}[{low:.5f}, {high:.5f}]" in words
    for row in summary["per_query_auc_by_size"]:
        assert f"{row['auc']:.4f}" in words
    for row in summary["calibration_slices"]["position"]["heaviest"]:
        assert f"{row['bias']:+.5f}" in words
    assert summary["config_sha256"] in words
    assert summary["log_sha256"] in words
    assert "label: 2" in words
    assert "ids: 1" in words
    assert "rows [512, 1024]" in words


def test_the_same_runs_give_the_same_bytes(runs, html, tmp_path):
    path = write_report(runs, tmp_path / "new" / "report.html")
    assert path.read_text() == html
    assert list(path.parent.iterdir()) == [path]


def test_hostile_text_is_escaped(rows, tmp_path):
    hostile = "<script>alert(1)</script>"
    names = ('"><img src=x onerror=y>', "$\\frac{", "_a & <b>")
    table = rows.rename(columns={"position": hostile}).assign(position=0)
    runs = [write_run(tmp_path / name, table, predict(rows, 1, 1.0), slices=(hostile,)) for name in names]
    (runs[1] / "config.yaml").write_text(json.dumps({"seed": hostile, hostile: 1}))
    (runs[1] / "environment.json").write_text(json.dumps({hostile: hostile, "python": [hostile]}))
    (runs[1] / "rejects.jsonl").write_text(json.dumps({"reason": hostile}) + "\n")
    html = render_report(runs)
    page = read_page(html)
    assert "<script" not in html
    assert "<b>" not in html
    assert all("onerror" not in attributes for _, attributes in page.elements)
    assert page.words.count(hostile) >= 6
    assert all(name in page.words for name in names)
    assert not any("script" in svg for svg in page.images())


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
    page = read_page(render_report([runs[0], spectra, undrawn, none]))
    words = re.sub(r"\s*\n\s*", " ", page.words[page.words.index("Singular values") :])
    # Of 2, 1, 1/2: 4, 5, 5.25 and 2, 3, 3.5. A bottleneck of rank 2 takes 2 * 43 of 3 * 40 multiply-adds.
    assert "deep_0 3 × 40 3 120 97.6% 85.7% 2 0.72× 3 1.07×" in words
    # The bottleneck that is there takes 2 * 15 of 54.
    assert "low/uv 9 × 6product, inner rank 2 2 300.56× of m n 99.9% 96.8% 1 0.50× 1 0.50×" in words
    assert "zero 2 × 5 2 10 – – 0 0.000× 0 0.000×" in words
    assert "broken 2 × 2 2 4 4 of its entries are not finite" in words
    assert words.count("broken") == 2
    assert words.count("the run has no weight_spectra.json") == 1
    assert words.count("no weight matrix with both sides above 1") == 1
    [image] = [image for image in page.all("img") if "deep_0" in str(image["alt"])]
    assert "spectra. deep_0: 90% of the norm at rank 2 of 3, of the sum at 3." in str(image["alt"])
    assert "zero" not in str(image["alt"])
    # One plot, of two lines; the others have none to draw.
    assert len(page.images()) == 6 + 3 + 1 + 4 + 1
    assert len([svg for svg in page.all("svg") if svg.get("class") == "key"]) == 2


def test_the_names_of_weights_are_escaped_and_their_lines_differ(runs, tmp_path):
    hostile = "<script>alert(1)</script>"
    entry = {"shape": [2, 2], "singular_values": [2.0, 1.0]}
    weights = [{"name": f"{hostile}{index}", **entry} for index in range(28)]
    run = with_spectra(runs[0], tmp_path / "run", {"weights": weights})
    html = render_report([run])
    assert "<script" not in html
    assert read_page(html).words.count(hostile) == 28
    assert len(set(map(plots.line_look, range(28)))) == 28


def test_spectra_are_drawn_from_0_to_the_whole():
    svg = plots.cumulative_spectra([np.array([3.0, 1.0]), None, np.zeros(2)])
    ElementTree.fromstring(svg)
    assert svg.count("stroke: #0072b2") == 2
    assert svg == plots.cumulative_spectra([np.array([3.0, 1.0]), None, np.zeros(2)])


def test_a_run_of_one_class_and_one_time(rows, tmp_path):
    table = rows.assign(label=np.int8(0), query_time=0)
    page = read_page(render_report([write_run(tmp_path / "run", table, predict(rows, 1, 1.0))]))
    assert "No query has both a click and a non-click" in page.words
    assert "event times" not in page.words
    assert sum("undefined in every window" in svg for svg in page.images()) == 3


def test_runs_unlike_the_first(rows, runs, tmp_path):
    logit = predict(rows, 1, 1.0)
    single = write_run(tmp_path / "single", rows, logit, windows=1, parts=0)
    other = write_run(tmp_path / "other", rows, logit, log_sha256="b" * 64)
    assert read_windows(single)["examples_per_second"].isna().all()
    words = read_page(render_report([runs[0], single, other, runs[1]])).words
    assert f"unknown: no predictions were recorded in {single}" in words
    assert words.count("not comparable") == 1
    assert words.count("read different logs") == 1
    assert words.count("Prediction difference") == 2


def test_more_runs_than_colours(tmp_path):
    rows = make_rows(2, queries=30)
    run = write_run(tmp_path / "0", rows, predict(rows, 1, 1.0), windows=1)
    runs = [run, *(shutil.copytree(run, tmp_path / str(index)) for index in range(1, 8))]
    page = read_page(render_report(runs))
    assert len(page.images()) == 6 + 2 + 1 + 8


def test_times_that_tell_nothing_give_way_to_examples(runs):
    windows = read_windows(runs[0])
    assert plots.uses_event_time([windows])
    assert plots.uses_event_time([windows[:1]])
    for times in (0, 2**62):
        useless = windows.assign(window_begin=times, window_end=times)
        assert not plots.uses_event_time([windows, useless])
    assert not plots.uses_event_time([windows[::-1]])


@pytest.mark.parametrize("hours", [1e-4, 0.05, 2, 30, 71, 89, 97, 24 * 20, 24 * 300, 24 * 1000, 24 * 9000])
def test_any_stretch_of_time_has_its_ticks(runs, hours):
    windows = read_windows(runs[0]).head(2).copy()
    begin = 1_767_571_200_000_000
    windows["window_begin"] = [begin, begin + int(hours * 1.8e9)]
    windows["window_end"] = windows["window_begin"] + int(hours * 1.8e9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "<svg" in plots.progressive_metric([windows], "auc")


def test_many_windows_keep_the_file_small(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rng = np.random.default_rng(1)
    with (run / "metrics.jsonl").open("w") as file:
        for index in range(1500):
            line = lines[index % 2] | {"examples": index + 1, "auc": 0.7 + 0.05 * rng.random()}
            line |= {"window_begin": index * 10**9, "window_end": (index + 1) * 10**9}
            file.write(json.dumps(line) + "\n")
    html = render_report([run])
    read_page(html)
    assert len(html) < 2_000_000


def test_the_running_mean_ends_at_the_metric_of_the_run(runs):
    windows = read_windows(runs[1])
    summary = json.loads((runs[1] / "summary.json").read_text())
    for metric, weight in (("per_query_auc", "queries_scored"), ("logloss", "weight_sum")):
        mean = np.average(windows[metric], weights=windows[weight])
        assert mean == pytest.approx(summary[metric], abs=1e-12)
        assert plots.has_running_mean(metric)


def test_the_histogram_leaves_out_the_tails():
    histogram = np.zeros((2**16, 2))
    histogram[30_000:30_100] = 10.0
    histogram[0, 0] = histogram[-1, 1] = 0.5
    assert plots.prediction_range([histogram]) == (30_000, 30_100)
    assert plots.prediction_range([np.zeros((2**16, 2))]) == (0, 2**16)


def test_command_line(runs, tmp_path, capsys):
    run = shutil.copytree(runs[0], tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    read_page((run / "report.html").read_text())
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
    "spectrum no number": (_spoil_spectra(singular_values=[2, float("nan")]), "NaN is no number of JSON"),
    "spectrum endless": (_spoil_spectra(singular_values=[float("inf"), 1]), "Infinity is no number of JSON"),
    "spectrum below 0": (_spoil_spectra(singular_values=[2, -1]), "must be finite, descending"),
    "spectrum ascending": (_spoil_spectra(singular_values=[1, 2]), "must be finite, descending"),
    "predictions cut": (
        lambda run: sorted(run.glob("predictions/*"))[0].write_bytes(b"PAR1"),
        "not readable as predictions",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_told_in_one_line(runs, tmp_path, fault):
    spoil, message = FAULTS[fault]
    run = shutil.copytree(runs[1], tmp_path / "run")
    spoil(run)
    with pytest.raises(RunError, match=message) as caught:
        write_report([runs[0], run], tmp_path / "report.html")
    assert "\n" not in str(caught.value)
    assert str(run) in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_bad_arguments(runs, tmp_path):
    with pytest.raises(RunError, match="at least one run"):
        write_report([], None)
    with pytest.raises(RunError, match="given twice"):
        write_report([runs[0], runs[0]], None)
    with pytest.raises(RunError, match=f"{tmp_path}: is a directory"):
        write_report(runs[:1], tmp_path)
    with pytest.raises(RunError, match=r"summary\.json: is a file; allowed: a directory"):
        write_report(runs[:1], runs[0] / "summary.json" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_report_replaces_reports_alone(runs, tmp_path):
    page = write_report(runs[:1], tmp_path / "report.html")
    check_page(page)
    # Pages of earlier versions have no mark but their title.
    text = page.read_text()
    page.write_text(text.replace('<meta name="generator" content="ctr">', ""))
    check_page(page)
    page.write_text("")
    check_page(page)
    for other in ("<!DOCTYPE html>\n<title>mine</title>", text[1:], "seed: 1"):
        page.write_text(other)
        with pytest.raises(RunError, match="is there already, and is not a report of ctr"):
            check_page(page)
        with pytest.raises(RunError, match="is there already, and is not a report of ctr"):
            write_report(runs[:1], page)
        assert page.read_text() == other
