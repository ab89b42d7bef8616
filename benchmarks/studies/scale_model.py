"""Models analytically how training scales: the time of one step of the reference model on 1 to 1024 workers.

The time of a worker's step is the sum of its parts. Only reading overlaps with others, so this is an upper bound:

    compute      fixed + examples x flops / rate; the fixed part does not shrink with the batch; both are measured
    shampoo      the largest share of any owner, by the costs and the balance of ctr/optim/shampoo/placement.py
    dense        all gradients of the dense weights, float32, all-reduced
    rows         two all-to-alls: rows from their owners, and the gradients of rows back
    directions   the preconditioned directions, gathered from their owners (roots stay with them)
    reading      the wait for prefetching: every worker reads all rows and finds the distinct ids of whole
                 batches; one thread does that, as fast as `study.py workers_reading --growing no` measured

A message of n bytes takes alpha + n beta (Hockney). For W workers and n bytes (Thakur, Rabenseifner, Gropp 2005):

                 ring: as TensorFlow's collectives    tree: as MPI, and NCCL for short messages
    all-reduce   2 (W-1) alpha + 2 (W-1)/W n beta     2 log2(W) alpha + 2 (W-1)/W n beta
    all-gather   (W-1) alpha + (W-1)/W n beta         log2(W) alpha + (W-1)/W n beta
    all-to-all   (W-1) alpha + (W-1)/W n beta         log2(W) alpha + n/2 log2(W) beta, where that is less

n is the size of the reduced array, of the gathered one, or of one worker's data for all. Distinct rows are their
expected number in the draws of a batch from the ids of benchmarks/reference.py. The model ignores that workers wait for
the slowest, that parts of an exchange (except directions) are padded to equal sizes, and that a network may not give
all pairs their full rate at once.

With --group G (PT 4.1.2), groups of G workers divide all blocks among themselves and gather among themselves, and all
groups do the same work.

    python benchmarks/study.py scale_model [--group 16] [--collectives tree] [--plot docs/images/scale.svg]
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from reference import REFERENCE, ZIPF, Size, dense_shapes
from runner import main
from scipy.special import zeta

from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.placement import block_cost, owners_of

FLOAT = 4
"""Bytes of a float32."""
WORKERS = tuple(2**power for power in range(11))
BATCH = REFERENCE.batch
PARTS = ("compute", "shampoo", "dense", "rows", "directions", "reading")


@dataclass(frozen=True)
class Network:
    """A network between workers.

    Attributes:
        alpha: seconds until the first byte of a message arrives.
        beta: seconds per byte.
        collectives: ``ring`` or ``tree``.
    """

    name: str
    alpha: float
    beta: float
    collectives: str


# 94% of the line is payload: of the 1538 bytes of a full Ethernet frame, 1448 (IP, TCP with timestamps). The alphas are
# orders of magnitude: TCP through the kernel between machines of one zone, the same with kernel bypass, and a hop
# between chips. TPU v5e: 400 GB/s per chip in both directions together (Google's specification). The last one is
# measured: two processes of TensorFlow 2.21 over loopback, one thread each, on two cores that others used, too. It has
# no wire: it is the overhead of the runtime itself, on top of any network.
NETWORKS = (
    Network("10 Gbit Ethernet", 50e-6, 8 / 10e9 / 0.94, "ring"),
    Network("100 Gbit Ethernet", 10e-6, 8 / 100e9 / 0.94, "ring"),
    Network("TPU v5e interconnect", 1e-6, 1 / 200e9, "tree"),
    Network("gRPC as measured", 500e-6, 3e-9, "ring"),
)


@dataclass(frozen=True)
class Compute:
    """Speed of a worker.

    Attributes:
        fixed: seconds of a step that do not depend on its batch.
        rate: flops per second in the rest of the step.
        cores: number of cores that share Shampoo's work.
        group: number of workers that divide the blocks among themselves; None: all.
        read: seconds to read a row of the log.
        plan: seconds to plan a row.
    """

    fixed: float
    rate: float
    cores: int
    group: int | None = None
    read: float = 0.0
    plan: float = 0.0


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of a step."""

    compute: float
    shampoo: float
    dense: float
    rows: float
    directions: float
    reading: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(asdict(self).values())

    @property
    def communication(self) -> float:
        return self.dense + self.rows + self.directions


def flops_per_example(shapes: Sequence[tuple[int, ...]]) -> int:
    """Counts the flops of all products: one forward, two backward, each 2 operations for every weight."""
    return 6 * sum(math.prod(shape) for shape in shapes if len(shape) == 2)


