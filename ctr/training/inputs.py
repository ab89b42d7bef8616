"""Inputs of a run: its logs and sidecars, checked before it begins and as they grow, and the feeds made from them."""

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ctr.data.batches import (
    Batch,
    BatchSize,
    Interleaved,
    batches_within,
    set_rejects_apart,
    whole_query_batches,
)
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import MAX_TIME_US, Manifest, PublishedPartitions, log_sha256
from ctr.data.reader import read_rows
from ctr.data.sidecar import SidecarHash, sidecar_folder
from ctr.data.stream import Selection, check_selection, read_selection
from ctr.io.errors import InputError
from ctr.io.read_ahead import read_ahead
from ctr.objective.bias_constraints import Family, resolve_families
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment, has_few_shapes
from ctr.training.division import ALL_HERE, Placement
from ctr.training.feed import Feed, make_feed
from ctr.training.fused_feed import AnyFeed, Layouts, in_groups, make_fused_feed, shape_of
from ctr.training.logs import Log, Logs, open_logs
from ctr.training.retrain import learned_batch
from ctr.training.run.position import Position
from ctr.training.sizes import FewShapes, Shape, few_shapes, is_fused_from
from ctr.workers.collectives import ALONE, Workers

_LOOK_EVERY = 0.1  # seconds

Tables = Callable[[], Layouts]
"""Returns the layouts of the current tables, for which feeds are made."""
Shapes = Callable[[Layouts], FewShapes]
Hold = Callable[[int], None]

# Keys of the environment that affect the bits of results: they must be equal in the whole group.
_SAME = ("python", "processor", "bfloat16_units", "compute_dtype", "jit", "intra_op_threads")


@dataclass(frozen=True)
class Inputs(Logs):
    """The logs that a run reads, and the families of constrained slices."""

    families: tuple[Family, ...]

    @property
    def row_logs(self) -> dict[str, Log]:
        """Returns the logs whose rows are read, by name; "" is the training log."""
        return {"": self.log, **self.constraint_logs}

    def selects(self, partition: Manifest) -> bool:
        return bool(partition.rows) and self.config.time_range.selects(partition)

    def has_rows_after(self, position: int) -> bool:
        """Returns whether the training log may have rows from ``position`` on."""
        end = self.log.rows
        for manifest in reversed(self.log.manifests):
            if end <= position:
                break
            if self.selects(manifest):
                return True
            end -= manifest.rows
        return False


def open_inputs(path: Path, config: TrainConfig, group: Workers = ALONE) -> Inputs:
    """Opens a run's inputs. Raises InputError if some are missing, do not fit, or differ within the group.

    All members use the partitions of growing logs that the first member finds.
    """
    with group.raise_if_any_failed():
        logs = open_logs(path, config)
        families = resolve_families(config.objective.bias_constraints, logs.schema)
    inputs = Inputs(**vars(logs), families=families)
    if group.size > 1:
        inputs = _with_logs(inputs, [_as_the_first(log, group) for log in _all_logs(inputs)])
        group.agree(_fingerprints(inputs, group.size))
    return inputs


def _all_logs(inputs: Inputs) -> list[Log]:
    teacher = () if inputs.teacher_log is None else (inputs.teacher_log,)
    return [inputs.log, *inputs.constraint_logs.values(), *teacher]


def _with_logs(inputs: Inputs, logs: Sequence[Log]) -> Inputs:
    """Returns the inputs with newer versions of their logs, which are in the order of ``_all_logs``."""
    constraint_logs = dict(zip(inputs.constraint_logs, logs[1:], strict=False))
    teacher_log = logs[-1] if inputs.teacher_log else None
    return replace(inputs, log=logs[0], constraint_logs=constraint_logs, teacher_log=teacher_log)


def _as_the_first(log: Log, group: Workers, published: PublishedPartitions | None = None) -> Log:
    """Reads a log up to the last partition that the first member found; others may see its files a moment later."""
    published = published or PublishedPartitions(log.path, log.manifests)
    count = group.once(lambda: len(published.read()))
    with group.raise_if_any_failed():
        begun = time.monotonic()
        while len(manifests := published.read()) < count:
            if group.patience and time.monotonic() - begun > group.patience / 2:
                raise InputError(
                    f"{log.path}: the first worker finds {count} partitions, this one {len(manifests)}"
                )
            time.sleep(_LOOK_EVERY)
    # The same object where there is nothing new.
    return (
        log
        if len(log.manifests) == count and manifests[:count] == log.manifests
        else Log(log.path, manifests[:count])
    )


