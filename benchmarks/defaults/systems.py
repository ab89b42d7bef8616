"""What is compared on each log: this project's defaults, its logistic regression, and Vowpal Wabbit.

A system has one setting or several, of which the best counts. All make one pass in the order of the log, predict a
whole query before they learn any of it, and are scored by the same metrics.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from ctr.config import apply_settings, parse_model
from ctr.data.log import create_log
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition, shard_schema
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import read_run
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from defaults import vowpal
from defaults.logs import ExactLog, Log, code_digest

SYSTEMS = ("ctr", "lr", "lr_best", "vw", "vw_best", "truth")
"""What ``--systems`` takes.

``ctr``: ``ctr train LOG`` with an empty configuration; ``lr``: the same without crosses and deep layers; ``lr_best``:
that logistic regression where each value has its own id, in small batches, the best of three learning rates; ``vw``:
Vowpal Wabbit's defaults; ``vw_best``: the best of four settings, without collisions; ``truth``: the probability that
drew the clicks of a simulated log, which nothing can beat by more than chance.
"""

VOWPAL_TEXT = "rows.txt"
"""In a log's directory, while systems work on it: what Vowpal Wabbit reads, for all of its settings."""

LINEAR = ("model.crosses.layers=0", "model.deep.units=[]")
LINEAR_RATES = (0.03, 0.1, 0.3)
_SCORED_AT_ONCE = 200_000
_CODE = ("config", "data", "eval", "io", "models", "objective", "optim", "training")


class FailedError(Exception):
    """A system did not come to the end of a log."""


@dataclass(frozen=True)
class Work:
    """One pass of one setting over one log.

    Attributes:
        log: the log.
        system: of ``SYSTEMS``.
        setting: its short name.
        inputs: all that its result depends on.
        run: makes the pass in a scratch directory, which is there; returns the metrics.
    """

    log: Log
    system: str
    setting: str
    inputs: dict[str, Any]
    run: Callable[[Path], ProgressiveMetrics]


def works(log: Log, system: str, sets: Sequence[str] = ()) -> list[Work]:
    """The passes of a system over a log; none where it has nothing to say about it.

    Args:
        sets: changes of this project's defaults, as ``ctr train --set`` takes them.
    """
    if system in ("ctr", "lr"):
        return [_default_work(log, system, tuple(sets))]
    if system == "lr_best":
        return [_linear_work(log, rate) for rate in LINEAR_RATES]
    if system == "truth":
        return [_truth_work(log)] if log.source.world is not None else []
    features = log.facts["single_valued"] + log.facts["multivalent"]
    settings = ("",) if system == "vw" else vowpal.best_settings(features)
    return [_vowpal_work(log, system, setting) for setting in settings]


def _default_work(log: Log, system: str, changes: tuple[str, ...]) -> Work:
    sets = (*(LINEAR if system == "lr" else ()), *changes)
    inputs = {"log": log.sha256, "sets": sets, "code": code_digest(*_CODE)}
    return Work(
        log,
        system,
        " ".join(changes) or "default",
        inputs,
        lambda scratch: train_by_command(log.path, sets, scratch),
    )


def _linear_work(log: Log, rate: float) -> Work:
    rows = log.facts["rows"]
    # Small enough that nothing is lost to the batch, large enough that millions of rows take a minute.
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
        "optimizer.dense.shampoo={start_preconditioning_step: null, momentum: 0}",
        "model.prior=0.5",
        "compute_dtype=float32",
    )

    def run(scratch: Path) -> ProgressiveMetrics:
        own = scratch / "log"
        write_numbered_log(log.exact, own)
        # In this process: to start another one takes longer than most logs.
        config = parse_model(
            TrainConfig, apply_settings({}, [*sets, "record_predictions=false"]), "benchmark"
        )
        try:
            train(own, config, scratch / "run")
        except InputError as error:
            raise FailedError(str(error)) from None
        finally:
            tf.keras.backend.clear_session()
        return read_run(scratch / "run").metrics

    # Not the code: it is a baseline of pinned settings, and what it computes is to stay.
    return Work(log, "lr_best", f"rate {rate:g}", {"exact": log.exact_sha256, "sets": sets}, run)


