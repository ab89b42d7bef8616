"""Roofline of a step on a TPU: its least possible time, the larger of the times for its operations and its bytes.

This is not a measurement. The TPU's compiler counts the operations of the program. The bytes are counted here, because
the compiler counts whole tables where a program touches some of their rows.
"""

from collections.abc import Mapping
from typing import Any

from accelerators.kinds import Built

PEAK_FLOPS = {"v5e": 197e12, "v6e": 918e12}
"""Published bfloat16 operations per second of a chip; Google publishes no rate for float32."""
BANDWIDTH = {"v5e": 819e9, "v6e": 1638e9}
"""Published bytes per second of a chip's memory."""
FLOAT = 4
_FORWARD_AND_BACKWARD = 5
"""Memory accesses per activation: it and its gradient are each written once, and read three times in total."""


def touched_bytes(built: Built) -> dict[str, float]:
    """Counts the bytes that a step reads and writes, for tables, dense weights and activations."""
    feed, state = built.feeds[0], built.state
    rows = len(feed.targets["label"])
    tables = 0.0
    for layout, plan in zip(state.layouts, feed.plans, strict=True):
        # A row and its sums are read and written; a row and its gradient are read or written for each id.
        ids = plan.single.size + plan.values.size
        tables += FLOAT * layout.columns * (4 * len(plan.distinct) + 2 * ids)
    dense = sum(FLOAT * int(weight.shape.num_elements()) for weight in state.dense)
    state_bytes = sum(
        variable.dtype.size * int(variable.shape.num_elements())
        for name, variable in state.dense_optimizer.variables.items()
        if not name.endswith(("/total", "/window"))
    )
    model = built.config.model
    width = sum(len(layout.features) * layout.features[0].width for layout in state.layouts)
    numbers = width * (1 + 2 * model.crosses.layers) + model.crosses.rank * model.crosses.layers
    numbers += 2 * sum(model.deep.units)
    size = 2 if built.config.compute_dtype == "bfloat16" else FLOAT
    return {
        "tables": tables,
        "dense": 3.0 * dense + 2.0 * state_bytes,
        "activations": float(_FORWARD_AND_BACKWARD * rows * numbers * size),
    }


def roofline(chip: str, flops: float, touched: Mapping[str, float], rows: int) -> dict[str, Any]:
    """Returns the least microseconds of a step, for its operations, and for its bytes without and with activations.

    At best activations never leave the chip; at worst all of them go through its memory. ``flops`` is the number of
    operations of the program, ``touched`` is from ``touched_bytes``, and ``rows`` is the number of rows of the batch.
    """
    computing, everything = flops / PEAK_FLOPS[chip], sum(touched.values()) / BANDWIDTH[chip]
    state = everything - touched["activations"] / BANDWIDTH[chip]
    return {
        "operations_us": 1e6 * computing,
        "state_us": 1e6 * state,
        "state_and_activations_us": 1e6 * everything,
        "examples_per_second_at_best": [rows / max(computing, everything), rows / max(computing, state)],
    }
