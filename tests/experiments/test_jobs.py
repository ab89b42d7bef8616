"""Commands side by side: how many at once, what is told of each, and what a failure leaves."""

import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from ctr.experiments.jobs import Job, Outcome, run_jobs
from ctr.io.errors import InputError

SCRIPT = """#!/bin/sh
# Called as python is: -m ctr WHAT ...
shift 2
case $1 in
  span) begun=$(date +%s.%N); sleep $2; echo "$begun $(date +%s.%N)" > $3 ;;
  wait) touch $2; exec sleep 60 ;;
  fail) echo "a warning" >&2; echo "error: the log has no rows" >&2; exit 1 ;;
  silent) exit 3 ;;
  die) kill -9 $$ ;;
  long) i=0; while [ $i -lt 90 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1 ;;
  tell) echo "$REPLAY_TEST $TF_CPP_MIN_LOG_LEVEL" > $2; echo "much" ; echo "noise" >&2 ;;
esac
"""


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch) -> Path:
    """Stands in for Python, so that a command takes milliseconds."""
    path = tmp_path / "python"
    path.write_text(SCRIPT)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


@pytest.fixture
def job(tmp_path):
    def make(name: str, *arguments: str, environment: tuple[tuple[str, str], ...] = ()) -> Job:
        return Job(name, arguments, str(tmp_path / "outcomes" / f"{name}.json"), environment)

    return make


def spans(folder: Path) -> list[tuple[float, float]]:
    found = []
    for path in folder.glob("span-*"):
        begin, end = map(float, path.read_text().split())
        found.append((begin, end))
    return sorted(found)


def most_at_once(found: list[tuple[float, float]]) -> int:
    return max(sum(begin <= moment < end for begin, end in found) for moment, _ in found)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "count"), [(1, 3), (2, 5), (4, 3)])
def test_so_many_at_once_and_no_more(job, tmp_path, workers, count):
    jobs = [job(f"job-{n}", "span", "1", str(tmp_path / f"span-{n}")) for n in range(count)]
    outcomes = run_jobs(jobs, workers)
    assert [outcomes[one.name].ok for one in jobs] == [True] * count
    assert most_at_once(spans(tmp_path)) == min(workers, count)
    assert all(1 <= outcome.seconds < 30 for outcome in outcomes.values())


def test_a_long_job_keeps_the_other_worker_from_nothing(job, tmp_path):
    seconds = ["3", *["0.4"] * 6]
    jobs = [job(f"job-{n}", "span", one, str(tmp_path / f"span-{n}")) for n, one in enumerate(seconds)]
    run_jobs(jobs, 2)
    found = spans(tmp_path)
    assert most_at_once(found) == 2
    assert max(end for _, end in found) - found[0][0] < 4.5


def test_a_failure_is_its_own(job, tmp_path, capfd):
    jobs = [
        job("good", "span", "0", str(tmp_path / "span-0")),
        job("bad", "fail"),
        job("dead", "die"),
        job("silent", "silent"),
        job("long", "long"),
    ]
    outcomes = run_jobs(jobs, 2)
    assert outcomes["good"].ok and not outcomes["good"].error
    assert not any(outcomes[name].ok for name in ("bad", "dead", "silent", "long"))
    assert outcomes["bad"].error == "the log has no rows"
    assert outcomes["bad"].end == "a warning\nerror: the log has no rows\n"
    assert outcomes["dead"].error == "ended by signal 9 (SIGKILL)"
    assert outcomes["silent"].error == "exit status 3 without a message"
    assert outcomes["long"].end.splitlines() == [f"line {n}" for n in range(60, 90)]
    assert capfd.readouterr() == ("", "")


def test_nothing_that_a_command_prints_is_shown_and_it_gets_its_environment(job, tmp_path, capfd):
    outcomes = run_jobs([job("one", "tell", str(tmp_path / "told"), environment=(("REPLAY_TEST", "7"),))], 1)
    assert outcomes["one"].ok
    assert (tmp_path / "told").read_text() == "7 3\n"
    assert capfd.readouterr() == ("", "")


def test_each_is_told_as_it_ends(job, tmp_path):
    told: list[tuple[str, bool, float]] = []

    def ended(one: Job, outcome: Outcome) -> None:
        told.append((one.name, outcome.ok, time.perf_counter()))

    jobs = [job("bad", "fail"), job("slow", "span", "1.5", str(tmp_path / "span-0"))]
    run_jobs(jobs, 2, ended=ended)
    assert [(name, ok) for name, ok, _ in told] == [("bad", False), ("slow", True)]
    assert told[1][2] - told[0][2] > 0.7


def test_an_outcome_from_before_does_not_count(job):
    one = job("bad", "fail")
    Path(one.outcome).parent.mkdir()
    Path(one.outcome).write_text('{"ok": true, "seconds": 1}')
    assert not run_jobs([one], 1)["bad"].ok


def test_without_jobs_nothing_happens():
    assert run_jobs([], 4) == {}


def test_a_pipeline_that_fails_is_told_of_each_job(job, script):
    script.unlink()
    outcomes = run_jobs([job("one", "fail")], 1)
    assert not outcomes["one"].ok
    assert outcomes["one"].error.startswith("the pipeline failed: ")
    assert "\n" not in outcomes["one"].error


def test_other_runners_get_their_options(job, tmp_path):
    options = "--runner=FnApiRunner --direct_num_workers=3 --direct_running_mode=multi_threading"
    jobs = [job(f"job-{n}", "span", "1", str(tmp_path / f"span-{n}")) for n in range(3)]
    run_jobs(jobs, 1, options)
    assert most_at_once(spans(tmp_path)) == 3


def test_a_wrong_option_is_one_line(job, capfd):
    with pytest.raises(
        InputError, match=r"^--beam-options --direct_num_workers=x: argument .*invalid int value: 'x'$"
    ):
        run_jobs([job("one", "fail")], 1, "--direct_num_workers=x")
    failed = run_jobs([job("one", "fail")], 1, "--runner=Nonsense")["one"]
    assert failed.error.startswith("the pipeline failed: Unexpected pipeline runner: Nonsense")
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def interruptible():
    # A shell that begins the tests in the background has them ignore interruptions.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_ends_what_runs_and_begins_no_more(job, tmp_path):
    jobs = [job(f"job-{n}", "wait", str(tmp_path / f"begun-{n}")) for n in range(4)]

    def interrupt() -> None:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, 2)
    assert len(list(tmp_path.glob("begun-*"))) == 2
    assert not list((tmp_path / "outcomes").glob("*"))