def _vowpal_work(log: Log, system: str, setting: str) -> Work:
    def run(_: Path) -> ProgressiveMetrics:
        text = log.folder / VOWPAL_TEXT
        if not text.exists():
            vowpal.write_text(log.exact, text)
        return scored(log.exact, vowpal.predict(log.exact, text, setting))

    inputs = {"exact": log.exact_sha256, "setting": setting, "version": vowpal.version()}
    return Work(log, system, setting or "default", inputs, run)


def _truth_work(log: Log) -> Work:
    def run(_: Path) -> ProgressiveMetrics:
        with np.load(log.folder / "exact.npz") as file:
            probability = file["probability"]
        return scored(log.exact, np.log(probability) - np.log1p(-probability))

    return Work(log, "truth", "default", {"exact": log.exact_sha256}, run)


def scored(log: ExactLog, logit: npt.NDArray[np.float64]) -> ProgressiveMetrics:
    """The metrics of predictions, float64 [N]."""
    metrics = ProgressiveMetrics()
    begins = log.query_begins
    first = 0
    while first < log.rows:
        last = int(begins[np.searchsorted(begins, min(first + _SCORED_AT_ONCE, log.rows))])
        part = slice(first, last)
        metrics.update(log.label[part], logit[part], np.ones(last - first), log.query_id[part])
        first = last
    return metrics


def train_by_command(log: Path, sets: tuple[str, ...], scratch: Path) -> ProgressiveMetrics:
    """The metrics of ``ctr train LOG`` in a process of its own.

    Raises:
        FailedError: it ended with an error.
    """
    run = scratch / "run"
    command = [sys.executable, "-m", "ctr", "train", str(log), "--out", str(run), "-q", "--json"]
    for setting in (*sets, "record_predictions=false"):
        command += ["--set", setting]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise FailedError(finished.stderr.strip().splitlines()[-1] if finished.stderr.strip() else "no word")
    return read_run(run).metrics


def write_numbered_log(log: ExactLog, folder: Path) -> None:
    """Writes an example log in which each value of a feature has its own id."""
    sizes = dict(zip(log.features, log.ids.max(axis=0, initial=0) + 1, strict=True))
    features = [Category(name=name, source=name, buckets=max(int(size), 2)) for name, size in sizes.items()]
    for name, (values, _) in log.multivalent.items():
        buckets = max(int(values.max(initial=0)) + 1, 2)
        features.append(Category(name=name, source=name, buckets=buckets, multivalent=True))
    schema = Schema(features=tuple(features))
    ones = np.ones(log.rows, np.float32)
    columns: dict[str, Any] = {
        # The order is all that a learner without features of time sees of it.
        "query_time": log.query + 1,
        "timestamp": log.query + 1,
        "query_id": log.query_id,
        "example_id": log.example_id,
        "label": log.label.astype(np.int8),
        "train_weight": ones,
        "metric_weight": ones,
    }
    if log.features:
        columns["ids"] = pack_ids(log.ids)
    for name, (values, offsets) in log.multivalent.items():
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int32()))
    form = shard_schema(schema)
    table = pa.table([pa.array(columns[name]) for name in form.names], names=form.names).cast(form)
    create_log(folder, schema)
    publish_partition(folder, schema, 0, int(log.query[-1]) + 2, table)


def carry_out(work: Work, scratch: Path) -> tuple[ProgressiveMetrics, float]:
    """The metrics of a pass, and the seconds that it took, the start of processes and writing of files included.

    Raises:
        FailedError: it did not come to the end.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    begun = time.perf_counter()
    try:
        return work.run(scratch), time.perf_counter() - begun
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
