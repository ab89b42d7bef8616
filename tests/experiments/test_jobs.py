"""Commands side by side: how many at once, what is reported of each, and what a failure leaves."""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ctr.experiments.jobs import Job, Outcome, run_jobs
from ctr.io.errors import InputError

BY_BEAM = "--runner=FnApiRunner"  # one after the other
SCRIPT = """#!/bin/sh
# Called as python is: -m ctr WHAT ...
shift 2
case $1 in
  span) begun=$(date +%s.%N); sleep $2; echo "$begun $(date +%s.%N)" > $3 ;;
  until) while [ ! -e $2 ]; do sleep 0.05; done ;;
  wait) echo $$ > $2; exec sleep 60 ;;
  interrupt) kill -INT $$; sleep 1; exit 130 ;;
  fail) echo "a warning" >&2; echo "error: the log has no rows" >&2; exit 1 ;;
  silent) exit 3 ;;
  full) echo "error: a: No space left on device" >&2; exit 75 ;;
  die) kill -9 $$ ;;
  long) i=0; while [ $i -lt 90 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1 ;;
  print) echo "$REPLAY_TEST $TF_CPP_MIN_LOG_LEVEL" > $2; echo "much" ; echo "noise" >&2 ;;
esac
"""


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    """Stands in for Python, so that a command takes milliseconds."""
    path = tmp_path / "python"
    path.write_text(SCRIPT)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def job(name: str, *arguments: str) -> Job:
    return Job(name, arguments, ())


@pytest.fixture
def run(tmp_path):
    """Runs jobs; returns the outcome of each by name, in the order in which they ended."""

    def run(
        jobs: list[Job], workers: int, beam_options: str = "", ended: Callable[[], object] = bool
    ) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        begun: list[str] = []

        def report(one: Job, outcome: Outcome | None) -> None:
            assert one.name not in outcomes
            if outcome is None:
                begun.append(one.name)
                return
            assert one.name in begun or not outcome.seconds
            outcomes[one.name] = outcome
            ended()

        run_jobs(jobs, workers, report, beam_options, tmp_path / "outcomes")
        return outcomes

    return run


@pytest.mark.slow
def test_so_many_at_once_and_no_more_in_their_order(run, tmp_path):
    """One that takes longer than all others keeps the other worker from nothing."""
    long, ended, places = tmp_path / "ended", [], range(1, 5)
    jobs = [job(f"job-{n}", "span", "0.2", str(tmp_path / f"span-{n}")) for n in places]

    def end():
        ended.append(1)
        if len(ended) == len(jobs):
            long.touch()

    outcomes = run([job("job-0", "until", str(long)), *jobs], 2, ended=end)
    assert list(outcomes) == ["job-1", "job-2", "job-3", "job-4", "job-0"]
    assert all(not one.error and one.seconds > 0 for one in outcomes.values())
    assert outcomes["job-0"].seconds > outcomes["job-1"].seconds
    found = [tuple(map(float, (tmp_path / f"span-{n}").read_text().split())) for n in places]
    # One after the other, in the order in which they are given.
    assert [end for span in found for end in span] == sorted(end for span in found for end in span)


@pytest.mark.parametrize("options", ["", BY_BEAM])
def test_a_failure_is_its_own(run, tmp_path, capfd, options):
    printed, ended = tmp_path / "printed", tmp_path / "ended"
    good = Job("good", ("print", str(printed)), (("REPLAY_TEST", "7"),))
    # The slow one ends when another one has been reported, so that both have to run at once; not by Beam.
    if options:
        ended.touch()
    jobs = [job("slow", "until", str(ended)), job("bad", "fail"), good]
    jobs += [job("dead", "die"), job("silent", "silent"), job("long", "long"), job("full", "full")]
    (tmp_path / "outcomes").mkdir()
    # An outcome from before does not count.
    (tmp_path / "outcomes/bad.json").write_text('{"ok": true, "seconds": 1}')
    outcomes = run(jobs, 2, options, lambda: ended.touch())
    assert not outcomes["slow"].error and (options or next(iter(outcomes)) != "slow")
    assert not outcomes["good"].error and printed.read_text() == "7 3\n"
    assert outcomes["bad"].error == "the log has no rows"
    assert outcomes["bad"].end == "a warning\nerror: the log has no rows\n"
    assert outcomes["dead"].error == "ended by signal 9 (SIGKILL)"
    assert outcomes["silent"].error == "exit status 3 without a message"
    # Bad input, a defect, and what may pass.
    statuses = {name: outcomes[name].status for name in ("bad", "long", "silent", "dead", "full")}
    assert statuses == {"bad": 1, "long": 1, "silent": 70, "dead": 75, "full": 75}
    assert outcomes["long"].end.splitlines() == [f"line {n}" for n in range(60, 90)]
    assert capfd.readouterr() == ("", "")


def test_a_wrong_option_is_one_line(run, capfd):
    with pytest.raises(InputError, match=r"^--beam-options --direct_num_workers=x: .*int value: 'x'$"):
        run([job("one", "fail")], 1, "--direct_num_workers=x")
    failed = run([job("one", "fail")], 1, "--runner=Nonsense")["one"]
    assert failed.error.startswith("the pipeline failed: --beam-options: Unexpected pipeline runner")
    assert capfd.readouterr() == ("", "")


def test_what_leaves_no_outcome_has_failed(run, script):
    """As a worker that is interrupted by itself."""
    outcomes = run([job("one", "interrupt"), job("bad", "fail")], 2, BY_BEAM)
    assert outcomes["one"].error == "it was interrupted"
    assert run([job("one", "interrupt")], 1)["one"].error == "it was interrupted"
    script.unlink()
    error = run([job("one", "fail")], 1)["one"].error
    assert error.startswith("its process cannot be started: ") and "\n" not in error


@pytest.fixture
def interruptible():
    # A shell that begins the tests in the background has them ignore interruptions.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "raised", "options", "at_once"),
    [(signal.SIGINT, KeyboardInterrupt, "", 2), (signal.SIGTERM, SystemExit, BY_BEAM, 1)],
)
def test_a_signal_ends_what_runs_and_begins_no_more(run, tmp_path, options, number, raised, at_once):
    jobs = [job(f"job-{n}", "wait", str(tmp_path / f"begun-{n}")) for n in range(4)]

    def interrupt():
        while len(list(tmp_path.glob("begun-*"))) < at_once:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(raised):
        run(jobs, 2, options)
    time.sleep(0.5)
    ended = {path.read_text().strip() for path in tmp_path.glob("begun-*")}
    assert len(ended) == at_once and not any(Path(f"/proc/{process}").exists() for process in ended)
    assert not list((tmp_path / "outcomes").glob("*.json"))
    # The same process runs the next experiment.
    assert not run([job("next", "span", "0", str(tmp_path / "span-0"))], 1)["next"].error
    assert not run([job("last", "span", "0", str(tmp_path / "span-1"))], 1, options)["last"].error
