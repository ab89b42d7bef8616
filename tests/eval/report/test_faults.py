"""What a report says of the faults of a run."""

import json
from pathlib import Path

import pytest

import run_directories
from ctr.eval.report import run_page
from ctr.eval.report.shown_run import show_runs
from ctr.io.errors import InputError
from report_pages import words_of

HOUR = 3_600_000_000
QUARANTINED = [
    {"checkpoint": 500, "rows": [600, 650], "query_times": [0, 25 * HOUR], "reason": "10 steps <b>skipped"},
    {"checkpoint": 0, "rows": [7, 7], "query_times": None, "reason": "dense/000 is not finite"},
]
ROOTS = {"failed": 3, "lost": 0, "refreshed": 9}


@pytest.fixture(scope="module")
def rows():
    return run_directories.make_rows(1, queries=30)


@pytest.fixture
def write_run(rows, tmp_path):
    def write(name, **summary) -> Path:
        return run_directories.write_run(
            tmp_path / name, rows, run_directories.predict(rows, 1, 1.0), **summary
        )

    return write


def words_of_faults(*runs: Path) -> str:
    return words_of(run_page(show_runs(runs)).section("faults"))


def test_each_fault_has_its_line(write_run):
    run = write_run(
        "faulty",
        rejects=("label", "ids", "label"),
        rejected_rows=3,
        skipped_steps=7,
        skipped_ranges=[[10 * number, 10 * number + 10] for number in range(7)],
        rollbacks=2,
        quarantined=QUARANTINED,
        quarantined_rows=50,
        nonfinite_predictions=1234,
        shampoo=ROOTS,
    )
    words = words_of_faults(run)
    for expected in (
        "label: 2",
        "ids: 1",
        "rows [40, 50]",
        "and 2 more",
        "back to row 500, rows [600, 650] quarantined, query times 1970-01-01 00:00:00 to 1970-01-02 01:00:00 UTC",
        "10 steps <b>skipped",
        "back to row 0, nothing quarantined: dense/000 is not finite",
        "1,234",
        "roots that failed, or whose result was rejected by its check",
    ):
        assert expected in words, expected
    assert "roots that were lost" not in words
    clean = write_run("clean", shampoo={**ROOTS, "failed": 0})
    assert words_of_faults(clean, run).count("No faults.") == 1


def test_without_faults_there_is_no_section(write_run):
    run = write_run("clean", rollbacks=0, quarantined=[], shampoo={**ROOTS, "failed": 0})
    assert "faults" not in [section.name for section in run_page(show_runs([run])).sections]


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({"quarantined": 3}, "quarantined must be a list, got 3"),
        ({"quarantined": [3]}, "quarantined must be objects that name a checkpoint, got 3"),
        ({"quarantined": [{"checkpoint": 1, "rows": [1]}]}, "quarantined must be pairs of whole numbers"),
        ({"quarantined": [{**QUARANTINED[0], "query_times": "x"}]}, "quarantined.query_times must be pairs"),
        (
            {"quarantined": [{**QUARANTINED[0], "query_times": [0, 2**70]}]},
            "quarantined.query_times must be times in micro",
        ),
        (
            {"skipped_ranges": [[1, "2"]]},
            r"skipped_ranges must be pairs of whole numbers, \[first, last\], got",
        ),
        ({"rollbacks": "two"}, "rollbacks must be a number"),
        ({"shampoo": []}, "shampoo must be an object"),
        ({"shampoo": {"failed": None}}, "shampoo.failed must be a number"),
    ],
)
def test_what_is_not_told_as_it_should_be_is_refused(write_run, summary, words):
    with pytest.raises(InputError, match=rf"summary.json: {words}") as caught:
        show_runs([write_run("run", **json.loads(json.dumps(summary)))])
    assert "\n" not in str(caught.value)
