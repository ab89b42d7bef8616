"""How long one waits: for ``ctr --help``, and for the first step of a fresh process."""

import subprocess
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from parts.fresh import fresh_process
from parts.setting import Setting
from reference import table

TIMES = 5


def measure(setting: Setting) -> dict[str, Any]:
    """All in processes of their own; the first ``--help``, which reads the files from the disk, does not count."""
    taken = []
    for _ in range(2 if setting.quick else TIMES + 1):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ctr", "--help"], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begun)
    fresh = fresh_process(setting.size)
    names = ("import_seconds", "state_seconds", "first_step_seconds")
    return {"help_seconds": median(taken[1:]), **{name: fresh[name] for name in names}}


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    rows = [
        ["`ctr --help`", f"{found['help_seconds']:.2f}"],
        ["imports of training", f"{found['import_seconds']:.1f}"],
        ["tables and weights made", f"{found['state_seconds']:.1f}"],
        ["the step built, and the first batch learned from", f"{found['first_step_seconds']:.1f}"],
    ]
    return table(["start", "seconds"], rows)
