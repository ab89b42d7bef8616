"""Who preconditions what under data, pipeline and operator parallelism (THESIS 6.5, table 6.4 and algorithm 5).

Pipeline parallelism gives each stage its layers, and operator parallelism each rank a slice of them: these splits
already decide who holds which weights, and whoever holds a slice preconditions it as a matrix of its own. Only the
ranks of one data-parallel group hold the same slices. They divide them, by an assignment (assignment.py) with as many
workers as the group has ranks, and gather the results among themselves:

    parallelism        who preconditions (THESIS table 6.4)
    none               the one rank, everything
    DP                 all ranks divide the layers
    PP, OP, PP + OP    the splits decide; nothing is divided or gathered
    DP + PP, DP + OP   the ranks of each stage, or of each slice, divide it
    DP + PP + OP       the N_DP ranks of each stage and slice divide it

A layer that operator parallelism does not split is held, and preconditioned, by every rank of its operator group, as in
the thesis: that costs no communication, and all have the same result. Ranks are numbered as in DeepSpeed's
ProcessTopology: ranks of an operator group are neighbors, then those of a data-parallel group, then the stages.

The models of this project have no stages and no split operators: this plans, and runs nothing.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ctr.optim.assignment import Assignment, Block, by_layers, step_cost
from ctr.optim.blocking import Shape, lay_out_tensor
from ctr.optim.options import ShampooOptions


@dataclass(frozen=True)
class Mesh:
    """The ranks of a job.

    Attributes:
        data: N_DP, how many ranks hold the same weights.
        pipeline: N_PP, the number of stages.
        operator: N_OP, into how many slices the layers of a stage are split.
    """

    data: int = 1
    pipeline: int = 1
    operator: int = 1

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(f"{name} is {size}; allowed: 1 or more")

    @property
    def ranks(self) -> int:
        """N = N_DP N_PP N_OP."""
        return self.data * self.pipeline * self.operator

    def data_group(self, stage: int, slice_: int) -> tuple[int, ...]:
        """The ranks that hold one slice of one stage, in the order of the data dimension."""
        return tuple((stage * self.data + copy) * self.operator + slice_ for copy in range(self.data))


@dataclass(frozen=True)
class Layer:
    """A weight of the model.

    Attributes:
        name: of the weight.
        shape: of the whole weight.
        stage: of the pipeline that holds it.
        split: the dimension that operator parallelism splits; None: no dimension.
    """

    name: str
    shape: Shape
    stage: int = 0
    split: int | None = None

    def slice_shape(self, slices: int) -> Shape:
        """The shape of what one rank of an operator group holds.

        Raises:
            ValueError: the dimension cannot be split into so many equal slices.
        """
        if self.split is None:
            return self.shape
        if not 0 <= self.split < len(self.shape) or self.shape[self.split] % slices:
            raise ValueError(
                f"layer {self.name} of shape {list(self.shape)} cannot be split along dimension {self.split} into "
                f"{slices} slices; allowed: a dimension that is divisible by them"
            )
        size = self.shape[self.split] // slices
        return (*self.shape[: self.split], size, *self.shape[self.split + 1 :])


@dataclass(frozen=True)
class Task:
    """One block that one rank preconditions.

    Attributes:
        rank: who does.
        layer: the index of the layer.
        slice: of the layer, 0..N_OP-1; 0 where all of it is held.
        block: a block of the slice; its ``tensor`` is the index of the layer.
    """

    rank: int
    layer: int
    slice: int
    block: Block


@dataclass(frozen=True)
class Plan:
    """Who preconditions what.

    Attributes:
        mesh: the ranks.
        tasks: what each rank preconditions, by ranks, and within a rank by layers. Every block of every slice has one
            owner; the blocks of a layer that is not split have one in each data-parallel group of its stage.
        gathers: the groups of ranks that gather their results among themselves; none without data parallelism.
    """

    mesh: Mesh
    tasks: tuple[Task, ...]
    gathers: tuple[tuple[int, ...], ...]

    def of_rank(self, rank: int) -> tuple[Task, ...]:
        """What one rank preconditions."""
        return tuple(task for task in self.tasks if task.rank == rank)

    def layers_of(self, rank: int) -> tuple[int, ...]:
        """The layers of which one rank preconditions blocks, in their order."""
        return tuple(sorted({task.layer for task in self.of_rank(rank)}))

    def preconditioner_bytes(self, rank: int, item: int = 4) -> int:
        """The bytes of one rank's statistics and roots, two matrices for each side (THESIS 6.7)."""
        return sum(2 * item * side**2 for task in self.of_rank(rank) for side in task.block.sides)


def stages_of(count: int, stages: int) -> tuple[int, ...]:
    """The stage of each of ``count`` layers: consecutive ones together, stages differ by at most one layer."""
    return tuple(place * stages // count for place in range(count))


def plan(
    mesh: Mesh,
    layers: Sequence[Layer],
    options: ShampooOptions | None = None,
    assign: Assignment = by_layers,
) -> Plan:
    """Plans who preconditions which blocks.

    Args:
        mesh: the ranks.
        layers: all layers of the model in their order. Those without a preconditioned dimension, such as biases, get no
            task: they take the grafted step wherever they are.
        options: how slices are split into blocks.
        assign: divides the blocks of a slice among the ranks of its data-parallel group; by default as in the thesis,
            whole layers in their order. Costs are those of ``step_cost``.

    Raises:
        ValueError: a layer's stage is not in the mesh, or its dimension cannot be split evenly.
    """
    options = options or ShampooOptions()
    for layer in layers:
        if not 0 <= layer.stage < mesh.pipeline:
            raise ValueError(
                f"layer {layer.name} is in stage {layer.stage}; allowed: 0..{mesh.pipeline - 1}, the stages of the mesh"
            )
    tasks: list[Task] = []
    for stage, slice_ in itertools.product(range(mesh.pipeline), range(mesh.operator)):
        held = [
            block
            for index, layer in enumerate(layers)
            if layer.stage == stage
            for block in _blocks(index, layer.slice_shape(mesh.operator), options)
        ]
        owners = assign(held, [step_cost(block, options) for block in held], mesh.data)
        group = mesh.data_group(stage, slice_)
        for block, owner in zip(held, owners, strict=True):
            split = layers[block.tensor].split is not None
            tasks.append(Task(group[owner], block.tensor, slice_ if split else 0, block))
    tasks.sort(key=lambda task: (task.rank, task.layer))
    gathers: tuple[tuple[int, ...], ...] = ()
    if mesh.data > 1:
        gathers = tuple(
            mesh.data_group(stage, slice_)
            for stage, slice_ in itertools.product(range(mesh.pipeline), range(mesh.operator))
        )
    return Plan(mesh, tuple(tasks), gathers)


def _blocks(index: int, shape: Shape, options: ShampooOptions) -> list[Block]:
    layout = lay_out_tensor(shape, options)
    return [
        Block(index, region.block, layout.axes) for region in layout.regions for _ in range(region.blocks)
    ]
