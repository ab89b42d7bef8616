"""What is recorded of the machine, and which arithmetic is chosen."""

import json
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import tensorflow as tf

from ctr.cli import main
from ctr.config import dump_yaml
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.training import device
from growing_logs import read_predictions
from small_runs import SMALL, make_config


def test_bfloat16_where_the_processor_has_it_and_compiled_steps_on_demand_only(monkeypatch):
    for asked, flags, dtype in (
        ("auto", {"avx512_bf16"}, "bfloat16"),
        ("auto", {"amx_bf16", "sse"}, "bfloat16"),
        ("auto", {"avx512f"}, "float32"),
        ("float32", {"amx_bf16"}, "float32"),
        ("bfloat16", set(), "bfloat16"),
    ):
        monkeypatch.setattr(device, "cpu_flags", lambda flags=flags: frozenset(flags))
        assert device.resolve_compute_dtype(make_config({"compute_dtype": asked}).compute_dtype) == dtype
    found = [device.resolve_jit(make_config({"jit": asked}).jit) for asked in ("auto", True, False)]
    assert found == [False, True, False]


def test_the_environment_holds_what_can_change_a_bit(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    environment = device.describe_environment(make_config())
    json.dumps(environment)
    for name in ("tensorflow", "numpy", "pandas", "pyarrow"):
        assert environment["versions"][name] == metadata.version(name)
    assert environment["variables"]["OMP_NUM_THREADS"] == "3"
    assert "XLA_FLAGS" not in environment["variables"]
    assert (environment["compute_dtype"], environment["jit"]) == ("float32", False)
    assert {"intra_op_threads", "inter_op_threads", "python", "cpu_count", "devices"} <= environment.keys()


def use(device_name: str, monkeypatch) -> None:
    """Calls ``use_device``, and lets this process forget it after the test."""
    for name in ("_device", "_chip"):
        monkeypatch.setattr(device, name, None)
    device.use_device(device_name)


def test_on_a_tpu_steps_are_compiled_for_few_shapes_with_products_in_bfloat16(monkeypatch):
    monkeypatch.setattr(device, "cpu_flags", frozenset)
    config = make_config({"compute_dtype": "auto"})

    def settings() -> tuple[bool, bool, str]:
        dtype = device.resolve_compute_dtype(config.compute_dtype)
        return device.has_few_shapes(config.batch.shapes), device.resolve_jit(config.jit), dtype

    assert settings() == (False, False, "float32")
    monkeypatch.setattr(device, "_start_tpu", lambda: "/device:TPU:0")
    use("tpu", monkeypatch)
    assert settings() == (True, True, "bfloat16")
    assert device.describe_environment(config)["device"] == "tpu"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *((["--device", one], "allowed: cpu, gpu, tpu") for one in ("CPU", "cpu:2", "tpu:1", "")),
        (["--device", "tpu", "--workers", "2"], "--device tpu does not go with 2 workers"),
        (["--device", "tpu", "--set", "jit=false"], "jit: false is not possible with --device tpu"),
        (["--device", "gpu"], "--device gpu: TensorFlow finds no GPU here; allowed here: cpu"),
    ],
)
def test_a_device_that_cannot_be_used_is_one_line(log, tmp_path, capsys, options, said):
    if options == ["--device", "gpu"] and tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    assert main(["train", str(log), "--out", str(tmp_path / "run"), *options]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert said in line
    assert not (tmp_path / "run").exists()


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
        use("tpu", monkeypatch)
    assert str(found.value).startswith(
        "--device tpu: no TPU can be used here: RET_CHECK failure (tpu_node_interfaces.cc:432) *platform; it takes"
    )


# Trains with a processor as it is, or with a second one of it in the place of a TPU's chip, as its name says.
TRAINED = """
import json, sys
from pathlib import Path
import tensorflow as tf
from ctr.config import load_model
from ctr.training import device
from ctr.training.config import TrainConfig
from ctr.training.session import open_session
log, config, run, chip = sys.argv[1:]
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
device._start_tpu = lambda: chip
device.use_device("tpu" if chip else "cpu")
with open_session(Path(log), load_model(TrainConfig, Path(config), "config"), Path(run)) as session:
    session.finish()
    state = session.run.state
    places = {name: one.device[-5:] for name, one in state.variables().items()}
print(json.dumps(places))
"""


@pytest.mark.slow
def test_the_variables_and_steps_of_a_run_are_on_the_chip_and_its_bits_are_those_of_another_device(
    log, tmp_path
):
    damped = {"epsilon": 0.01, "start_preconditioning_step": 4, "precondition_frequency": 3}
    changes = {
        "batch": {"rows": 64, "max_query_rows": 128, "shapes": "few"},
        "jit": True,
        "optimizer": {"dense": {"preconditioned_from_rows": 1, "shampoo": damped}},
    }
    config = tmp_path / "config.yaml"
    config.write_text(dump_yaml(make_config(merged(SMALL, changes))))
    logits, places = [], []
    for chip in ("", "/device:CPU:1"):
        run = tmp_path / f"run{len(logits)}"
        words = [sys.executable, "-c", TRAINED, log, config, run, chip]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        places.append(json.loads(done.stdout))
        logits.append(read_predictions(run)["logit"].to_numpy())
    np.testing.assert_array_equal(*logits)
    assert set(places[0].values()) == {"CPU:0"}
    of_totals = {place for name, place in places[1].items() if name.endswith("/total")}
    others = {place for name, place in places[1].items() if not name.endswith("/total")}
    assert (of_totals, others) == ({"CPU:0"}, {"CPU:1"})
