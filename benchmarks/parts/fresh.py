"""A fresh process that makes the model and learns its first batches: seconds to there, and memory on the way.

It prints them as JSON. ``parts.start`` and ``parts.memory`` show them.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from reference import ADAGRAD, Size, reference_batches, reference_config, reference_schema

STEPS = 8


@cache
def fresh_process(size: Size) -> dict[str, float]:
    """What it prints."""
    folder = Path(__file__).parent.parent
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "parts.fresh", json.dumps(asdict(size))]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a fresh process ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def resident() -> float:
    """Bytes of this process that are in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024.0 * int(fields["VmRSS"].split()[0])


def main() -> None:
    size = Size(**json.loads(sys.argv[1]))
    begun = time.perf_counter()
    from ctr.config import parse_model
    from ctr.training.compiled_step import TrainStep
    from ctr.training.config import TrainConfig
    from ctr.training.device import make_deterministic, resolve_compute_dtype
    from ctr.training.feed import make_feed
    from ctr.training.run.checkpoint import Copies
    from ctr.training.state import TrainState

    found: dict[str, Any] = {"import_seconds": time.perf_counter() - begun}
    config = parse_model(TrainConfig, reference_config(ADAGRAD, size.batch), "benchmark")
    make_deterministic(config.seed)
    found["libraries"] = resident()
    begun = time.perf_counter()
    layouts = config.table_layouts(reference_schema(size))
    state = TrainState(layouts, config, resolve_compute_dtype(config))
    found["state_seconds"] = time.perf_counter() - begun
    found["with_state"] = resident()
    feeds = [make_feed(batch, layouts, size.batch) for batch in reference_batches(size)]
    begun = time.perf_counter()
    learn = TrainStep(state, config, jit=False).learn
    numbers = config.ramps_at(0), config.rates_at(0)
    learn(feeds[0], *numbers).logit.numpy()
    found["first_step_seconds"] = time.perf_counter() - begun
    for number in range(STEPS):
        learn(feeds[number % len(feeds)], *numbers).logit.numpy()
    found["after_steps"] = resident()
    copied = Copies().copy(state.layout(), state.pieces(), {})
    found["after_checkpoint_copy"] = resident()
    for name, array in copied.items():
        kind = name.split("/")[0]
        found[f"bytes_{kind}"] = found.get(f"bytes_{kind}", 0) + array.nbytes
    found["bytes_checkpoint_copy"] = sum(array.nbytes for array in copied.values())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
