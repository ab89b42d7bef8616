"""Interface between the trainer and optimizers of dense weights; optimizers of table rows derive from ``RowRule``.

To add an optimizer, derive a class from ``DenseOptimizer`` with ``build``, ``variables`` and ``update``,
in a new module, and add it where configurations are mapped to optimizers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from ctr.workers.parts import Part


@dataclass(frozen=True)
class Cost:
    """Operations of a step: each multiplication, addition, scalar function or copied element counts as one."""

    update: float = 0
    statistics: float = 0
    preconditioning: float = 0
    roots: float = 0


class Spectrum(NamedTuple):
    """Singular values of a weight's statistics matrices: the extremes over all, and the largest condition number.

    ``condition`` is the condition of the statistics, ``damped`` of the damped matrix, whose root is certified.
    """

    smallest: float
    largest: float
    condition: float
    damped: float


class RowGradient(NamedTuple):
    """Gradient with respect to the rows of a table that a batch touches.

    Attributes:
        rows: int32 [U], the indices of distinct rows; padding rows have a zero gradient.
        values: [U, C], these rows before the step.
        state: their state, as returned by ``RowRule.read``.
        gradient: [U, C], summed over the batch.
        curvature: float32 [U], of the logistic loss in each row's linear weight; None if the optimizer needs none.
        groups: int32 [U], the index of each row's feature in its table, -1 for padding; None without ``curvature``.
    """

    rows: tf.Tensor
    values: tf.Tensor
    state: Any
    gradient: tf.Tensor
    curvature: tf.Tensor | None = None
    groups: tf.Tensor | None = None


class OptionalMembers:
    """Optional members of an optimizer; by default they do nothing."""

    def exchange(self) -> None:
        """Exchanges roots with the host if due; called after each step that XLA compiles."""

    def parts(self) -> Mapping[str, Part]:
        """Returns the parts that this worker holds of divided variables, by name; others are whole on every worker."""
        return {}

    def report(self) -> dict[str, float | int]:
        """Returns numbers to monitor, by name."""
        return {}

    def spectra(self) -> Mapping[str, Spectrum]:
        """Returns the spectra of the statistics behind the inverse roots in use, by the names of weights."""
        return {}

    def timing(self) -> dict[str, float]:
        """Returns seconds spent since the process began, by name."""
        return {}

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """Estimates the operations of a step late in training from the shapes of the weights."""
        return Cost()


class DenseOptimizer(OptionalMembers, ABC):
    """Base class of the optimizers of dense weights, whose gradients have the weights' shapes."""

    @abstractmethod
    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        """Takes the weights, by names that are equal in all processes, and creates the state; called once."""

    @property
    @abstractmethod
    def variables(self) -> dict[str, tf.Variable]:
        """Returns all state besides the weights, under its names in checkpoints."""

    @abstractmethod
    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, preconditions: bool) -> None:
        """Updates all weights in place by one step; called in the graph of the step.

        All gradients are finite, and ``rate`` is a float32 scalar. Without ``preconditions`` a second-order optimizer
        takes a first-order step, because the first batches of a run are too small to precondition. A step that XLA
        compiles (``gradients.in_xla``) may not call the host.
        """
