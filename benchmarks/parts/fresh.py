"""Creates the model in a fresh process and trains it on its first batches; measures seconds and memory of each phase.

python parts/fresh.py SIZE      with SIZE as JSON
"""

import json
import sys
import time
from typing import Any

from processes import give
from reference import ADAGRAD, Size, reference_batches, reference_config, reference_schema
from runner import resident_bytes

STEPS = 8


def main() -> dict[str, float]:
    size = Size(**json.loads(sys.argv[1]))
    begun = time.perf_counter()
    from ctr.config import parse_model
    from ctr.training.compiled_step import CompiledStep
    from ctr.training.config import TrainConfig
    from ctr.training.device import make_deterministic, resolve_compute_dtype
    from ctr.training.feed import make_feed
    from ctr.training.run.checkpoint import Copies
    from ctr.training.state import TrainState

    measured: dict[str, Any] = {"import_seconds": time.perf_counter() - begun}
    config = parse_model(TrainConfig, reference_config(ADAGRAD, size.batch), "benchmark")
    make_deterministic(config.seed)
    measured["libraries"] = resident_bytes()
    begun = time.perf_counter()
    layouts = config.table_layouts(reference_schema(size))
    state = TrainState(layouts, config, resolve_compute_dtype(config.compute_dtype))
    measured["state_seconds"] = time.perf_counter() - begun
    measured["with_state"] = resident_bytes()
    feeds = [make_feed(batch, layouts, size.batch) for batch in reference_batches(size)]
    begun = time.perf_counter()
    learn = CompiledStep(state, config, jit=False).learn
    numbers = config.ramps_at(0), config.rates_at(0)
    learn(feeds[0], *numbers)
    measured["first_step_seconds"] = time.perf_counter() - begun
    for number in range(STEPS):
        learn(feeds[number % len(feeds)], *numbers)
    measured["after_steps"] = resident_bytes()
    copied = Copies().copy(state.layout(), state.pieces(), {})
    measured["after_checkpoint_copy"] = resident_bytes()
    for name, array in copied.items():
        kind = name.split("/")[0]
        measured[f"bytes_{kind}"] = measured.get(f"bytes_{kind}", 0) + array.nbytes
    measured["bytes_checkpoint_copy"] = sum(array.nbytes for array in copied.values())
    return measured


if __name__ == "__main__":
    give(main())
