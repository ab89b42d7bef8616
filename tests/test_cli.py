"""The command line as a user meets it: what is printed where, and the exit status."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr import __version__
from ctr.cli import main
from ctr.data.log import create_log, pack_ids, publish_interval
from ctr.data.schema import Category, Schema

SCHEMA = Schema(features=(Category(name="a", source="a", buckets=9, width=2),))
CONFIG = """
batch: {rows: 16}
model:
  crosses: {layers: 1, rank: 2}
  deep: {units: [4]}
"""


@pytest.fixture(scope="module")
def made_log(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "log"
    create_log(folder, SCHEMA)
    rng = np.random.default_rng(0)
    row = np.arange(90)
    table = pa.table(
        {
            "query_time": row // 3 * 1000,
            "timestamp": row,
            "query_id": row // 3,
            "example_id": row,
            "label": rng.integers(0, 2, 90).astype(np.int8),
            "train_weight": np.ones(90, np.float32),
            "metric_weight": np.ones(90, np.float32),
            "ids": pack_ids(rng.integers(0, 9, (90, 1)).astype(np.int32)),
        }
    )
    publish_interval(folder, SCHEMA, 0, 10**6, table, shard_rows=45)
    return folder


@pytest.fixture
def place(made_log, tmp_path, monkeypatch) -> Path:
    """A folder to work in, with a log and a configuration of one's own."""
    shutil.copytree(made_log, tmp_path / "log")
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRAIN = ("train", "log", "--config", "run.yaml", "--out", "run")


def error_line(capfd, arguments: tuple[str, ...] = TRAIN) -> str:
    """Runs a command that is to fail on bad input; returns the one line that it prints."""
    status = main(arguments)
    out, err = capfd.readouterr()
    assert status == 1
    assert out == ""
    assert err.endswith("\n")
    lines = err.splitlines()
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
        (),
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
    ("content", "words"),
    [
        ("batch: {rows: 0}", ["config run.yaml: batch.rows: 0 ", "greater than or equal to 1"]),
        ("batch: {rowz: 5}", ["config run.yaml: batch.rowz: unknown key; allowed: max_query_rows, rows"]),
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


def test_a_flipped_byte(place, capfd):
    shard = sorted((place / "log" / "shards").iterdir())[1]
    flip(shard)
    line = error_line(capfd)
    assert line.startswith(f"log/shards/{shard.name}: damaged: ")
    assert not (place / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_flipped_byte_in_a_process_of_its_own(place, root, fresh_python):
    shard = sorted((place / "log" / "shards").iterdir())[1]
    flip(shard)
    done = fresh_python("-m", "ctr", *TRAIN, "--json", cwd=place, path=root, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: log/shards/{shard.name}: damaged: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (place / "run" / "summary.json").exists()


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
    assert "seed was 1, is 5" in error_line(capfd, (*TRAIN, "--set", "seed=5"))
    assert main((*TRAIN[:-1], "other", "--set", "seed=5", "--json")) == 0
    assert json.loads(capfd.readouterr().out)["config_sha256"] != summary["config_sha256"]


def test_runs_that_cannot_be_compared_or_reported(place, capfd):
    assert "no-run: no such run directory" in error_line(capfd, ("compare", "no-run", "log"))
    assert "no-run: no such run directory" in error_line(capfd, ("report", "no-run"))


def test_a_reader_that_leaves_early_is_no_fault(root, fresh_python):
    script = """
import os, sys
from ctr import cli
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
cli._report = lambda arguments: print("lost")
sys.exit(cli.main(["report", "run"]))
"""
    done = fresh_python("-c", script, cwd=root, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interruption_has_its_own_status(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["ctr.cli"], "_report", interrupted)
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
    assert "rate: unknown key; allowed: min_rate, non_click_rate" in error_line(
        capfd, (*SAMPLE, "--set", "rate=1")
    )
    assert "config no.yaml: no such file" in error_line(capfd, (*SAMPLE, "--config", "no.yaml"))
    assert "nowhere is not an example log" in error_line(capfd, ("sample", "nowhere", "--name", "half"))
    assert "a name is made of letters" in error_line(capfd, ("sample", "log", "--name", "a b"))
    assert "not made by sampling" in error_line(capfd, (*SAMPLE, "--out", "log"))
    rule = "uninformative={rate: 0.5, low_loss: {teacher: t, max_loss: 0.1}}"
    assert "log has no sidecar t; the sidecars beside it: none" in error_line(capfd, (*SAMPLE, "--set", rule))
    assert not (place / "log" / "sidecars").exists()
    assert main(SAMPLE) == 0
    capfd.readouterr()
    assert "non_click_rate was 0.5, is 0.4" in error_line(capfd, (*SAMPLE[:-1], "non_click_rate=0.4"))


def test_sampling_by_rates_alone_loads_no_tensorflow(place, root, fresh_python):
    script = f"""
import sys
from ctr.cli import main
print("status", main({SAMPLE!r}), "tensorflow" in sys.modules)
"""
    assert fresh_python("-c", script, cwd=place, path=root).stdout.splitlines()[-1] == "status 0 False"


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


def test_kept_rows_alone_say_whose_per_query_auc_it_is(place, capfd):
    assert main(("sample", "log", "--name", "half", "--set", "non_click_rate=0.5")) == 0
    assert main((*TRAIN, "--set", "sampling={name: half, score: kept}")) == 0
    assert "per_query_auc is that of the sampled queries" in capfd.readouterr().out


def test_a_renamed_option_is_refused_with_its_new_name(capsys):
    for value in (["logs/random"], []):
        with pytest.raises(SystemExit) as caught:
            main(["simulate", "--days", "1", "--out", "x", "--randomised", *value])
        assert caught.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == "ctr simulate: error: --randomised was renamed: use --randomized"