def distinct(draws: float, size: Size = REFERENCE) -> float:
    """Computes the expected number of distinct rows, over all features, in ``draws`` examples.

    An id k has the probability that a Zipf variable is k + 1 modulo the buckets, as ``reference.zipf_ids`` draws it.
    """
    return size.features * _distinct_of_one(draws, size.buckets)


@cache
def _distinct_of_one(draws: float, buckets: int) -> float:
    ids = np.arange(buckets) + 1.0
    probability = buckets**-ZIPF * zeta(ZIPF, ids / buckets) / zeta(ZIPF)
    return float(-np.expm1(draws * np.log1p(-probability)).sum())


def all_reduce(network: Network, workers: int, n: float) -> float:
    """Returns the seconds to sum arrays of n bytes over all workers."""
    messages = 2 * (workers - 1) if network.collectives == "ring" else 2 * math.log2(workers)
    return messages * network.alpha + 2 * (workers - 1) / workers * n * network.beta


def all_gather(network: Network, workers: int, n: float) -> float:
    """Returns the seconds until all workers have n bytes, of which each had an equal part."""
    messages = workers - 1 if network.collectives == "ring" else math.log2(workers)
    return messages * network.alpha + (workers - 1) / workers * n * network.beta


def all_to_all(network: Network, workers: int, n: float) -> float:
    """Returns the seconds to exchange the n bytes that each worker has, in equal parts for all."""
    pairwise = (workers - 1) * network.alpha + (workers - 1) / workers * n * network.beta
    if network.collectives == "ring":
        return pairwise
    return min(pairwise, math.log2(workers) * (network.alpha + n / 2 * network.beta))


@cache
def shampoo_shares(workers: int) -> tuple[float, int]:
    """Returns the core seconds per step of the most loaded owner, and the bytes of the gathered directions' buffer."""
    options, loads = ShampooOptions(), np.zeros([2, workers])
    layout = lay_out(options, dense_shapes())
    blocks = [stack for stack in layout.stacks for _ in stack.members]
    for stack, owner in zip(blocks, owners_of(layout, options, workers), strict=True):
        loads[:, owner] += block_cost(stack.block, stack.axes, options), math.prod(stack.block)
    # All directions are gathered in one buffer: W times the elements of the largest sender.
    return float(loads[0].max()), FLOAT * workers * int(loads[1].max())


def step(network: Network, compute: Compute, workers: int, batch: float) -> Step:
    """Models a step of ``workers`` workers with ``batch`` examples each."""
    shapes = dense_shapes()
    rows = distinct(batch)
    group = min(workers, compute.group or workers)
    work, gathered = shampoo_shares(group)
    # With a linear weight each.
    row_bytes = FLOAT * (REFERENCE.width + 1) * rows
    parts = Step(
        compute=compute.fixed + batch * flops_per_example(shapes) / compute.rate,
        shampoo=work / compute.cores,
        dense=all_reduce(network, workers, FLOAT * sum(map(math.prod, shapes))),
        rows=2 * all_to_all(network, workers, row_bytes),
        directions=all_gather(network, group, gathered),
    )
    ahead = workers * batch * (compute.read + compute.plan)
    return replace(parts, reading=max(0.0, ahead - parts.seconds))


def curve(network: Network, compute: Compute, batch: int, fixed_global: bool) -> list[Step]:
    """Models steps for all numbers of workers, with ``batch`` examples for each worker, or for all together."""
    return [
        step(network, compute, workers, batch / workers if fixed_global else batch) for workers in WORKERS
    ]


def speeds(steps: Sequence[Step], batch: int, fixed_global: bool) -> list[float]:
    """Returns the examples per second for each number of workers."""
    return [
        (batch if fixed_global else batch * workers) / timing.seconds
        for workers, timing in zip(WORKERS, steps, strict=True)
    ]


def stop(steps: Sequence[Step], batch: int, fixed_global: bool) -> tuple[int, str]:
    """Returns the largest useful number of workers, and the part of the step that limits it.

    With a fixed global batch, this number has the most examples per second. With a fixed batch for each worker, it is
    the largest at which each worker has at least half the speed of a single one. The limiting part is the one that,
    with twice as many workers, exceeds linear scaling by most.
    """
    rates = speeds(steps, batch, fixed_global)
    if fixed_global:
        index = int(np.argmax(rates))
    else:
        useful = [speed / workers >= rates[0] / 2 for speed, workers in zip(rates, WORKERS, strict=True)]
        index = useful.index(False) - 1 if False in useful else len(WORKERS) - 1
    after = min(index + 1, len(WORKERS) - 1)
    alone, divisor = asdict(steps[0]), WORKERS[after] if fixed_global else 1
    excess = {part: seconds - alone[part] / divisor for part, seconds in asdict(steps[after]).items()}
    return WORKERS[index], max(excess, key=excess.__getitem__)


