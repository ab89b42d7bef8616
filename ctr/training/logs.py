"""Logs that a run reads: their partitions, the settings derived from them, and checks that they stay the same.

Loads no TensorFlow.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.log import RECORD, Manifest, log_sha256, read_manifests, read_schema
from ctr.data.query_size import pages_differ
from ctr.data.schema import QUERY_SIZE, Schema
from ctr.data.time_range import TimeRange
from ctr.io.documents import json_bytes
from ctr.io.errors import InputError, listed
from ctr.training.config import TrainConfig
from ctr.training.experts.names import choose_experts
from ctr.training.model_config import fitting_width


@dataclass(frozen=True)
class Log:
    """A log and its published partitions."""

    path: Path
    manifests: Sequence[Manifest]

    @property
    def rows(self) -> int:
        return sum(manifest.rows for manifest in self.manifests)

    def start_at(self, position: int) -> int:
        """Returns the query time in microseconds at which the partition of row ``position``, or the last, begins."""
        behind = 0
        for manifest in self.manifests:
            behind += manifest.rows
            if behind > position:
                return manifest.start
        return self.manifests[-1].start if self.manifests else 0

    @property
    def end(self) -> int:
        """Returns the query time, in microseconds, up to which the log is published."""
        return self.manifests[-1].end if self.manifests else 0


@dataclass(frozen=True)
class Logs:
    """The logs that a run reads, all with the same features."""

    config: TrainConfig  # the configuration, with the settings that the log's manifests decide
    schema: Schema  # the model's features (``ModelConfig.features``)
    log: Log  # the log of the run's pass
    constraint_logs: Mapping[str, Log]
    teacher_log: Log | None  # the log of the teacher's sidecar, if it is not ``log``
    notes: tuple[str, ...]  # values of ``auto`` that another key, or the log, has decided

    @property
    def sidecars(self) -> dict[str, tuple[Log, str]]:
        """Returns the log and the name of each sidecar that a run reads, by its use."""
        sampling, distillation = self.config.sampling, self.config.objective.distillation
        read: dict[str, tuple[Log, str]] = {}
        if sampling is not None:
            read["sample"] = self.log, sampling.name
        if distillation is not None:
            read["teacher"] = self.teacher_log or self.log, distillation.teacher
        return read


def open_logs(path: Path, config: TrainConfig) -> Logs:
    """Opens the logs that a run reads. Raises InputError if one is empty, or does not fit the configuration."""
    schema = read_schema(path)
    log = _open_log(path, config.time_range)
    for name in config.objective.labels:
        if name not in schema.labels:
            raise InputError(
                f"config: objective.labels.{name}: {path} has no such label; its further labels are "
                f"{listed(schema.labels, name)}"
            )
    _check_query_size(path, config, schema)
    notes = (*choose_experts(config.model, schema)[1], *config.notes)
    config = resolve(config, schema, log.manifests)
    schema = config.model.features(schema)
    for name in config.metrics.slices:
        if name not in schema.single_ids:
            raise InputError(
                f"config: metrics.slices names {name}, which is not a single-valued feature of the log; "
                f"allowed: {listed(schema.single_ids, name)}"
            )
    config.table_layouts(schema)
    constraints = config.objective.bias_constraints
    constraint_logs: dict[str, Log] = {}
    for number, other in enumerate(constraints.logs if constraints is not None else ()):
        key = f"objective.bias_constraints.logs.{number}.path"
        constraint_logs[other.name] = _open_log(other.path, config.time_range, key)
    for name, opened in constraint_logs.items():
        version = read_schema(opened.path).version
        if version != schema.stored.version:
            raise InputError(
                f"config: objective.bias_constraints.logs: the log {name} ({opened.path}) has schema {version}, "
                f"{path} has {schema.stored.version}: both must have the same features"
            )
    distillation = config.objective.distillation
    taught = None if distillation is None or distillation.log is None else Path(distillation.log)
    teacher_log = None if taught is None else Log(taught, read_manifests(taught))
    return Logs(config, schema, log, constraint_logs, teacher_log, notes)


def _open_log(path: Path, time_range: TimeRange, key: str = "") -> Log:
    where = f"config: {key}: " if key else ""
    try:
        read_schema(path)
        log = Log(path, read_manifests(path))
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    if not log.rows:
        raise InputError(f"{where}{path}: the log has no rows")
    if not any(time_range.selects(manifest) for manifest in log.manifests):
        raise InputError(f"{where}{path}: no partition of the log overlaps time_range")
    return log


def resolve(config: TrainConfig, schema: Schema, manifests: Sequence[Manifest]) -> TrainConfig:
    """Resolves the ``ModelConfig`` keys that depend on the log: ``query_size``, ``widths`` and ``experts``.

    Reads no labels, and nothing after the first partition with rows, so a run that follows the log resolves the same.
    """
    model = config.model
    if model.query_size == "auto":
        first = _first_with_rows(manifests)
        is_free = not _has_own(schema.stored) and QUERY_SIZE not in model.without
        is_useful = pages_differ(first.rows, first.queries, first.pages)
        model = model.model_copy(update={"query_size": is_free and is_useful})
    experts, _ = choose_experts(model, schema)
    model = model.model_copy(update={"experts": experts})
    features = model.features(schema).features
    open_widths = [f for f in features if f.width is None and f.name not in model.widths and f.has_ids]
    if open_widths:
        distinct = _first_with_rows(manifests).distinct
        widths = {f.name: fitting_width(distinct.get(f.name, f.buckets)) for f in open_widths}
        model = model.model_copy(update={"widths": {**model.widths, **widths}})
    return config.model_copy(update={"model": model})


def _first_with_rows(manifests: Sequence[Manifest]) -> Manifest:
    return next((manifest for manifest in manifests if manifest.rows), manifests[0])


def _has_own(schema: Schema) -> bool:
    return QUERY_SIZE in {*schema.by_name, *schema.sources, *schema.inputs}


def _check_query_size(path: Path, config: TrainConfig, schema: Schema) -> None:
    if config.model.query_size is not True:
        return
    if _has_own(schema):
        raise InputError(
            f"config: model.query_size: true: {path} has a feature or a column {QUERY_SIZE} of its own; "
            "allowed: auto, false"
        )
    if (path / RECORD).exists():
        raise InputError(
            f"config: model.query_size: true: the queries of {path} are not whole, since sampling dropped rows of "
            "them; allowed: auto, false; a sample that is read beside the whole log leaves them whole"
        )


class LogsSeen:
    """Partitions of a run's logs: records which of them the run has read, and checks that these do not change."""

    def __init__(self, run_dir: Path, manifests: Mapping[str, Sequence[Manifest]]) -> None:
        self.manifests = manifests  # by log; "" is the log of the run's pass
        self._run_dir = run_dir
        self._hashed = {name: (0, hashlib.sha256()) for name in manifests}

    def consumed(self, rows: Mapping[str, int]) -> list[dict[str, Any]]:
        """Returns, for each log, the number and the hash of the partitions that begin in its first ``rows``."""
        consumed = []
        for name, behind in rows.items():
            count = self._partitions(name, behind)
            consumed.append({"log": name, "intervals": count, "sha256": self._sha256(name, count)})
        return consumed

    def _partitions(self, name: str, rows: int) -> int:
        begins = np.cumsum([0, *(manifest.rows for manifest in self.manifests[name])])
        return int(np.searchsorted(begins, rows))

    def _sha256(self, name: str, count: int) -> str:
        """Hashes the first ``count`` partitions like ``log_sha256``, continuing from the last call's hash."""
        done, digest = self._hashed[name]
        if count < done:
            done, digest = 0, hashlib.sha256()
        for manifest in self.manifests[name][done:count]:
            digest.update(json_bytes(manifest.model_dump(mode="json")))
        self._hashed[name] = count, digest
        return digest.hexdigest()

    def check(self, consumed: Sequence[Mapping[str, Any]]) -> None:
        """Raises InputError if these logs lack partitions that an earlier ``consumed`` of the run returned."""
        for seen in consumed:
            if seen["sha256"] != log_sha256(self.manifests[seen["log"]][: seen["intervals"]]):
                raise self._changed(seen["log"], seen["intervals"])

    def update(self, manifests: Mapping[str, Sequence[Manifest]], rows: Mapping[str, int]) -> None:
        """Adopts new lists of partitions; ``rows``: see ``consumed``. Raises InputError if partitions read changed."""
        for name, seen in self.manifests.items():
            if manifests[name] is seen:
                continue
            count = self._partitions(name, rows[name])
            if manifests[name][:count] != seen[:count]:
                raise self._changed(name, count, _difference(seen, manifests[name]))
        self.manifests = manifests

    def _changed(self, name: str, count: int, difference: str = "") -> InputError:
        log = f"constraint log {name}" if name else "log"
        return InputError(
            f"{self._run_dir}: the {log} is not the one that this run was trained on: "
            f"its first {count} partitions differ{difference}; use another output directory to start again"
        )


def _difference(before: Sequence[Manifest], now: Sequence[Manifest]) -> str:
    """Describes the first partition that changed, in parentheses; empty if none did."""
    for old, new in zip_longest(before, now):
        if old == new:
            continue
        if new is None or (old is not None and old.start < new.start):
            return f" ([{old.start}, {old.end}) is gone)"
        if old is None or (old.start, old.end) != (new.start, new.end):
            return f" ([{new.start}, {new.end}) came late)"
        return f" ([{new.start}, {new.end}) has other content)"
    return ""
