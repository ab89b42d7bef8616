"""The logs and sidecars that a run reads, checked before it begins, and the stream of feeds that they become."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ctr.data.batches import Batch, batches_within, set_rejects_apart, whole_query_batches
from ctr.data.interleave import Interleaved
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import MAX_TIME_US, Manifest, read_manifests, read_schema
from ctr.data.reader import read_rows
from ctr.data.schema import Schema
from ctr.data.stream import Selection, check_selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.errors import InputError
from ctr.models.rows import TableLayout
from ctr.objective.bias_constraints import Family, resolve_families
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed, make_feed, read_ahead
from ctr.training.step import scored_part


@dataclass(frozen=True)
class Log:
    """A log and its published intervals."""

    path: Path
    manifests: Sequence[Manifest]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(manifest.rows for manifest in self.manifests)

    def start_at(self, position: int) -> int:
        """The query time, in microseconds, at which the interval with that row, or else the last one, begins."""
        behind = 0
        for manifest in self.manifests:
            behind += manifest.rows
            if behind > position:
                return manifest.start
        return self.manifests[-1].start if self.manifests else 0

    @property
    def end(self) -> int:
        """The query time, in microseconds, up to which it is published."""
        return self.manifests[-1].end if self.manifests else 0


@dataclass(frozen=True)
class Inputs:
    """What a run reads.

    Attributes:
        config: of the run.
        schema: the features, of all logs.
        log: the log that it makes a pass over.
        others: the constraint logs by name.
        families: of constrained slices.
        teacher_log: the log beside which the teacher's sidecar lies, where it is another one.
    """

    config: TrainConfig
    schema: Schema
    log: Log
    others: Mapping[str, Log]
    families: tuple[Family, ...]
    teacher_log: Log | None = None

    @property
    def sidecars(self) -> dict[str, tuple[Path, str]]:
        """The log and the name of each sidecar that it reads."""
        return {role: (log.path, name) for role, (log, name) in self.sidecar_logs.items()}

    @property
    def sidecar_logs(self) -> dict[str, tuple[Log, str]]:
        """Likewise, with the intervals of the log."""
        sampling, distillation = self.config.sampling, self.config.objective.distillation
        read: dict[str, tuple[Log, str]] = {}
        if sampling is not None:
            read["sample"] = self.log, sampling.name
        if distillation is not None:
            read["teacher"] = self.teacher_log or self.log, distillation.teacher
        return read


def open_inputs(path: Path, config: TrainConfig) -> Inputs:
    """Finds and checks everything that a run reads.

    Raises:
        InputError: a log is none, is empty, or has other features than the first one; a feature, sidecar or
            sidecar's row that the configuration needs is not there.
    """
    schema = read_schema(path)
    log = _open_log(path, config.time_range)
    _check_slices(schema, config)
    constraints = config.objective.bias_constraints
    others: dict[str, Log] = {}
    families: tuple[Family, ...] = ()
    if constraints is not None:
        families = resolve_families(constraints, schema)
        for number, other in enumerate(constraints.logs):
            key = f"objective.bias_constraints.logs.{number}.path"
            others[other.name] = _open_log(Path(other.path), config.time_range, key)
    for name, opened in others.items():
        version = read_schema(opened.path).version
        if version != schema.version:
            raise InputError(
                f"config: objective.bias_constraints.logs: the log {name} ({opened.path}) has schema {version}, "
                f"{path} has {schema.version}: both must have the same features"
            )
    distillation = config.objective.distillation
    taught = None if distillation is None or distillation.log is None else Path(distillation.log)
    teacher_log = None if taught is None else Log(taught, read_manifests(taught))
    return Inputs(config, schema, log, others, families, teacher_log)


def check_rows(inputs: Inputs, start: int = 0, stop: Callable[[], bool] = lambda: False) -> bool:
    """Goes over the log where a sidecar must say something of every row, before training does.

    Args:
        start: the position in the log to begin at.
        stop: asked now and then whether to give up.

    Returns:
        Whether it went over all of it.

    Raises:
        InputError: how many rows it says nothing of, and which are the first.
    """
    selection = selection_of(inputs, start)
    if selection.sample is not None or (selection.teacher is not None and selection.every_row_taught):
        return check_selection(inputs.log.path, inputs.schema, inputs.log.manifests, selection, start, stop)
    return True


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


def _check_slices(schema: Schema, config: TrainConfig) -> None:
    for name in config.metrics.slices:
        if name not in schema.single_valued:
            raise InputError(
                f"config: metrics.slices names {name}, which is not a single-valued feature of the log; "
                f"allowed: {', '.join(schema.single_valued)}"
            )


def selection_of(inputs: Inputs, start: int = 0) -> Selection:
    """Which rows of the log the run is about, with sidecars opened anew: each thread needs its own.

    Args:
        start: a position in the log; what lies before it is not going to be read.
    """
    config, distillation = inputs.config, inputs.config.objective.distillation
    begin = inputs.log.start_at(start)

    def opened(role: str, column: str) -> JoinedSidecar | None:
        if role not in inputs.sidecar_logs:
            return None
        log, name = inputs.sidecar_logs[role]
        return JoinedSidecar(log.path, name, [column], log.manifests, begin)

    return Selection(
        time_range=config.time_range,
        sample=opened("sample", "weight"),
        only_kept=config.sampling is not None and config.sampling.score == "kept",
        teacher=opened("teacher", "logit"),
        every_row_taught=distillation is not None and distillation.missing == "refuse",
    )


def read_feeds(
    inputs: Inputs,
    layouts: tuple[TableLayout, ...],
    start: int,
    other_starts: Mapping[str, int] | None = None,
    partial: bool = True,
    hold: Callable[[int], None] = lambda position: None,
) -> Generator[Feed, None, None]:
    """The run's feeds from a position on, made by a thread that reads ahead.

    Args:
        start: the position in the log.
        other_starts: those in the constraint logs; None: the feeds are to be scored only, with what that needs.
        partial: also the batches that would become others if the logs went on.
        hold: told, before the end, the position of the first row in such a batch, if there is one and not ``partial``.
    """
    config, batch, log = inputs.config, inputs.config.batch, inputs.log
    objective = config.objective if other_starts is not None else scored_part(config.objective)

    def feeds() -> Iterator[Feed]:
        selection = selection_of(inputs, start)
        if other_starts is None:
            selection = replace(selection, teacher=None)
        blocks = read_selection(log.path, inputs.schema, log.manifests, selection, start)
        streams = [] if other_starts is None else _open_streams(inputs, other_starts)
        if batch.within_partitions:
            ends = np.cumsum([manifest.rows for manifest in log.manifests], dtype=np.int64)
            batches = batches_within(ends, blocks, batch.rows, batch.max_query_rows)
        else:
            batches = whole_query_batches(blocks, batch.rows, batch.max_query_rows)
        for one in batches if partial else _final(batches, inputs, hold):
            others = [_other_batch(stream, one) for stream in streams]
            feed = make_feed(one, layouts, batch.rows, objective, inputs.families, others)
            # By this thread, and not by the one that trains.
            _ = feed.tensors
            yield feed

    return read_ahead(feeds())


def _final(batches: Iterable[Batch], inputs: Inputs, hold: Callable[[int], None]) -> Iterator[Batch]:
    """Those of the batches that stay what they are however the logs go on; ``hold`` is told where the others begin.

    The last one may still grow, unless it is full or ends with its interval; and to any of them belong the rows
    that a constraint log has until its time, so that it waits until that log is published so far.
    """
    batch_config = inputs.config.batch
    published = min((other.end for other in inputs.others.values()), default=MAX_TIME_US)
    last: Batch | None = None
    for batch in batches:
        if batch.times[1] > published:
            hold(batch.begin)
            break
        if last is not None:
            yield last
        last = batch
    else:
        grows = last is not None and len(last.rows) + len(last.rejects) < batch_config.rows
        if last is not None and grows and not batch_config.within_partitions:
            hold(last.begin)
            return
    if last is not None:
        yield last


def _open_streams(inputs: Inputs, starts: Mapping[str, int]) -> list[Interleaved]:
    """The constraint logs from their positions on; what lies before the training log's time is never read."""
    batch, time_range = inputs.config.batch, inputs.config.time_range
    begin = max(time_range.start_us, inputs.log.manifests[0].start)
    return [
        Interleaved(
            read_rows(other.path, inputs.schema, other.manifests, starts[name], (begin, time_range.end_us)),
            batch.rows,
            batch.max_query_rows,
            f"constraint log {name}, {other.path}",
        )
        for name, other in inputs.others.items()
    ]


def _other_batch(stream: Interleaved, batch: Batch) -> Batch | None:
    """Rows of a constraint log whose time has come: before the batch's last one.

    At that time itself the next batch may have rows that are still to be predicted, and a constraint log may
    hold the same examples with their labels.
    """
    rows = stream.until(batch.times[1] - 1)
    return None if rows is None else set_rejects_apart(rows)
