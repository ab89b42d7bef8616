"""Workers that are done, die, hang or are refused: what becomes of the others, and what is said."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctr.io.errors import InputError
from ctr.workers.cluster import WorkerLostError
from ctr.workers.launch import Launch, launch
from ctr.workers.reports import Report

# What the programs in the place of workers begin with.
WORKER = """
import json, os, signal, sys, time
from ctr.workers.reports import reporter_of
from ctr.workers.seats import read_place

seat = read_place()
reporter = reporter_of()
rank, size = seat.rank, seat.size
# How often this worker was started before.
starts = f"starts{rank}"
attempt = os.path.getsize(starts) if os.path.exists(starts) else 0
with open(starts, "a") as file:
    file.write("x")
# Some end at once, and end the others.
counts = [f"starts{other}" for other in range(size)]
while not all(os.path.exists(count) and os.path.getsize(count) > attempt for count in counts):
    time.sleep(0.01)

def lose():
    # As a worker whose exchange with another one fails.
    reporter.report("error", text=f"worker {rank}: another worker is gone")
    sys.exit(75)
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def worker_command(place: Path, script: str) -> list[str]:
    (place / "worker.py").write_text(WORKER + script)
    return [sys.executable, str(place / "worker.py")]


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


def starts(place: Path, size: int = 3) -> list[int]:
    return [(place / f"starts{rank}").stat().st_size for rank in range(size)]


def test_each_worker_has_its_place_its_log_and_reports_that_are_whole(place, capfd, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    script = """
print("result of", rank)
print("a wall of messages of", rank, file=sys.stderr)
reporter.report("place", size=size, config=os.environ.get("TF_CONFIG"))
for number in range(300):
    reporter.report("line", number=number, text="x" * (1 + number % 1000))
    time.sleep(0.001)
reporter.report("error", text="é" * 9000)
"""
    status, reports, said = start(place, script)
    assert (status, said) == (0, [])
    assert capfd.readouterr() == ("result of 0\n", "")
    logs = [(place / f"run/workers/{rank:03d}.log").read_text().splitlines() for rank in (0, 2)]
    assert logs[0] == ["a wall of messages of 0"]
    assert sorted(logs[1]) == ["a wall of messages of 2", "result of 2"]
    for rank in range(3):
        own = [report for report in reports if report.rank == rank]
        assert own[0].content == {"size": 3, "config": None}
        # Of lines some may be left out; those that come are whole.
        lines = [report.content for report in own if report.kind == "line"]
        assert len(lines) > 30
        numbers = [line["number"] for line in lines]
        assert numbers == sorted(set(numbers))
        assert all(len(line["text"]) == 1 + line["number"] % 1000 for line in lines)
        # One that is too long is shortened.
        assert own[-1].kind == "error" and 100 < len(own[-1].content["text"]) < 9000


@pytest.mark.slow
def test_a_worker_that_dies_is_named_with_its_way_of_dying_and_all_restart_so_many_times(place):
    script = """
if rank == 1:
    if attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == 1:
        open("checkpoint", "w").write("x")
        os.kill(os.getpid(), signal.SIGTERM)
    if attempt == 2:
        os.abort()
    if attempt == 3:
        print("first")
        print("why", file=sys.stderr)
        os._exit(70)
    reporter.report("error", text="KeyError: x")
    os._exit(70)
time.sleep(1000)
"""
    made = place / "checkpoint"
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, mark=lambda: made.stat().st_size if made.exists() else 0)
    restarts = "all workers restart from the last checkpoint"
    log = f"; its output is in {place / 'run/workers/001.log'}"
    assert failure.value.said == [
        f"worker 1 was killed (SIGKILL; the system does this when memory runs out){log}; {restarts} (1/3)",
        # After a checkpoint they are counted anew.
        f"worker 1 was ended by SIGTERM{log}; {restarts} (1/3)",
        f"worker 1 was ended by SIGABRT{log}; {restarts} (2/3)",
        f"worker 1 ended with status 70: why{log}; {restarts} (3/3)",
    ]
    assert str(failure.value).startswith(f"worker 1 ended with status 70: KeyError: x{log}; ")
    assert "given up after 3 restarts without a checkpoint between" in str(failure.value)
    assert "\n" not in str(failure.value) and starts(place) == [5, 5, 5]


HANGS = """
if rank == 2:
    time.sleep(1000)
time.sleep(0.3 * rank)
lose()
"""
DIES_LATER = """
if rank == 0:
    lose()
time.sleep(0.5)
if rank == 2:
    os._exit(3)
time.sleep(1000)
"""
STOPPED = """
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
LOST = {
    "that hangs": (HANGS, {}, "worker 2 does not answer; its output is in "),
    # Though another one noticed it first.
    "that died": (DIES_LATER, {"settle_seconds": 20.0}, "worker 2 ended with status 3"),
    "that is stopped": (
        STOPPED,
        {"stopped_seconds": 2.0},
        "worker 1 was stopped by a signal and did not go on; its output is in ",
    ),
    # The others only noticed that it is gone.
    "that met a fault of its own that may pass": (
        """