def _fingerprints(inputs: Inputs, size: int) -> dict[str, str]:
    """Returns versions, hashes and settings that must be equal in all members of a group, by description."""
    environment = describe_environment(inputs.config, size)
    versions = environment["versions"]
    logs = {f"constraint log {name}" if name else "log": log for name, log in inputs.row_logs.items()}
    return {
        "version of ctr": versions.pop("ctr"),
        "version of TensorFlow": versions.pop("tensorflow"),
        "configuration": inputs.config.sha256(),
        "features of the log (schema)": inputs.schema.version,
        **{what: log_sha256(log.manifests) for what, log in logs.items()},
        **{
            f"sidecar {name} ({role})": SidecarHash(log.path, name).until()
            for role, (log, name) in inputs.sidecars.items()
        },
        **{f"version of {name}": version for name, version in versions.items()},
        **{f"environment ({key})": json.dumps(environment[key]) for key in _SAME},
    }


def check_rows(inputs: Inputs, start: int = 0, stop: Callable[[], bool] = lambda: False) -> bool:
    """Raises InputError if sidecars lack a row from ``start`` on; returns False if ``stop`` ended the check early."""
    selection = selection_of(inputs, start)
    if selection.sample is not None or (selection.teacher is not None and selection.every_row_taught):
        return check_selection(inputs.log.path, inputs.schema, inputs.log.manifests, selection, start, stop)
    return True


def selection_of(inputs: Inputs, start: int = 0) -> Selection:
    """Selects the rows of the log from ``start`` on, with separately opened sidecars, as each thread requires."""
    config, distillation = inputs.config, inputs.config.objective.distillation
    begin = inputs.log.start_at(start)

    def opened(role: str, *columns: str) -> JoinedSidecar | None:
        if role not in inputs.sidecars:
            return None
        log, name = inputs.sidecars[role]
        return JoinedSidecar(log.path, name, columns, log.manifests, begin)

    return Selection(
        time_range=config.time_range,
        sample=opened("sample", "weight"),
        only_kept=config.sampling is not None and config.sampling.score == "kept",
        teacher=opened("teacher", "logit"),
        every_row_taught=distillation is not None and distillation.missing == "refuse",
    )


def batch_size(inputs: Inputs) -> BatchSize:
    """Returns the batch sizes of the run's log, which depend on the position alone."""
    batch, start = inputs.config.batch, inputs.config.time_range.start_us
    skipped = sum(manifest.rows for manifest in inputs.log.manifests if manifest.end <= start)
    return batch.sizes(skipped)


def read_feeds(
    inputs: Inputs,
    tables: Tables,
    position: Position | None = None,
    partial: bool = True,
    hold: Hold = lambda position: None,
    placement: Placement = ALL_HERE,
    fused: Shapes = lambda layouts: (),
) -> Generator[AnyFeed, None, None]:
    """Yields the run's feeds from a position on, or from the beginning, built by a thread that reads ahead.

    The trainer may need them for other ``tables`` later (``Feed.of_tables``). Unless ``partial``, batches that would
    change if the logs grew are left out, and ``hold`` is called with the position of the first one. ``fused`` returns
    the shapes of batches that one call may learn from together.
    """
    config, size = inputs.config, batch_size(inputs)

    def few(layouts: Layouts) -> FewShapes:
        return few_shapes(config, inputs.schema, layouts)

    shapes = few if has_few_shapes(config.batch.shapes) else None
    # By the number of tables: all, or only the first ones.
    fused_of: dict[int, FewShapes] = {}

    def fused_shapes_of(layouts: Layouts) -> FewShapes:
        if len(layouts) not in fused_of:
            fused_of[len(layouts)] = fused(layouts)
        return fused_of[len(layouts)]

    def feed_of(batch: Batch, layouts: Layouts) -> Feed:
        usual = size.at(batch.begin)
        objective = config.objective if batch.has_labels else config.objective.scored_part
        feed = make_feed(batch, layouts, usual, objective, inputs.families, config.ids, placement, shapes)
        preconditions = config.preconditions_at(usual)
        return replace(feed, preconditions=preconditions, again=lambda layouts: feed_of(batch, layouts))

    def fused_shape(batch: Batch) -> Shape | None:
        """Returns the shape of a batch that is fused with others, or None if it is not fused."""
        begin = batch.begin
        # Where Shampoo has begun, roots come from the host between two steps.
        is_alone = config.leaves_out(begin, batch.end) or config.preconditions_at(size.at(begin))
        if is_alone or not is_fused_from(size, begin):
            return None
        return shape_of(batch, tables(), fused_shapes_of(tables()))

    def feeds() -> Iterator[AnyFeed]:
        batches = _read_batches(inputs, position or Position(), partial, hold)
        shaped = ((batch, fused_shape(batch)) for batch in batches)
        for group, shape in in_groups(shaped, config.batch.most_fused):
            if shape is not None:
                yield make_fused_feed(
                    group, tables(), fused_shapes_of, config.objective, inputs.families, config.ids, feed_of
                )
                continue
            feed = feed_of(group[0], tables())
            # In this thread, not in the one that trains.
            feed.prepare()
            yield feed

    return read_ahead(feeds())


