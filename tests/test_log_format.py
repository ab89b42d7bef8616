"""What a command says on standard error beside its result: ``-v``, ``-q``, and a line or an object a message."""

import json
import logging

import pytest

from ctr.cli import main
from ctr.loading import load_tensorflow
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


def test_log_lines_and_the_result(log, capfd):
    assert main(["inspect", str(log)]) == 0
    plain = capfd.readouterr().out
    for words in ((*JSON, "inspect", str(log), "-v"), ("inspect", str(log), "-v", "--log-format=json")):
        assert main(words) == 0
        out, err = capfd.readouterr()
        assert out == plain
        lines = read(err)
        assert lines[-1] == said("info", "ctr", "done")
        assert {line["level"] for line in lines} == {"info"}
        assert lines[0]["logger"] == "ctr.data.parquet_files" and f"read {log}/shards/" in lines[0]["message"]


def test_verbose_reports_files_and_times(log, tmp_path, capfd):
    given = ["sample", str(log), "--name", "half", "--set", "non_click_rate=0.5", "--json", "--out"]
    assert main([*given, str(tmp_path / "a")]) == 0
    plain, err = capfd.readouterr()
    # Nothing but the result without a terminal.
    assert err == ""
    for name, words in (("b", ["-v", *given]), ("c", [given[0], "--verbose", *given[1:]])):
        assert main([*words, str(tmp_path / name)]) == 0
        out, err = capfd.readouterr()
        assert out.replace(str(tmp_path / name), str(tmp_path / "a")) == plain
        assert all(line.startswith("[") and " s] " in line for line in err.splitlines())
        messages = [line.partition(" s] ")[2] for line in err.splitlines()]
        assert any(text.startswith(f"read {log / 'shards'}") and text.endswith(" bytes") for text in messages)
        assert any(text.startswith("wrote ") and "/manifests/" in text for text in messages)
        assert messages[-1] == "done"
    # What stands behind the command counts.
    assert main(["-v", *given, str(tmp_path / "d"), "-q"]) == 0
    assert capfd.readouterr().err == ""


def test_warnings_and_errors(monkeypatch, capfd):
    def warn(run, out):
        logging.getLogger("ctr.training.run.run").warning("one\n  line \x1b[1m")
        return "the result"

    monkeypatch.setattr("ctr.eval.report.write_report", warn)
    for flags, shown in (([], "warning: one line \\x1b[1m\n"), (["-q"], "")):
        assert main(["report", "run", *flags]) == 0
        assert capfd.readouterr() == ("the result\n", shown)
    assert main(["report", "run", *JSON]) == 0
    out, err = capfd.readouterr()
    (line,) = read(err)
    assert out == "the result\n" and line["message"].startswith("one line ") and line["level"] == "warning"
    reason = "nowhere is not an example log: it has no schema.json"
    assert main(["-q", "inspect", "nowhere"]) == 1
    assert capfd.readouterr().err == f"error: {reason}\n"
    assert main(["inspect", "nowhere", *JSON, "-q"]) == 1
    assert read(capfd.readouterr().err) == [said("error", "ctr", reason, exit_status=1)]
    # TensorFlow says nothing of its own.
    load_tensorflow()
    logging.getLogger("tensorflow").warning("5 out of the last 5 calls triggered tf.function retracing")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("inspect", "log", "--verbose", "--quite"), "No such option '--quite'. Did you mean '--quiet'?"),
        (("inspekt", "log"), "No such command 'inspekt'."),
        ((), "Missing command."),
    ],
)
def test_wrong_usage(capfd, words, reason):
    assert main([*JSON, *words]) == 2
    (line,) = read(capfd.readouterr().err)
    assert line["exit_status"] == 2 and line["level"] == "error"
    assert reason in line["message"] and "; Usage: ctr " in line["message"]
