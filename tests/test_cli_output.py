"""Progress: a bar that fits its terminal, and a line a minute without a terminal."""

import pytest

from ctr.cli_output import LINE_SECONDS, Bar
from terminal import standard_error_shown

METRICS = {"per_query_auc": 0.5253, "auc": 0.5301, "logloss": 0.2709, "calibration_ratio": 1.0388}
TOTAL = 45_840_617


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_there_is_a_line_a_minute(capsys):
    clock = Clock()
    bar = Bar(1000, "examples", clock=clock)
    for position in range(1, 1001):
        clock.now += 0.5
        bar(position, METRICS)
    bar.close()
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 500 // LINE_SECONDS
    assert lines[0].startswith(
        "120 of 1,000 examples (12%), 2 examples/s, 0:07:20 left, logloss 0.2709, PerQueryAUC"
    )
    assert lines[0].endswith("predicted/actual 1.0388, AUC 0.5301")


def test_nothing_is_said_within_a_minute_or_where_it_is_to_be_quiet(capsys, monkeypatch):
    clock = Clock()
    bar = Bar(None, "rows", clock=clock)
    bar.advance(5)
    clock.now = LINE_SECONDS - 1
    bar.advance(5)
    assert capsys.readouterr().err == ""
    clock.now = LINE_SECONDS
    bar.advance(5)
    assert capsys.readouterr().err == "15 rows, 0.25 rows/s\n"
    monkeypatch.setattr("ctr.cli_output.is_quiet", lambda: True)
    quiet = Bar(None, "rows", clock=clock)
    clock.now = 1000.0
    quiet.advance(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_bar_fits_its_terminal(columns, monkeypatch):
    with standard_error_shown(columns, monkeypatch) as states:
        bar = Bar(TOTAL, "examples")
        for position in (8, 4096, TOTAL // 2, TOTAL):
            bar.phase("compiling")
            bar(position, METRICS)
            bar.phase("")
        bar.close()
    assert max(map(len, states)) <= columns
    last = next(state for state in reversed(states) if state.strip())
    assert "45.8M/45.8M" in last
    assert "logloss 0.2709" in last
    assert last.rstrip().endswith("predicted/actual 1.0388, AUC 0.5301]") == (columns == 200)


def test_a_compilation_and_what_a_resumed_run_had_passed_say_nothing_about_the_rate(capsys):
    clock = Clock()
    bar = Bar(1000, "examples", clock=clock)
    bar.phase("compiling")
    clock.now = 30.0
    bar(400)
    bar.phase("")
    for position in range(401, 431):
        clock.now += 1.0
        bar(position)
    assert capsys.readouterr().err == "430 of 1,000 examples (43%), 1 examples/s, 0:09:30 left\n"
