"""Standard error as JSON lines: whatever is written there by whom, and that all is put back."""

import json
import logging
import sys
import warnings
from datetime import UTC, datetime, timedelta

from ctr.io.log_lines import log_format, message_of, say


def read(err: str) -> list[tuple[str, str, str]]:
    """Level, logger and message of each line; the time is that of now, in UTC."""
    lines = [json.loads(line) for line in err.splitlines()]
    for line in lines:
        assert line["time"].endswith("Z")
        assert abs(datetime.now(UTC) - datetime.fromisoformat(line["time"])) < timedelta(hours=1)
    return [(line["level"], line["logger"], line["message"]) for line in lines]


def test_all_that_python_writes_is_an_object_a_line(capsys, monkeypatch):
    # Past the handlers of pytest.
    monkeypatch.setattr(logging.getLogger("another.package"), "propagate", False)
    before = sys.stderr, logging.lastResort, warnings.showwarning

    def write() -> None:
        say("text", "with \x1b[1m, é and\nan end of line", logging.ERROR, "ctr.data", exit_status=1)
        print("two", "words\n\nand a line", file=sys.stderr)
        logging.getLogger("another.package").warning("look at %d", 7)
        warnings.warn("old", FutureWarning, stacklevel=1)
        assert not sys.stderr.isatty()
        print(end="without an end", file=sys.stderr)
        print("on standard output")

    with log_format("json"):
        write()
    assert (sys.stderr, logging.lastResort, warnings.showwarning) == before
    out, err = capsys.readouterr()
    assert out == "on standard output\n" and err.isascii()
    found = read(err)
    assert found == [
        ("error", "ctr.data", "with \x1b[1m, é and\nan end of line"),
        ("info", "stderr", "two words"),
        ("info", "stderr", "and a line"),
        ("warning", "another.package", "look at 7"),
        ("warning", "py.warnings", "FutureWarning: old"),
        ("info", "stderr", "without an end"),
    ]
    assert [message_of(line) for line in err.splitlines()] == [message for _, _, message in found]
    assert [message_of(line) for line in ("why", '{"other": 1}', "[1]")] == ["why", '{"other": 1}', "[1]"]
    statuses = [json.loads(line).get("exit_status") for line in err.splitlines()]
    assert statuses == [1, None, None, None, None, None]
