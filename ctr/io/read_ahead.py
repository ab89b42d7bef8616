"""A thread that prepares items before they are requested."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")

_END = object()


def read_ahead(items: Iterable[ItemT], depth: int = 4) -> Generator[ItemT, None, None]:
    """Yields ``items`` in order while a thread prepares the next ``depth`` of them.

    An exception in the thread is raised here, after the items before it. Closing the generator ends the thread after
    the item that it is preparing.
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
