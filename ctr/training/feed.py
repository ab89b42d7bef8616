"""From batches to the arrays that the step takes, made by a thread that reads ahead."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import tensorflow as tf

from ctr.data.batches import Batch
from ctr.data.reader import Rows, join_rows
from ctr.models.rows import TableLayout, padded_size
from ctr.objective.bias_constraints import Family
from ctr.objective.config import ObjectiveConfig
from ctr.objective.targets import Targets, make_targets, query_begins, whole_batch_weight
from ctr.training.division import Division, Seat, divide_rows
from ctr.training.ids.admission import drawn
from ctr.training.ids.config import IdsConfig
from ctr.training.shapes import FewShapes, Shape, TableSizes
from ctr.training.tables.plan import TablePlan, assign_rows, pad_plan, plan_table, value_count
from ctr.training.tables.shares import most_held, plan_tensors
from ctr.training.tables.tables import EmbeddingTables

ItemT = TypeVar("ItemT")

_LOGISTIC = ObjectiveConfig()
OF_ALL_CHIPS = frozenset({"distinct", "batch_weight", "batch_capacity"})
"""What of a batch is the same for all chips of a process."""


@dataclass(frozen=True)
class Feed:
    """A batch as the step takes it: B rows, the last of them padding of weight 0.

    Where several workers divide it, the targets and what the step takes of plans are of this worker's rows; where they
    are the chips of this process, of all of them, [W, B]: those of the first one first.

    Attributes:
        batch: where it came from; its good rows are the first ones.
        constraint_batches: for each constraint log its rows, which follow, or None where there are none.
        targets: what the losses need of the B rows, by ``ctr.objective.targets``.
        plans: one for each table, of the whole batch; ids that grow have no rows yet (``with_rows``).
        layouts: of the tables.
        division: of the rows over the workers, and which of them this one is; None for a process alone.
        shape: the one of few that it is padded to; None: its sizes are some of many.
        largest: makes the same feed with the largest shape; None: there are no few.
    """

    batch: Batch
    constraint_batches: tuple[Batch | None, ...]
    targets: Targets
    plans: tuple[TablePlan, ...]
    layouts: tuple[TableLayout, ...]
    division: tuple[Division, Seat] | None = None
    shape: Shape | None = None
    largest: "Callable[[], Feed] | None" = None

    @property
    def rows(self) -> int:
        """The number of good rows, those of the constraint logs included."""
        return len(self.batch.rows) + sum(len(one.rows) for one in self.constraint_batches if one is not None)

    @cached_property
    def target_tensors(self) -> dict[str, tf.Tensor]:
        """The targets as the compiled step takes them; copied when they are first asked for."""
        return {name: tf.constant(array) for name, array in self.targets.items()}

    @cached_property
    def plan_tensors(self) -> list[dict[str, tf.Tensor]]:
        """The same of the plans, all of whose ids have rows."""
        return plan_tensors(self.layouts, self.plans, self.division, self.shape)

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """What a step returned for the rows of all workers, as it is for the good rows of the batch."""
        return values[: self.rows] if self.division is None else values[self.division[0].order]

    def prepare(self) -> None:
        """Copies to tensors what a reading thread can."""
        _ = self.target_tensors
        if all(plan.pending is None for plan in self.plans):
            _ = self.plan_tensors

    def with_rows(self, tables: EmbeddingTables, learning: bool = False) -> "Feed":
        """The same feed, whose ids that grow have their rows; itself if they have them already.

        Args:
            learning: see ``EmbeddingTables.find_rows``.
        """
        rows = tables.find_rows(self.plans, self.batch.times[1], learning)
        if not rows:
            return self
        found = self._assigned(rows, tables)
        # Which chips hold the rows is known only now.
        if self.largest is None or found.fits():
            return found
        return self.largest()._assigned(rows, tables)

    def _assigned(self, rows: Mapping[int, np.ndarray], tables: EmbeddingTables) -> "Feed":
        plans = [
            assign_rows(plan, rows[number], tables.count(number)) if number in rows else plan
            for number, plan in enumerate(self.plans)
        ]
        feed = replace(self, plans=tuple(plans))
        feed.__dict__["target_tensors"] = self.target_tensors
        return feed

    def fits(self) -> bool:
        """Whether its shape has room for the rows, which ids have by now, that each chip holds of them."""
        if self.shape is None or self.division is None:
            return True
        (_, seat), sizes = self.division, self.shape.tables
        return all(most_held(plan, seat) <= size.held for plan, size in zip(self.plans, sizes, strict=True))


def make_feed(
    batch: Batch,
    layouts: tuple[TableLayout, ...],
    batch_rows: int,
    objective: ObjectiveConfig = _LOGISTIC,
    families: Sequence[Family] = (),
    constraint_batches: Sequence[Batch | None] = (),
    ids: IdsConfig | None = None,
    seat: Seat | None = None,
    shapes: FewShapes | None = None,
) -> Feed:
    """Pads a batch to one of a few sizes and finds its distinct embedding rows.

    Args:
        ids: how ids that grow are admitted; None: the feed is not to be learned from.
        seat: which one of several workers this is; None: the process is alone.
        shapes: of which it is to have one; None: of rows, ids, values and pairs one of a few sizes each.

    Raises:
        InputError: the batch is larger than all shapes.
    """
    rows, source = _all_rows(batch, constraint_batches)
    capacity = padded_size(len(rows), smallest=batch_rows)
    multivalent = {
        name: (values, np.diff(offsets).astype(np.int32))
        for name, (values, offsets) in rows.multivalent.items()
    }
    drawn_rows = None
    if ids is not None and ids.admission.rule == "probability":
        drawn_rows = drawn(rows.example_id, ids.admission.probability, ids.admission.salt)
    planned_rows = capacity if seat is None and shapes is None else len(rows)
    plans = tuple(plan_table(layout, rows.ids, multivalent, planned_rows, drawn_rows) for layout in layouts)
    division = None
    if seat is not None:
        division = divide_rows(query_begins(rows, source), source, seat.size, batch_rows)
    make = partial(_targets, objective, families, rows, source, division, seat, batch_rows)
    shape = None
    if shapes is not None:
        sizes = _sizes(layouts, plans, len(rows), division, seat)
        most = len(rows) if division is None or seat is None else division.most_rows(seat.size)
        for shape in shapes.holding(len(rows), most, sizes, batch.begin):
            targets = make(shape.rows, shape.pairs)
            if "pairs_weight" not in targets or targets["pairs_weight"].shape[-1] == shape.pairs:
                break
        assert shape is not None
        padded_rows = shape.rows if division is None else len(rows)
        plans = tuple(
            # Of a batch that is divided the parts are padded, by ``plan_tensors``.
            pad_plan(
                layout, plan, padded_rows, size.ids, size.values if division is None else len(plan.values)
            )
            for layout, plan, size in zip(layouts, plans, shape.tables, strict=True)
        )
        division = None if division is None else division.with_capacity(shape.rows)
    else:
        targets = make(capacity if division is None else division.capacity)
    both = None if division is None or seat is None else (division, seat)
    largest = None
    if shapes is not None:
        options = objective, families, constraint_batches, ids, seat, shapes.largest()
        largest = partial(make_feed, batch, layouts, batch_rows, *options)
    return Feed(batch, tuple(constraint_batches), targets, plans, layouts, both, shape, largest)


def _all_rows(batch: Batch, constraint_batches: Sequence[Batch | None]) -> tuple[Rows, np.ndarray]:
    """The good rows of a batch and of what comes with it from constraint logs, and the number of each row's log."""
    # No sidecar has the rows of constraint logs.
    unknown = {name: np.float32(np.nan) for name in batch.rows.joined}
    parts = [batch.rows]
    numbers = [0]
    for number, constraint_batch in enumerate(constraint_batches, 1):
        if constraint_batch is not None:
            added = constraint_batch.rows
            joined = {name: np.full(len(added), value) for name, value in unknown.items()}
            parts.append(replace(added, joined=joined))
            numbers.append(number)
    return join_rows(parts), np.repeat(np.array(numbers, np.int8), [len(part) for part in parts])


