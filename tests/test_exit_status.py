"""The exit status of every command: what bad input ends with, what may pass, a defect, and an interruption."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor

import pyarrow as pa
import pytest

from ctr.cli import main
from ctr.io.errors import InputError, PassingError


def of_system(number: int, file: str | None = "a") -> OSError:
    return OSError(number, os.strerror(number), file)


def about(cause: BaseException, error: BaseException) -> BaseException:
    """An error that was raised while another one was handled."""
    try:
        try:
            raise cause
        except BaseException:
            raise error from None
    except BaseException as raised:
        return raised


def full() -> OSError:
    return of_system(errno.ENOSPC)


UNLOADED = ImportError("initialization failed")  # as pybind11 says it
ENDS = {
    "bad input": (lambda: InputError("log: wrong"), 1, "error: log: wrong"),
    "no such file": (lambda: of_system(errno.ENOENT), 1, "error: a: No such file or directory"),
    "a package": (lambda: ModuleNotFoundError(name="yaml"), 1, "error: the package yaml is not installed"),
    "a full disk": (full, 75, "error: a: No space left on device"),
    "open files": (lambda: of_system(errno.EMFILE), 75, "error: a: Too many open files"),
    "no thread": (lambda: RuntimeError("can't start new thread"), 75, "error: can't start new thread"),
    "no answer": (lambda: TimeoutError("timed out"), 75, "error: timed out"),
    "a short write": (lambda: OSError("800 requested and 0 written"), 75, "error: 800 requested and 0 written"),
    "memory": (lambda: MemoryError(), 75, "error: MemoryError"),
    "memory of arrays": (lambda: pa.ArrowMemoryError("malloc failed"), 75, "error: malloc failed"),
    "a killed process": (lambda: BrokenExecutor("ended"), 75, "error: ended"),
    "a store": (lambda: PassingError("s3://a: 503"), 75, "error: s3://a: 503"),
    "a refusal about a full disk": (lambda: about(full(), InputError("a: unwritable")), 75, "error: a: unwritable"),
    "a refusal about a store": (lambda: about(PassingError("503"), InputError("b: 503")), 75, "error: b: 503"),
    # A damaged file, which says that it has more than there is.
    "a refusal about memory": (lambda: about(MemoryError(), InputError("a: damaged")), 1, "error: a: damaged"),
    "a defect": (lambda: KeyError("x"), 70, "error: KeyError: 'x'"),
    "a module of ours": (lambda: ModuleNotFoundError("gone", name="ctr.gone"), 70, "error: ModuleNotFoundError: gone"),
    "an interruption": (lambda: KeyboardInterrupt(), 130, "interrupted"),
    "an interruption of a module in C": (lambda: about(KeyboardInterrupt(), UNLOADED), 130, "interrupted"),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_an_error_ends_a_command_with_its_status_and_one_line(monkeypatch, capfd, case):
    make, status, line = ENDS[case]

    def fail(run, out):
        raise make()

    monkeypatch.setattr("ctr.eval.report.write_report", fail)
    assert main(["report", "run"]) == status
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith(line)
    # Only a defect has a traceback, before its line.
    assert (lines[0] == "Traceback (most recent call last):") == (status == 70)
    assert status == 70 or len(lines) == 1
    assert main(["report", "run", "--log-format", "json"]) == status
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {one["exit_status"] for one in said} == {status}
    assert [one["level"] for one in said][:-1] == ["critical"] * (status == 70)


def test_output_that_finds_no_room(root):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ctr", "config", "--json"],
            cwd=root,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 75 and done.stderr == "error: [Errno 28] No space left on device\n"


# In the place of TensorFlow: it is interrupted while it loads, which its modules in C make an ImportError.
INTERRUPTED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except KeyboardInterrupt:
    print("Traceback (most recent call last): of TensorFlow's own")
    raise ImportError("initialization failed") from None
__version__ = "2.0"
os.write(2, b"a notice of TensorFlow\\n")
"""


@pytest.mark.parametrize("command", ["simulate --examples 10 --out log", "demo --out demo"])
def test_an_interruption_while_tensorflow_loads_is_no_crash(tmp_path, root, command):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/tensorflow.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "-m", "ctr", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'modules'}:{root}"},
        capture_output=True,
        text=True,
        # A shell's command in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    resumes = "" if command.startswith("simulate") else "; the same command resumes"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"interrupted{resumes}\n")
