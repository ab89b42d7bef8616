"""TensorBoard events of a run: metrics, configuration, hyperparameters.

::

    RUN/tensorboard/            metrics of the pass so far, optimizer, throughput, configuration
    RUN/tensorboard/window/     the same metrics of each window alone: the same tags, so that they share a chart

All of it is made from metrics.jsonl, but for the times of the wall clock, which a run that is resumed takes from the
files that are there.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.summary import session_end_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb

from ctr.config import dump_yaml
from ctr.io.files import make_folder
from ctr.training.config import TrainConfig

_METRICS = {
    "per_query_auc": "metrics/per_query_auc",
    "auc": "metrics/auc",
    "logloss": "metrics/logloss",
    "normalized_entropy": "metrics/normalized_entropy",
    "calibration_bias": "calibration/bias",
    "calibration_ratio": "calibration/predicted_over_observed",
}
CUMULATIVE = tuple(_METRICS)
"""The metrics that a line has also of the pass so far, under ``cumulative``."""

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
# Of the rest by the beginning of the name, the first that fits.
_PREFIXES = {
    "loss_": "loss/",
    "ramp_": "ramps/",
    "rate_": "optimizer/rate_",
    "dual_": "duals/",
    "shampoo_seconds_": "throughput/shampoo_seconds_",
    "shampoo_": "optimizer/shampoo_",
}
# Scalars are float32: whole numbers beyond are not what they are shown as.
_LARGEST_COUNT = 2**24
_LARGEST = float(np.finfo(np.float32).max)
_US_PER_HOUR = 3_600_000_000

# Of TensorFlow's errors.
_NUMBERS = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.PermissionDeniedError: errno.EACCES,
    tf.errors.NotFoundError: errno.ENOENT,
}

_numbers = itertools.count()


class EventFiles:
    """Events of a run, written anew whenever it begins or goes on. What writes raises OSError where the disk fails."""

    def __init__(self, folder: Path, totals: tf.io.TFRecordWriter, windows: tf.io.TFRecordWriter) -> None:
        self._folder, self._totals, self._windows = folder, totals, windows
        self._first_time: int | None = None

    @classmethod
    def open(cls, folder: Path, lines: Path, config: TrainConfig) -> Self:
        """Writes the events of all ``lines`` into ``folder``, where nothing but earlier events is deleted."""
        old = [
            path
            for part in (folder, folder / "window")
            for path in sorted(part.glob("events.out.tfevents.*"))
        ]
        times: dict[int, float] = {}
        for event in itertools.chain.from_iterable(map(_read, old)):
            times.setdefault(event.step, event.wall_time)
        make_folder(folder / "window")
        with written_by_tensorflow(folder):
            events = cls(folder, _new_file(folder), _new_file(folder / "window"))
        begun = times.get(0, time.time())
        run = folder.parent.resolve()
        # Each run is a trial of its own, also beside another one of the same configuration.
        hparams = hparams_pb(_flat(config), f"{run.name} ({run})", begun)
        text = "".join(f"    {line}\n" for line in dump_yaml(config).splitlines())
        for summary in (text_pb("config", text), hparams):
            events._write(events._totals, Event(wall_time=begun, step=0, summary=summary))
        for line in map(json.loads, lines.read_bytes().splitlines()):
            events._add(line, times.get(line["examples"], time.time()))
        events._flush()
        for path in old:
            path.unlink()
        return events

    def append(self, line: dict[str, Any]) -> None:
        self._add(line, time.time())
        self._flush()

    def end(self, learned: bool) -> None:
        status = api_pb2.STATUS_SUCCESS if learned else api_pb2.STATUS_FAILURE
        # With TensorFlow loaded it is of TensorFlow's own class.
        summary = Summary.FromString(session_end_pb(status).SerializeToString())
        self._write(self._totals, Event(wall_time=time.time(), step=0, summary=summary))
        self._flush()

    def close(self) -> None:
        with written_by_tensorflow(self._folder):
            self._totals.close()
            self._windows.close()

    def _add(self, line: Mapping[str, Any], wall_time: float) -> None:
        if self._first_time is None:
            self._first_time = line["window_begin"]
        shared = dict(_tags(line))
        shared["traffic/hours_of_the_log"] = (line["window_end"] - self._first_time) / _US_PER_HOUR
        for file, values in (
            (self._totals, {**_metrics(line.get("cumulative", {})), **shared}),
            (self._windows, _metrics(line)),
        ):
            summary = _joined([scalar_pb(tag, value) for tag, value in values.items() if _is_shown(value)])
            self._write(file, Event(wall_time=wall_time, step=line["examples"], summary=summary))

    def _write(self, file: tf.io.TFRecordWriter, event: Event) -> None:
        with written_by_tensorflow(self._folder):
            file.write(event.SerializeToString())

    def _flush(self) -> None:
        with written_by_tensorflow(self._folder):
            self._totals.flush()
            self._windows.flush()


def _new_file(folder: Path) -> tf.io.TFRecordWriter:
    name = (
        f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
    )
    file = tf.io.TFRecordWriter(str(folder / name))
    file.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    # A TensorBoard that is open has seen the steps of the file before: they count no more.
    start = SessionLog(status=SessionLog.START)
    file.write(Event(wall_time=time.time(), step=0, session_log=start).SerializeToString())
    return file


def _read(path: Path) -> Iterator[Event]:
    """Yields the events with a summary in a file, up to where it is damaged."""
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = Event.FromString(record)
            if event.HasField("summary"):
                yield event
    except (tf.errors.DataLossError, DecodeError):
        # What a kill or a power cut left of it; the rest is written anew.
        return


def _joined(parts: list[Summary]) -> Summary:
    return Summary(value=[value for part in parts for value in part.value])


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
    """Returns the configuration as hyperparameters: those that are neither numbers nor words as JSON."""

    def entries(prefix: str, value: Any) -> Iterator[tuple[str, bool | int | float | str]]:
        if isinstance(value, dict):
            for key, part in value.items():
                yield from entries(f"{prefix}.{key}" if prefix else key, part)
        else:
            yield prefix, value if isinstance(value, bool | int | float | str) else json.dumps(value)

    return dict(entries("", config.model_dump(mode="json")))


@contextlib.contextmanager
def written_by_tensorflow(path: Path) -> Iterator[None]:
    """Turns what TensorFlow says in the block of a disk that is full or fails into an OSError about ``path``."""
    try:
        yield
    except tf.errors.OpError as error:
        number = _NUMBERS.get(type(error), errno.EIO)
        raise OSError(number, _words(number, error), str(path)) from error


def _words(number: int, error: tf.errors.OpError) -> str:
    if number != errno.EIO:
        return os.strerror(number)
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]", "", error.message.partition("\n")[0])
    return text.strip(" ;:") or os.strerror(number)
