"""Fuzzes all targets in turn for some minutes: ``python tests/fuzz/long.py --minutes 30``.

Each turn is a process with bounds on time and memory; what it was reading when it died is kept, as every input is that
led to another error than those a user is meant to read. Exit status 1: there were such. Every run draws other inputs
unless ``--seed`` is given.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from worker import CURRENT, RESULT, TARGETS

HERE = Path(__file__).resolve().parent


def run_turn(names: list[str], seed: int, seconds: float, memory_gb: float, out: Path) -> list[dict]:
    """Fuzzes targets one after the other; one that ends its process is a failure, and the next ones go on."""
    results: list[dict] = []
    left, turn = list(names), 0
    while left:
        folder = out / f"turn-{seed}-{turn}"
        turn += 1
        command = [
            sys.executable,
            str(HERE / "worker.py"),
            *left,
            "--seed",
            str(seed),
            "--seconds",
            str(seconds),
        ]
        command += ["--memory-gb", str(memory_gb), "--out", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        folder.mkdir(parents=True)
        with (folder / "stderr").open("wb") as errors:
            ended = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        done = json.loads((folder / RESULT).read_bytes()) if (folder / RESULT).exists() else []
        results += done
        left = left[len(done) :]
        if left:
            kept = folder / f"{left[0].replace('/', '_').replace(' ', '-')} died"
            if (folder / CURRENT).exists():
                (folder / CURRENT).rename(kept)
            reported = (folder / "stderr").read_text(errors="replace")[-3000:]
            failure = {"count": 1, "error": reported, "input": str(kept), "trace": reported}
            key = f"ended with status {ended.returncode}"
            results.append(
                {"name": left[0], "executions": 1, "accepted": 0, "refused": 0, "failures": {key: failure}}
            )
            left = left[1:]
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first turn")
    parser.add_argument("--turn-seconds", type=float, default=4, help="for each target in a turn")
    parser.add_argument("--memory-gb", type=float, default=8)
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder for failing inputs")
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS), metavar="TARGET")
    arguments = parser.parse_args()
    executions, accepted, refused = Counter[str](), Counter[str](), Counter[str]()
    failures: dict[str, dict] = {}
    end = time.monotonic() + 60 * arguments.minutes
    turn = 0
    while turn == 0 or time.monotonic() < end:
        names = arguments.targets
        # The last turn is as short as what is left of the time.
        seconds = min(arguments.turn_seconds, max((end - time.monotonic()) / len(names), 0.5))
        for result in run_turn(names, arguments.seed + turn, seconds, arguments.memory_gb, arguments.out):
            executions[result["name"]] += result["executions"]
            accepted[result["name"]] += result["accepted"]
            refused[result["name"]] += result["refused"]
            for key, found in result["failures"].items():
                known = failures.setdefault(f"{result['name']}: {key}", {**found, "count": 0})
                known["count"] += found["count"]
        turn += 1
        summary = {"turns": turn, "executions": executions, "accepted": accepted, "refused": refused}
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "summary.json").write_text(json.dumps({**summary, "failures": failures}, indent=1))
    for name in arguments.targets:
        print(f"{name:30} {executions[name]:8} parsed {accepted[name]:8} accepted {refused[name]:8} refused")
    print(f"{executions.total()} inputs, {len(failures)} different failures")
    for key, found in failures.items():
        print(f"\n{found['count']} x {key}: {found['error']}\n  {found.get('input', '')}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
