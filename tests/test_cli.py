"""The command line as a user meets it: what is printed where, and the exit status."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from ctr import __version__
from ctr.cli import main
from ctr.config import load_model
from ctr.data.log import read_manifests
from ctr.data.shards import publish_partition
from ctr.io.errors import LONGEST_LINE
from ctr.training.config import TrainConfig
from ctr.training.validate import validate
from small_runs import INTERVALS, SCHEMA, draw_examples, publish
from terminal import standard_error_shown

EXAMPLES = draw_examples(30)
ROWS, CLICKS = len(EXAMPLES), int(EXAMPLES.label.sum())
CONFIG = {
    "batch": {"rows": 16},
    "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}, "experts": ["network"]},
}
TRAIN = ("train", "log", "--config", "run.yaml", "--out", "run")
SAMPLE = ("sample", "log", "--name", "half", "--set", "non_click_rate=0.5")


@pytest.fixture(scope="module")
def made_log(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("cli") / "log", EXAMPLES.table(), INTERVALS[:1])


@pytest.fixture
def place(made_log, tmp_path, monkeypatch):
    """A folder to work in, with a log and a configuration of one's own."""
    shutil.copytree(made_log, tmp_path / "log")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(made_log, tmp_path_factory):
    """A run as ``TRAIN`` leaves it, and what it printed, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(made_log, folder / "log")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    out, err = folder / "printed", folder / "complaints"
    with (
        contextlib.chdir(folder),
        out.open("w") as printed,
        err.open("w") as complaints,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(complaints),
    ):
        assert main(TRAIN) == 0
    return folder


@pytest.fixture
def place_with_run(place, trained):
    shutil.copytree(trained / "run", place / "run")
    return place


def error_line(capfd, arguments: tuple[str, ...] = TRAIN) -> str:
    """Runs a command that is to fail on bad input; returns what it prints: one line, or a longer one and its hint."""
    status = main(arguments)
    out, err = capfd.readouterr()
    assert (status, out) == (1, "") and err.endswith("\n")
    lines = err.splitlines()
    if len(lines) == 2 and len(err) > LONGEST_LINE:
        lines = [f"{lines[0]}; {lines[1].removeprefix('hint: ')}"]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def test_help_loads_no_tensorflow_and_names_every_command(fresh_python, tmp_path, root):
    script = """
import sys
from ctr.cli import main
heavy = {"tensorflow", "tf_keras", "keras", "apache_beam"}
for arguments in (["--version"], ["train", "--help"], ["--help"]):
    print("status", main(arguments))
print(sorted({*heavy, "pandas"} & set(sys.modules)))
from ctr.config.kinds import CONFIGS
for kind in CONFIGS:
    main(["config", "--kind", kind])