def _where(fixed_global: bool) -> str:
    return "in all" if fixed_global else "for each worker"


def report(network: Network, compute: Compute, batch: int, fixed_global: bool) -> dict[str, Any]:
    """Returns a row for each number of workers, and where scaling stops."""
    steps = curve(network, compute, batch, fixed_global)
    rates = speeds(steps, batch, fixed_global)
    rows = {
        str(workers): {
            **{f"{part}_ms": 1e3 * seconds for part, seconds in asdict(timing).items()},
            "step_ms": 1e3 * timing.seconds,
            "communication": timing.communication / timing.seconds,
            "examples_per_second": speed,
            "efficiency": speed / rates[0] / workers,
        }
        for workers, timing, speed in zip(WORKERS, steps, rates, strict=True)
    }
    workers, part = stop(steps, batch, fixed_global)
    return {
        "workers": rows,
        "stops_at": "nowhere" if workers == WORKERS[-1] else f"{workers} workers: {part}",
    }


def draw(compute: Compute, batch: int, global_batch: int, networks: Sequence[Network], path: Path) -> None:
    """Draws examples per second on all networks, and a step's parts on the first one, as SVG."""
    settings = {"svg.hashsalt": "scale", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(10, 7.5), layout="constrained")
        axes = figure.subplots(2, 2)
        for column, (size, fixed_global) in enumerate([(batch, False), (global_batch, True)]):
            upper, lower = axes[:, column]
            for network in networks:
                steps = curve(network, compute, size, fixed_global)
                rates = speeds(steps, size, fixed_global)
                (line,) = upper.plot(WORKERS, rates, label=network.name)
                workers, _ = stop(steps, size, fixed_global)
                upper.plot(workers, rates[WORKERS.index(workers)], "o", color=line.get_color())
            upper.plot(WORKERS, [rates[0] * w for w in WORKERS], ":", color="gray", label="linear")
            where = _where(fixed_global)
            upper.set(xscale="log", yscale="log", ylabel="examples/s", title=f"{size:,} examples {where}")
            upper.set_ylim(top=rates[0] * WORKERS[-1] * 2)
            steps = curve(networks[0], compute, size, fixed_global)
            values = np.array([list(asdict(timing).values()) for timing in steps]).T * 1e3
            lower.stackplot(WORKERS, values, labels=PARTS)
            lower.set(xscale="log", xlabel="workers", ylabel="ms", title=f"a step on {networks[0].name}")
        axes[0, 0].legend()
        axes[1, 0].legend(loc="upper left")
        for panel in axes.flat:
            panel.set_xscale("log", base=2)
            panel.set_xlim(1, WORKERS[-1])
        figure.savefig(path, format="svg", metadata={"Date": None})


def measure(
    step_ms: float = 58.6,
    fixed_ms: float = 9.8,
    cores: int = 2,
    read_us: float = 0.29,
    plan_us: float = 1.54,
    batch: int = BATCH,
    global_batch: int = 4 * BATCH,
    group: int | None = None,
    collectives: str = "",
    plot: Path | None = None,
) -> dict[str, Any]:
    """Returns tables of all networks, with a fixed batch for each worker and for all together.

    Args:
        step_ms: milliseconds of a measured step of ``BATCH`` examples.
        fixed_ms: the part of these that does not shrink with the batch.
        cores: number of cores of a worker, for Shampoo's work.
        read_us: microseconds to read a row of the log.
        plan_us: microseconds to plan a row.
        batch: examples for each worker.
        global_batch: examples for all workers together.
        group: number of workers that divide Shampoo's blocks; by default all.
        collectives: ``ring`` or ``tree`` on all networks; by default each network's own.
        plot: an SVG file to write.
    """
    fixed = fixed_ms / 1e3
    rate = BATCH * flops_per_example(dense_shapes()) / (step_ms / 1e3 - fixed)
    compute = Compute(fixed, rate, cores, group, read_us / 1e6, plan_us / 1e6)
    networks = [replace(network, collectives=collectives or network.collectives) for network in NETWORKS]
    if plot is not None:
        draw(compute, batch, global_batch, networks, plot)
    sizes = [(batch, False), (global_batch, True)]
    return {
        f"{network.name}, {size} examples {_where(fixed_global)}": report(
            network, compute, size, fixed_global
        )
        for network in networks
        for size, fixed_global in sizes
    }


if __name__ == "__main__":
    main(measure, {})
