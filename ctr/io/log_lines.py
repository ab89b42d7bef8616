"""Standard error as text for people, or, with ``--log-format json``, as one JSON object a line for log collectors.

An object has ``time`` (UTC, ISO 8601), ``level`` (``info``, ``warning``, ``error``, ``critical``), ``logger``,
``message`` and, if the process ends for that reason, ``exit_status``. Everything that Python writes to standard error
is such an object, also the output of other packages, but not the output of a native library that aborts the process.
"""

import io
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

TEXT, JSON = FORMATS = ("text", "json")


class JsonLines(io.TextIOBase):
    """A stream that converts each line to a JSON object, and writes it to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._begun = stream, ""

    def say(self, message: str, level: int, logger: str, exit_status: int | None = None) -> None:
        content: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": logging.getLevelName(level).lower(),
            "logger": logger,
            "message": message,
        }
        if exit_status is not None:
            content["exit_status"] = exit_status
        # In one piece, because other threads also write.
        self._stream.write(json.dumps(content) + "\n")
        self._stream.flush()

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self.say(line, logging.INFO, "stderr")
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._stream.flush()

    def end_line(self) -> None:
        """Ends a line that has no line end yet."""
        if self._begun:
            self.write("\n")


def say(
    text: str,
    message: str,
    level: int = logging.INFO,
    logger: str = "ctr",
    exit_status: int | None = None,
) -> None:
    """Writes ``text`` to standard error, or with ``--log-format json`` an object with ``message``; see the module."""
    stream = sys.stderr
    if isinstance(stream, JsonLines):
        stream.say(message, level, logger, exit_status)
    else:
        print(text, file=stream, flush=True)


def message_of(line: str) -> str:
    """Returns the message of a line of standard error in either format."""
    try:
        content = json.loads(line)
    except ValueError:
        return line
    return str(content["message"]) if isinstance(content, dict) and "message" in content else line


class _Others(logging.Handler):
    """Writes warnings of packages that configure no logging handler."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage(), record.getMessage(), record.levelno, record.name)


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = f"{category.__name__}: {message}"
    say(text, text, logging.WARNING, "py.warnings")


def say_crash(error: BaseException, exit_status: int) -> None:
    """Writes an unexpected exception with its traceback."""
    text = "".join(traceback.format_exception(error)).rstrip()
    say(text, text, logging.CRITICAL, exit_status=exit_status)


@contextmanager
def log_format(name: str) -> Iterator[None]:
    """Formats the block's standard error in one of ``FORMATS``."""
    if name != JSON:
        yield
        return
    before = sys.stderr, logging.lastResort, warnings.showwarning
    lines = JsonLines(sys.stderr)
    sys.stderr, logging.lastResort = lines, _Others(logging.WARNING)
    warnings.showwarning = _say_warning
    try:
        yield
    finally:
        lines.end_line()
        sys.stderr, logging.lastResort, warnings.showwarning = before
