"""State of Shampoo: plain variables under names that do not depend on the process, and reports on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo import grafting
from ctr.optim.shampoo.blocks import Shape, Stack, TensorLayout, lay_out_tensor, make_stacks
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.triangles import packed_size

# For every statistics matrix: whether its root is certified and from real statistics; whether its statistics
# were sent at the last exchange and the root is still out; by how much they changed since those of the root
# (sum of Frobenius norms); condition and residual of the root; the step of its statistics.
STATUS = ("certified", "sent", "drift", "condition", "residual", "root_step")

# Roots computed; not computed because the drift was small; refused or failed; lost with a worker; steps that
# were skipped for a gradient that is not finite; directions beyond the working precision, of which the grafted
# one was taken; and by whom the roots were computed.
COUNTERS = (
    "refreshed",
    "skipped",
    "failed",
    "lost",
    "nonfinite_steps",
    "overflowed",
    "eigh",
    "coupled_warm",
    "coupled_cold",
    "device",
)

# The state of each stack of blocks: in the eigenbases second moments and averages of gradients, and, by axis, diagonal
# statistics.
MOMENT, AVERAGE, DIAGONAL = "moment", "average", "diagonal"

Create = Callable[[str, Sequence[int], tf.DType, float], tf.Variable]


@dataclass(frozen=True)
class Factor:
    """Statistics matrices [N, d, d] of one axis of one stack (or of the right sides of some tables), rooted by A^(-e).

    ``owners`` are for each matrix the index of its tensor; ``offset`` that of its first matrix among those of all
    factors; ``numbers`` those of its matrices in the factor, where this has only some of them, else empty. With
    ``basis`` the "roots" are eigenbases (eigenbasis.py). Of those that several workers keep, all but one ``is_copy``:
    their roots are computed too, and not counted.
    """

    name: str
    count: int
    size: int
    exponent: float
    owners: tuple[int, ...]
    offset: int
    numbers: tuple[int, ...] = ()
    basis: bool = False
    is_copy: bool = False

    @property
    def matrices(self) -> slice:
        """Places of its matrices among those of all factors."""
        return slice(self.offset, self.offset + self.count)


@dataclass(frozen=True)
class ShampooLayout:
    """Preconditioning of tensors, decided by shapes and options alone; ``tables`` learn by rows.

    ``stack_factors`` are for each stack the indices of its factors, one for each preconditioned axis;
    ``table_factors``, for tables with one-sided Shampoo, the index of the factor and the place in it.
    """

    tensors: tuple[TensorLayout, ...]
    tables: tuple[int, ...]
    stacks: tuple[Stack, ...]
    stack_factors: tuple[tuple[int, ...], ...]
    table_factors: dict[int, tuple[int, int]]
    factors: tuple[Factor, ...]

    @property
    def matrices(self) -> int:
        return sum(factor.count for factor in self.factors)

    @property
    def owners(self) -> np.ndarray:
        """For each matrix the index of its tensor, int32."""
        return np.array([owner for factor in self.factors for owner in factor.owners], np.int32)


def lay_out(
    options: ShampooOptions, shapes: Sequence[Sequence[int]], tables: Sequence[int] = ()
) -> ShampooLayout:
    """Returns the layout for tensors of these shapes, of which ``tables`` learn by rows.

    Raises:
        ValueError: a table is no matrix.
    """
    nothing = {"axes": (), "parts": ()}
    tensors = []
    for index, shape in enumerate(shapes):
        plain = tuple(int(size) for size in shape)
        if index in tables and len(plain) != 2:
            raise ValueError(
                f"tensor {index} of shape {list(plain)} cannot be a table of rows; allowed: matrices"
            )
        table = TensorLayout(plain, plain, **nothing)
        tensors.append(table if index in tables else lay_out_tensor(plain, options))
    stacks = make_stacks(tensors)
    factors: list[Factor] = []

    def add(name: str, size: int, exponent: float, owners: Sequence[int], basis: bool = False) -> int:
        offset = factors[-1].matrices.stop if factors else 0
        factors.append(Factor(name, len(owners), size, exponent, tuple(owners), offset, basis=basis))
        return len(factors) - 1

    stack_factors = []
    for number, stack in enumerate(stacks):
        preconditioned, order = len(stack.axes) + len(stack.diagonal), len(stack.block)
        stack_factors.append(
            tuple(
                add(
                    f"stack{number}/axis{axis}",
                    stack.block[axis],
                    options.side_exponent(axis, preconditioned, order),
                    stack.owners,
                    options.eigenvalue_correction,
                )
                for axis in stack.axes
            )
        )
    table_factors: dict[int, tuple[int, int]] = {}
    if options.sparse == "one_sided" and options.start_preconditioning_step is not None:
        widths: dict[int, list[int]] = {}
        for index in tables:
            width = tensors[index].shape[1]
            if 1 < width <= options.max_dimension:
                widths.setdefault(width, []).append(index)
        for width, owners in widths.items():
            factor = add(f"tables{width}", width, options.exponent(1), owners)
            table_factors |= {owner: (factor, place) for place, owner in enumerate(owners)}
    return ShampooLayout(
        tuple(tensors), tuple(tables), stacks, tuple(stack_factors), table_factors, tuple(factors)
    )


def create_variable(name: str, shape: Sequence[int], dtype: tf.DType, value: float) -> tf.Variable:
    """Creates a plain variable filled with a value."""
    return tf.Variable(tf.fill(list(shape), tf.constant(value, dtype)), trainable=False, name=name)


class ShampooState:
    """Variables of an optimizer over some tensors, in float64 where a tensor has it, else in float32.

    ``shapes`` are those of the element-wise state of each tensor, and ``matrices`` the number M that have a status,
    where they are not those of the layout.

    Attributes:
        exchanged_at: int64, the step of the last exchange with the solver of roots; -1: none yet.
        collections, window_collections: int64, how often statistics were collected, and how often since that
            exchange.
        missed: int64 [2, tensors], in how many of them each tensor had no gradient (below 0: its windows were not
            folded when those of others were). None with summed statistics, which no collection decays.
        windows, totals: for each factor [N, d (d + 1) / 2], packed (triangles.py); totals in float64.
        roots: for each factor [N, d, d].
        status, counters: [len(STATUS), M] and int64 [len(COUNTERS)].
        accumulators: for each tensor its grafted optimizer's second moments; None for ``sgd``.
        gradient_averages, momenta: of tensors that are no tables; no gradient averages of those in ``averages``.
        graft_momenta: with separate momenta, those of the grafted steps of tensors with a preconditioner.
        moments: with eigenvalue correction, for each stack [N, *block].
        averages: with ``options.averages_in_bases``, for each stack those of gradients in the bases, [N, *block].
        diagonals: for each stack by axis the sums of squares [N, d], where dimensions have diagonals.
    """

    def __init__(
        self,
        options: ShampooOptions,
        layout: ShampooLayout,
        dtypes: Sequence[tf.DType],
        create: Create = create_variable,
        shapes: Sequence[Shape] | None = None,
        matrices: int | None = None,
    ) -> None:
        self.dtype = tf.float64 if tf.float64 in dtypes else tf.float32
        self.variables: dict[str, tf.Variable] = {}

        def make(
            name: str, shape: Sequence[int], dtype: tf.DType | None = None, value: float = 0
        ) -> tf.Variable:
            self.variables[name] = create(name, shape, self.dtype if dtype is None else dtype, value)
            return self.variables[name]

        self.step = make("step", [], tf.int64)
        self.exchanged_at = make("exchanged_at", [], tf.int64, -1)
        self.collections = make("collections", [], tf.int64)
        self.window_collections = make("window_collections", [], tf.int64)
        decays = options.beta2 < 1.0
        self.missed = make("missed", [2, len(layout.tensors)], tf.int64) if decays else None
        self.status = make("status", [len(STATUS), layout.matrices if matrices is None else matrices])
        self.counters = make("counters", [len(COUNTERS)], tf.int64)
        self.windows, self.totals, self.roots = [], [], []
        for factor in layout.factors:
            cube = [factor.count, factor.size, factor.size]
            packed = [factor.count, packed_size(factor.size)]
            self.windows.append(make(f"{factor.name}/window", packed))
            self.totals.append(make(f"{factor.name}/total", packed, tf.float64))
            self.roots.append(make(f"{factor.name}/root", cube))
        self.moments: list[tf.Variable] = []
        self.averages: list[tf.Variable] = []
        self.diagonals: list[dict[int, tf.Variable]] = []
        for number, stack in enumerate(layout.stacks):
            whole = [stack.blocks, *stack.block]
            if options.eigenvalue_correction:
                self.moments.append(make(f"stack{number}/{MOMENT}", whole))
            if options.averages_in_bases:
                self.averages.append(make(f"stack{number}/{AVERAGE}", whole))
            sizes = {axis: [stack.blocks, stack.block[axis]] for axis in stack.diagonal}
            self.diagonals.append(
                {axis: make(f"stack{number}/{DIAGONAL}{axis}", size) for axis, size in sizes.items()}
            )
        self.accumulators: list[tf.Variable | None] = []
        self.gradient_averages: dict[int, tf.Variable] = {}
        self.momenta: dict[int, tf.Variable] = {}
        self.graft_momenta: dict[int, tf.Variable] = {}
        for index, tensor in enumerate(layout.tensors):
            shape = tensor.shape if shapes is None else shapes[index]
            if index in layout.tables:
                sums = [shape[0], 1 if options.sparse == "adagrad_row" else shape[1]]
                initial = options.initial_accumulator
                self.accumulators.append(make(f"tensor{index}/accumulator", sums, value=initial))
                continue
            initial = grafting.initial_accumulator(options)
            self.accumulators.append(
                make(f"tensor{index}/accumulator", shape, value=initial)
                if grafting.has_accumulator(options)
                else None
            )
            if options.beta1 and not (options.averages_in_bases and tensor.is_preconditioned):
                self.gradient_averages[index] = make(f"tensor{index}/gradient_average", shape)
            if options.momentum:
                self.momenta[index] = make(f"tensor{index}/momentum", shape)
            if options.separate_momenta and tensor.is_preconditioned:
                self.graft_momenta[index] = make(f"tensor{index}/graft_momentum", shape)


def report(layout: ShampooLayout, state: ShampooState) -> dict[str, float | int]:
    """Returns layers, those that use Shampoo already, ``COUNTERS``, staleness in steps and the largest residual."""
    status = dict(zip(STATUS, state.status.numpy(), strict=True))
    in_use = status["certified"] > 0
    staleness = int(state.step.numpy()) - status["root_step"][in_use]
    owners = layout.owners
    preconditioned = set(owners.tolist())
    return {
        "layers": len(preconditioned),
        "layers_ready": len(preconditioned - set(owners[~in_use].tolist())),
        **{name: int(count) for name, count in zip(COUNTERS, state.counters.numpy(), strict=True)},
        "staleness_max": int(staleness.max(initial=0)),
        "staleness_mean": float(staleness.mean()) if len(staleness) else 0.0,
        "residual_max": float(status["residual"][in_use].max(initial=0)),
    }


def describe(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, names: Sequence[str]
) -> str:
    """Returns a table: the treatment of each tensor, and its cost in memory and multiplications (PSO table 2).

    Memory is that of the optimizer's variables. Multiplications are those of one step, statistics divided by their
    frequency, without some 10 d^3 for the root of every d x d matrix of an exchange.
    """
    rows: list[tuple[str, ...]] = [
        ("tensor", "shape", "treatment", "statistics", "roots", "first-order", "Mflop/step")
    ]
    item = state.dtype.size
    statistics = np.zeros(len(layout.tensors))
    roots = np.zeros(len(layout.tensors))
    flops = np.zeros(len(layout.tensors))
    for factor in layout.factors:
        for owner in factor.owners:
            statistics[owner] += packed_size(factor.size) * (item + 8)
            roots[owner] += factor.size**2 * item
    for stack in layout.stacks:
        elements = float(np.prod(stack.block))
        for owner in stack.owners:
            for axis in stack.axes:
                collected = (2 if options.is_kl else 1) / options.statistics_frequency
                flops[owner] += 2 * elements * stack.block[axis] * (options.passes + collected)
            for axis in stack.diagonal:
                statistics[owner] += item * stack.block[axis]
    first = np.zeros(len(layout.tensors))
    for kept in (state.moments, state.averages):
        for stack, _ in zip(layout.stacks, kept, strict=False):
            for owner in stack.owners:
                first[owner] += item * float(np.prod(stack.block))
    for index, accumulator in enumerate(state.accumulators):
        held = [accumulator]
        held += [found.get(index) for found in (state.gradient_averages, state.momenta, state.graft_momenta)]
        for variable in held:
            if variable is not None:
                # On several workers, of which each has a part, as on one.
                shape = variable.shape if index in layout.tables else layout.tensors[index].shape
                first[index] += item * float(np.prod(shape))
    for index, (name, tensor) in enumerate(zip(names, layout.tensors, strict=True)):
        rows.append(
            (
                name,
                "x".join(map(str, tensor.shape)) or "scalar",
                _treatment(options, layout, index),
                _bytes(statistics[index]),
                _bytes(roots[index]),
                _bytes(first[index]),
                f"{flops[index] / 1e6:.1f}" if flops[index] else "-",
            )
        )
    totals = [_bytes(float(column.sum())) for column in (statistics, roots, first)]
    rows.append(("total", "", "", *totals, f"{flops.sum() / 1e6:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _treatment(options: ShampooOptions, layout: ShampooLayout, index: int) -> str:
    tensor = layout.tensors[index]
    if index in layout.tables:
        by = "per row" if options.sparse == "adagrad_row" else "per element"
        if index in layout.table_factors:
            return f"rows: right side, exponent -{options.exponent(1):g}; AdaGrad's step"
        return f"rows: AdaGrad, one sum {by}"
    if not tensor.is_preconditioned:
        return options.grafting
    blocks = sum(region.blocks for region in tensor.regions)
    largest = max(tensor.regions, key=lambda region: region.block).block
    order, preconditioned = len(tensor.merged), len(tensor.axes) + len(tensor.diagonal)
    exponents = {
        axis: options.side_exponent(axis, preconditioned, order) for axis in (*tensor.axes, *tensor.diagonal)
    }
    sides = (
        "" if len(tensor.axes) == order or not tensor.axes else f" along {','.join(map(str, tensor.axes))}"
    )
    if tensor.diagonal:
        sides += f" with diagonals along {','.join(map(str, tensor.diagonal))}"
    size = "x".join(map(str, largest))
    counted = f"{blocks} block{'s' * (blocks > 1)} of {size}"
    if options.eigenvalue_correction:
        return f"eigenbases{sides}, {counted}, exponent -{options.correction_exponent:g}"
    kind = "KL-Shampoo" if options.is_kl else "Shampoo"
    found = "/".join(f"-{value:g}" for value in dict.fromkeys(exponents.values()))
    return f"{kind}{sides}, {counted}, exponent {found}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
