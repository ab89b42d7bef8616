"""Several chips of a process: a run is that of one chip, to rounding, and what they cannot do is refused."""

import json
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
from ctr.training.agreement import check_possible
from ctr.training.config import TrainConfig
from ctr.workers.chips import open_chips
from ctr.workers.collectives import ALONE
from small_runs import SMALL

SCRIPT = Path(__file__).parents[1] / "helpers" / "chips_run.py"
BATCH = {"rows": 64, "max_query_rows": 128}
DEFAULTS: dict[str, Any] = {"batch": BATCH, "compute_dtype": "float32"}
"""What ``ctr train LOG`` begins with, but for the batches."""
ADAGRAD = merged(
    SMALL, {"batch": BATCH, "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}}}
)
DAMPED = {"epsilon": 0.01, "start_preconditioning_step": 4, "precondition_frequency": 3}
SHAMPOO = merged(SMALL, {"batch": BATCH, "optimizer": {"dense": {"shampoo": DAMPED}}})
FEW = merged(DEFAULTS, {"batch": {"shapes": "few"}, "objective": {"ranking": {}}, "ids": {"capacity": 500}})


def run_on(device: str, log: Path, config: Path, run: Path, *stop: int) -> None:
    command = [sys.executable, SCRIPT, log, config, run, device, *stop]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def write_config(folder: Path, content: Mapping[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(dump_yaml(parse_model(TrainConfig, content, "test")))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [ADAGRAD, DEFAULTS, SHAMPOO, FEW], ids=["adagrad", "defaults", "shampoo", "few"]
)
def test_the_logits_are_those_of_one_chip(log, tmp_path, read_predictions, content):
    config = write_config(tmp_path, content)
    logits = {}
    for size in (1, 2, 4):
        run_on(f"cpu:{size}", log, config, tmp_path / f"on-{size}")
        logits[size] = read_predictions(tmp_path / f"on-{size}")["logit"].to_numpy()
        environment = json.loads((tmp_path / f"on-{size}" / "environment.json").read_text())
        assert (environment["device"], environment["chips"]) == (f"cpu:{size}", size)
    for size in (2, 4):
        np.testing.assert_allclose(logits[size], logits[1], rtol=0, atol=1e-5)
    assert np.ptp(logits[1][-200:]) > 0.1


@pytest.mark.slow
def test_a_run_that_is_resumed_is_one_that_was_not(log, tmp_path, read_predictions):
    config = write_config(tmp_path, SHAMPOO)
    run_on("cpu:2", log, config, tmp_path / "whole")
    run_on("cpu:2", log, config, tmp_path / "parts", 500)
    run_on("cpu:2", log, config, tmp_path / "parts")
    found, expected = (read_predictions(tmp_path / name)["logit"] for name in ("parts", "whole"))
    np.testing.assert_array_equal(found, expected)


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
        ({"optimizer": {"dense": {"shampoo": {"eigenvalue_correction": True}}}}, "eigenvalue_correction"),
        ({"optimizer": {"embeddings": {"rule": "one_sided"}}}, "one_sided is not possible"),
    ],
)
def test_what_chips_cannot_do_is_refused(make_config, changes, match):
    class Two:
        device, size = "cpu:2", 2

    with pytest.raises(InputError, match=match):
        check_possible(make_config(changes), ALONE, Two())
    check_possible(make_config(), ALONE, Two())


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
