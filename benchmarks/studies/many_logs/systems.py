"""The systems that are compared on each log: this project's defaults, its logistic regression, and Vowpal Wabbit.

A system has one or several settings, of which the best counts. All make one pass in the order of the log, predict a
whole query before they learn from any of its rows, and are scored by the same metrics.
"""

import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from processes import run_command
from runner import cached_json

from ctr.config import apply_settings, parse_model
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import read_run
from ctr.io.errors import InputError
from ctr.io.files import write_atomic
from ctr.training.config import TrainConfig
from ctr.training.session import train
from many_logs import vowpal
from many_logs.logs import ExactLog, Log

SYSTEMS = ("ctr", "lr", "lr_best", "vw", "vw_best", "truth")
"""Values of ``--systems``.

``ctr``: ``ctr train LOG`` with an empty configuration; ``lr``: the same without crosses and deep layers; ``lr_best``:
that logistic regression with a distinct id for each value, small batches, and the best of three learning rates; ``vw``:
Vowpal Wabbit's defaults; ``vw_best``: the best of four settings, without collisions; ``truth``: the probabilities from
which the clicks of a simulated log were drawn, which nothing can beat by more than chance.
"""
LINEAR = ("model.crosses.layers=0", "model.deep.units=[]")
LINEAR_RATES = (0.03, 0.1, 0.3)
_SCORED_AT_ONCE = 200_000
Pass = Callable[[Path], ProgressiveMetrics]
"""Makes a pass over a log, with an existing scratch folder; returns its metrics."""


@dataclass(frozen=True)
class Result:
    """Result of a pass.

    Attributes:
        setting: name of the setting.
        record: metrics and seconds of the pass.
        states: file of the metrics' states, for paired comparisons.
    """

    setting: str
    record: dict[str, Any]
    states: Path

    @cached_property
    def metrics(self) -> ProgressiveMetrics:
        with np.load(self.states) as file:
            return ProgressiveMetrics.from_arrays(dict(file))


def passes(log: Log, system: str) -> dict[str, Pass]:
    """Returns the passes of a system over a log, by setting; empty if the system does not apply or is not installed."""
    if system == "ctr":
        return {"default": partial(_train_by_command, log.path, ())}
    if system == "lr":
        return {"default": partial(_train_by_command, log.path, LINEAR)}
    if system == "lr_best":
        return {f"rate {rate:g}": partial(_train_linear, log, rate) for rate in LINEAR_RATES}
    if system == "truth":
        return {"default": lambda _: _score_truth(log)} if log.source.world is not None else {}
    if find_spec("vowpalwabbit") is None:
        print(
            f"{log.folder.name}: {system} skipped: Vowpal Wabbit is not installed",
            file=sys.stderr,
            flush=True,
        )
        return {}
    settings = ("",) if system == "vw" else vowpal.best_settings(log.facts["features"])
    return {setting or "default": partial(_run_vowpal, log, setting) for setting in settings}


def results(log: Log, system: str, out: Path) -> list[Result]:
    """Returns a system's results on a log; makes missing passes. A pass that fails is reported and left out."""
    finished = []
    for setting, run in passes(log, system).items():
        name = f"{log.folder.name}-{system}-{re.sub('[^a-z0-9.]+', '_', setting)}"
        states = out / f"{name}.npz"

        def compute(run: Pass = run, states: Path = states, name: str = name) -> dict[str, Any]:
            begun = time.perf_counter()
            with tempfile.TemporaryDirectory() as scratch:
                metrics = run(Path(scratch))
            # The seconds include starts of processes, and writing of files.
            record = {"seconds": time.perf_counter() - begun, **metrics.line()}
            arrays = metrics.to_arrays()
            write_atomic(states, lambda file: np.savez_compressed(file, **arrays))
            print(f"{name}: auc {record['auc']}, logloss {record['logloss']}", file=sys.stderr, flush=True)
            return record

        try:
            finished.append(Result(setting, cached_json(out / f"{name}.json", compute), states))
        except (InputError, SystemExit) as error:
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
    return finished


def _train_by_command(log: Path, sets: Sequence[str], scratch: Path) -> ProgressiveMetrics:
    settings = [word for setting in (*sets, "record_predictions=false") for word in ("--set", setting)]
    run_command("train", log, "--out", scratch / "run", "-q", *settings)
    return read_run(scratch / "run").metrics


def _train_linear(log: Log, rate: float, scratch: Path) -> ProgressiveMetrics:
    rows = log.facts["rows"]
    # Small enough not to cost accuracy, large enough that millions of rows take a minute.
    batch = next(
        size for size, most in ((32, 50_000), (64, 200_000), (256, 1_000_000), (512, rows)) if rows <= most
    )
    sets = (
        *LINEAR,
        f"batch.rows={batch}",
        "optimizer.embeddings.gradient=sum",
        f"optimizer.embeddings.linear_learning_rate={rate}",
        "optimizer.embeddings.linear_initial_accumulator=1",
        "optimizer.dense.learning_rate=0.3",
        "optimizer.dense.preconditioned_from_rows=null",
        "optimizer.dense.shampoo.grafting.initial_accumulator=0.000001",
        "model.prior=0.5",
        "compute_dtype=float32",
        "record_predictions=false",
    )
    try:
        # In this process: to start another one takes longer than most logs.
        train(log.path, parse_model(TrainConfig, apply_settings({}, sets), "benchmark"), scratch / "run")
    finally:
        tf.keras.backend.clear_session()
    return read_run(scratch / "run").metrics


def _run_vowpal(log: Log, setting: str, scratch: Path) -> ProgressiveMetrics:
    vowpal.write_text(log.exact, scratch / "rows.txt")
    return scored(log.exact, vowpal.predict(log.exact, scratch / "rows.txt", setting))


def _score_truth(log: Log) -> ProgressiveMetrics:
    probability = log.exact.probability
    assert probability is not None
    return scored(log.exact, np.log(probability) - np.log1p(-probability))


def scored(log: ExactLog, logit: npt.NDArray[np.float64]) -> ProgressiveMetrics:
    """Computes the metrics of predicted logits, float64 [N]."""
    metrics = ProgressiveMetrics()
    for part in log.blocks(_SCORED_AT_ONCE):
        label = log.label[part]
        metrics.update(label, logit[part], np.ones(len(label)), log.query_id[part])
    return metrics
