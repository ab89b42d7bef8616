"""Progress: what is left where batches grow, a line of eighty columns, and a line a minute without a terminal."""

import pytest

from ctr.cli_output import LINE_SECONDS, Bar, Pace
from ctr.data.batches import BatchSize
from terminal import standard_error_shown

METRICS = {"per_query_auc": 0.5253, "auc": 0.5301, "logloss": 0.2709, "calibration_ratio": 1.0388}
TOTAL = 45_840_617


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("step", [(0.01, 0.0), (0.01, 2e-5)], ids=["constant", "with the rows"])
def test_the_time_left_knows_that_batches_grow(step, share):
    """A step takes a time of its own and one of its rows; some steps are compiled."""
    batches, clock, total = BatchSize(4096, 1 / 256), Clock(), 3_000_000
    pace = Pace(total, batches, clock)
    position, before, left_at = 0, 8, {}
    while position < total:
        size = batches.at(position)
        clock.now += step[0] + step[1] * size + (5.0 if size > before else 0.0)
        before = size
        position = min(position + size, total)
        pace.at(position)
        left_at[position] = (clock.now, pace.seconds_left() if position >= share * total else None)
    end = clock.now
    now, left = next(one for one in left_at.values() if one[1] is not None)
    compiled = 5.0 * sum(1 for size, _ in batches.plateaus(int(share * total), total)[1:])
    assert left == pytest.approx(end - now - compiled, rel=0.1)
    assert pace.seconds_left() == 0
    pace.begin(0)
    assert pace.is_fresh() and pace.seconds_left() is None


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
        "120 of 1,000 examples (12%), 2 examples/s, 0:07:20 left, PerQueryAUC 0.5253, AUC"
    )
    assert lines[0].endswith("logloss 0.2709, predicted/actual 1.0388")


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
        bar = Bar(TOTAL, "examples", BatchSize(4096, 1 / 256))
        for position in (8, 4096, TOTAL // 2, TOTAL):
            bar.phase("compiling")
            bar(position, METRICS)
            bar.phase("")
        bar.close()
    assert max(map(len, states)) <= columns
    last = next(state for state in reversed(states) if state.strip())
    assert "45.8M/45.8M" in last
    assert ("logloss 0.2709" in last) == (columns >= 80)
    assert ("AUC 0.5301" in last and last.rstrip().endswith("predicted/actual 1.0388]")) == (columns == 200)
