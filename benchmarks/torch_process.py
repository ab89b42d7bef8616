"""The reference model in PyTorch, in float32 and under bfloat16 autocast: for ``framework_processes``."""

import time
from dataclasses import asdict

import numpy as np
import torch
from framework_processes import Turn, serve
from reference import Size, reference_examples
from torch_model import make_step


def make_turn(size: Size, dtype: torch.dtype, compiled: bool) -> Turn:
    forward, step = make_step(asdict(size), {}, dtype, compiled, "cpu")
    offsets = np.arange(size.features, dtype=np.int32) * size.buckets
    data = [
        (torch.from_numpy(ids + offsets), torch.from_numpy(label)) for ids, label in reference_examples(size)
    ]
    # Raises an error here if the model cannot be compiled.
    forward(data[0][0])

    def turn() -> tuple[float, list[float]]:
        begun = time.perf_counter()
        losses = [step(ids, label).item() for ids, label in data]
        return (time.perf_counter() - begun) / size.feeds, losses

    return turn


def make(size: Size, compiled: bool) -> dict[str, Turn]:
    turns = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        turns[f"PyTorch {name}"] = make_turn(size, dtype, compiled=False)
        if compiled:
            try:
                turns[f"PyTorch {name}, compiled"] = make_turn(size, dtype, compiled=True)
            except Exception as error:  # the compiler is missing or broken, whatever the type of the error
                print(f"torch.compile: {error}")
    return turns


if __name__ == "__main__":
    serve(make)
