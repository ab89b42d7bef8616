"""Device: what this machine computes best in, and the settings that make a run repeatable on it."""

import logging
import os
import platform
import random
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr import __version__
from ctr.config.plugins import Group, origin_of
from ctr.data.schema import Schema
from ctr.training.config import TrainConfig
from ctr.workers.chips import Chips

log = logging.getLogger(__name__)

_BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})

# Variables that choose other kernels or other numbers of threads.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def _cpu_info(name: str) -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def cpu_flags() -> frozenset[str]:
    """The processor's feature flags, where the system lists them."""
    return frozenset(_cpu_info("flags").split())


def resolve_compute_dtype(config: TrainConfig) -> str:
    """``float32`` or ``bfloat16``; ``auto`` is bfloat16 where the processor multiplies in it, or on a TPU."""
    if config.compute_dtype != "auto":
        return config.compute_dtype
    accelerated = bool(tf.config.list_physical_devices("TPU")) or bool(cpu_flags() & _BFLOAT16_FLAGS)
    return "bfloat16" if accelerated else "float32"


def resolve_jit(config: TrainConfig, workers: int = 1) -> bool:
    """Tells whether XLA compiles the step; ``auto``: not on CPUs, whose matrix units it leaves unused."""
    if config.jit != "auto":
        return config.jit
    if workers > 1:
        return False  # XLA exchanges nothing between workers
    return bool(tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"))


def has_few_shapes(config: TrainConfig) -> bool:
    """Tells whether batches are padded to few shapes (``ctr.training.shapes``)."""
    if config.batch.shapes != "auto":
        return config.batch.shapes == "few"
    return bool(tf.config.list_physical_devices("TPU"))


def make_deterministic(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow, and restricts TensorFlow to operations that repeat bit by bit."""
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)
    tf.config.experimental.enable_op_determinism()


def _threads(setting: int, variable: str) -> int:
    given = os.environ.get(variable, "")
    return setting or (int(given) if given.isdecimal() else 0) or len(os.sched_getaffinity(0))


def describe_environment(
    config: TrainConfig, workers: int = 1, chips: Chips | None = None, schema: Schema | None = None
) -> dict[str, Any]:
    """Describes everything outside the configuration that can change a bit of the result."""
    # TensorFlow speaks for itself: it may come from the package tensorflow-cpu.
    versions = {"ctr": __version__, "tensorflow": tf.__version__}
    for name in ("numpy", "pandas", "pyarrow"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    rules = {} if schema is None else schema.derive
    used: list[tuple[Group, Iterable[str]]] = [
        ("ctr.losses", config.objective.extra),
        ("ctr.models", config.model.network),
        *(("ctr.features", rule.plugin) for rule in rules.values()),
    ]
    versions |= dict(origin_of(group, name) for group, names in used for name in names)
    environment: dict[str, Any] = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "versions": versions,
        "processor": _cpu_info("model name"),
        "cpu_count": len(os.sched_getaffinity(0)),
        "bfloat16_units": sorted(cpu_flags() & _BFLOAT16_FLAGS),
        "devices": [device.name for device in tf.config.list_physical_devices()],
        "compute_dtype": resolve_compute_dtype(config),
        "jit": resolve_jit(config, workers),
        "workers": workers,
        "intra_op_threads": _threads(
            tf.config.threading.get_intra_op_parallelism_threads(), "TF_NUM_INTRAOP_THREADS"
        ),
        "inter_op_threads": _threads(
            tf.config.threading.get_inter_op_parallelism_threads(), "TF_NUM_INTEROP_THREADS"
        ),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    if chips is not None:
        environment |= {"device": chips.device, "chips": chips.size}
    log.info(
        "devices: %s; matrix products in %s, XLA %s, %s threads",
        ", ".join(environment["devices"]),
        environment["compute_dtype"],
        "on" if environment["jit"] else "off",
        environment["intra_op_threads"],
    )
    return environment