if rank == 1:
    reporter.report("error", text="/: No space left on device", is_lost=False)
    sys.exit(75)
lose()
""",
        {"settle_seconds": 20.0},
        "worker 1 ended with status 75: /: No space left on device; its output is in ",
    ),
    "that the first one misses": (
        "lose()",
        {"settle_seconds": 20.0},
        "worker 0 has lost another: worker 0: another worker is gone; ",
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case == "that is stopped" else ()) for case in LOST]
)
def test_the_worker_is_named(place, case):
    script, options, named = LOST[case]
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, max_restarts=0, **options)
    assert str(failure.value).startswith(named)


@pytest.mark.soak
def test_those_that_have_begun_may_take_their_time_and_one_that_does_not_begin_is_named(place):
    script = """
if attempt == 1 and rank == 1:
    time.sleep(1000)
reporter.report("joining")
time.sleep(9)
if rank == 0:
    os._exit(9)
time.sleep(1000)
"""
    with pytest.raises(WorkerLostError) as failure:
        start(place, script, max_restarts=1, start_seconds=8.0)
    assert [text.partition(":")[0] for text in failure.value.said] == ["worker 0 ended with status 9"]
    assert str(failure.value).startswith("worker 1 does not answer; ")


@pytest.mark.slow
def test_when_the_first_is_done_nothing_restarts(place):
    """It leaves last: all that others lose then is the first one."""
    script = """
if rank == 1:
    sys.exit(75)
if rank == 2:
    time.sleep(600)
print("result")
"""
    assert start(place, script)[::2] == (0, [])
    assert starts(place) == [1, 1, 1]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("if rank: lose()\nreporter.report('error', text='config: bad'); sys.exit(1)", "config: bad"),
        (
            "if rank == 1: print('error: log: bad', file=sys.stderr); sys.exit(1)\ntime.sleep(1000)",
            "worker 1: error: log: bad",
        ),
        (
            """if rank == 1: print('{"level": "error", "message": "log: bad"}', file=sys.stderr); sys.exit(1)
time.sleep(1000)""",
            "worker 1: log: bad",
        ),
    ],
    ids=["of all", "of another one", "of one whose lines are JSON"],
)
def test_bad_input_is_final(place, script, text):
    with pytest.raises(InputError) as failure:
        start(place, script)
    assert failure.type is InputError and str(failure.value) == text
    assert (starts(place), failure.value.said) == ([1, 1, 1], [])


LAUNCHER = """
import sys
from pathlib import Path
from ctr.workers.launch import Launch, launch

say = lambda text: print("say:", text, file=sys.stderr, flush=True)
sys.exit(launch(Launch(command=sys.argv[1:], size=2, folder=Path("run/workers"), say=say)))
"""
READY = "open(f'ready{rank}', 'w').close()\n"


def launcher(place: Path, script: str) -> "subprocess.Popen[str]":
    """A process of its own that launches two workers; returns when both have begun."""
    (place / "launcher.py").write_text(LAUNCHER)
    command = worker_command(place, f"open(f'pid{{rank}}', 'w').write(str(os.getpid()))\n{script}")
    process = subprocess.Popen(
        [sys.executable, "launcher.py", *command],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not all((place / f"ready{rank}").exists() for rank in range(2)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # What has ended, but was not waited for.
    return state != "Z"


def alive(place: Path) -> list[bool]:
    return [is_alive(int((place / f"pid{rank}").read_text())) for rank in range(2)]


def wait_until_gone(place: Path) -> None:
    while any(alive(place)):
        time.sleep(0.01)


ENDS_WELL = f"""
def end(*_):
    time.sleep(0.2 * rank)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
{READY}
time.sleep(1000)
"""
DIES = f"signal.signal(signal.SIGINT, signal.SIG_DFL)\n{READY}time.sleep(1000)"
DOES_NOT_END = f"signal.signal(signal.SIGTERM, lambda *_: None)\n{READY}\nwhile True: time.sleep(1)"


@pytest.mark.parametrize(
    ("script", "number", "status"),
    [(DIES, signal.SIGINT, 130), (ENDS_WELL, signal.SIGTERM, 0), (DOES_NOT_END, signal.SIGTERM, -15)],
    ids=["dies", "ends well", "ends only at a second one"],
)
def test_a_signal_reaches_all_and_nothing_restarts(place, script, number, status):
    process = launcher(place, script)
    process.send_signal(number)
    if script is DOES_NOT_END:
        time.sleep(0.5)
        assert alive(place) == [True, True]
        process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (status, "")
    wait_until_gone(place)
    assert starts(place, 2) == [1, 1]


def test_one_process_at_a_time_runs_workers_in_a_folder_and_they_do_not_outlive_it(place):
    process = launcher(place, f"{READY}time.sleep(1000)")
    with pytest.raises(InputError, match="another process is training in this run directory"):
        start(place, "")
    assert alive(place) == [True, True]
    process.kill()
    process.communicate()
    wait_until_gone(place)
