"""Demo: the main job end to end on a simulated log, as ``ctr demo`` runs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctr.eval.report import write_report
from ctr.eval.run_comparison import compare_runs
from ctr.io.files import check_output_folder
from ctr.io.signals import stop_signals
from ctr.objective.schedules import Ramp
from ctr.simulator.config import SimulatorConfig
from ctr.training.config import (
    BatchConfig,
    CheckpointConfig,
    MetricsConfig,
    TrainConfig,
)
from ctr.training.model_config import CrossConfig, DeepConfig, ModelConfig


def _configs() -> dict[str, TrainConfig]:
    common: dict[str, Any] = {
        "batch": BatchConfig(rows=512),
        "metrics": MetricsConfig(window_examples=20_000, slices=("position",)),
        "checkpoint": CheckpointConfig(every_examples=100_000),
    }
    logistic = ModelConfig(prior=0.08, experts=("linear",))
    dcn = ModelConfig(
        prior=0.08,
        crosses=CrossConfig(layers=2, rank=32, ramp=Ramp(0, 50_000)),
        deep=DeepConfig(units=(128, 64)),
        experts=("linear", "network"),
    )
    return {
        "logistic-regression": TrainConfig(model=logistic, **common),
        "dcn": TrainConfig(model=dcn, **common),
    }


def check_demo_folder(out: Path) -> None:
    """Raises InputError where a directory is neither empty nor one of ``ctr demo``."""
    # The log is what it makes first.
    check_output_folder(out, "a demo", lambda found: (found / "log").is_dir())


def run_demo(out: Path, examples: int, say: Callable[[str], None], bar: Callable[[int, str], Any]) -> Path:
    """Simulates a log, trains a logistic regression and a DCNv2 on it, compares them and writes a report.

    What is in ``out`` already is not done again. ``bar`` makes a progress bar from a total and a unit; an object to
    call with a position (and metrics), with ``phase`` (see ``ctr.training.loop.open_session``) and ``close``.
    """
    check_demo_folder(out)
    # They load TensorFlow, which takes seconds.
    from ctr.simulator.simulate import simulate
    from ctr.training.loop import train

    log = out / "log"
    say(f"Simulating {examples} examples -> {log}")
    shown = bar(examples, "examples")
    simulate(SimulatorConfig(examples=examples, buckets=False), log, shown)
    shown.close()
    runs = []
    for name, config in _configs().items():
        run = out / name
        say(f"Training {name} in one pass -> {run}")
        shown = bar(examples, "examples")
        with stop_signals() as stop:
            train(log, config, run, shown, phase=shown.phase, stop=stop)
        shown.close()
        runs.append(run)
    say(f"\n{compare_runs(*runs).as_text()}\n")
    return write_report(runs, out / "report.html")
