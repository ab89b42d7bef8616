"""What must hold of a step that a TPU is to run, checked on the text of its program and on its numbers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

GIGABYTE = 10**9
MEMORY = {"v5e": 16 * 2**30, "v6e": 32 * 2**30}
"""Bytes of memory of a chip."""
MAX_TEMPORARY = {"v5e": 0.5 * GIGABYTE, "v6e": 3 * GIGABYTE}
"""Beside arguments and results: for v6e the compiler copies whole tables to another layout and back at every step."""
LIST_TEMPORARY = 0.01 * GIGABYTE
"""What each value of lists may take more: of 4,096 rows, an array has 2 MB for it, with 16 numbers in lanes of 128."""
MAX_FLOPS_RATIO = 1.1
"""Operations of the program over the number by the model's formulas."""
MAX_SMALL_FLOPS_RATIO = 1.5
"""The same of a tiny model, of whose operations those that are in no formula are a good part: losses, conversions."""

COMPILERS_OWN = frozenset(
    {
        # int64, which a TPU keeps as two int32: the counters of steps.
        *("X64SplitLow", "X64SplitHigh", "X64Combine"),
        # A copy to another layout, which v6e leaves to its SparseCore; this is the compiler's own name for it.
        "TODO(b/522284627)",
        *("AssumeGatherIndicesInBound", "ConcatBitcast", "SplitBitcast", "AllocateBuffer", "Sharding"),
    }
)
"""Custom calls by which the TPU's compiler marks what it has done itself; nothing outside the program runs for them."""

_HOST = re.compile(r"\b(infeed|outfeed|send|recv)\(|is_host_transfer=true")
_CUSTOM = re.compile(r'custom_call_target="([^"]*)"')
# Not set-dimension-size: TensorFlow gives dimensions the sizes that they have.
_DYNAMIC = re.compile(r"\w\[(?:[<=\d]+,)*<=\d|\bdynamic-reshape\(")


def program_faults(program: str, compiled: str, may_be_wide: bool = False) -> list[str]:
    """Returns what is wrong with a program, as it was given to the compiler and as that left it.

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
    """Returns which variables the compiled step does not update in their own memory.

    Args:
        changed: their names, in the order in which the step returns them.
        results: how many other results it returns before.
        aliases: by a result's number the parameter whose memory it has.
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
    """Returns which limits a compiled step is beyond.

    Args:
        needed: bytes of memory that it needs in all.
        temporary: bytes of that beside arguments and results.
        flops_ratio: operations over the model's own; None where these have no formula.
        max_ratio: how many there may be.
        lists: how many values each row has in lists, for which attention takes memory.
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
