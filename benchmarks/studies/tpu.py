"""Compiles the training step with the TPU's own compiler, on a machine without a TPU, and checks the program.

    make tpu                          every kind of step of the reference model, for one chip of v5e and of v6e
    make tpu-small                    the same for a tiny model
    .venv-tpu/bin/python benchmarks/study.py tpu [--small] [--kinds KIND ...] [--chips v5e v6e] [--memory FOLDER]

It needs the environment of the group `tpu`, which the targets create. A kind of step fails if the compiler
refuses it, or if it has float64, calls of the host or of other code, dynamic shapes, state that is not updated in
place, too many operations or too much memory; the exit status is then 1. Only steps that compute roots on the device
may have float64: in float32 a root of a matrix of condition 1e6 has an error of some 6%, too much for a certificate.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerators import tpu_compiler
from accelerators.checks import (
    MAX_FLOPS_RATIO,
    MAX_SMALL_FLOPS_RATIO,
    in_place_faults,
    number_faults,
    program_faults,
)
from accelerators.kinds import KINDS, SMALL, SMALL_ROOTS, build
from accelerators.lowering import output_aliases
from accelerators.roofline import roofline, touched_bytes
from reference import REFERENCE, TINY
from runner import check_names, main

from ctr.experiments.config import merged

CHIPS = ("v5e", "v6e")


def compile_kind(
    name: str, small: bool, chips: Sequence[str], reports: Path | None
) -> dict[str, dict[str, Any]]:
    """Compiles a kind of step for chips; returns by chip its memory, operations and faults."""
    kind, size, changes, max_ratio = KINDS[name], REFERENCE, {}, MAX_FLOPS_RATIO
    if small:
        size, changes, max_ratio = TINY, SMALL, MAX_SMALL_FLOPS_RATIO
        if kind.device_roots:
            changes = merged(changes, SMALL_ROOTS)
    built = build(kind, size, changes)
    lowered, flops = built.lowered(), built.flops()
    # Roots on the host are none of the step's operations; an iteration on the device has no fixed number of them.
    every = built.config.optimizer.dense.shampoo.statistics.frequency
    rows = len(built.feeds[0].targets["label"])
    model_flops = rows * (flops.train - flops.roots + (every - 1) * flops.statistics)
    results: dict[str, dict[str, Any]] = {}
    for chip in chips:
        try:
            compiled = tpu_compiler.compile_for(chip, lowered.hlo)
        except Exception as error:  # the compiler's errors have no specific type
            results[chip] = {"faults": f"does not compile: {str(error).partition(chr(10))[0]}"}
            continue
        if reports is not None:
            reports.mkdir(parents=True, exist_ok=True)
            (reports / f"{name}, {chip}.txt").write_text(compiled.memory)
        needed = compiled.arguments + compiled.outputs - compiled.aliased + compiled.temporary
        ratio = None if kind.device_roots else compiled.flops / model_flops
        faults = [
            *program_faults(lowered.text, compiled.text, kind.device_roots),
            *in_place_faults(lowered.changed, len(lowered.results), output_aliases(compiled.text)),
            *number_faults(chip, needed, compiled.temporary, ratio, max_ratio, kind.lists),
        ]
        results[chip] = {
            "faults": "; ".join(faults),
            "arguments_mb": compiled.arguments / 1e6,
            "temporary_mb": compiled.temporary / 1e6,
            "outputs_not_in_place_mb": (compiled.outputs - compiled.aliased) / 1e6,
            "gflop": compiled.flops / 1e9,
            "of_the_models_own": ratio,
            "sent_a_step_kb": lowered.argument_bytes / 1e3,
            "accessed_mb": compiled.accessed / 1e6,
            "float64": lowered.text.count("f64["),
            "compile_seconds": compiled.seconds,
        }
        if not kind.device_roots:
            results[chip] |= roofline(chip, compiled.flops, touched_bytes(built), rows)
    return results


def measure(
    small: bool = False,
    kinds: tuple[str, ...] = tuple(KINDS),
    chips: tuple[str, ...] = CHIPS,
    memory: Path | None = None,
) -> dict[str, Any]:
    """Compiles kinds of step, with ``small`` of a tiny model; ``memory`` is a folder for reports on memory."""
    check_names("kind", kinds, tuple(KINDS))
    check_names("chip", chips, CHIPS)
    results: dict[str, Any] = {}
    for name in kinds:
        for chip, compiled in compile_kind(name, small, chips, memory).items():
            results[f"{name}, {chip}"] = compiled
            state, seconds = compiled["faults"] or "passes", compiled.get("compile_seconds", 0)
            print(f"{name}, {chip}: {state} ({seconds:.0f} s)", flush=True)
    return {"steps": results}


if __name__ == "__main__":
    sys.exit(any(row["faults"] for row in main(measure, {"small": True})["steps"].values()))
