"""What a report says of the faults of a run, and run directories that are refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import run_directories
from ctr.eval.report import report_context, write_report
from ctr.eval.run_files import read_windows
from ctr.io.errors import InputError
from report_pages import section_of, words_of

ROOTS = {"failed": 3, "lost": 0, "refreshed": 9}


@pytest.fixture(scope="module")
def rows():
    return run_directories.make_rows(1, queries=30)


@pytest.fixture
def write_run(rows, tmp_path):
    def write(name, **summary) -> Path:
        logit = run_directories.predict(rows, 1, 1.0)
        return run_directories.write_run(tmp_path / name, rows, logit, **summary)

    return write


def test_each_fault_has_its_line(write_run):
    run = write_run(
        "faulty",
        rejects=("label", "ids", "label"),
        rejected_rows=3,
        skipped_steps=7,
        skipped_ranges=[[10 * number, 10 * number + 10] for number in range(7)],
        left_out_rows=50,
        nonfinite_predictions=1234,
        shampoo=ROOTS,
    )
    clean = write_run("clean", left_out_rows=0, shampoo={**ROOTS, "failed": 0})
    words = words_of(section_of(report_context([clean, run]), "Faults"))
    for expected in (
        "label: 2",
        "ids: 1",
        "rows [40, 50]",
        "and 2 more",
        "rows left out by skip: scored, but not trained on",
        "1,234",
        "roots that failed, or whose result was rejected by its check",
    ):
        assert expected in words, expected
    assert "roots that were lost" not in words
    assert words.count("clean: no faults.") == 1
    assert "Faults" not in [section.title for section in report_context([clean]).sections]


def refused(run: Path, message: str) -> None:
    """Checks that a report of a run is refused in one line, which names it, and nothing is written."""
    with pytest.raises(InputError, match=message) as caught:
        write_report([run], run / "other.html")
    assert "\n" not in str(caught.value) and str(run) in str(caught.value)
    assert not (run / "other.html").exists()


def test_damaged_files_of_a_run_are_told_in_one_line(write_run):
    """Those that only a report reads; tests/eval/test_run_comparison.py has those of every run."""
    run = write_run("run", rejects=("label",), skipped_ranges=[[512, 1024]])
    summary, rejects, sums = (run / name for name in ("summary.json", "rejects.jsonl", "windows.parquet"))
    whole = json.loads(summary.read_text())
    position = {"kind": "category", "missing": -0.125, "out_of_range": None}
    for change, message in (
        ({"skipped_ranges": [[1, "b"]]}, r"skipped_ranges\.0\.1: Input should be a valid integer.*got 'b'"),
        ({"shampoo": {"failed": None}}, r"shampoo\.failed: Input should be a valid integer"),
        ({"features": {"position": position}}, r"features\.position\.missing: .*greater than or equal to 0"),
        ({"slice_names": {"position": {"a": "b"}}}, r"summary\.json: slice_names\.position\.a"),
    ):
        summary.write_text(json.dumps({**whole, **change}))
        refused(run, message)
    summary.write_text(json.dumps(whole))
    rejects.write_text(rejects.read_text() + "{")
    refused(run, r"rejects\.jsonl line 2: not JSON")
    rejects.unlink()
    table = pd.read_parquet(sums)
    for part, column, value, message in (
        ("time", "bucket", 77, r"time sums/\w+: bucket must be 0 to 31"),
        ("pass", "value", np.inf, "keys must be whole numbers, and value finite"),
    ):
        changed = table.copy()
        changed.loc[changed["part"] == part, column] = value
        changed.to_parquet(sums, index=False)
        refused(run, rf"windows\.parquet: damaged, or of another version: {message}")


def test_damaged_lines_of_windows_are_told_in_one_line(write_run):
    run = write_run("run")
    path = run / "metrics.jsonl"
    text = path.read_text()
    for changed, message in (
        (text + '{"examp', "metrics.jsonl line 4: not JSON"),
        (text + f'{{"examples": {2**70}}}', "not readable as windows"),
        (text.replace('"auc": 0', '"auc": "high", "auc_was": 0', 1), "not readable as windows: .*'high'"),
        (text.replace('"auc_ci95": [', '"auc_ci95": [3, ', 1), "not readable as windows"),
    ):
        path.write_text(changed)
        with pytest.raises(InputError, match=message) as caught:
            read_windows(run)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
