"""Device: the dtypes and compilers that suit this machine, and the settings that make a run repeatable on it."""

import logging
import os
import platform
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from ctr import __version__
from ctr.config.plugins import Group, origin_of
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig

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

_device: str | None = None
"""The last argument of ``use_device``: TensorFlow's devices are also global in the process."""
_chip: str | None = None
"""TensorFlow's name of the TPU chip that runs the steps; None: TensorFlow places the operations."""


def use_device(device: str) -> None:
    """Makes ``cpu``, the first ``gpu`` or one chip of this host's ``tpu`` the device of all steps of this process.

    Must be called before TensorFlow computes anything. Raises InputError if there is no such device.
    """
    global _device, _chip
    gpus = tf.config.list_physical_devices("GPU")
    if device == "gpu" and not gpus:
        raise InputError("--device gpu: TensorFlow finds no GPU here; allowed here: cpu")
    _chip = _start_tpu() if device == "tpu" else None
    tf.config.set_visible_devices(gpus[:1] if device == "gpu" else [], "GPU")
    _device = device


def _start_tpu() -> str:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        # An error in a graph has its origin, then the reason, then the node.
        said = re.search(r"(.+)\s+\[\[\{\{node", str(error))
        reason = (said[1] if said else str(error)).strip().partition(". ")[0].splitlines()
        raise InputError(
            f"--device tpu: no TPU can be used here: {reason[0] if reason else type(error).__name__}; it takes a TPU's "
            "host and a build of TensorFlow for it (tensorflow-tpu); allowed here: cpu"
        ) from None
    return str(tf.config.list_logical_devices("TPU")[0].name)


def accelerator() -> Literal["GPU", "TPU"] | None:
    """Returns the accelerator that computes this process's steps, or None for the CPU."""
    if _chip is not None:
        return "TPU"
    return "GPU" if tf.config.get_visible_devices("GPU") else None


def on_step_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to run on the TPU chip in use, where TensorFlow places no operation by default."""
    if _chip is None:
        return function

    def call(*arguments: Any, **options: Any) -> Any:
        with tf.device(_chip):
            return function(*arguments, **options)

    return call


@contextmanager
def variables_beside_steps() -> Iterator[None]:
    """Places new variables on the device of the steps; initial values are computed on the host, for any device.

    Totals, which no step reads or changes, stay on the host, since a TPU only emulates float64.
    """

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        is_total = (options.get("name") or "").endswith("/total")
        variable: tf.Variable = (next_creator if is_total else on_step_device(next_creator))(**options)
        return variable

    with tf.variable_creator_scope(create):
        yield


def _cpu_info(name: str) -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def cpu_flags() -> frozenset[str]:
    """Returns the processor's feature flags; empty if the system does not list them."""
    return frozenset(_cpu_info("flags").split())


def resolve_compute_dtype(compute_dtype: str) -> str:
    """Returns ``float32`` or ``bfloat16``; ``auto``: bfloat16 on a TPU or a processor with bfloat16 instructions."""
    if compute_dtype != "auto":
        return compute_dtype
    accelerated = accelerator() == "TPU" or bool(cpu_flags() & _BFLOAT16_FLAGS)
    return "bfloat16" if accelerated else "float32"


def resolve_jit(jit: Literal["auto"] | bool, workers: int = 1) -> bool:
    """Returns whether XLA compiles the step; ``auto``: only with an accelerator and a single worker."""
    if jit != "auto":
        return jit
    if workers > 1:
        return False  # XLA cannot exchange data between workers
    return accelerator() is not None  # on CPUs, XLA leaves matrix units unused


def has_few_shapes(shapes: Literal["auto", "few", "many"]) -> bool:
    """Returns whether batches are padded to few shapes (``ctr.training.sizes``); ``auto``: on a TPU."""
    if shapes != "auto":
        return shapes == "few"
    return accelerator() == "TPU"


def make_deterministic(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow, and restricts TensorFlow to operations that repeat bit by bit."""
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)
    tf.config.experimental.enable_op_determinism()


def _threads(setting: int, variable: str) -> int:
    value = os.environ.get(variable, "")
    return setting or (int(value) if value.isdecimal() else 0) or len(os.sched_getaffinity(0))


def describe_environment(
    config: TrainConfig, workers: int = 1, schema: Schema | None = None
) -> dict[str, Any]:
    """Describes everything outside the configuration that can change a bit of the result."""
    # The version of the module: the package may be tensorflow-cpu.
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
        "devices": [device.name for device in tf.config.get_visible_devices()],
        "compute_dtype": resolve_compute_dtype(config.compute_dtype),
        "jit": resolve_jit(config.jit, workers),
        "workers": workers,
        "intra_op_threads": _threads(
            tf.config.threading.get_intra_op_parallelism_threads(), "TF_NUM_INTRAOP_THREADS"
        ),
        "inter_op_threads": _threads(
            tf.config.threading.get_inter_op_parallelism_threads(), "TF_NUM_INTEROP_THREADS"
        ),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    if _device is not None:
        environment["device"] = _device
    log.info(
        "devices: %s; matrix products in %s, XLA %s, %s threads",
        ", ".join(environment["devices"]),
        environment["compute_dtype"],
        "on" if environment["jit"] else "off",
        environment["intra_op_threads"],
    )
    return environment