def _read_batches(inputs: Inputs, position: Position, partial: bool, hold: Hold) -> Iterator[Batch]:
    """Yields the batches from a position on, in the order in which a run scores and learns from them."""
    if not inputs.has_rows_after(position.examples):
        return iter(())
    delay = round(inputs.config.label_delay * 1_000_000)
    constraint_logs = _open_constraint_logs(inputs, position)
    if not delay:
        return merge(_read_log(inputs, position.learned, partial, hold), constraint_logs=constraint_logs)
    return merge(
        _read_log(inputs, position.examples, partial, hold, taught=False),
        # A separate stream, so that the batches in between need no memory.
        _read_log(inputs, position.learned, partial),
        delay,
        constraint_logs,
    )


def merge(
    new: Iterable[Batch],
    labeled: Iterator[Batch] | None = None,
    delay: int = 0,
    constraint_logs: Sequence[Interleaved] = (),
) -> Iterator[Batch]:
    """Merges batches of a log in the order in which a run scores and learns from them.

    A batch is yielded when it is new, and again before the first batch whose queries are late enough for its labels
    to be available. With its labels come the rows of constraint logs with earlier times than its last row: at that
    time itself the next batch may have rows to predict, and a constraint log may hold the same examples with labels.

    Args:
        new: batches to be scored.
        labeled: batches of the same log to be learned from; None: labels have no delay.
        delay: microseconds until labels are available.
    """

    def learned(batch: Batch, is_new: bool) -> Batch:
        due = {number: log.until(batch.times[1] - 1) for number, log in enumerate(constraint_logs, 1)}
        others = {number: set_rejects_apart(rows) for number, rows in due.items() if rows is not None}
        return replace(batch, is_new=is_new, others=others)

    if labeled is None:
        yield from (learned(batch, is_new=True) if constraint_logs else batch for batch in new)
        return
    waiting = next(labeled, None)
    for batch in new:
        while waiting is not None and waiting.times[1] <= batch.times[0] - delay:
            yield learned(waiting, is_new=False)
            waiting = next(labeled, None)
        yield replace(batch, has_labels=False)


def _read_log(
    inputs: Inputs,
    start: int,
    partial: bool,
    hold: Hold = lambda position: None,
    taught: bool = True,
) -> Iterator[Batch]:
    batch, log, size = inputs.config.batch, inputs.log, batch_size(inputs)
    selection = selection_of(inputs, start)
    if not taught:
        selection = replace(selection, teacher=None)
    blocks = read_selection(log.path, inputs.schema, log.manifests, selection, start)
    if batch.within_partitions:
        ends = np.cumsum([manifest.rows for manifest in log.manifests], dtype=np.int64)
        batches = batches_within(ends, blocks, size, batch.max_query_rows)
    else:
        batches = whole_query_batches(blocks, size, batch.max_query_rows)
    final = batches if partial else _final_batches(batches, inputs, hold)
    return (learned_batch(batch, inputs.config.retrain) for batch in final)


