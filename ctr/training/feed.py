"""From batches to the arrays that the step takes, made by a thread that reads ahead."""

import queue
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ctr.data.batches import Batch
from ctr.models.rows import TableLayout, TablePlan, padded_size, plan_table

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Feed:
    """A batch as the step takes it: B rows, the last of them padding of weight 0.

    Attributes:
        batch: where it came from; its good rows are the first ones.
        label, train_weight: float32 [B].
        plans: one for each table.
    """

    batch: Batch
    label: np.ndarray
    train_weight: np.ndarray
    plans: tuple[TablePlan, ...]


def make_feed(batch: Batch, layouts: tuple[TableLayout, ...], batch_rows: int) -> Feed:
    """Pads a batch to one of a few sizes and finds its distinct embedding rows."""
    rows = batch.rows
    capacity = padded_size(len(rows), smallest=batch_rows)
    label = np.zeros(capacity, np.float32)
    label[: len(rows)] = rows.label
    weight = np.zeros(capacity, np.float32)
    weight[: len(rows)] = rows.train_weight
    multivalent = {
        name: (values, np.diff(offsets).astype(np.int32))
        for name, (values, offsets) in rows.multivalent.items()
    }
    plans = tuple(plan_table(layout, rows.ids, multivalent, capacity) for layout in layouts)
    return Feed(batch, label, weight, plans)


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
