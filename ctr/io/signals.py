"""Handling of SIGTERM and SIGINT: as a request to stop soon, which the work polls, or to stop at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Stop = Callable[[], str | None]  # why to stop, in a word, or None


def signal_number(name: str | None) -> int:
    """Returns the number of a signal; 0 if there is none."""
    return 0 if name is None else int(signal.Signals[name])


class Interrupted(Exception):  # noqa: N818  (not an error: results are saved)
    """Raised after work has stopped on request and saved its results; ``status`` is the process's exit status."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.status = 128 + signal_number(name)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Records the first SIGTERM or SIGINT within the block; a second one ends the process at once.

    Yields a function that returns the name of the received signal, or None. Replaces any previous handlers: a
    process started in the background by a shell ignores SIGINT. Outside the main thread no signal is recorded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        # The kernel then ends the process, also during a step, for whose end Python would wait.
        for sig in _SIGNALS:
            signal.signal(sig, signal.SIG_DFL)

    before = {sig: signal.signal(sig, note) for sig in _SIGNALS}
    try:
        yield lambda: came[0] if came else None
    finally:
        for sig, handler in before.items():
            signal.signal(sig, signal.SIG_DFL if handler is None else handler)


@contextmanager
def delaying_interrupts() -> Iterator[None]:
    """Delays KeyboardInterrupt to the end of the block; other handlers and threads stay unchanged.

    C modules turn an interrupt while they are loaded into an ImportError, print it, or lose it.
    """
    is_default = signal.getsignal(signal.SIGINT) == signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


@contextmanager
def ending_by_sigterm() -> Iterator[None]:
    """Raises SystemExit at SIGTERM in the block, so that it can clean up; other handlers and threads stay unchanged."""
    is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
