"""Checks whether a TPU can run a step, on the text of its program and on its memory and operations."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

GIGABYTE = 10**9
MEMORY = {"v5e": 16 * 2**30, "v6e": 32 * 2**30}
"""Bytes of memory of a chip."""
MAX_TEMPORARY = {"v5e": 0.5 * GIGABYTE, "v6e": 3 * GIGABYTE}
"""Bytes besides arguments and results; for v6e the compiler copies tables to another layout and back in each step."""
LIST_TEMPORARY = 0.01 * GIGABYTE
"""Additional bytes for each value of lists: for 4,096 rows, an array has 2 MB, with 16 numbers in lanes of 128."""
MAX_FLOPS_RATIO = 1.1
"""Operations of the program over their number by the model's formulas."""
MAX_SMALL_FLOPS_RATIO = 1.5
"""The same for a tiny model, in which operations without a formula have a large share: losses, conversions."""

COMPILERS_OWN = frozenset(
    {
        # int64, which a TPU keeps as two int32: the counters of steps.
        *("X64SplitLow", "X64SplitHigh", "X64Combine"),
        # A copy to another layout, which v6e leaves to its SparseCore; this is the compiler's own name for it.
        "TODO(b/522284627)",
        *("AssumeGatherIndicesInBound", "ConcatBitcast", "SplitBitcast", "AllocateBuffer", "Sharding"),
    }
)
"""Custom calls that the TPU's compiler itself inserts; they run no code outside the program."""

_HOST = re.compile(r"\b(infeed|outfeed|send|recv)\(|is_host_transfer=true")
_CUSTOM = re.compile(r'custom_call_target="([^"]*)"')
# Not set-dimension-size: TensorFlow gives dimensions the sizes that they have.
_DYNAMIC = re.compile(r"\w\[(?:[<=\d]+,)*<=\d|\bdynamic-reshape\(")


def program_faults(program: str, compiled: str, may_be_wide: bool = False) -> list[str]:
    """Returns the faults in the texts of a program before and after compilation.

    Args:
        may_be_wide: whether it may have float64, which a TPU computes in many float32 operations.
    """
    faults = []
    for where, text in (("the step", program), ("the compiled step", compiled)):
        wide = text.count("f64[")
        calls = Counter(_CUSTOM.findall(text))
        foreign = sorted(set(calls) - (COMPILERS_OWN if text is compiled else frozenset()))
        if wide and not may_be_wide:
            faults.append(f"{where} has float64 in {wide} places")
        if _HOST.search(text):
            faults.append(f"{where} calls the host")
        if foreign:
            faults.append(f"{where} has custom calls: {', '.join(foreign)}")
        if _DYNAMIC.search(text):
            faults.append(f"{where} has dynamic shapes")
    return faults


def in_place_faults(changed: Sequence[str], results: int, aliases: Mapping[int, int]) -> list[str]:
    """Returns a fault that names the variables which the compiled step does not update in place, if any.

    Args:
        changed: names of the changed variables, in the order in which the step returns them.
        results: number of other results, which come first.
        aliases: by index of a result, the index of the parameter whose memory it reuses.
    """
    copied = [name for number, name in enumerate(changed, results) if number not in aliases]
    return [f"not updated in place: {', '.join(copied)}"] if copied else []


def number_faults(
    chip: str,
    needed: int,
    temporary: int,
    flops_ratio: float | None,
    max_ratio: float = MAX_FLOPS_RATIO,
    lists: int = 0,
) -> list[str]:
    """Returns the limits that a compiled step exceeds.

    Args:
        needed: total bytes of memory.
        temporary: bytes of these that are neither arguments nor results.
        flops_ratio: operations over the model's own; None if these have no formula.
        max_ratio: maximum of ``flops_ratio``.
        lists: number of values in each row's lists, for which attention needs memory.
    """
    faults = []
    if needed > MEMORY[chip]:
        faults.append(f"needs {needed / 2**30:.1f} GiB, more than the {MEMORY[chip] / 2**30:.0f} of a {chip}")
    most = MAX_TEMPORARY[chip] + lists * LIST_TEMPORARY
    if temporary > most:
        faults.append(f"needs {temporary / GIGABYTE:.2f} GB of temporary memory, more than {most / GIGABYTE}")
    if flops_ratio is not None and flops_ratio > max_ratio:
        faults.append(f"takes {flops_ratio:.2f} times the model's own operations, more than {max_ratio}")
    return faults
