"""Compiles the learning step with the TPU's own compiler, on a machine without a TPU, and checks what comes out.

    make tpu                          every kind of step of the reference model, for one chip of v5e and of v6e
    make tpu-small                    the same of a tiny model
    .venv-tpu/bin/python benchmarks/tpu.py [--small] [--kinds KIND ...] [--chips v5e v6e] [--out FOLDER]

It needs the environment of requirements-tpu.lock, which the targets make. A kind of step fails where the compiler
refuses it, where it has float64, a call of the host or of other code, a dynamic shape, state that is not updated in
place, too many operations or too much memory; the exit status is 1 then. Roots that are computed on the device alone
may have float64: in float32 a root of a matrix of condition 1e6 is wrong by some 6%, more than a certificate allows.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from accelerators import tpu_compiler
from accelerators.checks import (
    MAX_FLOPS_RATIO,
    MAX_SMALL_FLOPS_RATIO,
    MAX_SMALL_SLICE_FLOPS_RATIO,
    in_place_faults,
    number_faults,
    program_faults,
)
from accelerators.kinds import KINDS, SMALL, SMALL_ROOTS, build
from accelerators.lowering import all_reduced_bytes, output_aliases
from accelerators.replicas import Replicas
from accelerators.roofline import roofline, touched_bytes
from reference import REFERENCE, TINY, Size
from runner import table

from ctr.experiments.config import merged
from ctr.io.files import write_atomic_bytes
from ctr.workers.collectives import ALONE

CHIPS = ("v5e", "v6e")
CHIPS_OF_SLICE = 4
ON_SLICE = ", on a 2x2 slice"
"""What names of kinds end with whose batches are divided over the chips of a slice."""
NAMES = [*KINDS, *(kind + ON_SLICE for kind in ("AdaGrad, bfloat16", "Shampoo", "defaults"))]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    size, changes = (TINY, SMALL) if arguments.small else (REFERENCE, {})
    found = []
    for name in arguments.kinds:
        for one in measure(name, size, changes, arguments.chips, arguments.memory):
            found.append(one)
            state = "; ".join(one["faults"]) or "passes"
            print(f"{one['kind']}, {one['chip']}: {state} ({one.get('seconds', 0):.0f} s)", flush=True)
    print(f"\n{report(found)}\n\n{report_roofline(found)}")
    if arguments.out is not None:
        write_atomic_bytes(arguments.out, (json.dumps(found, indent=1) + "\n").encode())
    sys.exit(any(one["faults"] for one in found))


def measure(
    name: str, size: Size, changes: Mapping[str, Any], chips: Sequence[str], reports: Path | None
) -> list[dict[str, Any]]:
    """Compiles a kind of step for chips: what it needs there, and what is wrong with it."""
    if changes and KINDS[name.removesuffix(ON_SLICE)].device_roots:
        changes = merged(changes, SMALL_ROOTS)
    chips_each = CHIPS_OF_SLICE if name.endswith(ON_SLICE) else 1
    kind, max_ratio = KINDS[name.removesuffix(ON_SLICE)], MAX_FLOPS_RATIO
    if changes:
        max_ratio = MAX_SMALL_FLOPS_RATIO if chips_each == 1 else MAX_SMALL_SLICE_FLOPS_RATIO
    workers = ALONE if chips_each == 1 else Replicas(chips_each)
    built = build(kind, size, changes, workers, in_lines=True)
    lowered, flops = built.lowered(), built.flops()
    # Roots on the host are none of the step's operations; an iteration on the device has no fixed number of them.
    every = built.config.optimizer.dense.shampoo.statistics.frequency
    own = (flops.train - flops.roots + (every - 1) * flops.statistics) * len(built.feeds[0].targets["label"])
    own = None if kind.device_roots else own
    found = []
    for chip in chips:
        one: dict[str, Any] = {"kind": name, "chip": chip, "faults": []}
        found.append(one)
        try:
            compiled = tpu_compiler.compile_for(chip, lowered.hlo, chips_each)
        except Exception as error:  # what it raises has no class of its own
            one["faults"].append(f"does not compile: {str(error).partition(chr(10))[0]}")
            continue
        if reports is not None:
            reports.mkdir(parents=True, exist_ok=True)
            (reports / f"{name}, {chip}.txt").write_text(compiled.memory)
        needed = compiled.arguments + compiled.outputs - compiled.aliased + compiled.temporary
        ratio = None if own is None else compiled.flops / own
        one["faults"] += program_faults(lowered.text, compiled.text, kind.device_roots)
        one["faults"] += in_place_faults(lowered.changed, len(lowered.results), output_aliases(compiled.text))
        one["faults"] += number_faults(chip, needed, compiled.temporary, ratio, max_ratio)
        one |= {
            "argument_bytes": compiled.arguments,
            "output_bytes": compiled.outputs,
            "aliased_bytes": compiled.aliased,
            "temporary_bytes": compiled.temporary,
            "flops": compiled.flops,
            "flops_ratio": ratio,
            "accessed_bytes": compiled.accessed,
            "float64": lowered.text.count("f64["),
            "all_reduced_bytes": all_reduced_bytes(compiled.text),
            "sent_bytes": lowered.argument_bytes,
            "seconds": compiled.seconds,
        }
        if not kind.device_roots:
            rows = len(built.feeds[0].targets["label"])
            one["roofline"] = roofline(chip, compiled.flops, touched_bytes(built), rows)
    return found


def report(found: Sequence[dict[str, Any]]) -> str:
    """The table."""
    head = [
        *("kind of step", "chip", "arguments MB", "temporary MB", "outputs not in place MB"),
        *("GFLOP", "of the model's own", "sent a step kB", "all-reduced MB", "compiled in s"),
    ]
    rows = []
    for one in found:
        if "flops" not in one:
            rows.append([one["kind"], one["chip"], *["-"] * 8])
            continue
        ratio = "-" if one["flops_ratio"] is None else f"{one['flops_ratio']:.2f}"
        megabytes = [one[key] / 1e6 for key in ("argument_bytes", "temporary_bytes")]
        megabytes.append((one["output_bytes"] - one["aliased_bytes"]) / 1e6)
        numbers = [f"{one['flops'] / 1e9:.2f}", ratio, f"{one['sent_bytes'] / 1e3:.0f}"]
        numbers += [f"{one['all_reduced_bytes'] / 1e6:.2f}", f"{one['seconds']:.0f}"]
        rows.append([one["kind"], one["chip"], *(f"{number:.1f}" for number in megabytes), *numbers])
    return table(head, rows)


def report_roofline(found: Sequence[dict[str, Any]]) -> str:
    """The table of what a step would take at best."""
    head = [
        *("kind of step", "chip", "operations us", "state us", "state and activations us"),
        "million examples/s of a chip at best",
    ]
    rows = []
    for one in found:
        if best := one.get("roofline"):
            times = [f"{best[key]:.0f}" for key in ("computing_us", "state_us", "everything_us")]
            low, high = best["examples_per_second"]
            rows.append([one["kind"], one["chip"], *times, f"{low / 1e6:.1f} to {high / 1e6:.1f}"])
    return table(head, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compile the learning step for a TPU.")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--kinds", nargs="+", choices=NAMES, default=NAMES, metavar="KIND")
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=list(CHIPS))
    parser.add_argument("--memory", type=Path, help="a folder for the compiler's reports on memory")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    return parser


if __name__ == "__main__":
    main()
