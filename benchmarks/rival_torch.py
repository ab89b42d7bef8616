"""The reference model in PyTorch, in float32 and under bfloat16 autocast: a rival of ``rivals``.

One fused table with sparse gradients, linear weights beside the embeddings, tensors in memory, AdaGrad, whose dense
part is the fused one. Compiled is what ``torch.compile`` takes: all but the table, whose gradient is sparse.
"""

import time
from typing import Any

import numpy as np
import torch
from accelerators.torch_model import Network
from reference import INITIAL_ACCUMULATOR, RATE, SCALE, Size, reference_examples
from rivals import Turn, serve
from torch import nn


def make_turn(size: Size, dtype: torch.dtype, compiled: bool) -> Turn:
    torch.manual_seed(0)
    rows = nn.Embedding(size.features * size.buckets, size.width + 1, sparse=True)
    nn.init.normal_(rows.weight, std=SCALE)
    network = Network(size.features * size.width)
    dense: Any = torch.compile(network) if compiled else network
    settings: dict[str, Any] = {"lr": RATE, "initial_accumulator_value": INITIAL_ACCUMULATOR}
    optimizers = [
        torch.optim.Adagrad(rows.parameters(), **settings),
        torch.optim.Adagrad(network.parameters(), fused=True, **settings),
    ]
    loss_of = nn.BCEWithLogitsLoss()
    offsets = np.arange(size.features, dtype=np.int32) * size.buckets
    data = [
        (torch.from_numpy(ids + offsets), torch.from_numpy(label)) for ids, label in reference_examples(size)
    ]

    def forward(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return dense(rows(ids), dtype)

    # Where it cannot be compiled, this says so.
    forward(data[0][0])

    def turn() -> tuple[float, list[float]]:
        losses = []
        begun = time.perf_counter()
        for ids, label in data:
            loss = loss_of(forward(ids), label)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        return (time.perf_counter() - begun) / size.feeds, losses

    return turn


def make(size: Size, compiled: bool) -> dict[str, Turn]:
    turns = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        turns[f"PyTorch {name}"] = make_turn(size, dtype, compiled=False)
        if compiled:
            try:
                turns[f"PyTorch {name}, compiled"] = make_turn(size, dtype, compiled=True)
            except Exception as error:  # of a compiler that is not there or does not work, whatever its kind
                print(f"torch.compile: {error}")
    return turns


if __name__ == "__main__":
    serve(make)
