"""``--log-format json``: one object a line on standard error for whatever a command says there; results stay."""

import json
import logging

import pytest

from ctr.cli import main
from ctr.cli_output import LINE_SECONDS, Bar
from ctr.io.log_lines import log_format
from small_runs import INTERVALS, draw_examples, publish

JSON = ("--log-format", "json")


def read(err: str) -> list[dict[str, object]]:
    """The objects without their times."""
    lines = [json.loads(line) for line in err.splitlines()]
    assert all(line.pop("time") for line in lines)
    return lines


def said(level: str, logger: str, message: str, **more: object) -> dict[str, object]:
    return {"level": level, "logger": logger, "message": message, **more}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("log") / "log", draw_examples(20).table(), INTERVALS[:1])


@pytest.mark.parametrize("where", ["before", "after"])
def test_log_lines_and_the_result(log, capfd, where):
    assert main(["inspect", str(log)]) == 0
    plain = capfd.readouterr().out
    words = ("inspect", str(log), "-v")
    assert main([*JSON, *words] if where == "before" else [*words, "--log-format=json"]) == 0
    out, err = capfd.readouterr()
    assert out == plain
    lines = read(err)
    assert lines[-1] == said("info", "ctr", "done")
    assert {line["level"] for line in lines} == {"info"}
    assert lines[0]["logger"] == "ctr.data.parquet_files" and f"read {log}/shards/" in lines[0]["message"]


def test_warnings_and_errors(monkeypatch, capfd):
    def warn(run, out):
        logging.getLogger("ctr.training.run.run").warning("one\n  line")
        return "the result"

    monkeypatch.setattr("ctr.eval.report.write_report", warn)
    assert main(["report", "run", *JSON]) == 0
    out, err = capfd.readouterr()
    assert (out, read(err)) == ("the result\n", [said("warning", "ctr.training.run.run", "one line")])
    assert main(["inspect", "nowhere", *JSON, "-q"]) == 1
    reason = "nowhere is not an example log: it has no schema.json"
    assert read(capfd.readouterr().err) == [said("error", "ctr", reason, exit_status=1)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("inspect", "log", "--verbose", "--quite"), "No such option '--quite'. Did you mean '--quiet'?"),
        (("inspekt", "log"), "No such command 'inspekt'."),
        (("inspect",), "Missing argument 'LOG'."),
        ((), "Missing command."),
    ],
)
def test_wrong_usage(capfd, words, reason):
    assert main([*JSON, *words]) == 2
    (line,) = read(capfd.readouterr().err)
    assert line["exit_status"] == 2 and line["level"] == "error"
    assert reason in line["message"] and "; Usage: ctr " in line["message"]


def test_progress_is_a_line_a_minute(capfd):
    now = [0.0]
    with log_format("json"):
        bar = Bar(1000, "examples", clock=lambda: now[0])
        for position in (100, 200, 300):
            now[0] += LINE_SECONDS
            bar(position)
        bar.close()
    lines = read(capfd.readouterr().err)
    assert [line["message"].partition(" (")[0] for line in lines] == [
        f"{count} of 1,000 examples" for count in (100, 200, 300)
    ]