print(sorted(heavy & set(sys.modules)))
"""
    text = fresh_python("-c", script, cwd=tmp_path, path=root).stdout
    assert text.startswith(f"ctr {__version__}\nstatus 0\nUsage: ctr train")
    assert "\nstatus 0\n[]\n" in text and text.endswith("\n[]\n")
    names = ("demo", "simulate", "ingest", "sample", "train", "export", "score", "compare", "report")
    assert all(f"\n  {name} " in text for name in names)


def test_a_word_that_is_not_known_names_the_one_that_is_meant(place, capfd):
    def printed(*arguments):
        status = main(arguments)
        return status, "".join(capfd.readouterr())

    for given, meant in (
        ("help trian", "Did you mean 'train'?"),
        ("ingest tabel f --out log", "Did you mean 'table'?"),
        ("train log --outt run", "'--outt'. (Did you mean one of: '--out'"),
        ("score m f --out o --log-format jsn", "allowed: text, json; did you mean json?"),
        ("train log --config run.yaml --out run more", "Usage: ctr train"),
        ("train log --out run --workers two", "'--workers': 'two' is not a valid integer"),
        ("ingest criteo files", "Missing option '--out'"),
        ("ingest criteo files --out log --kafka h:1", "No such option '--kafka'"),
        ("ingest --verbose", "Missing command."),
    ):
        status, text = printed(*given.split())
        assert status == 2 and meant in text and "Usage: ctr" in text
    # Help needs no dashes.
    for given, same in (((), ("--help",)), (("help", "score"), ("score", "--help"))):
        assert printed(*given) == printed(*same) and printed(*given)[0] == 0
    for setting, meant in (
        ("modle.prior=0.2", "model?"),
        ("batch.rwos=3", "batch.rows"),
        ("linear_learning_rate=1", "optimizer.embeddings.linear_learning_rate"),
        ("optimizer.learning_rate=1", "optimizer.dense.learning_rate"),
    ):
        line = error_line(capfd, (*TRAIN, "--set", setting))
        assert "unknown key; allowed: " in line and meant in line.partition("; did you mean ")[2]


def test_what_cannot_be_trained_or_sampled_is_refused_in_one_line(place, capfd):
    (place / "run.yaml").write_text("model: {widths: {b: 3}}")
    assert "model.widths names b, which is not a feature of the log; allowed: user" in error_line(capfd)
    (place / "run.yaml").write_text("")
    (place / "in-the-way").touch()
    rule = "uninformative={rate: 0.5, low_loss: {teacher: t, max_loss: 0.1}}"
    for command, words in (
        ((*TRAIN, "--set", "model.prior=2"), "model.prior: 2 is not allowed"),
        ((*TRAIN, "--set", "seed"), "the form is key.path=value"),
        ((*TRAIN[:-1], "in-the-way/run"), "in-the-way"),
        ((*SAMPLE[:-1], "non_click_rate=0.001"), "settings: non_click_rate is 0.001, below min_rate 0.01"),
        (("sample", "nowhere", "--name", "half"), "nowhere is not an example log"),
        ((*SAMPLE, "--out", "log"), "not made by sampling"),
        ((*SAMPLE, "--set", rule), "log has no sidecar t; the sidecars beside it: none"),
    ):
        assert words in error_line(capfd, command)
    schema = place / "log" / "schema.json"
    schema.write_text(schema.read_text().replace("50", "49"))
    assert "the features do not match the recorded version" in error_line(capfd)
    assert not (place / "run").exists() and not (place / "log" / "sidecars").exists()


def test_a_table_in_place_of_a_log_names_the_command_that_reads_it(place, capfd):
    (place / "tables").mkdir()
    for path in (place / "clicks.csv", place / "tables" / "clicks.tsv.gz"):
        path.write_text("a,label\nx,1\n")
    for given in ("clicks.csv", "tables"):
        assert f"ctr quickstart {given}" in error_line(capfd, ("train", given, "--out", "run"))
        assert f"ctr quickstart {given}" in error_line(capfd, ("inspect", given))
    assert not (place / "run").exists()


@pytest.mark.slow
def test_a_terminal_shows_compiling_and_then_the_running_metrics_and_the_rate(place, monkeypatch):
    with standard_error_shown(160, monkeypatch) as states:
        assert main(TRAIN) == 0
    compiling = next(number for number, state in enumerate(states) if state.startswith("compiling"))
    first = next(number for number, state in enumerate(states) if "logloss" in state)
    assert compiling < first
    assert not states[-1].startswith("compiling")
    # Of the first batch, long before the first window is full.
    done, metrics = re.search(
        rf"\b(\d+)\.0/{ROWS}.* (logloss [\d.]+, .*, predicted)/", states[first]
    ).groups()
    assert 7 < int(done) <= 16 and metrics
    summary = json.loads((place / "run/summary.json").read_text())
    last = next(state for state in reversed(states) if "logloss" in state)
    assert f"logloss {summary['logloss']:.4f}, PerQueryAUC {summary['per_query_auc']:.4f}, " in last
    assert f"predicted/actual {summary['calibration_ratio']:.4f}, AUC " in last
    assert re.search(r"[\d.]+k?examples/s", last)


@pytest.mark.slow
def test_a_run_that_learned_nothing_prints_its_results_and_fails(place, capfd):
    settings = ("--set", "batch.rows=1000", "--set", "optimizer.dense.learning_rate=1e30")
    settings += ("--set", "max_skipped_steps=null")
    assert main([*TRAIN, "--json", *settings]) == 1
    out, err = capfd.readouterr()
    summary = json.loads(out)
    assert summary == json.loads((place / "run/summary.json").read_text())
    # The line is a long one: what to do is its hint.
    line = "; ".join(err.splitlines()[-2:]).replace("; hint: ", "; ")
    assert line.endswith(f"error: run: {summary['learning_failure']}")
    assert "the weights at the end of the log are of no use" in summary["learning_failure"]


def without_tensorflow(place, root, fresh_python, *commands: tuple[str, ...], without: str = "") -> list[str]:
    """Runs commands in a process of their own; returns the lines printed, having checked what was loaded."""
    absent = {"tensorflow", "tf_keras", "apache_beam", *without.split()}
    script = f"""
