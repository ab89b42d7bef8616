"""The logs and sidecars that a run reads, checked before it begins, and the stream of feeds that they become."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ctr.data.batches import Batch, set_rejects_apart, whole_query_batches
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
    """

    config: TrainConfig
    schema: Schema
    log: Log
    others: Mapping[str, Log]
    families: tuple[Family, ...]

    @property
    def sidecars(self) -> dict[str, tuple[Path, str]]:
        """The log and the name of each sidecar that it reads."""
        sampling, distillation = self.config.sampling, self.config.objective.distillation
        read: dict[str, tuple[Path, str]] = {}
        if sampling is not None:
            read["sample"] = self.log.path, sampling.name
        if distillation is not None:
            log = self.log.path if distillation.log is None else Path(distillation.log)
            read["teacher"] = log, distillation.teacher
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
    return Inputs(config, schema, log, others, families)


def read_again(inputs: Inputs) -> Inputs:
    """The same logs with the intervals that are published by now."""
    others = {name: Log(other.path, read_manifests(other.path)) for name, other in inputs.others.items()}
    return replace(inputs, log=Log(inputs.log.path, read_manifests(inputs.log.path)), others=others)


def check_rows(inputs: Inputs, start: int = 0) -> None:
    """Goes over the log where a sidecar must say something of every row, before training does.

    Args:
        start: the position in the log to begin at.

    Raises:
        InputError: how many rows it says nothing of, and which are the first.
    """
    selection = selection_of(inputs)
    if selection.sample is not None or (selection.teacher is not None and selection.every_row_taught):
        check_selection(inputs.log.path, inputs.schema, inputs.log.manifests, selection, start)


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
        raise InputError(f"{where}{path}: no interval of the log has any time in common with time_range")
    return log


def _check_slices(schema: Schema, config: TrainConfig) -> None:
    for name in config.metrics.slices:
        if name not in schema.single_valued:
            raise InputError(
                f"config: metrics.slices names {name}, which is no single-valued feature of the log; "
                f"allowed: {', '.join(schema.single_valued)}"
            )


def selection_of(inputs: Inputs) -> Selection:
    """Which rows of the log the run is about, with sidecars opened anew: each thread needs its own."""
    config, sidecars = inputs.config, inputs.sidecars
    distillation = config.objective.distillation
    return Selection(
        time_range=config.time_range,
        sample=JoinedSidecar(*sidecars["sample"], ["weight"]) if "sample" in sidecars else None,
        only_kept=config.sampling is not None and config.sampling.score == "kept",
        teacher=JoinedSidecar(*sidecars["teacher"], ["logit"]) if "teacher" in sidecars else None,
        every_row_taught=distillation is not None and distillation.missing == "refuse",
    )


def read_feeds(
    inputs: Inputs,
    layouts: tuple[TableLayout, ...],
    start: int,
    other_starts: Mapping[str, int] | None = None,
    partial: bool = True,
) -> Generator[Feed, None, None]:
    """The run's feeds from a position on, made by a thread that reads ahead.

    Args:
        start: the position in the log.
        other_starts: those in the constraint logs; None: the feeds are to be scored only, with what that needs.
        partial: also the batches that would become others if the logs went on.
    """
    config, batch, log = inputs.config, inputs.config.batch, inputs.log
    objective = config.objective if other_starts is not None else scored_part(config.objective)

    def feeds() -> Iterator[Feed]:
        selection = selection_of(inputs)
        if other_starts is None:
            selection = replace(selection, teacher=None)
        blocks = read_selection(log.path, inputs.schema, log.manifests, selection, start)
        streams = [] if other_starts is None else _open_streams(inputs, other_starts)
        batches = whole_query_batches(blocks, batch.rows, batch.largest_query)
        for one in batches if partial else _final(batches, inputs):
            others = [_other_batch(stream, one) for stream in streams]
            yield make_feed(one, layouts, batch.rows, objective, inputs.families, others)

    return read_ahead(feeds())


def _final(batches: Iterable[Batch], inputs: Inputs) -> Iterator[Batch]:
    """Those of the batches that stay what they are however the logs go on.

    The last one may still grow, unless it is full; and to any of them belong the rows that a constraint log has
    until its time, so that it waits until that log is published so far.
    """
    published = min((other.end for other in inputs.others.values()), default=MAX_TIME_US)
    last: Batch | None = None
    for batch in batches:
        if batch.times[1] > published:
            break
        if last is not None:
            yield last
        last = batch
    else:
        if last is not None and len(last.rows) + len(last.rejects) < inputs.config.batch.rows:
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
            batch.largest_query,
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
