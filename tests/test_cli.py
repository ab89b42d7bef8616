"""The command line as a user meets it: what is printed where, and the exit status."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import sys
import termios
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr import __version__
from ctr.cli import main
from ctr.config import load_model
from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import LONGEST_LINE
from ctr.training.config import TrainConfig
from ctr.training.validate import validate

SCHEMA = Schema(features=(Category(name="a", source="a", buckets=9, width=2),))
CONFIG = """
batch: {rows: 16}
model:
  crosses: {layers: 1, rank: 2}
  deep: {units: [4]}
optimizer: {dense: {shampoo: {start_preconditioning_step: null}}}
"""


def made_rows(start: int) -> pa.Table:
    """Thirty queries of three rows each, from a query time on."""
    rng = np.random.default_rng(0)
    row = np.arange(90)
    return pa.table(
        {
            "query_time": start + row // 3 * 1000,
            "timestamp": start + row,
            "query_id": row // 3,
            "example_id": row,
            "label": rng.integers(0, 2, 90).astype(np.int8),
            "train_weight": np.ones(90, np.float32),
            "metric_weight": np.ones(90, np.float32),
            "ids": pack_ids(rng.integers(0, 9, (90, 1)).astype(np.int32)),
        }
    )


@pytest.fixture(scope="module")
def made_log(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "log"
    create_log(folder, SCHEMA)
    table = made_rows(0)
    publish_partition(folder, SCHEMA, 0, 10**6, table, shard_rows=45)
    return folder


@pytest.fixture
def place(made_log, tmp_path, monkeypatch) -> Path:
    """A folder to work in, with a log and a configuration of one's own."""
    shutil.copytree(made_log, tmp_path / "log")
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRAIN = ("train", "log", "--config", "run.yaml", "--out", "run")


@pytest.fixture(scope="module")
def trained(made_log, tmp_path_factory) -> Path:
    """A run as ``TRAIN`` leaves it, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(made_log, folder / "log")
    (folder / "run.yaml").write_text(CONFIG)
    with contextlib.chdir(folder):
        assert main(TRAIN) == 0
    return folder / "run"


@pytest.fixture
def place_with_run(place, trained) -> Path:
    shutil.copytree(trained, place / "run")
    return place


def error_line(capfd, arguments: tuple[str, ...] = TRAIN) -> str:
    """Runs a command that is to fail on bad input; returns what it prints: one line, or a longer one and its hint."""
    status = main(arguments)
    out, err = capfd.readouterr()
    assert status == 1
    assert out == ""
    assert err.endswith("\n")
    lines = err.splitlines()
    if len(lines) == 2 and len(err) > LONGEST_LINE:
        lines = [f"{lines[0]}; {lines[1].removeprefix('hint: ')}"]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_loads_no_tensorflow(fresh_python, root, arguments):
    script = f"""
