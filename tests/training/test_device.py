"""What is recorded of the machine, and which arithmetic is chosen."""

import json
from importlib import metadata

import tensorflow as tf

from ctr.training import device
from small_runs import make_config


def test_bfloat16_where_the_processor_has_it_and_compiled_steps_on_demand_only(monkeypatch):
    for asked, flags, dtype in (
        ("auto", {"avx512_bf16"}, "bfloat16"),
        ("auto", {"amx_bf16", "sse"}, "bfloat16"),
        ("auto", {"avx512f"}, "float32"),
        ("float32", {"amx_bf16"}, "float32"),
        ("bfloat16", set(), "bfloat16"),
    ):
        monkeypatch.setattr(device, "cpu_flags", lambda flags=flags: frozenset(flags))
        assert device.resolve_compute_dtype(make_config({"compute_dtype": asked})) == dtype
    found = [device.resolve_jit(make_config({"jit": asked})) for asked in ("auto", True, False)]
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


def test_few_shapes_on_a_tpu_alone(monkeypatch):
    assert not device.has_few_shapes(make_config())
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] if kind == "TPU" else [])
    assert device.has_few_shapes(make_config())