import sys
from ctr.cli import main
print(*[main(command) for command in {commands!r}], file=sys.stderr)
print(sorted({absent!r} & set(sys.modules)))
"""
    done = fresh_python("-c", script, cwd=place, path=root)
    lines = (done.stderr + done.stdout).splitlines()
    assert lines[-1] == "[]"
    return lines[:-1]


MAPPING = (
    "{input: {type: csv}, time: {column: t, unit: s}, label: y, partition: 1d, "
    "features: [{name: a, kind: category, source: a}]}"
)


@pytest.mark.slow
def test_what_is_wrong_at_once_is_told_at_once(place, root, fresh_python):
    (place / "bad.yaml").write_text("seed: x\n")
    (place / "table.yaml").write_text(MAPPING)
    faults = {
        "train nolog --config run.yaml --out run": "nolog is not an example log: it has no schema.json",
        "train log --config run.yaml --out run --set metrics.slices=[b]": "metrics.slices names b",
        "train log --config run.yaml --out run --init-from none": "--init-from none: not a run directory",
        "train log --follow --config bad.yaml --out run": "seed: 'x' is not allowed",
        "ingest criteo nowhere --out new": "input nowhere: no such file",
        "ingest table nowhere --mapping table.yaml --out log": "features cannot change inside a log",
        "simulate --examples 10 --set seed=x --out new": "seed: 'x' is not allowed",
        "export norun --out new": "norun: no such run directory",
        "compare norun log": "norun: no such run directory",
        "score nomodel log --out new.parquet": "nomodel: neither an exported model",
        "replay no.yaml --log log --out new": "experiment no.yaml: no such file",
        "search no.yaml --log log --out new": "search no.yaml: no such file",
        "search --report --out new": "new: no search.json, so this is not a finished search",
    }
    *errors, statuses = without_tensorflow(place, root, fresh_python, *map(str.split, faults))
    assert statuses.split() == ["1"] * len(faults)
    for error, fault in zip(errors, faults.values(), strict=True):
        assert error.startswith("error: ") and fault in error
    assert {path.name for path in place.iterdir()} == {"log", "run.yaml", "bad.yaml", "table.yaml"}


@pytest.mark.slow
def test_train_prints_its_results_and_a_second_time_the_same(place_with_run, trained, capfd):
    out = (trained / "printed").read_text()
    assert out.startswith(f"run: {ROWS} examples, 30 queries\n")
    assert all(name in out for name in ("per_query_auc", "logloss", "examples_per_second"))
    assert (trained / "complaints").read_text() == ""
    assert main((*TRAIN, "--json")) == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary == json.loads((place_with_run / "run" / "summary.json").read_text())
    assert summary["examples"] == ROWS
    # Resuming it as something else is refused.
    assert "seed was 1, is 5); rerun with seed=1 to resume" in error_line(capfd, (*TRAIN, "--set", "seed=5"))
    # Settings without a file are as good as a file.
    settings = ("batch.rows=16", "model.crosses.layers=0", "model.deep.units=[4]", "model.experts=[network]")
    settings += ("seed=5",)
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(("train", "log", "--out", "other", *given, "--json")) == 0
    assert json.loads(capfd.readouterr().out)["config_sha256"] != summary["config_sha256"]
    first, second = (Path(name, "config.yaml").read_text() for name in ("run", "other"))
    assert first.replace("seed: 1", "seed: 5") == second


@pytest.mark.slow
def test_a_finished_run_is_reported_without_tensorflow(place_with_run, root, fresh_python):
    place = place_with_run
    summary = json.loads((place / "run/summary.json").read_text())
    before = {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*") if path.is_file()}
    _, *lines = without_tensorflow(place, root, fresh_python, [*TRAIN, "--json"], without="pyarrow pandas")
    assert json.loads("\n".join(lines)) == summary
    assert {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*") if path.is_file()} == before
    _, *lines = without_tensorflow(place, root, fresh_python, [*TRAIN, "--record", "teacher", "--json"])
    assert json.loads("\n".join(lines))["recorded"]["rows"] == ROWS
    # What is not finished, as the log has grown, is not taken for it.
    config = load_model(TrainConfig, place / "run.yaml", "config")
    assert validate(config, place / "log", place / "run") == summary
    later = read_manifests(place / "log")[-1].end
    table = draw_examples(200).table()
    table = table.filter(table.column("query_time").to_numpy() >= later)
    publish_partition(place / "log", SCHEMA, later, later + 10**6, table)
    assert validate(config, place / "log", place / "run") is None


def test_a_reader_that_leaves_early_ends_a_command_without_a_word(root, fresh_python):
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


@pytest.mark.slow
def test_a_sample_is_reported_and_trained_on_by_teacher_and_student(place, capfd):
    (place / "sample.yaml").write_text("non_click_rate: 0.25\n")
    assert main((*SAMPLE, "--config", "sample.yaml", "--json")) == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert (err, result["name"], result["output"], result["rows"]) == ("", "half", "log/sidecars/half", ROWS)
    clicks, non_clicks = (result["conditions"][name] for name in ("clicks", "non_clicks"))
    assert clicks == {"rows": CLICKS, "kept": CLICKS, "kept_fraction": 1, "weight_sum": CLICKS}
    # The setting stands over the file: half of the non-clicks, at weight 2.
    assert non_clicks["weight_sum"] == 2 * non_clicks["kept"] and non_clicks["rows"] == ROWS - CLICKS
    assert main(SAMPLE) == 0
    text = capfd.readouterr().out
    assert text.startswith(f"log/sidecars/half: {ROWS} rows in, 1 partitions written\n")
    line = next(line for line in text.splitlines() if "non_clicks" in line)
    shown = (f"{non_clicks['kept_fraction']:.4f}", f"{non_clicks['weight_sum']:.1f}")
    assert line.split() == ["non_clicks", str(non_clicks["rows"]), str(non_clicks["kept"]), *shown]
    assert "non_click_rate was 0.5, is 0.4" in error_line(capfd, (*SAMPLE[:-1], "non_click_rate=0.4"))
    assert main((*SAMPLE, "--out", "small", "--json")) == 0
    kept = json.loads(capfd.readouterr().out)["conditions"]["all"]["kept"]
    assert main(("train", "small", *TRAIN[2:], "--json")) == 0
    assert json.loads(capfd.readouterr().out)["examples"] == kept
    # Kept rows alone say whose PerQueryAUC it is.
    sampling = ("--set", "sampling={name: half, score: kept}")
    assert main((*TRAIN[:-1], "kept", *sampling)) == 0
    assert "per_query_auc is that of the sampled queries" in capfd.readouterr().out
    assert main((*TRAIN[:-1], "teacher", "--record", "teacher")) == 0
    assert f"recorded            {ROWS} rows as the sidecar teacher\n" in capfd.readouterr().out
    assert main((*TRAIN[:-1], "student", "--set", "objective.distillation.teacher=teacher")) == 0
    capfd.readouterr()
    assert "teacher already exists" in error_line(capfd, (*TRAIN[:-1], "other", "--record", "teacher"))


def test_ingest_without_texts_and_sampling_by_rates_load_no_tensorflow(place, root, fresh_python):
    (place / "rows.csv").write_text("t,y,a\n" + "".join(f"{row},0,{row:0100}\n" for row in range(40)))
    (place / "table.yaml").write_text(MAPPING)
    ingest = ("ingest", "table", "rows.csv", "--mapping", "table.yaml", "--out", "new")
    assert "0 0" in without_tensorflow(place, root, fresh_python, ingest, SAMPLE)


IMPORTS_ARE_FROZEN = """
import gc, sys
from ctr.loading import importing, load_tensorflow
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


@pytest.mark.slow
def test_the_garbage_collector_leaves_out_what_is_imported_and_goes_on(fresh_python, root):
    fresh_python("-c", IMPORTS_ARE_FROZEN, cwd=root)
