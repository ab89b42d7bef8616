"""From batches to the arrays that the step takes, made by a thread that reads ahead."""

import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import tensorflow as tf

from ctr.data.batches import Batch
from ctr.data.reader import join_rows
from ctr.models.rows import TableLayout, TablePlan, padded_size, plan_table
from ctr.objective.bias_constraints import Family
from ctr.objective.config import ObjectiveConfig
from ctr.objective.targets import Targets, make_targets, query_begins, whole_batch_weight
from ctr.training.division import Division, Place, divide_rows, share_of_table
from ctr.training.ids.admission import drawn
from ctr.training.ids.config import IdsConfig

ItemT = TypeVar("ItemT")

_LOGISTIC = ObjectiveConfig()


@dataclass(frozen=True)
class Feed:
    """A batch as the step takes it: B rows, the last of them padding of weight 0.

    Where several workers divide it, the targets and what the step takes of plans are of this worker's rows.

    Attributes:
        batch: where it came from; its good rows are the first ones.
        constraint_batches: for each constraint log its rows, which follow, or None where there are none.
        targets: what the losses need of the B rows, by ``ctr.objective.targets``.
        plans: one for each table, of the whole batch; ids that grow have no rows yet (``TrainState.place``).
        layouts: of the tables.
        division: of the rows over the workers, and which of them this one is; None for a process alone.
    """

    batch: Batch
    constraint_batches: tuple[Batch | None, ...]
    targets: Targets
    plans: tuple[TablePlan, ...]
    layouts: tuple[TableLayout, ...]
    division: tuple[Division, Place] | None = None

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
        names = ("distinct", "single", "values", "segments")
        if self.division is None:
            return [{name: tf.constant(getattr(plan, name)) for name in names} for plan in self.plans]
        division, place = self.division
        tensors = []
        for layout, plan, is_divided in zip(self.layouts, self.plans, place.divided, strict=True):
            share = share_of_table(layout, plan, division, place, is_divided)
            shown = (*names, "asked") if is_divided else names
            tensors.append({name: tf.constant(getattr(share, name)) for name in shown})
        return tensors

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """What a step returned for the rows of all workers, as it is for the good rows of the batch."""
        return values[: self.rows] if self.division is None else values[self.division[0].order]

    def prepare(self) -> None:
        """Copies to tensors what a reading thread can."""
        _ = self.target_tensors
        if all(plan.unplaced is None for plan in self.plans):
            _ = self.plan_tensors

    def with_plans(self, plans: Sequence[TablePlan]) -> "Feed":
        """The same feed with other plans."""
        feed = replace(self, plans=tuple(plans))
        feed.__dict__["target_tensors"] = self.target_tensors
        return feed


def make_feed(
    batch: Batch,
    layouts: tuple[TableLayout, ...],
    batch_rows: int,
    objective: ObjectiveConfig = _LOGISTIC,
    families: Sequence[Family] = (),
    constraint_batches: Sequence[Batch | None] = (),
    ids: IdsConfig | None = None,
    place: Place | None = None,
) -> Feed:
    """Pads a batch to one of a few sizes and finds its distinct embedding rows.

    Args:
        ids: how ids that grow are admitted; None: the feed is not to be learned from.
        place: which one of several workers this is; None: the process is alone.
    """
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
    rows = join_rows(parts)
    source = np.repeat(np.array(numbers, np.int8), [len(part) for part in parts])
    capacity = padded_size(len(rows), smallest=batch_rows)
    multivalent = {
        name: (values, np.diff(offsets).astype(np.int32))
        for name, (values, offsets) in rows.multivalent.items()
    }
    lucky = None
    if ids is not None and ids.admission.rule == "probability":
        lucky = drawn(rows.example_id, ids.admission.probability, ids.admission.salt)
    planned_rows = capacity if place is None else len(rows)
    plans = tuple(plan_table(layout, rows.ids, multivalent, planned_rows, lucky) for layout in layouts)
    if place is None:
        targets = make_targets(objective, families, rows, source, capacity)
        return Feed(batch, tuple(constraint_batches), targets, plans, layouts)
    division = divide_rows(query_begins(rows, source), source, place.size, batch_rows)
    own = division.rows_of(place.rank)
    targets = make_targets(objective, families, rows.keep(own), source[own], division.capacity)
    targets["batch_weight"] = whole_batch_weight(objective, rows, source)
    return Feed(batch, tuple(constraint_batches), targets, plans, layouts, (division, place))


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
