"""Workers that are done, die, hang or are refused: what becomes of the others, and what is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctr.io.errors import InputError
from ctr.workers.cluster import WorkerLostError
from ctr.workers.launch import Launch, _Worker, launch, threads_each
from ctr.workers.reports import Report
from worker_scripts import LAUNCHER, worker_command


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(place: Path, script: str, size: int = 3, **options) -> tuple[int, list[Report], list[str]]:
    """Launches workers; returns the status, what they reported and what was said."""
    reports: list[Report] = []
    said: list[str] = []
    plan = Launch(
        worker_command(place, script),
        size,
        place / "run" / "workers",
        show=reports.append,
        say=said.append,
        **{"settle_seconds": 1.0, **options},
    )
    try:
        return launch(plan), reports, said
    except InputError as error:
        error.said = said
        raise


def log(place: Path, rank: int) -> str:
    return (place / "run" / "workers" / f"{rank:03d}.log").read_text()


def starts(place: Path, size: int = 3) -> list[int]:
    return [(place / f"starts{rank}").stat().st_size for rank in range(size)]


def test_each_worker_has_its_place_and_its_log(place, capfd, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    script = """
print("result of", rank)
print("a wall of messages of", rank, file=sys.stderr)
reporter.report("place", size=size, config=os.environ.get("TF_CONFIG"))
"""
    status, reports, said = start(place, script)
    assert (status, said) == (0, [])
    assert sorted(report.rank for report in reports) == [0, 1, 2]
    assert all(report.content == {"size": 3, "config": None} for report in reports)
    assert capfd.readouterr() == ("result of 0\n", "")
    assert log(place, 0) == "a wall of messages of 0\n"
    assert sorted(log(place, 2).splitlines()) == ["a wall of messages of 2", "result of 2"]


def test_a_worker_that_dies_ends_the_others_and_all_restart(place):
    script = """
if attempt == 0:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
"""
    status, _, said = start(place, script)
    assert status == 0
    assert starts(place) == [2, 2, 2]
    assert len(said) == 1
    assert said[0].startswith("worker 1 was killed (SIGKILL;")
    assert str(place / "run/workers/001.log") in said[0]
    assert said[0].endswith("all workers restart from the last checkpoint (1/3)")


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "was ended by SIGTERM"),
        ("os.abort()", "was ended by SIGABRT"),
        ("print('first'); print('why', file=sys.stderr); os._exit(70)", "ended with status 70: why"),
        ("reporter.report('error', text='KeyError: x'); os._exit(70)", "ended with status 70: KeyError: x"),
    ],
)
def test_the_way_of_dying_is_named(place, death, words):
    script = f"""
if rank == 0:
    {death}
time.sleep(1000)
"""
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, size=2, max_restarts=0)
    assert str(failure.value).startswith(f"worker 0 {words}") and "\n" not in str(failure.value)


def test_the_one_that_hangs_is_named(place):
    script = """
if rank == 2:
    time.sleep(1000)
time.sleep(0.3 * rank)
lose()
"""
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, max_restarts=0)
    assert str(failure.value).startswith("worker 2 does not answer; its output is in ")


def test_the_one_that_died_is_named_though_another_noticed_it_first(place):
    script = """
if rank == 0:
    lose()
time.sleep(0.5)
if rank == 2:
    os._exit(3)
time.sleep(1000)
"""
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, max_restarts=0, settle_seconds=20.0)
    assert str(failure.value).startswith("worker 2 ended with status 3")


@pytest.mark.slow
def test_one_that_does_not_begin_is_named(place):
    script = """
if rank != 1:
    reporter.report("joining")
time.sleep(1000)
"""
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, max_restarts=0, start_seconds=8.0)
    assert str(failure.value).startswith("worker 1 does not answer; ")


def test_one_that_is_stopped_is_named_and_one_that_goes_on_is_not(place):
    script = """
if rank == 2:
    # Goes on in time.
    if os.fork() == 0:
        time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
if rank == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1000)
"""
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, max_restarts=0, stopped_seconds=2.0)
    assert str(failure.value).startswith(
        "worker 1 was stopped by a signal and did not go on; its output is in "
    )


@pytest.mark.parametrize("end", ["sys.exit(75)", "time.sleep(600)"])
def test_when_the_first_is_done_nothing_restarts(place, end):
    """It leaves last: all that others lose then is the first one."""
    script = f"""
if rank == 1:
    {end}
print("result")
"""
    assert start(place, script)[::2] == (0, [])
    assert starts(place) == [1, 1, 1]


@pytest.mark.slow
def test_those_that_have_begun_may_take_their_time(place):
    status, _, said = start(place, "reporter.report('joining'); time.sleep(8)", start_seconds=7.0)
    assert (status, said) == (0, [])


def test_where_all_lost_another_it_is_said_what_the_first_says(place):
    with pytest.raises(WorkerLostError) as failure:
        start(place, "lose()", max_restarts=0, settle_seconds=20.0)
    assert "worker 0 has lost another: worker 0: another worker is gone; " in str(failure.value)


def test_bad_input_is_final(place):
    script = """
if rank:
    lose()
reporter.report("error", text="config: bad")
sys.exit(1)
"""
    with pytest.raises(InputError, match=r"^config: bad$") as failure:
        start(place, script)
    assert failure.type is InputError
    assert (starts(place), failure.value.said) == ([1, 1, 1], [])


def test_bad_input_of_another_worker_names_it(place):
    script = """
