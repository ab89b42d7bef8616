"""Metrics, configuration and hyperparameters of a run for TensorBoard.

::

    RUN/tensorboard/            metrics of the pass so far, optimizer, throughput, configuration
    RUN/tensorboard/window/     the metrics of each window alone, with the same tags, so that they share a chart

Each process writes separate files, named by the number of windows before them. A file has a record for its version,
one for the configuration, if it is the first of a run, and one for each window.
"""

import json
import math
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.summary import session_end_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb

from ctr.config import dump_yaml
from ctr.io.files import make_folder
from ctr.training.config import TrainConfig
from ctr.training.observers.observer import Arrays, Observer, WatchedRun
from ctr.training.run.disk_errors import written_by_tensorflow

_METRICS = {
    "per_query_auc": "metrics/per_query_auc",
    "auc": "metrics/auc",
    "logloss": "metrics/logloss",
    "normalized_entropy": "metrics/normalized_entropy",
    "calibration_bias": "calibration/bias",
    "calibration_ratio": "calibration/predicted_over_observed",
}

_TAGS = {
    "window_examples": "traffic/examples",
    "queries": "traffic/queries",
    "queries_scored": "traffic/queries_scored",
    "examples_per_second": "throughput/examples_per_second",
    "alpha2": "ramps/alpha2",
}
_SPECTRUM = {
    "smallest": "singular_value_min",
    "largest": "singular_value_max",
    "condition": "condition",
    "damped": "condition_damped",
}
# All other names are grouped by the first prefix that fits.
_PREFIXES = {
    "loss_": "loss/",
    "ramp_": "ramps/",
    "rate_": "optimizer/rate_",
    "dual_": "duals/",
    "shampoo_seconds_": "throughput/shampoo_seconds_",
    "shampoo_": "optimizer/shampoo_",
}
# Scalars are float32: larger whole numbers would be rounded.
_LARGEST_COUNT = 2**24
_LARGEST = float(np.finfo(np.float32).max)
_US_PER_HOUR = 3_600_000_000
_RECORD = struct.Struct("<Q4x")
"""Header of a record: the length of its content, and a checksum; four more checksum bytes follow the content."""


class TensorBoard(Observer):
    """Writes each window's line of metrics as scalars. Methods that write raise OSError if the disk fails."""

    name = "tensorboard"

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run, self._folder = run, run.run_dir / "tensorboard"
        self._windows, self._first_time = 0, 0
        if state:
            self._windows, self._first_time = int(state["windows"]), int(state["first_time"])
        folders = self._folder, self._folder / "window"
        make_folder(folders[1])
        for folder in folders:
            for file in folder.glob("events.out.tfevents.*"):
                _cut(file, self._windows, has_config=folder == self._folder)
        with written_by_tensorflow(self._folder):
            self._writers = [
                tf.summary.create_file_writer(str(folder), filename_suffix=f".{self._windows}")
                for folder in folders
            ]
        if not self._windows:
            text = "".join(f"    {line}\n" for line in dump_yaml(run.config).splitlines())
            # Each run is a separate trial, also beside another one of the same configuration.
            path = run.run_dir.resolve()
            trial = hparams_pb(_flat(run.config), f"{path.name} ({path})", time.time())
            self._write(0, text_pb("config", text).SerializeToString() + trial.SerializeToString())

    def window(self, line: dict[str, Any]) -> None:
        if not self._windows:
            self._first_time = line["window_begin"]
        self._windows += 1
        shared = dict(_tags(line))
        shared["traffic/hours_of_the_log"] = (line["window_end"] - self._first_time) / _US_PER_HOUR
        of_pass = {**_metrics(line.get("cumulative", {})), **shared}
        self._write(line["examples"], _scalars(of_pass), _scalars(_metrics(line)))

    def checkpoint(self) -> Arrays:
        return {"windows": np.array(self._windows), "first_time": np.array(self._first_time)}

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        failed = summary["learning_failure"] is not None
        status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
        self._write(0, session_end_pb(status).SerializeToString())
        return []

    def close(self) -> None:
        with written_by_tensorflow(self._folder):
            for writer in self._writers:
                writer.close()

    def _write(self, step: int, *records: bytes) -> None:
        """Writes one serialized summary per writer: first the pass's, then the window's, if any."""
        with written_by_tensorflow(self._folder):
            for writer, record in zip(self._writers, records, strict=False):
                with writer.as_default():
                    tf.summary.experimental.write_raw_pb(record, step=step)
                writer.flush()


def _cut(file: Path, windows: int, has_config: bool) -> None:
    """Truncates an earlier process's file to the run's first ``windows`` windows; deletes it if it has none of them."""
    before = file.suffix.removeprefix(".")
    if not before.isdecimal() or windows <= int(before):
        file.unlink()
        return
    records = 1 + (has_config and before == "0") + windows - int(before)
    with file.open("r+b") as content:
        for _ in range(records):
            header = content.read(_RECORD.size)
            if len(header) < _RECORD.size:
                # A power cut has lost more than that.
                return
            content.seek(_RECORD.unpack(header)[0] + 4, 1)
        content.truncate(min(content.tell(), file.stat().st_size))


def _scalars(values: Mapping[str, Any]) -> bytes:
    # Messages written one after the other are one message with all their values.
    return b"".join(
        scalar_pb(tag, value).SerializeToString() for tag, value in values.items() if _is_shown(value)
    )


def _metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    return {tag: values[name] for name, tag in _METRICS.items() if name in values}


def _tags(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in line.items():
        if name in _TAGS:
            yield _TAGS[name], value
            continue
        if name == "shampoo_spectra":
            for weight, spectrum in value.items():
                for key, number in spectrum.items():
                    yield f"optimizer/{_SPECTRUM[key]}/{weight}", number
            continue
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is not None:
            yield _PREFIXES[prefix] + name.removeprefix(prefix), value


def _is_shown(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= _LARGEST_COUNT
    return isinstance(value, float) and math.isfinite(value) and abs(value) <= _LARGEST


def _flat(config: TrainConfig) -> dict[str, bool | int | float | str]:
    """Returns the configuration as flat hyperparameters: lists and nulls are encoded as JSON."""

    def entries(prefix: str, value: Any) -> Iterator[tuple[str, bool | int | float | str]]:
        if isinstance(value, dict):
            for key, part in value.items():
                yield from entries(f"{prefix}.{key}" if prefix else key, part)
        else:
            yield prefix, value if isinstance(value, bool | int | float | str) else json.dumps(value)

    return dict(entries("", config.model_dump(mode="json")))
