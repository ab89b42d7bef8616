"""`-v` and `-q`: what goes to standard error beside a result, and that the result stays the same."""

import logging

import pytest

from ctr.cli import main
from ctr.loading import load_tensorflow
from small_runs import INTERVALS, draw_examples, publish


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("verbosity") / "log", draw_examples(20).table(), INTERVALS[:1])


@pytest.fixture
def sample(log, tmp_path):
    """Runs `ctr sample` of the log into a new folder; flags before and behind the command."""

    def run(before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> int:
        config = tmp_path / "sample.yaml"
        config.write_text("non_click_rate: 0.5\n")
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        rest = (str(log), "--name", "half", "--config", str(config), "--out", str(out), "--json")
        return main((*before, "sample", *rest, *after))

    return run


@pytest.mark.parametrize(("place", "flag"), [("before", "-v"), ("after", "--verbose")])
def test_verbose_reports_files_and_times(sample, log, capfd, place, flag):
    assert sample() == 0
    plain, err = capfd.readouterr()
    # Nothing but the result without a terminal.
    assert err == ""
    assert sample(**{place: (flag,)}) == 0
    out, err = capfd.readouterr()
    assert out.replace("out2", "out1") == plain.replace("out2", "out1")
    lines = err.splitlines()
    assert all(line.startswith("[") and " s] " in line for line in lines)
    messages = [line.partition(" s] ")[2] for line in lines]
    assert any(text.startswith("read config ") and text.endswith("sample.yaml") for text in messages)
    assert any(text.startswith(f"read {log / 'shards'}") and text.endswith(" bytes") for text in messages)
    assert any(text.startswith("wrote ") and "/manifests/" in text for text in messages)
    assert messages[-1] == "done"
    # What stands behind the command counts.
    assert sample(("-v",), ("-q",)) == 0
    assert capfd.readouterr().err == ""


def test_warnings_and_errors(monkeypatch, capfd):
    def warn(run, out):
        logging.getLogger("ctr.training.run.run").warning("one\n  line \x1b[1m")
        return "the result"

    monkeypatch.setattr("ctr.eval.report.write_report", warn)
    for flags, shown in (([], "warning: one line \\x1b[1m\n"), (["-q"], "")):
        assert main(["report", "run", *flags]) == 0
        assert capfd.readouterr() == ("the result\n", shown)
    assert main(["-q", "inspect", "nowhere"]) == 1
    assert capfd.readouterr().err.startswith("error: nowhere is not an example log")
    # TensorFlow says nothing of its own.
    load_tensorflow()
    logging.getLogger("tensorflow").warning("5 out of the last 5 calls triggered tf.function retracing")
    assert capfd.readouterr().err == ""
