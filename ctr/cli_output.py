"""Output of the command line: results, messages and progress.

A worker that another process started sends reports to that process, which prints for all workers.
"""

import contextlib
import datetime
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from ctr.io.errors import INPUT, printable
from ctr.io.log_lines import JsonLines, say
from ctr.workers.reports import Report, Reporter, reporter_of

LINE_SECONDS = 60.0  # between two lines of progress if there is no terminal

JSON_KEY = "ctr.json"  # in a context of click: whether results are printed as JSON


log = logging.getLogger("ctr")

_REPORT_SECONDS = 0.1
_launcher: Reporter | None = None


def connect() -> None:
    """Connects a worker process to the process that started it, if any."""
    global _launcher
    _launcher = reporter_of()


def report(kind: str, **content: Any) -> None:
    """Reports to the process that started this worker, if any; except the first, workers report only some kinds."""
    # The other workers would repeat the first one's messages.
    if _launcher is not None and (_launcher.rank == 0 or kind in ("error", "joining")):
        _launcher.report(kind, **content)


class _Messages(logging.Handler):
    """Prints messages to the current standard error, above a progress bar if there is one."""

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
    """Sets the log level: errors (-1), also warnings (0), or also files and compilations (1)."""
    log.setLevel({-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}[verbosity])
    if not any(isinstance(handler, _Messages) for handler in log.handlers):
        log.addHandler(_Messages())


def is_quiet() -> bool:
    """Returns whether only results and errors are printed."""
    return not log.isEnabledFor(logging.WARNING)


def note(text: str) -> None:
    """Prints a message to standard error, unless the command is quiet."""
    if not is_quiet():
        report("note", text=text)
        say(text, text)


def print_stopped(text: str, status: int) -> None:
    """Prints that a stop was requested, and where the command stopped; ``status`` is its exit status."""
    report("stopped", text=text, status=status)
    say(text, text, logging.WARNING, exit_status=status)


def print_error(*lines: str, status: int = INPUT, is_lost: bool = False) -> None:
    """Prints why the command fails, a message and maybe a hint, and the ``status`` with which it exits.

    ``is_lost``: this worker fails only because another one was lost.
    """
    text = "; ".join(lines)
    report("error", text=text, is_lost=is_lost)
    say("error: " + "\n".join(lines), text, logging.ERROR, exit_status=status)


# The most important first: a terminal may have no room for all.
_RUNNING_METRICS = {
    "logloss": "logloss",
    "per_query_auc": "PerQueryAUC",
    "calibration_ratio": "predicted/actual",
    "auc": "AUC",
}


class Bar:
    """Progress bar on a terminal, else a line a minute on standard error; begins at 0. ``clock`` returns seconds."""

    def __init__(self, total: int | None, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        from tqdm import tqdm

        is_shown = not is_quiet() and sys.stderr.isatty()
        self._total, self._unit, self._clock = total, unit, clock
        self._says_lines, self._line_at = not (is_shown or is_quiet()), clock()
        self._bar = tqdm(total=total, unit=unit, unit_scale=True, dynamic_ncols=True, disable=not is_shown)
        self._is_late = False  # whether the rate is to be measured from the next position on
        self._begin(0)

    def _begin(self, position: int) -> None:
        self._position = self._first = position
        self._begun = self._clock()
        self._bar.n = self._bar.initial = self._bar.last_print_n = position
        self._bar.unpause()

    def __call__(self, position: int, metrics: Mapping[str, Any] | None = None) -> None:
        values = {key: value for key, value in (metrics or {}).items() if value is not None}
        texts = [f"{name} {values[key]:.4f}" for key, name in _RUNNING_METRICS.items() if key in values]
        is_first, self._is_late = self._is_late, False
        if is_first:
            # A compilation, and rows that a resumed run had passed before, say nothing about the rate.
            self._begin(position)
        self._position = position
        if self._says_lines and self._clock() - self._line_at >= LINE_SECONDS:
            self._line_at = self._clock()
            note(", ".join([*self._pace(), *texts]))
        if texts:
            self._bar.set_postfix_str(", ".join(texts), refresh=is_first)
        self._bar.update(position - self._bar.n)

    def _pace(self) -> list[str]:
        position, total, unit = self._position, self._total, self._unit
        parts = [f"{position:,} {unit}"]
        if total:
            parts = [f"{position:,} of {total:,} {unit} ({position / total:.0%})"]
        seconds = self._clock() - self._begun
        if position > self._first and seconds > 0:
            rate = (position - self._first) / seconds
            parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s")
            if total is not None:
                # As 1:02:03, or with days before it.
                parts.append(f"{datetime.timedelta(seconds=round(max(total - position, 0) / rate))} left")
        return parts

    def phase(self, word: str) -> None:
        """Immediately shows an activity other than learning; an empty word ends it."""
        self._is_late |= word == "compiling" and self._position == self._first
        if not self._bar.disable:
            self._bar.set_description_str(word)

    def lag(self, position: int, lag: tuple[int, float], metrics: Mapping[str, Any]) -> None:
        """Shows a position, and its distance to the end of a growing log."""
        is_new = position != self._bar.n
        self._bar.set_description_str(f"behind {lag[0]} rows, {lag[1]:.1f} s", refresh=not is_new)
        self(position, metrics)

    def advance(self, count: int) -> None:
        self(self._position + count)

    def close(self) -> None:
        self._bar.close()


class ReportedBar:
    """Progress of a worker, reported to the process that started it, which shows the bar."""

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


def training_bar(total: int | None) -> Bar | ReportedBar:
    """Returns the progress bar of a training run, or in a worker one that sends reports to the process with the bar."""
    return Bar(total, "examples") if _launcher is None else ReportedBar()


def show_report(reported: Report, bar: Bar) -> str:
    """Shows the first worker's reports as if this process trained; returns the kind of any worker's report."""
    content, kind = reported.content, reported.kind
    if reported.rank:
        return kind
    if kind == "progress" and content["lag"] is None:
        bar(content["position"], content["metrics"])
    elif kind == "progress":
        bar.lag(content["position"], content["lag"], content["metrics"])
    elif kind == "phase":
        bar.phase(content["word"])
    elif kind == "stopped":
        bar.close()
        print_stopped(content["text"], content["status"])
    elif kind == "note":
        note(content["text"])
    elif kind == "message":
        logging.getLogger(content["logger"]).log(content["level"], "%s", content["text"])
    return kind


def says_json() -> bool:
    """Returns whether standard error is formatted as JSON."""
    return isinstance(sys.stderr, JsonLines)


def is_json() -> bool:
    """Returns whether the running command prints its result as JSON."""
    return click.get_current_context().meta.get(JSON_KEY, False)


def command_words() -> list[str]:
    """Returns the words of the running command, without ``ctr``."""
    return list(click.get_current_context().obj)


def print_result(result: dict[str, Any], text: str) -> None:
    """Prints a result as text, or as JSON with ``--json``."""
    print(json.dumps(result, indent=1) if is_json() else printable(text))
