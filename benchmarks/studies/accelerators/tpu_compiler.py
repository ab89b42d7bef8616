"""Runs the TPU's compiler on a machine without a TPU: libtpu compiles for a described topology."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Before libtpu loads: it must not look for a TPU, nor for the metadata of a cloud machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
# Several processes may compile at a time: there is no TPU for which they could compete.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import numpy as np
from jax._src.lib import xla_client
from jax.experimental import topologies

from accelerators.stablehlo import module_of

TOPOLOGY = "2x2"
"""The smallest slice of both generations; a program for one chip uses one of its chips."""


@dataclass(frozen=True)
class Compiled:
    """A program for one chip.

    Attributes:
        arguments, outputs, temporary: bytes of memory on the chip.
        aliased: bytes of the outputs that are in the memory of arguments.
        flops: number of operations, as counted by the compiler.
        accessed: bytes that they read and write in the chip's memory, as counted by the compiler.
        text: the compiled program as text.
        memory: the compiler's report on the chip's memory.
        seconds: the time of compilation.
    """

    arguments: int
    outputs: int
    temporary: int
    aliased: int
    flops: float
    accessed: float
    text: str
    memory: str
    seconds: float


def compile_for(chip: str, hlo: bytes) -> Compiled:
    """Compiles a program for one chip, ``v5e`` or ``v6e``. Errors of the compiler are propagated."""
    module = module_of(hlo)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:{TOPOLOGY}")
    device = topology.devices[0]
    options = xla_client.CompileOptions()
    assignment = xla_client.DeviceAssignment.create(np.array([[device.id]], np.int32))
    options.device_assignment = options.executable_build_options.device_assignment = assignment
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, module.context:
        # jaxlib cannot read every program that libtpu makes; libtpu writes all of them.
        debug = options.executable_build_options.debug_options
        debug.xla_dump_to, debug.xla_dump_hlo_as_text = folder, True
        executable = device.client.compile(module, xla_client.DeviceList((device,)), options)
        (text,) = [file.read_text() for file in Path(folder).glob("*.after_codegen.txt")]
        (report,) = [file.read_text() for file in Path(folder).glob("*-memory-usage-report.txt")]
    seconds = time.perf_counter() - begun
    memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
    return Compiled(
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
        cost["flops"],
        cost["bytes accessed"],
        text,
        report,
        seconds,
    )
