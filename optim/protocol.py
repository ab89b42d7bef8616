"""What a trainer knows of an optimizer, whichever it is.

An optimizer begins as options alone; ``build`` gives it the weights. To add one, write a class with these methods in a
module of its own, and name it where configurations are mapped to optimizers: nothing else has to know it.

    from options and shapes     cost, and at a warm start take_over
    with its state              variables, which checkpoints hold, and parts of them on several workers
    in the compiled step        read (tables), update
    between two steps           exchange
    at any time                 report, timing

Dense weights have gradients of their own shape (``DenseOptimizer``). Of tables a batch touches some rows, and nothing
but these may move (``TableOptimizer``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import tensorflow as tf

from ctr.workers.parts import Part

Status = Literal["taken", "partly", "fresh"]


@dataclass(frozen=True)
class Cost:
    """Operations of a step: each multiplication, addition, function of a number or copied element counts as one.

    Attributes:
        update: element by element: second moments, averages, decay, limits and the step itself.
        statistics: products of gradients.
        preconditioning: products of gradients with roots.
        roots: decompositions and their like.
    """

    update: float = 0
    statistics: float = 0
    preconditioning: float = 0
    roots: float = 0


class RowGradient(NamedTuple):
    """The gradient of a table by the rows that a batch touches.

    Attributes:
        rows: int32 [U], each row once; some may be there without a gradient, as padding.
        values: [U, C], what these rows are before the step.
        state: what ``TableOptimizer.read`` returned for these rows.
        gradient: [U, C], summed over the batch.
        curvature: float32 [U], of the logistic loss by the linear weight of each row; where the optimizer needs it.
        groups: int32 [U], the number of each row's feature among those of its table, -1 for padding; with
            ``curvature``.
    """

    rows: tf.Tensor
    values: tf.Tensor
    state: Any
    gradient: tf.Tensor
    curvature: tf.Tensor | None = None
    groups: tf.Tensor | None = None


class Move(Protocol):
    """Which elements of an old weight become which of a new one."""

    @property
    def exact(self) -> bool:
        """Whether all of the weight is taken, in its own order."""

    def fills(self, shape: Sequence[int]) -> bool:
        """Whether all of a new weight of this shape comes from the old one."""

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        """Writes what is taken of ``source``, of the old weight's shape, into ``target``, of the new one's."""


class Saved(NamedTuple):
    """The state of an optimizer as a checkpoint has it.

    Attributes:
        arrays: by the names of ``Optimizer.variables``.
        shapes: of the weights, in the order of ``build``.
    """

    arrays: Mapping[str, np.ndarray]
    shapes: Sequence[tuple[int, ...]]


class TakenOver(NamedTuple):
    """What an optimizer has taken over from another one.

    Attributes:
        statuses: what became of the state of each weight of which something was taken, by its index.
        differing: the options whose change prevented more, each as ``name was old, is new``.
        why: what else prevented more; empty if nothing did.
    """

    statuses: dict[int, Status]
    differing: tuple[str, ...] = ()
    why: str = ""


GradientT = TypeVar("GradientT", contravariant=True)


class Optimizer(Protocol[GradientT]):
    """Trains a group of weights."""

    @property
    def name(self) -> str:
        """The name of its options in configurations."""

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        """Takes the weights, by names that do not depend on the process, and creates the variables; called once."""

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All state besides the weights, under the names that checkpoints have."""

    def update(self, gradients: Sequence[GradientT], rate: tf.Tensor, compiled: bool) -> None:
        """One step on all weights, in place; called in the graph of the step.

        Args:
            gradients: one for each weight, in the order of ``build``, all of them finite.
            rate: float32 scalar, the learning rate; where weights have rates of their own, a factor of these.
            compiled: whether XLA compiles the step. Then nothing in it may call the host, and ``exchange`` is called
                after every step.
        """

    def exchange(self) -> None:
        """Exchanges with the host what is due after a step that XLA compiled."""

    def report(self) -> dict[str, float | int]:
        """Numbers to watch, by name."""

    def timing(self) -> dict[str, float]:
        """Seconds spent since the process began, by name."""

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """The operations of a step, late in a run, on weights of these shapes.

        Args:
            shapes: of the weights; of a table [U, C] of the rows that a batch touches, on average.
        """


class WithoutHost:
    """What optimizers have in common that leave nothing to the host, and where nothing is to be watched."""

    def exchange(self) -> None:
        """Nothing: there is no work for the host."""

    def report(self) -> dict[str, float | int]:
        """Nothing to watch."""
        return {}

    def timing(self) -> dict[str, float]:
        """Nothing beside the step."""
        return {}


class DenseOptimizer(Optimizer[tf.Tensor], Protocol):
    """Trains dense weights."""

    def parts(self) -> Mapping[str, Part]:
        """Which variables hold only this worker's part of what a process alone would have, and which; by their names.

        All other variables are the same on all workers.
        """
        return {}

    def take_over(
        self,
        new: Saved,
        before: "DenseOptimizer",
        old: Saved,
        moves: Mapping[int, tuple[int, Move]],
    ) -> TakenOver:
        """Writes what an earlier optimizer knew of the weights that were taken into the state of the new ones.

        Args:
            new: the state as this optimizer begins with; its arrays are changed.
            before: the earlier optimizer, which may be of another class.
            old: its state.
            moves: by the index of each weight of which something was taken, the index of the old weight, and what.
        """


@runtime_checkable
class ProductOptimizer(Protocol):
    """What a dense optimizer has besides that learns from a model's linear products, and not by gradients alone."""

    @property
    def seed(self) -> tuple[int, tf.Tensor] | None:
        """The seed of the labels that are sampled for the next step, and its number; None: labels are those given."""

    @property
    def statistics_rows(self) -> int:
        """About how many rows of a batch factors are of, evenly spread over it."""

    def observe(self, factors: Callable[[], Sequence[Any]]) -> None:
        """Takes what computes ``ctr.optim.kfac.Factors`` of each linear product; before the step's ``update``.

        The update calls it inside a condition, before it changes a weight: most steps take no factors.
        """


class TableOptimizer(Optimizer[RowGradient], Protocol):
    """Trains the touched rows of tables; ``ctr.optim.row_rule.RowRule`` has all of it but the rule itself."""

    @property
    def row_state(self) -> tuple[str, ...]:
        """The state that has a row for each row of a table, and goes with that row at a warm start.

        By the part of the variables' names before the table's, ``STATE/TABLE``.
        """

    @property
    def feature_state(self) -> tuple[str, ...]:
        """The state that has a row for each feature of a table, by the part of the names before the table's."""

    @property
    def needs_curvature(self) -> bool:
        """Whether ``update`` needs the curvature and the groups of ``RowGradient``."""

    def reset_rows(self, table: int, rows: np.ndarray, size: int) -> None:
        """Lets rows of a table begin anew, as ``build`` leaves them; called between two steps.

        Args:
            table: its number, in the order of ``build``.
            rows: int32 [N], each once.
            size: the number of rows that the table has by now, which may be more than before.
        """

    def read(self, rows: Sequence[tf.Tensor]) -> list[Any]:
        """What ``update`` needs of these rows' state; read with the rows, beside the forward pass.

        Args:
            rows: for each table int32 [U].
        """
