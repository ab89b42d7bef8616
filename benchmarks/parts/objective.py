"""What ranking, distillation and bias constraints together add to a step: a part of ``bench_objective``."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench_objective
from parts.setting import Setting
from reference import ADAGRAD

ALL = "ranking, distillation, constraints"


def measure(setting: Setting) -> dict[str, Any]:
    """On a simulated log."""
    batch = setting.size.batch
    with tempfile.TemporaryDirectory() as folder:
        log = bench_objective.make_log(Path(folder) / "log", (bench_objective.FEEDS + 1) * batch)
        found = bench_objective.measure(log, batch, setting.rounds, ("logistic", ALL), ADAGRAD)
    return {"steps": found, "overhead": found[ALL]["ratio"] - 1}


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    return bench_objective.report(found["steps"])
