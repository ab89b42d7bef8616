"""Small programs in the place of workers, and a process that launches them."""

import sys
from pathlib import Path

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
"""What the programs begin with; they count their starts in files of the folder that they run in."""

LAUNCHER = """
import signal
import sys
from pathlib import Path
from ctr.io.errors import InputError
from ctr.workers.cluster import WorkerLostError
from ctr.workers.launch import Launch, launch

# A program that was started with nohup would leave it ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
try:
    say = lambda text: print("say:", text, file=sys.stderr, flush=True)
    sys.exit(launch(Launch(command=sys.argv[2:], size=int(sys.argv[1]), folder=Path("run/workers"), say=say)))
except WorkerLostError as error:
    print("lost:", error, file=sys.stderr)
    sys.exit(75)
except InputError as error:
    print("error:", error, file=sys.stderr)
    sys.exit(1)
"""
"""Launches the command that its arguments give after the number of workers."""


def worker_command(folder: Path, script: str) -> list[str]:
    """The command that runs a program after ``WORKER``."""
    path = folder / "worker.py"
    path.write_text(WORKER + script)
    return [sys.executable, str(path)]
