"""Several chips of a process: a run is that of one chip, to rounding, and what they cannot do is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ctr.cli import main
from ctr.config import dump_yaml, parse_model
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint
from ctr.training.validate import check_possible
from ctr.workers.chips import open_chips
from fingerprint_logs import publish_growing
from growing_logs import read_predictions
from small_runs import NUMBERS, SMALL, draw_examples, make_config, publish, with_numbers

# Trains on logical devices, which must be there before TensorFlow computes anything. Of several jobs one after the
# other; with a number of examples it stops there, with a checkpoint.
SCRIPT = """
import json, sys
from pathlib import Path
from ctr.workers.chips import open_chips
device, jobs = sys.argv[1], json.loads(sys.argv[2])
chips = open_chips(device)
from ctr.config import load_model
from ctr.training.config import TrainConfig
from ctr.training.loop import open_session
for log, config, run, stop in jobs:
    config = load_model(TrainConfig, Path(config), "config")
    with open_session(Path(log), config, Path(run), chips=chips) as session:
        if stop:
            session.advance(stop=lambda: session.run.position.examples >= stop)
            session.save()
        else:
            session.finish()
"""
BATCH = {"rows": 64, "max_query_rows": 128}
DIVIDED, MIRRORED = {"workers": {"divided_from_mb": 0}}, {"workers": {"divided_from_mb": 1000}}
DAMPED = {"epsilon": 0.01, "start_preconditioning_step": 4, "precondition_frequency": 3}
ADAGRAD = merged(
    SMALL,
    {"batch": BATCH, "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}}, **DIVIDED},
)
# What ``ctr train LOG`` begins with, but for the batches, and tables that are divided.
DEFAULTS: dict[str, Any] = {"batch": BATCH, "compute_dtype": "float32", **DIVIDED}
# By how many chips, and in how few shapes.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "adagrad": (ADAGRAD, 2),
    "defaults": (DEFAULTS, 2),
    "shampoo": (merged(SMALL, {"batch": BATCH, "optimizer": {"dense": {"shampoo": DAMPED}}}), 4),
    "few": (
        merged(
            DEFAULTS, {"batch": {"shapes": "few"}, "objective": {"ranking": {}}, "ids": {"capacity": 500}}
        ),
        4,
    ),
    "numbers": (ADAGRAD, 2),
    "many": (
        merged(
            ADAGRAD,
            {
                "model": {"factorized": {"width": 4, "ui_units": [4]}, "ensemble": {"components": 2}},
                "optimizer": {
                    "embeddings": {"rule": "adafactor", "update_limit_absolute": 0.05},
                    "dense": {"rule": "adafactor"},
                },
                "label_delay": 0.03,
            },
        ),
        4,
    ),
}


def run_on(device: str, *jobs: tuple[Path, Path, Path, int]) -> None:
    given = json.dumps([[*map(str, job[:3]), job[3]] for job in jobs])
    done = subprocess.run([sys.executable, "-c", SCRIPT, device, given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def write_config(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(dump_yaml(parse_model(TrainConfig, content, "test")))
    return path


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_one_chip(log, tmp_path, case):
    content, chips = CASES[case]
    if case == "numbers":
        log = publish(tmp_path / "log", with_numbers(draw_examples().table()), schema=NUMBERS)
    config, logits = write_config(tmp_path / "config.yaml", content), []
    for size in (1, chips):
        run = tmp_path / f"on-{size}"
        run_on(f"cpu:{size}", (log, config, run, 0))
        logits.append(read_predictions(run)["logit"].to_numpy())
        environment = json.loads((run / "environment.json").read_text())
        assert (environment["device"], environment["chips"]) == (f"cpu:{size}", size)
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-5)
    assert np.ptp(logits[0][-200:]) > 0.1


@pytest.mark.slow
def test_divided_tables_that_grow_and_runs_that_are_resumed(tmp_path, examples):
    """All bits are those of whole tables and of a run that was not interrupted, on as many chips; else to rounding."""
    log = publish_growing(tmp_path / "log", examples)
    content = merged(DEFAULTS, {"optimizer": {"dense": {"shampoo": DAMPED}}})
    config = write_config(tmp_path / "config.yaml", content)
    mirrored = write_config(tmp_path / "mirrored.yaml", merged(content, MIRRORED))
    whole, whole_tables, parts, moved = (tmp_path / name for name in ("whole", "mirrored", "parts", "on-4"))
    run_on("cpu:2", (log, config, whole, 0), (log, mirrored, whole_tables, 0), (log, config, parts, 500))
    shutil.copytree(parts, moved)
    run_on("cpu:2", (log, config, parts, 0))
    run_on("cpu:4", (log, config, moved, 0))
    logits = {run: read_predictions(run)["logit"].to_numpy() for run in (whole, whole_tables, parts, moved)}
    expected, _ = checkpoint.read(whole / "checkpoints")
    for run in (whole_tables, parts):
        np.testing.assert_array_equal(logits[run], logits[whole])
        arrays, _ = checkpoint.read(run / "checkpoints")
        assert set(arrays) == set(expected)
        for key, array in expected.items():
            if key.startswith("weights|"):
                np.testing.assert_array_equal(arrays[key], array, key)
    np.testing.assert_allclose(logits[moved], logits[whole], rtol=0, atol=1e-5)
    assert len(expected["weights|rows/quality-4"]) > 1000


FEW = {"batch": {"shapes": "few"}}


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"jit": True}, "jit: true"), (FEW, "batch.shapes: few")],
)
def test_what_several_workers_cannot_do_is_refused(changes, match):
    with pytest.raises(InputError, match=f"config: {match} is not possible with several workers"):
        check_possible(make_config(changes), workers=2)
    check_possible(make_config(), workers=2)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"jit": True}, "jit: true is not possible with --device cpu:2"),
        ({"optimizer": {"dense": {"shampoo": {"method": "eigenvalue_corrected"}}}}, "eigenvalue_corrected"),
        ({"optimizer": {"embeddings": {"rule": "one_sided"}}}, "one_sided is not possible"),
    ],
)
def test_what_chips_cannot_do_is_refused(changes, match):
    with pytest.raises(InputError, match=match):
        check_possible(make_config(changes), device="cpu:2")
    check_possible(make_config(), device="cpu:2")


DEVICES = "allowed: tpu, or cpu:N"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *((["--device", one], DEVICES) for one in ("gpu", "cpu", "cpu:0", "cpu:x", "cpu:65", "tpu:1", "")),
        (["--device", "cpu:2", "--workers", "2"], "does not go with 2 workers"),
        (["--device", "cpu:2", "--follow"], "does not go with --follow"),
    ],
)
def test_options_that_do_not_go_with_a_device(log, tmp_path, capsys, options, said):
    assert main(["train", str(log), "--out", str(tmp_path / "run"), *options]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_tpu_that_is_not_there_is_one_line(log, tmp_path, fresh_python, root):
    options = ("--out", tmp_path / "run", "--device", "tpu")
    done = fresh_python("-m", "ctr", "train", log, *options, cwd=root, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "--device tpu: no TPU can be used here" in line
    assert "Traceback" not in done.stderr


def test_a_tpu_that_does_not_answer_is_named_by_what_it_said(monkeypatch):
    """What tensorflow-tpu says with libtpu on a machine without a TPU."""
    said = (
        "Graph execution error:\n\nDetected at node disconnect_tpu_host/_1 defined at (most recent call last):\n"
        "<stack traces unavailable>\nRET_CHECK failure (tpu_node_interfaces.cc:432) *platform \n"
        "\t [[{{node disconnect_tpu_host/_1}}]] [Op:__inference__tpu_init_fn_4]"
    )

    def fail(*_, **__):
        raise tf.errors.InternalError(None, None, said)

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fail)
    with pytest.raises(InputError) as found:
        open_chips("tpu")
    assert str(found.value).startswith(
        "--device tpu: no TPU can be used here: RET_CHECK failure (tpu_node_interfaces.cc:432) *platform; it takes"
    )