def _sizes(
    layouts: Sequence[TableLayout],
    plans: Sequence[TablePlan],
    rows: int,
    division: Division | None,
    seat: Seat | None,
) -> list[TableSizes]:
    """What a batch has of each table; of multivalent ids the part that has most, of ids without rows no chip's."""
    if division is None or seat is None:
        counts = [value_count(layout, plan, rows) for layout, plan in zip(layouts, plans, strict=True)]
        return [TableSizes(plan.distinct_count, count) for plan, count in zip(plans, counts, strict=True)]
    return [
        TableSizes(
            plan.distinct_count,
            division.most_values(layout, plan, seat.size),
            0 if plan.pending is not None else most_held(plan, seat),
        )
        for layout, plan in zip(layouts, plans, strict=True)
    ]


def _targets(
    objective: ObjectiveConfig,
    families: Sequence[Family],
    rows: Rows,
    source: np.ndarray,
    division: Division | None,
    seat: Seat | None,
    batch_rows: int,
    capacity: int,
    smallest_pairs: int = 64,
) -> Targets:
    """The targets of a batch, or of the part or the parts of it that are made here."""
    if division is None or seat is None:
        return make_targets(objective, families, rows, source, capacity, smallest_pairs)
    parts = []
    for rank in seat.ranks:
        own = division.rows_of(rank)
        part = make_targets(objective, families, rows.keep(own), source[own], capacity, smallest_pairs)
        if seat.numbered:
            part["number"] = np.zeros(capacity, np.int32)
            part["number"][: int(own.sum())] = np.flatnonzero(own)
        parts.append(part)
    targets = parts[0]
    if seat.has_all:
        pairs = [len(part.get("pairs_weight", ())) for part in parts]
        if len(set(pairs)) > 1:
            more = batch_rows, capacity, max(pairs)
            return _targets(objective, families, rows, source, division, seat, *more)
        targets = {name: np.stack([part[name] for part in parts]) for name in targets}
    targets["batch_weight"] = whole_batch_weight(objective, rows, source)
    if seat.numbered:
        targets["batch_capacity"] = np.array(padded_size(len(rows), smallest=batch_rows), np.int32)
    return targets


_END = object()


def read_ahead(items: Iterable[ItemT], depth: int = 4) -> Generator[ItemT, None, None]:
    """Yields ``items`` in order while a thread prepares the next ``depth`` of them.

    An exception in the thread is raised here, in its place. Closing the generator ends the thread, after
    the item that it is just preparing.
    """
    ready: queue.Queue[object] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def offer(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not offer(item):
                    return
            offer(_END)
        except BaseException as error:  # handed over and raised by the consumer
            offer(error)

    thread = threading.Thread(target=produce, name="reader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