import sys
from ctr.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    print("status", end.code)
print(sorted({{"tensorflow", "tf_keras", "keras", "pandas"}} & set(sys.modules)))
"""
    lines = fresh_python("-c", script, cwd=root).stdout.splitlines()
    assert lines[-2:] == ["status 0", "[]"]
    assert ("usage: ctr" in lines[0]) or lines[0] == f"ctr {__version__}"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(
        f"\n    {name} " in text
        for name in ("demo", "simulate", "ingest", "sample", "train", "export", "score", "compare", "report")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("trian",),
        ("train",),
        ("train", "log", "--config", "run.yaml"),
        (*TRAIN, "--sed", "3"),
        (*TRAIN, "more"),
    ],
)
def test_wrong_usage_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: ctr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "same"), [((), ("--help",)), (("help",), ("--help",)), (("help", "score"), ("score", "--help"))]
)
def test_help_needs_no_dashes(capsys, given, same):
    texts = []
    for arguments in (given, same):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].startswith("usage: ctr ")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("trian log --out run", "did you mean train?"),
        ("help trian", "did you mean train?"),
        ("ingest tabel f --out log", "did you mean table?"),
        ("train log --out run --polll 3", "did you mean --poll"),
        ("train log --outt run", "--outt; did you mean --out"),
        ("train log --out run --initfrom=x", "did you mean --init-from?"),
        ("train log --out run -workers 2", "did you mean --workers"),
        ("ingest table f --out log --maping m", "--maping; did you mean --mapping"),
        ("score m f --out o --format mnd", "did you mean mind?"),
    ],
)
def test_a_word_that_is_not_known_names_the_one_that_is_meant(capsys, given, meant):
    with pytest.raises(SystemExit) as end:
        main(given.split())
    assert end.value.code == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("modle.prior=0.2", "model?"),
        ("sed=2", "seed"),
        ("batch.rwos=3", "batch.rows"),
        ("linear_learning_rate=1", "optimizer.embeddings.linear_learning_rate"),
        ("optimizer.learning_rate=1", "optimizer.dense.learning_rate"),
    ],
)
def test_a_setting_that_is_not_known_names_the_one_that_is_meant(place, capfd, setting, meant):
    line = error_line(capfd, (*TRAIN, "--set", setting))
    assert "unknown key; allowed: " in line
    assert meant in line.partition("; did you mean ")[2]


def test_a_table_in_place_of_a_log_names_the_command_that_reads_it(place, capfd):
    (place / "tables").mkdir()
    for path in (place / "clicks.csv", place / "tables" / "clicks.tsv.gz"):
        path.write_text("a,label\nx,1\n")
    for given in ("clicks.csv", "tables"):
        assert f"ctr quickstart {given}" in error_line(capfd, ("train", given, "--out", "run"))
        assert f"ctr quickstart {given}" in error_line(capfd, ("inspect", given))
    assert not (place / "run").exists()


def on_terminal(monkeypatch, *arguments: str) -> str:
    """Runs a command whose standard error is a terminal of 160 columns; returns what that shows."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    shown: list[bytes] = []

    def read() -> None:
        # Linux reports the end as an error.
        with contextlib.suppress(OSError):
            while part := os.read(master, 4096):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert main(list(arguments)) == 0
    reader.join()
    os.close(master)
    return b"".join(shown).decode()


