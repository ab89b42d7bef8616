"""The demonstration, small: every part works together from the command line."""

import json
import subprocess
import sys

import pytest


def run_ctr(*arguments):
    command = [sys.executable, "-m", "ctr", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_demo_ends_by_naming_its_report_and_does_nothing_twice(tmp_path):
    first = run_ctr("demo", "--out", tmp_path / "demo", "--examples", 20_000)
    assert first.returncode == 0, first.stderr
    report = tmp_path / "demo" / "report.html"
    assert first.stdout.splitlines()[-1].endswith(str(report))
    assert report.stat().st_size > 10_000
    summaries = {}
    for name in ("logistic-regression", "dcn"):
        summaries[name] = json.loads((tmp_path / "demo" / name / "summary.json").read_bytes())
        assert summaries[name]["examples"] == 20_000
        assert summaries[name]["skipped_steps"] == 0
    # A bias and the offset of the prediction.
    assert summaries["dcn"]["parameters_dense"] > summaries["logistic-regression"]["parameters_dense"] == 2

    again = run_ctr("demo", "--out", tmp_path / "demo", "--examples", 20_000)
    assert again.returncode == 0, again.stderr
    for name, summary in summaries.items():
        assert json.loads((tmp_path / "demo" / name / "summary.json").read_bytes()) == summary
