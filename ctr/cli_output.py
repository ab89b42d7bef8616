"""Output of the command line: results, messages and progress; and loading TensorFlow without its notices.

A worker that another process started reports to that process instead, which prints for all of them.
"""

import argparse
import contextlib
import datetime
import gc
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ctr.io.compiled_loops import keep_compiled_loops
from ctr.io.errors import INPUT, one_line, printable
from ctr.io.log_lines import say, say_crash
from ctr.io.signals import delaying_interrupts
from ctr.workers.reports import Report, Reporter, reporter_of

LINE_SECONDS = 60.0  # how long nothing is printed where there is no terminal

_STEPS_KEPT = 15


class BatchSizes(Protocol):
    """Rows of batches by position; see ``ctr.data.batches.BatchSize``."""

    def at(self, position: int) -> int: ...

    def plateaus(self, begin: int, end: int) -> Sequence[tuple[int, int]]: ...


class Pace:
    """Pace of a position, which begins at 0. Batches that grow take longer, and pass more rows in a second.

    Without a total the end is not known; without batches all take as long for a row. The clock returns seconds.
    """

    def __init__(
        self,
        total: int | None,
        batches: BatchSizes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._batches, self._clock = total, batches, clock
        self.begin(0)

    def begin(self, position: int) -> None:
        """Takes the time anew: what came before says nothing about the pace."""
        self.position = self._first = position
        self._begun = self._since = self._clock()
        self._seconds: dict[int, deque[float]] = {}

    def is_fresh(self) -> bool:
        return self.position == self._first

    def at(self, position: int) -> None:
        now = self._clock()
        if position <= self.position:
            return
        if self._batches is not None:
            steps = sum(count for _, count in self._batches.plateaus(self.position, position))
            size = self._batches.at(self.position)
            seen = self._seconds.setdefault(size, deque(maxlen=_STEPS_KEPT))
            seen.append((now - self._since) / steps)
        self.position, self._since = position, now

    def rate(self) -> float | None:
        """Returns the rows of a second since the beginning; None: nothing has passed."""
        seconds = self._since - self._begun
        return (self.position - self._first) / seconds if seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Returns how long it takes from here; None where that cannot be said."""
        rate = self.rate()
        if self._total is None or not rate:
            return None
        if self._batches is None or not self._seconds:
            return max(self._total - self.position, 0) / rate
        # The median: a step that was compiled took longer.
        known = {size: statistics.median(seen) for size, seen in sorted(self._seconds.items())}
        return sum(
            count * _seconds_of(size, known)
            for size, count in self._batches.plateaus(self.position, self._total)
        )


def _seconds_of(size: int, known: Mapping[int, float]) -> float:
    """Returns the seconds of a batch; of sizes that are not known yet, as the two largest ones make expect."""
    if size in known:
        return known[size]
    *others, last = known
    slope = max(0.0, (known[last] - known[others[-1]]) / (last - others[-1])) if others else 0.0
    return max(known[last] + slope * (size - last), 0.0)


def progress_line(pace: Pace, total: int | None, unit: str, metrics: Sequence[str]) -> str:
    """Formats where a command stands, for a log file."""
    parts = [f"{pace.position:,} {unit}"]
    if total:
        parts = [f"{pace.position:,} of {total:,} {unit} ({pace.position / total:.0%})"]
    if rate := pace.rate():
        parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s")
    if (left := pace.seconds_left()) is not None:
        # As 1:02:03, or with days before it.
        parts.append(f"{datetime.timedelta(seconds=round(left))} left")
    return ", ".join([*parts, *metrics])


def fitting(texts: Mapping[str, str], room: int, first: Sequence[str]) -> list[str]:
    """Chooses the texts, by name, that fit into a line with two characters between; the most important ``first``."""
    chosen: set[str] = set()
    for name in first:
        wanted = [text for key, text in texts.items() if key in chosen or key == name]
        if name in texts and len(", ".join(wanted)) <= room:
            chosen.add(name)
    return [text for key, text in texts.items() if key in chosen]


class Lines:
    """Lets a line pass once a minute, the first one after a minute."""

    def __init__(self, show: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock, self._last = show, clock, clock()

    def is_due(self) -> bool:
        return self._clock() - self._last >= LINE_SECONDS

    def __call__(self, text: str) -> None:
        if self.is_due():
            self._last = self._clock()
            self._show(text)


log = logging.getLogger("ctr")

_REPORT_SECONDS = 0.1
_launcher: Reporter | None = None


def connect() -> None:
    """Makes this process report to the one that started it as a worker, if one did."""
    global _launcher
    _launcher = reporter_of()


def report(kind: str, **content: Any) -> None:
    """Reports to the process that started this one as a worker, if one did."""
    # The others would say what the first one says.
    if _launcher is not None and (_launcher.rank == 0 or kind in ("error", "joining")):
        _launcher.report(kind, **content)


def load_tensorflow(keeps_loops: bool = False) -> None:
    """Imports TensorFlow without the notices that it prints whatever the log level is, and without Keras.

    TensorFlow would import Keras with everything that Keras finds (scikit-learn, Matplotlib), which takes as long as
    TensorFlow itself. Who asks for ``tf.keras`` later still gets it. A command that trains keeps compiled loops.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    shown = b""
    with tempfile.TemporaryFile() as notices:
        sys.stderr.flush()
        standard_error = os.dup(2)
        os.dup2(notices.fileno(), 2)
        try:
            with _no_keras(), importing():
                import tensorflow
        except Exception:
            notices.seek(0)
            shown = notices.read()
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
            print(end=shown.decode(errors="replace"), file=sys.stderr, flush=True)
    # Such as that a function was traced again, for whoever wrote the function.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    log.info("loaded TensorFlow %s", tensorflow.__version__)
    if keeps_loops:
        keep_compiled_loops()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Keeps the garbage collector from looking at what is imported: TensorFlow alone is 400,000 objects, which stay.

    It would look through all of them several times during the imports, and now and then later. SIGINT waits.
    """
    before, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        with delaying_interrupts():
            yield
    finally:
        # What is frozen is never collected: once for each module, not once for each command of a process.
        if len(sys.modules) > before:
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _no_keras() -> Iterator[None]:
    hidden = {name for name in ("keras", "tf_keras") if name not in sys.modules}
    # So that importing it raises ImportError, which TensorFlow expects where there is no Keras.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


class _Messages(logging.Handler):
    """Prints messages to what is standard error at the time, above a progress bar that may be there."""

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(" ".join(record.getMessage().split()))
        report("message", level=record.levelno, logger=record.name, text=text)
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname.lower()}: {text}"
        else:
            line = f"[{record.relativeCreated / 1000:6.1f} s] {text}"
        bars = sys.modules.get("tqdm")
        above = bars.tqdm.external_write_mode(file=sys.stderr) if bars else contextlib.nullcontext()
        with above:
            say(line, text, record.levelno, record.name)


def set_verbosity(verbosity: int) -> None:
    """Prints what is logged: errors (-1), warnings too (0), or also what is read, written and compiled (1)."""
    log.setLevel({-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}[verbosity])
    if not any(isinstance(handler, _Messages) for handler in log.handlers):
        log.addHandler(_Messages())


def is_quiet() -> bool:
    """Tells whether nothing but results and errors is to be printed."""
    return not log.isEnabledFor(logging.WARNING)


def note(text: str) -> None:
    """Prints to standard error what is no result, unless it is to be quiet."""
    if not is_quiet():
        report("note", text=text)
        say(text, text)


def print_stopped(text: str, status: int) -> None:
    """Prints where the command was stopped; ``status``: with which it ends."""
    report("stopped", text=text, status=status)
    say(text, text, logging.WARNING, exit_status=status)


def print_error(*lines: str, status: int = INPUT, is_lost: bool = False) -> None:
    """Prints why the command fails, and ends with ``status``: a line, and a hint where that would be long.

    ``is_lost``: only because another worker is gone.
    """
    text = "; ".join(lines)
    report("error", text=text, is_lost=is_lost)
    say("error: " + "\n".join(lines), text, logging.ERROR, exit_status=status)


def print_crash(error: BaseException, status: int) -> None:
    """Prints the traceback of an error that nobody expected, and then the error; ``status``: see ``print_error``."""
    say_crash(error, status)
    print_error(f"{type(error).__name__}: {one_line(error)}", status=status)


_RUNNING_METRICS = {
    "per_query_auc": "PerQueryAUC",
    "auc": "AUC",
    "logloss": "logloss",
    "calibration_ratio": "predicted/actual",
}
# Which of them are shown where a line has no room for all.
_FIRST_METRICS = ("logloss", "per_query_auc", "calibration_ratio", "auc")
_METER = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{left}, {rate_fmt}{postfix}]"
_LEAST_BAR = 10


class Bar:
    """Progress bar on a terminal, a line a minute on another standard error; begins at 0 (see ``Pace``)."""

    def __init__(
        self,
        total: int | None,
        unit: str,
        batches: BatchSizes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from tqdm import tqdm

        self._total, self._unit = total, unit
        self._pace = Pace(total, batches, clock)
        is_shown = not is_quiet() and sys.stderr.isatty()
        self._lines = None if is_shown or is_quiet() else Lines(note, clock)
        self._bar = tqdm(
            total=total,
            unit=unit,
            unit_scale=True,
            dynamic_ncols=True,
            disable=not is_shown,
            bar_format=None if total is None else _METER.replace("{left}", "?"),
        )
        self._times_anew = False

    def __call__(self, position: int, metrics: dict[str, Any] | None = None) -> None:
        shown = {
            key: f"{name} {(metrics or {})[key]:.4f}"
            for key, name in _RUNNING_METRICS.items()
            if metrics and metrics.get(key) is not None
        }
        if self._times_anew:
            # A compilation, and what a resumed run had passed before, say nothing about the rate.
            self._pace.begin(position)
        self._pace.at(position)
        if self._lines is not None:
            self._times_anew = False
            if self._lines.is_due():
                self._lines(progress_line(self._pace, self._total, self._unit, [*shown.values()]))
        if self._bar.disable:
            return
        if self._times_anew:
            self._bar.n = self._bar.initial = self._bar.last_print_n = position
            self._bar.unpause()
        if self._total is not None:
            self._bar.bar_format = self._meter()
        if shown:
            texts = fitting(shown, self._room(), _FIRST_METRICS)
            self._bar.set_postfix_str(", ".join(texts), refresh=False)
        if self._times_anew:
            self._bar.refresh()
            self._times_anew = False
        self._bar.update(position - self._bar.n)

    def _meter(self) -> str:
        left = self._pace.seconds_left()
        return _METER.replace("{left}", "?" if left is None else self._bar.format_interval(left))

    def _room(self) -> int:
        known = self._bar.format_dict
        if not known["ncols"]:
            return sys.maxsize
        line = self._bar.format_meter(**{**known, "ncols": _LEAST_BAR, "postfix": None})
        if self._total is not None:
            form = (self._bar.bar_format or "").replace("{bar}", "#" * _LEAST_BAR)
            line = self._bar.format_meter(**{**known, "bar_format": form, "postfix": None})
        return int(known["ncols"]) - len(line) - len(", ")

    def phase(self, word: str) -> None:
        """Shows what is done instead of learning, at once; an empty word: nothing else."""
        self._times_anew |= word == "compiling" and self._pace.is_fresh()
        if not self._bar.disable:
            self._bar.set_description_str(word)

    def lag(self, position: int, lag: tuple[int, float], metrics: dict[str, Any]) -> None:
        """Shows a position, and how far it is behind a log that grows."""
        is_new = position != self._bar.n
        self._bar.set_description_str(f"behind {lag[0]} rows, {lag[1]:.1f} s", refresh=not is_new)
        self(position, metrics)

    def advance(self, count: int) -> None:
        self(self._pace.position + count)

    def close(self) -> None:
        self._bar.close()


class ReportedBar:
    """Progress of a worker, reported to the process that started it, which has the bar."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] | None = None
        self._reported_at = 0.0

    def __call__(
        self,
        position: int,
        metrics: dict[str, Any] | None = None,
        lag: tuple[int, float] | None = None,
    ) -> None:
        self._latest = {"position": position, "metrics": metrics, "lag": lag}
        if (now := time.monotonic()) - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = now
            self.close()
            self._latest = None

    def lag(self, position: int, lag: tuple[int, float], metrics: dict[str, Any]) -> None:
        self(position, metrics, lag)

    def phase(self, word: str) -> None:
        report("phase", word=word)

    def close(self) -> None:
        if self._latest is not None:
            report("progress", **self._latest)


def training_bar(total: int | None, batches: BatchSizes | None = None) -> Bar | ReportedBar:
    """Makes the bar of a training run, or the way to it."""
    return Bar(total, "examples", batches) if _launcher is None else ReportedBar()


def run_notes() -> Callable[[str], None]:
    """Makes what shows how a command that trains many runs goes on: each line on a terminal, else one a minute."""
    return note if sys.stderr.isatty() else Lines(note)


def show_report(reported: Report, bar: Bar) -> None:
    """Shows what the first worker reports as if this process trained."""
    content = reported.content
    if reported.rank:
        return
    if reported.kind == "progress":
        if content["lag"] is None:
            bar(content["position"], content["metrics"])
        else:
            bar.lag(content["position"], content["lag"], content["metrics"])
    elif reported.kind == "phase":
        bar.phase(content["word"])
    elif reported.kind == "stopped":
        bar.close()
        print_stopped(content["text"], content["status"])
    elif reported.kind == "note":
        note(content["text"])
    elif reported.kind == "message":
        logging.getLogger(content["logger"]).log(content["level"], "%s", content["text"])


def print_result(arguments: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    """Prints a result as text, or as JSON where that is asked for."""
    print(json.dumps(result, indent=1) if arguments.json else printable(text))