@pytest.mark.slow
def test_a_terminal_shows_compiling_and_then_the_running_metrics_and_the_rate(place, monkeypatch, capfd):
    text = on_terminal(monkeypatch, *TRAIN)
    states = text.split("\r")
    compiling = next(number for number, state in enumerate(states) if state.startswith("compiling"))
    first = next(number for number, state in enumerate(states) if "logloss" in state)
    assert compiling < first
    assert not states[-1].startswith("compiling")
    # Of the first batch, long before the first window is full.
    assert re.search(r"\b1[456]\.0/90\.0 .*AUC [\d.]+, logloss [\d.]+, predicted/", states[first])
    summary = json.loads((place / "run/summary.json").read_text())
    last = next(state for state in reversed(states) if "logloss" in state)
    assert "90.0/90.0" in last
    assert f"PerQueryAUC {summary['per_query_auc']:.4f}, AUC " in last
    assert f"logloss {summary['logloss']:.4f}, predicted/actual {summary['calibration_ratio']:.4f}" in last
    assert re.search(r"[\d.]+k?examples/s", last)
    capfd.readouterr()
    (place / "again").mkdir()
    assert main([*TRAIN[:-1], "again/run"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_run_that_learned_nothing_prints_its_results_and_fails(place, capfd):
    assert (
        main([*TRAIN, "--json", "--set", "batch.rows=100", "--set", "optimizer.dense.learning_rate=1e30"])
        == 1
    )
    out, err = capfd.readouterr()
    summary = json.loads(out)
    assert summary == json.loads((place / "run/summary.json").read_text())
    # The line is a long one: what to do is its hint.
    assert (
        "; ".join(err.splitlines()[-2:]).replace("; hint: ", "; ")
        == f"error: run: {summary['learning_failure']}"
    )
    assert "90 of 90 rows (100.0%) were not trained on" in summary["learning_failure"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("batch: {rows: 0}", ["config run.yaml: batch.rows: 0 ", "greater than or equal to 1"]),
        (
            "batch: {rowz: 5}",
            ["config run.yaml: batch.rowz: unknown key; allowed: growth, max_query_rows, rows"],
        ),
        ("seed: [1", ["config run.yaml: not YAML"]),
        ("- 1", ["config run.yaml: a mapping of keys to values is expected, received list"]),
        ("model: {widths: {b: 3}}", ["model.widths names b, which is not a feature of the log; allowed: a"]),
        ("metrics: {slices: [b]}", ["metrics.slices names b", "allowed: a"]),
    ],
)
def test_a_bad_configuration(place, capfd, content, words):
    (place / "run.yaml").write_text(content)
    line = error_line(capfd)
    assert all(word in line for word in words), line
    assert not (place / "run").exists()


def test_a_bad_setting(place, capfd):
    assert "model.prior: 2 is not allowed" in error_line(capfd, (*TRAIN, "--set", "model.prior=2"))
    assert "modle: unknown key" in error_line(capfd, (*TRAIN, "--set", "modle.prior=0.2"))
    assert "the form is key.path=value" in error_line(capfd, (*TRAIN, "--set", "seed"))


def test_a_missing_configuration(place, capfd):
    (place / "run.yaml").unlink()
    assert error_line(capfd) == "config run.yaml: no such file"


def test_a_missing_log(place, capfd):
    shutil.rmtree(place / "log")
    assert "log is not an example log: it has no schema.json" in error_line(capfd)


def test_a_log_of_another_schema_version(place, capfd):
    path = place / "log" / "schema.json"
    content = json.loads(path.read_text())
    content["features"][0]["buckets"] = 10
    path.write_text(json.dumps(content))
    assert "the features do not match the recorded version" in error_line(capfd)


def without_tensorflow(place, root, fresh_python, *commands: tuple[str, ...]) -> list[str]:
    """Runs commands in a process of their own; returns the lines printed, having checked what was loaded."""
    script = f"""
import sys
from ctr.cli import main
print(*[main(command) for command in {commands!r}], file=sys.stderr)
print(sorted({{"tensorflow", "tf_keras", "apache_beam"}} & set(sys.modules)))
"""
    done = fresh_python("-c", script, cwd=place, path=root)
    lines = (done.stderr + done.stdout).splitlines()
    assert lines[-1] == "[]"
    return lines[:-1]


@pytest.mark.slow
def test_what_is_wrong_at_once_is_told_at_once(place, root, fresh_python):
    (place / "bad.yaml").write_text("seed: x\n")
    (place / "table.yaml").write_text(
        "{input: {type: csv}, time: {column: t, unit: s}, label: y, partition: 1d, "
        "features: [{name: a, kind: category, source: a, buckets: 9}]}"
    )
    faults = {
        "train nolog --config run.yaml --out run": "nolog is not an example log",
        "train log --config no.yaml --out run": "config no.yaml: no such file",
        "train log --config / --out run": "config /: is a directory",
        "train log --config bad.yaml --out run": "seed: 'x' is not allowed",
        "train log --config run.yaml --out log": "log is neither empty nor a run directory",
        "train log --config run.yaml --out run --set metrics.slices=[b]": "metrics.slices names b",
        "train log --config run.yaml --out run --init-from none": "--init-from none: not a run directory",
        "train log --follow --config bad.yaml --out run": "seed: 'x' is not allowed",
        "ingest mind nowhere --out new": "input nowhere: no such file",
        "ingest table nowhere --mapping no.yaml --out new": "mapping no.yaml: no such file",
        "ingest table nowhere --mapping table.yaml --out log": "features cannot change inside a log",
        "simulate --examples 10 --set seed=x --out new": "seed: 'x' is not allowed",
        "simulate --days 1 --policy run --log log --out new": "run: no summary.json",
        "export norun --out new": "norun: no such run directory",
        "score nomodel log --out new.parquet": "nomodel: neither an exported model",
        "replay no.yaml --log log --out new": "experiment no.yaml: no such file",
        "search no.yaml --log log --out new": "search no.yaml: no such file",
        "search --out new": "SEARCH and --log are required, unless with --report",
        "search --report --out new": "new: no search.json, so this is not a finished search",
    }
    *errors, statuses = without_tensorflow(place, root, fresh_python, *map(str.split, faults))
    assert statuses.split() == ["1"] * len(faults)
    for error, fault in zip(errors, faults.values(), strict=True):
        assert error.startswith("error: ") and fault in error
    assert {path.name for path in place.iterdir()} == {"log", "run.yaml", "bad.yaml", "table.yaml"}


@pytest.mark.slow
def test_a_finished_run_is_told_without_tensorflow(place_with_run, root, fresh_python, capfd):
    place = place_with_run
    assert main((*TRAIN, "--json")) == 0
    summary = json.loads(capfd.readouterr().out)
    before = {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*") if path.is_file()}
    _, *lines = without_tensorflow(place, root, fresh_python, [*TRAIN, "--json"])
    assert json.loads("\n".join(lines)) == summary
    assert {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*") if path.is_file()} == before
    _, *lines = without_tensorflow(place, root, fresh_python, [*TRAIN, "--record", "teacher", "--json"])
    assert json.loads("\n".join(lines))["recorded"]["rows"] == 90
    # What is not finished, as the log has grown, is not taken for it.
    config = load_model(TrainConfig, place / "run.yaml", "config")
    assert validate(config, place / "log", place / "run") == summary
    later = read_manifests(place / "log")[0].end
    publish_partition(place / "log", SCHEMA, later, later + 10**6, made_rows(later))
    assert validate(config, place / "log", place / "run") is None


def test_a_place_that_is_taken(place, capfd):
    assert "neither empty nor a run directory" in error_line(capfd, (*TRAIN[:-1], "log"))
    assert "neither empty nor a run directory" in error_line(capfd, (*TRAIN[:-1], "run.yaml"))


def test_what_the_system_refuses_is_told_in_one_line(place, capfd):
    (place / "in-the-way").touch()
    assert "in-the-way" in error_line(capfd, (*TRAIN[:-1], "in-the-way/run"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.slow
def test_a_flipped_byte(place, capfd):
    shard = sorted((place / "log" / "shards").iterdir())[1]
    flip(shard)
    line = error_line(capfd)
    assert line.startswith(f"log/shards/{shard.name}: damaged: ")
    assert not (place / "run" / "summary.json").exists()


@pytest.mark.soak
def test_a_flipped_byte_in_a_process_of_its_own(place, root, fresh_python):
    shard = sorted((place / "log" / "shards").iterdir())[1]
    flip(shard)
    done = fresh_python("-m", "ctr", *TRAIN, "--json", cwd=place, path=root, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: log/shards/{shard.name}: damaged: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (place / "run" / "summary.json").exists()


@pytest.mark.slow
def test_train_tells_its_results_and_a_second_time_the_same(place, capfd):
    assert main(TRAIN) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("run: 90 examples, 30 queries\n")
    assert all(name in out for name in ("per_query_auc", "logloss", "examples_per_second"))
    assert main((*TRAIN, "--json")) == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary == json.loads((place / "run" / "summary.json").read_text())
    assert summary["examples"] == 90
    # Resuming it as something else is refused.
    assert "seed was 1, is 5); rerun with seed=1 to resume" in error_line(capfd, (*TRAIN, "--set", "seed=5"))
    assert main((*TRAIN[:-1], "other", "--set", "seed=5", "--json")) == 0
    assert json.loads(capfd.readouterr().out)["config_sha256"] != summary["config_sha256"]


@pytest.mark.slow
def test_train_without_a_configuration_takes_the_defaults(place_with_run, capfd):
    place = place_with_run
    settings = (
        *("batch.rows=16", "model.crosses={layers: 1, rank: 2}", "model.deep.units=[4]"),
        "optimizer.dense.shampoo.start_preconditioning_step=null",
    )
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(("train", "log", "--out", "other", *given)) == 0
    assert (place / "other" / "config.yaml").read_text() == (place / "run" / "config.yaml").read_text()
    capfd.readouterr()
    wrong = ("train", "log", "--out", "wrong", "--set", "seed=x")
    assert error_line(capfd, wrong) == "settings: seed: 'x' is not allowed: a number is required"


def test_runs_that_cannot_be_compared_or_reported(place, capfd):
    assert "no-run: no such run directory" in error_line(capfd, ("compare", "no-run", "log"))
    assert "no-run: no such run directory" in error_line(capfd, ("report", "no-run"))


def test_a_reader_that_leaves_early_is_no_fault(root, fresh_python):
    script = """
import os, sys
from ctr import cli
from ctr.eval import report
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
report.write_report = lambda run, out: "lost"
sys.exit(cli.main(["report", "run"]))
"""
    done = fresh_python("-c", script, cwd=root, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interruption_has_its_own_status(monkeypatch, capsys):
    def interrupted(run, out):
        raise KeyboardInterrupt

    monkeypatch.setattr("ctr.eval.report.write_report", interrupted)
    assert main(["report", "run"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


SAMPLE = ("sample", "log", "--name", "half", "--set", "non_click_rate=0.5")


def test_sample_tells_what_it_kept_and_a_second_time_the_same(place, capfd):
    (place / "sample.yaml").write_text("non_click_rate: 0.25\n")
    assert main((*SAMPLE, "--config", "sample.yaml", "--json")) == 0
    out, err = capfd.readouterr()
    assert err == ""
    result = json.loads(out)
    assert (result["name"], result["output"], result["rows"]) == ("half", "log/sidecars/half", 90)
    labels = np.random.default_rng(0).integers(0, 2, 90)
    clicks, non_clicks = (result["conditions"][name] for name in ("clicks", "non_clicks"))
    assert clicks == {
        "rows": labels.sum(),
        "kept": labels.sum(),
        "kept_fraction": 1,
        "weight_sum": labels.sum(),
    }
    # The setting stands over the file: half of the non-clicks, at weight 2.
    assert non_clicks["rows"] == 90 - labels.sum()
    assert non_clicks["weight_sum"] == 2 * non_clicks["kept"]
    assert 0 < non_clicks["kept"] < non_clicks["rows"]
    assert main(SAMPLE) == 0
    text = capfd.readouterr().out
    assert text.startswith("log/sidecars/half: 90 rows in, 1 partitions written\n")
    line = next(line for line in text.splitlines() if "non_clicks" in line)
    assert line.split() == [
        "non_clicks",
        str(non_clicks["rows"]),
        str(non_clicks["kept"]),
        f"{non_clicks['kept_fraction']:.4f}",
        f"{non_clicks['weight_sum']:.1f}",
    ]


@pytest.mark.slow
def test_a_sampled_log_is_a_log_to_train_on(place, capfd):
    rule = "uninformative={rate: 0.5, low_visibility: {feature: a, values: [x, 5]}}"
    assert main((*SAMPLE, "--out", "small", "--set", rule, "--json")) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["output"] == "small"
    assert set(result["conditions"]) == {"all", "clicks", "non_clicks", "low_visibility", "uninformative"}
    assert main(("train", "small", *TRAIN[2:], "--json")) == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["examples"] == result["conditions"]["all"]["kept"]
    # Both weights are the importance weight: the examples stand for those of the whole log.
    assert summary["weight_sum"] == result["conditions"]["all"]["weight_sum"]


def test_samplings_that_are_refused(place, capfd):
    line = error_line(capfd, (*SAMPLE[:-1], "non_click_rate=0.001"))
    assert line.startswith("settings: ") and "non_click_rate is 0.001, below min_rate 0.01" in line
    assert "rate: unknown key; allowed: gradient, min_rate, non_click_rate" in error_line(
        capfd, (*SAMPLE, "--set", "rate=1")
    )
    assert "config no.yaml: no such file" in error_line(capfd, (*SAMPLE, "--config", "no.yaml"))
    assert "nowhere is not an example log" in error_line(capfd, ("sample", "nowhere", "--name", "half"))
    assert "a name consists of letters" in error_line(capfd, ("sample", "log", "--name", "a b"))
    assert "not made by sampling" in error_line(capfd, (*SAMPLE, "--out", "log"))
    rule = "uninformative={rate: 0.5, low_loss: {teacher: t, max_loss: 0.1}}"
    assert "log has no sidecar t; the sidecars beside it: none" in error_line(capfd, (*SAMPLE, "--set", rule))
    assert not (place / "log" / "sidecars").exists()
    assert main(SAMPLE) == 0
    capfd.readouterr()
    assert "non_click_rate was 0.5, is 0.4" in error_line(capfd, (*SAMPLE[:-1], "non_click_rate=0.4"))


def test_ingest_without_texts_and_sampling_by_rates_load_no_tensorflow(place, root, fresh_python):
    (place / "rows.csv").write_text("t,y,a\n" + "".join(f"{row},0,{row:0100}\n" for row in range(40)))
    (place / "table.yaml").write_text(
        "{input: {type: csv}, time: {column: t, unit: s}, label: y, partition: 1d, "
        "features: [{name: a, kind: category, source: a}]}"
    )
    ingest = ("ingest", "table", "rows.csv", "--mapping", "table.yaml", "--out", "new")
    assert "0 0" in without_tensorflow(place, root, fresh_python, ingest, SAMPLE)


@pytest.mark.soak
def test_a_teacher_is_recorded_and_a_student_reads_it(place, capfd):
    assert main((*TRAIN, "--record", "teacher")) == 0
    assert "recorded            90 rows as the sidecar teacher\n" in capfd.readouterr().out
    student = (*TRAIN[:-1], "student", "--set", "objective.distillation.teacher=teacher")
    assert main(student) == 0
    capfd.readouterr()
    assert "has no sidecar nobody; the sidecars beside it: teacher" in error_line(
        capfd, (*TRAIN[:-1], "other", "--set", "objective.distillation.teacher=nobody")
    )
    assert "objective.ranking.weight: 2 is not allowed" in error_line(
        capfd, (*TRAIN[:-1], "other", "--set", "objective.ranking.weight=2")
    )
    assert "teacher already exists" in error_line(capfd, (*TRAIN[:-1], "other", "--record", "teacher"))


@pytest.mark.slow
def test_kept_rows_alone_say_whose_per_query_auc_it_is(place, capfd):
    assert main(("sample", "log", "--name", "half", "--set", "non_click_rate=0.5")) == 0
    assert main((*TRAIN, "--set", "sampling={name: half, score: kept}")) == 0
    assert "per_query_auc is that of the sampled queries" in capfd.readouterr().out


IMPORTS_ARE_FROZEN = """
import gc, sys
from ctr.cli_output import importing, load_tensorflow
load_tensorflow()
frozen = gc.get_freeze_count()
assert gc.isenabled() and frozen > 100_000, frozen
load_tensorflow()
assert gc.isenabled() and gc.get_freeze_count() <= frozen
gc.disable()
with importing():
    import this
assert not gc.isenabled()
"""


def test_the_garbage_collector_leaves_out_what_is_imported_and_goes_on(fresh_python, root):
    fresh_python("-c", IMPORTS_ARE_FROZEN, cwd=root)
