"""Fuzzes some parsers in this process and writes what became of it; ``test_fuzz.py`` starts it.

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

import config_targets
import input_targets
import run_targets
from mutate import mutate
from target import Target

from ctr.io.errors import InputError

TARGETS = {**config_targets.TARGETS, **input_targets.TARGETS, **run_targets.TARGETS}
SECONDS_EACH, SECONDS_FIRST = 30, 300
"""What takes longer hangs; what is first has libraries to load."""
MEMORY = 8 << 30


class Outcome:
    """What became of a target's inputs."""

    def __init__(self, name: str, out: Path) -> None:
        self.name, self._out = name, out
        self.executions = self.accepted = self.refused = 0
        self.failures: dict[str, dict[str, Any]] = {}

    def run(self, target: Target, folder: Path, content: bytes) -> None:
        """Parses one input."""
        (self._out / "current").write_bytes(content)
        self.executions += 1
        faulthandler.dump_traceback_later(SECONDS_EACH if self.executions > 1 else SECONDS_FIRST, exit=True)
        try:
            target.parse(folder, content)
            self.accepted += 1
        except (InputError, OSError) as error:
            self.refused += 1
            # The command line says errors of the system in one line, too.
            if not str(error).strip() or (isinstance(error, OSError) and error.errno is None):
                self._fail(error, content)
        except Exception as error:
            self._fail(error, content)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _fail(self, error: Exception, content: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/tests/" not in frame.filename and "/ctr/" in frame.filename]
        last = (ours or frames)[-1]
        key = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
        found = self.failures.setdefault(key, {"count": 0, "error": str(error)[:300]})
        found["count"] += 1
        if "input" not in found:
            path = self._out / f"{self.name} {key}".replace("/", "_").replace(" ", "-")
            path.write_bytes(content)
            found |= {"input": str(path), "trace": "".join(traceback.format_exception(error))[-3000:]}


def fuzz(name: str, seed: int, executions: int, out: Path) -> Outcome:
    """Parses a valid file of a target, then broken ones."""
    target, outcome = TARGETS[name], Outcome(name, out)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ctr-fuzz-", dir=memory if memory.is_dir() else None) as made:
        folder = Path(made)
        seeds = target.prepare(folder)
        # Relative paths in mutated files stay in here.
        os.chdir(folder)
        outcome.run(target, folder, seeds[0])
        if not outcome.accepted:
            error = str(seeds[0][:80])
            outcome.failures.setdefault("a valid file is not accepted", {"count": 1, "error": error})
        for number in range(executions):
            source = random.Random(f"{name} {seed} {number}")
            outcome.run(target, folder, mutate(source, target.form, seeds))
        os.chdir(out)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all that are quick")
    parser.add_argument("--slow", action="store_true", help="all that are not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", type=int, required=True, help="of each target")
    parser.add_argument("--out", type=Path, required=True, help="folder for the result and failing inputs")
    given = parser.parse_args()
    names = given.targets or [name for name, target in TARGETS.items() if target.slow == given.slow]
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    results: list[dict[str, Any]] = []
    for name in names:
        begun = time.monotonic()
        (out / "name").write_text(name)
        outcome = {key: value for key, value in vars(fuzz(name, given.seed, given.executions, out)).items()}
        results.append({key: value for key, value in outcome.items() if not key.startswith("_")})
        results[-1]["seconds"] = round(time.monotonic() - begun, 2)
        (out / "result.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