if rank == 1:
    print("error: log: bad", file=sys.stderr)
    sys.exit(1)
time.sleep(1000)
"""
    with pytest.raises(InputError, match=r"^worker 1: error: log: bad$"):
        start(place, script)
    assert starts(place) == [1, 1, 1]


def test_it_gives_up_after_so_many_restarts(place):
    script = """
if rank == 1:
    os._exit(9)
time.sleep(1000)
"""
    with pytest.raises(
        WorkerLostError, match="given up after 2 restarts without a checkpoint between"
    ) as failure:
        start(place, script, max_restarts=2)
    assert starts(place) == [3, 3, 3]
    assert [text[-5:] for text in failure.value.said] == ["(1/2)", "(2/2)"]


@pytest.mark.slow
def test_a_checkpoint_counts_restarts_anew(place):
    script = """
if rank == 0 and attempt < 4:
    open("checkpoint", "a").write("x")
if rank == 1:
    # After the checkpoint of this start.
    while attempt < 4 and (not os.path.exists("checkpoint") or os.path.getsize("checkpoint") <= attempt):
        time.sleep(0.01)
    os._exit(9)
time.sleep(1000)
"""
    made = place / "checkpoint"
    with pytest.raises(WorkerLostError, match="given up after 1 restarts") as failure:
        start(place, script, max_restarts=1, mark=lambda: made.stat().st_size if made.exists() else 0)
    # Four starts each with a checkpoint, each followed by the first restart since; then one more in vain.
    assert [text[-5:] for text in failure.value.said] == ["(1/1)"] * 4
    assert starts(place) == [5, 5, 5]


def test_reports_are_whole_however_many_workers_report(place):
    script = """
for number in range(300):
    reporter.report("line", number=number, text="x" * (1 + number % 1000))
    time.sleep(0.001)
"""
    _, reports, _ = start(place, script)
    assert len(reports) > 300
    for rank in range(3):
        numbers = [report.content["number"] for report in reports if report.rank == rank]
        assert numbers == sorted(set(numbers))
        assert all(len(report.content["text"]) == 1 + report.content["number"] % 1000 for report in reports)


def test_a_report_that_is_too_long_is_shortened(place):
    _, reports, _ = start(place, "reporter.report('error', text='é' * 9000)", size=2)
    assert len(reports) == 2
    assert all(100 < len(report.content["text"]) < 9000 for report in reports)


def launcher(place: Path, script: str, size: int = 2) -> "subprocess.Popen[str]":
    """A process of its own that launches workers; returns when all of them have begun."""
    (place / "launcher.py").write_text(LAUNCHER)
    command = worker_command(place, f"open(f'pid{{rank}}', 'w').write(str(os.getpid()))\n{script}")
    process = subprocess.Popen(
        [sys.executable, "launcher.py", str(size), *command],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not all((place / f"ready{rank}").exists() for rank in range(size)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def pids(place: Path, size: int = 2) -> list[int]:
    return [int((place / f"pid{rank}").read_text()) for rank in range(size)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # What has ended, but was not waited for.
    return state != "Z"


def wait_until_gone(found: list[int]) -> None:
    while any(is_alive(pid) for pid in found):
        time.sleep(0.01)


READY = "open(f'ready{rank}', 'w').close()\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_all_and_nothing_restarts(place, number, status):
    script = f"signal.signal(signal.SIGINT, signal.SIG_DFL)\n{READY}time.sleep(1000)"
    process = launcher(place, script)
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (status, "")
    wait_until_gone(pids(place))
    assert starts(place, 2) == [1, 1]


def test_workers_that_end_well_after_a_signal(place):
    script = f"""
def end(*_):
    time.sleep(0.2 * rank)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
{READY}
time.sleep(1000)
"""
    process = launcher(place, script)
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_a_second_signal_ends_what_does_not_end(place):
    script = f"signal.signal(signal.SIGTERM, lambda *_: None)\n{READY}\nwhile True: time.sleep(1)"
    process = launcher(place, script)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert all(is_alive(pid) for pid in pids(place))
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    wait_until_gone(pids(place))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_worker_outlives_the_launcher(place, number):
    process = launcher(place, f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{READY}time.sleep(1000)")
    os.kill(process.pid, number)
    process.communicate()
    wait_until_gone(pids(place))


def test_one_process_at_a_time_runs_workers_in_a_folder(place):
    process = launcher(place, f"{READY}time.sleep(1000)")
    with pytest.raises(InputError, match="another process is training in this run directory"):
        start(place, "")
    process.kill()
    process.communicate()


def test_processors_are_divided():
    cores = len(os.sched_getaffinity(0))
    assert threads_each(1, {}) == {"TF_NUM_INTRAOP_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)}
    assert threads_each(cores, {"OMP_NUM_THREADS": "7"}) == {"TF_NUM_INTRAOP_THREADS": "1"}
    assert set(threads_each(1000, {}).values()) == {"1"}


def test_a_worker_that_has_just_ended_is_not_stopped():
    process = subprocess.Popen(["true"])
    while is_alive(process.pid):
        time.sleep(0.01)
    assert not _Worker(0, Path(os.devnull), process).is_stopped()
    process.wait()
