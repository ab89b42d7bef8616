"""Fuzzes some targets in this process and writes what became of it; ``long.py`` and the tests start it.

A process of its own: a crash, a hang or too much memory ends it, and its parent finds the input that did it.
"""

import argparse
import faulthandler
import json
import logging
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.append(str(Path(__file__).resolve().parent.parent / "helpers"))

from mutate import mutate
from targets import TARGETS, Target

from ctr.io.errors import InputError

CURRENT, RESULT = "current", "result.json"
SECONDS_EACH, SECONDS_FIRST = 30, 300
"""What takes longer hangs; what is first has libraries to load."""
SHOWN_FAILURES = 20


class Outcome:
    """What became of a target's inputs."""

    def __init__(self, name: str, out: Path) -> None:
        self.name, self._out = name, out
        self.executions = self.accepted = self.refused = 0
        self.failures: dict[str, dict[str, Any]] = {}

    def run(self, target: Target, folder: Path, content: bytes) -> None:
        """Parses one input."""
        (self._out / CURRENT).write_bytes(content)
        self.executions += 1
        faulthandler.dump_traceback_later(SECONDS_EACH if self.executions > 1 else SECONDS_FIRST, exit=True)
        try:
            target.parse(folder, content)
            self.accepted += 1
        except InputError as error:
            self.refused += 1
            if not str(error).strip():
                self._fail(error, content)
        except OSError as error:
            # The command line says these in one line, too.
            if error.errno is None:
                self._fail(error, content)
            self.refused += 1
        except Exception as error:
            self._fail(error, content)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _fail(self, error: Exception, content: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [
            frame for frame in frames if "/tests/fuzz/" not in frame.filename and "/ctr/" in frame.filename
        ]
        last = (ours or frames)[-1]
        key = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
        found = self.failures.setdefault(key, {"count": 0, "error": str(error)[:300]})
        found["count"] += 1
        if "input" not in found and len(self.failures) <= SHOWN_FAILURES:
            path = self._out / f"{self.name} {key}".replace("/", "_").replace(" ", "-")
            path.write_bytes(content)
            found |= {"input": str(path), "trace": "".join(traceback.format_exception(error))[-3000:]}

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def fuzz(name: str, seed: int, executions: int, seconds: float, out: Path) -> Outcome:
    """Parses the valid files of a target, then broken ones until so many were parsed or so long it took."""
    target, outcome = TARGETS[name], Outcome(name, out)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ctr-fuzz-", dir=memory if memory.is_dir() else None) as made:
        folder = Path(made)
        seeds = target.prepare(folder)
        # Relative paths in mutated arguments stay in here.
        os.chdir(folder)
        outcome.run(target, folder, seeds[0])
        if not outcome.accepted and name != "command line":
            outcome.failures.setdefault(
                "a valid file is not accepted", {"count": 1, "error": str(seeds[0][:80])}
            )
        begun = time.monotonic()
        for number in range(executions):
            if time.monotonic() - begun > seconds:
                break
            source = random.Random(f"{name} {seed} {number}")
            outcome.run(target, folder, mutate(source, target.form, seeds))
        os.chdir(out)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    quick = [name for name, target in TARGETS.items() if not target.slow]
    parser.add_argument(
        "targets", nargs="*", default=quick, metavar="TARGET", help="default: all that are quick"
    )
    parser.add_argument("--slow", action="store_true", help="all that are not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", type=int, default=10**9, help="of each target")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each target")
    parser.add_argument("--memory-gb", type=float, default=8)
    parser.add_argument("--out", type=Path, required=True, help="folder for the result and failing inputs")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    limit = int(arguments.memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    results = []
    names = [name for name in TARGETS if name not in quick] if arguments.slow else arguments.targets
    for name in names:
        (out / "name").write_text(name)
        outcome = fuzz(name, arguments.seed, arguments.executions, arguments.seconds, out)
        results.append(outcome.as_dict())
        (out / RESULT).write_text(json.dumps(results))
    (out / "done").touch()


if __name__ == "__main__":
    sys.exit(main())
