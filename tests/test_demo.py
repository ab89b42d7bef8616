"""The demonstration, small: every part works together from the command line."""

import json
import subprocess
import sys

import pytest

from ctr.config import load_model, parse_model
from ctr.data.sampling import SamplingConfig
from ctr.demo import demo_commands
from ctr.experiments.config import changed, read_experiment
from ctr.training.config import TrainConfig

RUNS = ("teacher", "student", "logistic", "default")


def run_ctr(*arguments):
    command = [sys.executable, "-m", "ctr", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_demo_ends_by_naming_its_report_and_does_nothing_twice(tmp_path):
    demo = tmp_path / "demo"
    first = run_ctr("demo", "--out", demo, "--examples", 4_000)
    assert first.returncode == 0, first.stderr
    report = demo / "report.html"
    assert first.stdout.splitlines()[-1].endswith(str(report))
    assert report.stat().st_size > 10_000
    assert (demo / "scores.parquet").is_file() and [*(demo / "model").iterdir()]
    summaries = {name: json.loads((demo / name / "summary.json").read_bytes()) for name in RUNS}
    assert len({summary["log_sha256"] for summary in summaries.values()}) == 1
    assert {summary["skipped_steps"] for summary in summaries.values()} == {0}
    assert summaries["student"]["trained_rows"] < summaries["teacher"]["trained_rows"] > 3_900
    # A bias.
    assert summaries["student"]["parameters_dense"] > summaries["logistic"]["parameters_dense"] == 1

    again = run_ctr("demo", "--out", demo, "--examples", 4_000, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == {"report": str(report)}
    for name, summary in summaries.items():
        assert json.loads((demo / name / "summary.json").read_bytes()) == summary


def test_a_folder_with_a_space_and_braces_stays_one_word(tmp_path):
    commands = demo_commands(tmp_path / "a {b}", 10)
    assert [words[0] for words in commands].count("train") == 4
    assert commands[0][-1] == f"{tmp_path}/a {{b}}/events"


def test_the_replay_has_the_teacher_and_the_sample_of_the_commands(root):
    examples = root / "examples"
    experiment, content = read_experiment(examples / "replay/factory-floor.yaml")
    teacher = parse_model(TrainConfig, changed(content, experiment.teachers["wide"].set), "teacher")
    assert teacher == load_model(TrainConfig, examples / "factory-floor/teacher.yaml", "config")
    sample = experiment.samplings["sample"].model_dump()
    sample["uninformative"]["low_loss"]["teacher"] = "teacher"
    shipped = load_model(SamplingConfig, examples / "factory-floor/sampling.yaml", "config")
    assert sample == shipped.model_dump()
