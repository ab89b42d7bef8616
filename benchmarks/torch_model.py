"""The reference model in PyTorch: one fused table with sparse gradients, linear weights beside the embeddings, AdaGrad.

``torch.compile`` compiles all but the table, whose gradient is sparse.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn


class Network(nn.Module):
    """Crosses of rank ``rank`` and deep layers of ``layers`` units: the model without its table."""

    def __init__(
        self, width: int, crosses: int = 3, rank: int = 64, layers: Sequence[int] = (1024, 512, 256)
    ) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(crosses))
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(crosses))
        self.deep = nn.ModuleList(nn.Linear(m, n) for m, n in pairwise((width, *layers)))
        self.head = nn.Linear(layers[-1], 1)
        for layer in self.deep:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Computes logits, float32 [B], from rows of the table [B, features, width + 1]."""
        width = rows.shape[2] - 1
        e0 = rows[:, :, :width].flatten(1).to(dtype)
        hidden = e0
        for down, up in zip(self.down, self.up, strict=True):
            hidden = e0 * up(down(hidden)) + hidden
        for layer in self.deep:
            hidden = torch.relu(layer(hidden))
        return self.head(hidden).squeeze(1).float() + rows[:, :, width].sum(1)


def make_step(
    size: dict[str, int], weights: dict[str, Any], dtype: torch.dtype, compiled: bool, device: str
) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Returns a function from ids [B, F], rows of the table, to logits [B], and a training step returning the loss."""
    torch.manual_seed(0)
    rows = nn.Embedding(size["features"] * size["buckets"], size["width"] + 1, sparse=True, device=device)
    nn.init.normal_(rows.weight, std=0.05)
    network = Network(size["features"] * size["width"], **weights).to(device)
    dense: Any = torch.compile(network) if compiled else network
    settings: dict[str, Any] = {"lr": 0.02, "initial_accumulator_value": 1e-6}
    optimizers = [
        torch.optim.Adagrad(rows.parameters(), **settings),
        torch.optim.Adagrad(network.parameters(), fused=device == "cpu", **settings),
    ]
    loss_of = nn.BCEWithLogitsLoss()

    def forward(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return dense(rows(ids), dtype)

    def step(ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        loss = loss_of(forward(ids), label)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return forward, step


def compare(
    program: dict[str, Any], examples: Sequence[tuple[np.ndarray, np.ndarray]], rate: float, seconds: float
) -> None:
    """Prints PyTorch's examples per second, eager and compiled, beside this program's ``rate`` for the same model."""
    size, name = program["size"], f"PyTorch {program['dtype']}, batch {program['size']['batch']}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    offsets = np.arange(size["features"]) * size["buckets"]
    feeds = [
        (torch.from_numpy(ids + offsets).to(device), torch.from_numpy(label).to(device))
        for ids, label in examples
    ]
    for compiled in (False, True):
        arm = f"{name}, {'compiled' if compiled else 'eager'}"
        try:
            _, step = make_step(size, program["network"], getattr(torch, program["dtype"]), compiled, device)
            losses = [float(step(*feeds[number % 2])) for number in range(4)]
            times, begun = [], time.perf_counter()
            while not times or time.perf_counter() - begun < seconds:
                last = time.perf_counter()
                for number in range(10):
                    loss = step(*feeds[number % 2])
                losses.append(float(loss))
                times.append((time.perf_counter() - last) / 10)
        except Exception as error:  # no compiler or too little memory, whatever the type of the error
            print(f"{arm}: {str(error).partition(chr(10))[0]}", flush=True)
            continue
        torch_rate = size["batch"] / float(np.median(times))
        print(
            f"{arm}, torch {torch.__version__} on {device}: {torch_rate:,.0f} examples/s, loss {losses[0]:.4f} "
            f"to {losses[-1]:.4f}; this program is {rate / torch_rate:.2f} times as fast",
            flush=True,
        )