def _final_batches(batches: Iterable[Batch], inputs: Inputs, hold: Hold) -> Iterator[Batch]:
    """Yields the batches that no growth of the logs can change; ``hold`` is called with the position of the rest.

    The last batch may still grow, unless it is full or ends with its partition. Each batch includes the rows of
    constraint logs up to its time, and waits until these logs are published up to that time.
    """
    batch_config = inputs.config.batch
    published = min((other.end for other in inputs.constraint_logs.values()), default=MAX_TIME_US)
    last: Batch | None = None
    for batch in batches:
        if batch.times[1] > published:
            hold(batch.begin)
            break
        if last is not None:
            yield last
        last = batch
    else:
        size = batch_size(inputs)
        grows = last is not None and len(last.rows) + len(last.rejects) < size.at(last.begin)
        if last is not None and grows and not batch_config.within_partitions:
            hold(last.begin)
            return
    if last is not None:
        yield last


def _open_constraint_logs(inputs: Inputs, position: Position) -> list[Interleaved]:
    """Opens the constraint logs at a run's positions; rows from before the training log begins are never read."""
    batch, time_range = inputs.config.batch, inputs.config.time_range
    begin = max(time_range.start_us, inputs.log.manifests[0].start)
    return [
        Interleaved(
            read_rows(
                other.path, inputs.schema, other.manifests, position.of(name).rows, (begin, time_range.end_us)
            ),
            batch.rows,
            batch.max_query_rows,
        )
        for name, other in inputs.constraint_logs.items()
    ]


class PublishedInputs:
    """Growing inputs of a run, polled at little cost; the group uses the partitions that its first member finds."""

    def __init__(self, inputs: Inputs, wait_for_sidecars: bool, group: Workers = ALONE) -> None:
        self.inputs = inputs  # with all published partitions
        self._waits = wait_for_sidecars
        self._ready = 0
        self._group = group
        self.awaited: str | None = None  # the file that the log waits for
        self._published = [(log, PublishedPartitions(log.path, log.manifests)) for log in _all_logs(inputs)]
        self.readable = self._read_ready()

    def refresh(self) -> bool:
        """Reads newly published manifests; returns whether there is more to read. Raises InputError for a bad one."""
        before, ready = self.inputs, self._ready
        logs = [_as_the_first(log, self._group, published) for log, published in self._published]
        if any(log is not previous for log, (previous, _) in zip(logs, self._published, strict=True)):
            self._published = [
                (log, published) for log, (_, published) in zip(logs, self._published, strict=True)
            ]
            self.inputs = _with_logs(self.inputs, logs)
        self.readable = self._read_ready()
        return self.inputs is not before or self._ready != ready

    def _read_ready(self) -> Inputs:
        manifests = self.inputs.log.manifests
        if not self._waits:
            self._ready = len(manifests)
            return self.inputs
        self._ready, self.awaited = self._group.once(self._find_ready)
        if self._ready == len(manifests):
            return self.inputs
        return replace(self.inputs, log=Log(self.inputs.log.path, manifests[: self._ready]))

    def _find_ready(self) -> tuple[int, str | None]:
        """Counts the partitions that the sidecars cover; also returns the file that the next one waits for."""
        manifests, awaited = self.inputs.log.manifests, None
        # Ready partitions stay ready; lost ones are refused elsewhere.
        ready = min(self._ready, len(manifests))
        while ready < len(manifests) and awaited is None:
            awaited = self._missing_file(manifests[ready])
            ready += awaited is None
        return ready, awaited

    def _missing_file(self, partition: Manifest) -> str | None:
        """Returns the first missing file that the sidecars need to cover a partition."""
        if not self.inputs.selects(partition):
            return None
        for log, name in self.inputs.sidecars.values():
            if log.end < partition.end:
                return f"{log.path}, published until {partition.end}"
            first = bisect_right(log.manifests, partition.start, key=lambda manifest: manifest.end)
            last = bisect_left(log.manifests, partition.end, key=lambda manifest: manifest.start)
            for manifest in log.manifests[first:last]:
                path = sidecar_folder(log.path, name) / f"{manifest.name}.json"
                if manifest.rows and not path.is_file():
                    return str(path)
        return None
