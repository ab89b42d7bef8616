"""Several chips of a process: a run is that of one chip, to rounding, and what they cannot do is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.cli import main
from ctr.config import dump_yaml, parse_model
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint
from ctr.training.validate import check_possible
from ctr.workers.chips import open_chips
from fingerprint_logs import publish_growing
from small_runs import SMALL

SCRIPT = Path(__file__).parents[1] / "helpers" / "chips_run.py"
BATCH = {"rows": 64, "max_query_rows": 128}
DIVIDED, MIRRORED = {"workers": {"divided_from_mb": 0}}, {"workers": {"divided_from_mb": 1000}}
DEFAULTS: dict[str, Any] = {"batch": BATCH, "compute_dtype": "float32", **DIVIDED}
"""What ``ctr train LOG`` begins with, but for the batches, and tables that are divided."""
ADAGRAD = merged(
    SMALL,
    {"batch": BATCH, "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}}, **DIVIDED},
)
DAMPED = {"epsilon": 0.01, "start_preconditioning_step": 4, "precondition_frequency": 3}
SHAMPOO = merged(SMALL, {"batch": BATCH, "optimizer": {"dense": {"shampoo": DAMPED}}})
FEW = merged(DEFAULTS, {"batch": {"shapes": "few"}, "objective": {"ranking": {}}, "ids": {"capacity": 500}})


MANY = merged(
    ADAGRAD,
    {
        "model": {"factorized": {"width": 4, "ui_units": [4]}, "ensemble": {"components": 2}},
        "optimizer": {
            "embeddings": {"rule": "adafactor", "update_limit_absolute": 0.05},
            "dense": {"rule": "muon", "schedule_free": 0.9},
        },
        "label_delay": 0.03,
    },
)


def run_on(device: str, log: Path, config: Path, run: Path, *stop: int) -> None:
    command = [sys.executable, SCRIPT, log, config, run, device, *stop]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def write_config(folder: Path, content: Mapping[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(dump_yaml(parse_model(TrainConfig, content, "test")))
    return path


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("content", "sizes"),
    [(ADAGRAD, (2, 4)), (DEFAULTS, (2,)), (SHAMPOO, (4,)), (FEW, (4,)), (MANY, (4,))],
    ids=["adagrad", "defaults", "shampoo", "few", "many"],
)
def test_the_logits_are_those_of_one_chip(log, tmp_path, read_predictions, content, sizes):
    config = write_config(tmp_path, content)
    logits = {}
    for size in (1, *sizes):
        run_on(f"cpu:{size}", log, config, tmp_path / f"on-{size}")
        logits[size] = read_predictions(tmp_path / f"on-{size}")["logit"].to_numpy()
        environment = json.loads((tmp_path / f"on-{size}" / "environment.json").read_text())
        assert (environment["device"], environment["chips"]) == (f"cpu:{size}", size)
    for size in sizes:
        np.testing.assert_allclose(logits[size], logits[1], rtol=0, atol=1e-5)
    assert np.ptp(logits[1][-200:]) > 0.1


@pytest.mark.slow
def test_divided_tables_that_grow_and_runs_that_are_resumed(tmp_path, examples, read_predictions):
    """All bits are those of whole tables and of a run that was not interrupted, on as many chips; else to rounding."""
    log = publish_growing(tmp_path / "log", examples)
    content = merged(DEFAULTS, {"optimizer": {"dense": {"shampoo": DAMPED}}})
    config, mirrored = write_config(tmp_path, content), tmp_path / "mirrored.yaml"
    mirrored.write_text(dump_yaml(parse_model(TrainConfig, merged(content, MIRRORED), "test")))
    run_on("cpu:2", log, config, tmp_path / "whole")
    run_on("cpu:2", log, mirrored, tmp_path / "mirrored")
    run_on("cpu:2", log, config, tmp_path / "parts", 500)
    shutil.copytree(tmp_path / "parts", tmp_path / "on-4")
    run_on("cpu:2", log, config, tmp_path / "parts")
    run_on("cpu:4", log, config, tmp_path / "on-4")
    logits, arrays = {}, {}
    for name in ("whole", "mirrored", "parts", "on-4"):
        logits[name] = read_predictions(tmp_path / name)["logit"].to_numpy()
        arrays[name] = checkpoint.read(tmp_path / name / "checkpoints")[0]
    for name in ("mirrored", "parts"):
        np.testing.assert_array_equal(logits[name], logits["whole"])
        assert set(arrays[name]) == set(arrays["whole"])
        for key, array in arrays["whole"].items():
            if key.startswith("weights|"):
                np.testing.assert_array_equal(arrays[name][key], array, key)
    np.testing.assert_allclose(logits["on-4"], logits["whole"], rtol=0, atol=1e-5)
    assert len(arrays["whole"]["weights|rows/quality-4"]) > 1000


@pytest.mark.parametrize("device", ["gpu", "cpu", "cpu:0", "cpu:x", "cpu:65", "tpu:1", ""])
def test_other_devices_are_refused(device):
    with pytest.raises(InputError, match="allowed: tpu, or cpu:N"):
        open_chips(device)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"jit": True}, "jit: true is not possible with --device cpu:2"),
        ({"tensorboard": {"histograms": True}}, "tensorboard.histograms: true is not possible"),
        ({"tensorboard": {"gradient_noise": True}}, "tensorboard.gradient_noise"),
        ({"optimizer": {"dense": {"rule": "kfac"}}}, "kfac is not possible"),
        ({"optimizer": {"dense": {"shampoo": {"method": "eigenvalue_corrected"}}}}, "eigenvalue_corrected"),
        ({"optimizer": {"embeddings": {"rule": "one_sided"}}}, "one_sided is not possible"),
    ],
)
def test_what_chips_cannot_do_is_refused(make_config, changes, match):
    with pytest.raises(InputError, match=match):
        check_possible(make_config(changes), device="cpu:2")
    check_possible(make_config(), device="cpu:2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "2"], "does not go with 2 workers"),
        (["--follow"], "does not go with --follow"),
    ],
)
def test_options_that_do_not_go_with_a_device(log, tmp_path, capsys, options, said):
    command = ["train", str(log), "--out", str(tmp_path / "run"), "--device", "cpu:2", *options]
    assert main(command) == 1
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_tpu_that_is_not_there_is_one_line(log, tmp_path):
    command = [
        sys.executable,
        "-m",
        "ctr",
        "train",
        str(log),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "tpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "--device tpu: no TPU can be used here" in line
    assert "Traceback" not in done.stderr
