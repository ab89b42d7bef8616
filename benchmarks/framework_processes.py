"""Models of other frameworks, each in a separate process, that take turns with ours.

Separate processes isolate thread pools and process-wide settings (deterministic operations, Keras 2 or 3). A process
reads names of its arms from the standard input, and answers each with the numbers of one turn, as a line of JSON.
During the turns of others it waits for input.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reference import Size
from runner import Numbers

Turn = Callable[[], tuple[float, list[float]]]
"""Takes a turn; returns the mean seconds of a step, and losses in the order of steps."""


def serve(make: Callable[..., Mapping[str, Turn]]) -> None:
    """Runs a framework's process: makes the arms for the size in its command line, then takes turns on request.

    Whatever the arms or libraries print goes to the standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    size = Size(**settings.pop("size"))
    turns = make(size, **settings)
    print(json.dumps(list(turns)), file=answers, flush=True)
    waiting, ended = 0.0, time.process_time()
    for line in sys.stdin:
        begun = time.process_time()
        waiting += begun - ended
        seconds, losses = turns[line.strip()]()
        ended = time.process_time()
        answer = {"ms": 1000 * seconds, "processor_ms": 1000 * (ended - begun) / size.feeds}
        print(json.dumps([answer, losses, waiting]), file=answers, flush=True)


class FrameworkProcess:
    """Client of a framework's process.

    Attributes:
        losses: the losses of each arm, turn by turn.
        waiting_seconds: processor time that the process used between its turns.
    """

    def __init__(self, script: str, size: Size, environment: Mapping[str, str], **settings: Any) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script))]
        command.append(json.dumps({"size": asdict(size), **settings}))
        # The framework's own environment selects its Keras.
        env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
        env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", **environment}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the process)
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.losses: dict[str, list[list[float]]] = {}
        self.waiting_seconds = 0.0

    def wait(self) -> None:
        """Waits until the process has created its models."""
        self.losses = {arm: [] for arm in self._answer()}

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"a framework ended with {self.process.wait()}:\n{self._errors.read()}")
        return json.loads(line)

    def turn(self, arm: str) -> Numbers:
        """Runs a turn of an arm; returns its times in milliseconds, and appends its losses to ``losses``."""
        assert self.process.stdin is not None
        print(arm, file=self.process.stdin, flush=True)
        numbers, losses, self.waiting_seconds = self._answer()
        self.losses[arm].append(losses)
        return numbers


@contextmanager
def open_frameworks(size: Size, have_torch: bool, compile_torch: bool) -> Iterator[list[FrameworkProcess]]:
    """Starts the processes of both Kerases and, with ``have_torch``, of PyTorch; kills them on exit."""
    opened: list[FrameworkProcess] = []
    try:
        for keras in ("2", "3"):
            environment = {"TF_USE_LEGACY_KERAS": "1"} if keras == "2" else {}
            opened.append(FrameworkProcess("keras_process.py", size, environment, keras=keras))
        if have_torch:
            opened.append(FrameworkProcess("torch_process.py", size, {}, compiled=compile_torch))
        for framework in opened:
            framework.wait()
        yield opened
    finally:
        for framework in opened:
            framework.process.kill()
            framework.process.wait()
