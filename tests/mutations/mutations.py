"""Puts faults into the code, one at a time, and runs the tests that should find them.

``python tests/mutations/mutations.py`` does so for every fault of the YAML files beside it, in copies of the checkout,
and ends with 1 if one was not found. ``--only TEXT`` takes the faults whose line or file contains the text,
``--jobs N`` runs so many at a time, ``--markdown`` only prints the table of the documentation.
"""

import argparse
import compileall
import os
import py_compile
import queue
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
KINDS = (
    *("boundary", "checksum", "durability", "export", "formula", "order", "role", "rule", "sampling"),
    *("state", "weights"),
)
# What a test may read. The packages are found by PYTHONPATH, before the checkout that is installed.
COPIED = (
    *("ctr", "eval", "models", "optim", "pipelines", "tests", "benchmarks", "examples", "docs"),
    *("setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"),
)
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
    *("--timeout=300", "--hypothesis-profile=any"),
)
FOUND, PASSED = 1, 0  # pytest's exit statuses; any other says that the tests did not run


@dataclass(frozen=True)
class Fault:
    """`old` of `file` becomes `new`, and one of `tests` must fail."""

    fault: str
    kind: str
    file: str
    old: str
    new: str
    tests: list[str]


def read_faults() -> list[Fault]:
    """Read the faults of all YAML files beside this one."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    return [Fault(**entry) for file in files for entry in yaml.safe_load(file.read_text())]


def markdown(faults: list[Fault]) -> str:
    """The faults as a table, by kind: what is wrong, in which module, and the test that finds it."""
    rows = [
        f"| {fault.kind} | {fault.fault} | `{fault.file}` | {', '.join(map(_file, fault.tests))} |"
        for fault in sorted(faults, key=lambda fault: (fault.kind, fault.file))
    ]
    return "\n".join(["| kind | fault | in | found by |", "|---|---|---|---|", *rows, ""])


def _file(test: str) -> str:
    return f"`{test.partition('::')[0]}`"


def copy_checkout(target: Path) -> Path:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    # Compiled once; the hash of a file tells that a fault changed it, its time and size might not.
    compileall.compile_dir(target, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return target


def run_tests(checkout: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests on the code of a copy; their exit status and their last lines."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    # With a fault in it, a test may wait for ever.
    command = [*PYTEST, *tests]
    done = subprocess.run(
        command, cwd=checkout, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-15:])


def try_fault(checkout: Path, fault: Fault) -> tuple[int, str]:
    """Run the tests of a fault with it in the code, which is put right afterwards."""
    path = checkout / fault.file
    right = path.read_text()
    try:
        path.write_text(right.replace(fault.old, fault.new))
        return run_tests(checkout, fault.tests)
    finally:
        path.write_text(right)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if options.only in fault.fault + fault.file]
    if options.markdown:
        print(markdown(faults), end="")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for job in range(options.jobs):
            copies.put(copy_checkout(Path(folder) / str(job)))
        # A test that fails without any fault would seem to find every one.
        tests = sorted({test for fault in faults for test in fault.tests})
        checkout = copies.get()
        status, lines = run_tests(checkout, tests)
        copies.put(checkout)
        if status != PASSED:
            print(f"the tests fail without a fault:\n{lines}")
            return 1

        def judge(fault: Fault) -> tuple[int, str]:
            checkout = copies.get()
            try:
                return try_fault(checkout, fault)
            finally:
                copies.put(checkout)

        missed = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for fault, (status, lines) in zip(faults, pool.map(judge, faults), strict=True):
                verdict = {FOUND: "found", PASSED: "NOT FOUND"}.get(status, f"pytest ended with {status}")
                print(f"{verdict:10} {fault.file}: {fault.fault}", flush=True)
                if status != FOUND:
                    missed += 1
                    print(lines)
    print(f"{len(faults) - missed} of {len(faults)} faults found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
