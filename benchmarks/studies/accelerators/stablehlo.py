"""Conversion of XLA's HLO to StableHLO, which jax compiles and runs."""

from typing import Any

from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir


def module_of(hlo: bytes) -> ir.Module:
    """Returns the StableHLO module of a serialized ``HloModuleProto``."""
    text = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        _drop_copies(module)
        return module


def _drop_copies(module: ir.Module) -> None:
    """Replaces ``mhlo.copy`` operations by their operands: StableHLO has no such operation, and needs none."""
    copies = []

    def visit(operation: Any) -> ir.WalkResult:
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation in copies:
        operation.erase()
