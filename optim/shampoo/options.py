"""Options of Shampoo: the usual ones at the top, the others in a group for each stage of the step."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from ctr.optim.first_order.options import LAMB, LARS, SGD, AdaGrad, Adam, AnyGraft, RMSprop
from ctr.optim.option_types import (
    NUMPY,
    Decay,
    Frequency,
    NotNegative,
    Share,
    Size,
    Steps,
    Switch,
    merged,
    option_dataclass,
)

__all__ = ["LAMB", "LARS", "SGD", "AdaGrad", "Adam", "Blocking", "Limits", "RMSprop", "Roots"]
__all__ += ["ShampooOptions", "Statistics", "soap"]


@option_dataclass()
class Blocking:
    """Division of tensors into blocks.

    Attributes:
        split: ``balanced``: the sizes of blocks differ by at most one. ``full``: blocks have ``block_size``, except a
            smaller one for the rest (PT 4.2.1).
        max_dimension: a longer dimension gets no preconditioner, and the other dimensions of its tensor get stronger
            exponents (PSO lemma 1). If no dimension is left, the tensor takes the first-order step.
        vectors: vectors get a full matrix, too, with the exponent 1/2 (PT 3.1.4); else they take the first-order step.
        merge: neighboring dimensions are merged, from the left, while their product is at most this (PT 4.2.1); None:
            never. Dimensions of 1 do not count, so that a [256, 1] kernel is a vector. The kernel of a convolution, [3,
            3, 16, 32], has four preconditioners, or with 144 two, as the matrix [144, 32], with stronger exponents.
    """

    split: Literal["balanced", "full"] = "balanced"
    max_dimension: Size = 8192
    vectors: Switch = False
    merge: Annotated[int, Field(strict=True, ge=1, le=2**31), NUMPY] | None = None


@option_dataclass()
class Statistics:
    """Collection and initial value of statistics.

    Attributes:
        frequency: ``tau2``: statistics are collected every so many steps, at every early one (``roots.early_growth``).
        initial: each matrix begins as this multiple of the identity (PSO 2).
        bias_correction: decayed statistics are divided by 1 - beta2^n after n collections (PT 3.1.1); PSO alg. II does
            not.
    """

    frequency: Frequency = 10
    initial: NotNegative = 0.0
    bias_correction: Switch = True


@option_dataclass()
class Roots:
    """Computation of the roots of statistics, and the schedule of their use.

    The host computes them by LAPACK's eigendecomposition, the fastest at every size; a step that XLA compiles, without
    a callback, by the coupled Newton iteration (PSO App. E).

    Attributes:
        damping: whether ``epsilon`` is ``relative`` to the largest eigenvalue of each matrix or ``absolute`` (PT 3.2;
            PSO 2).
        asynchronous: roots are put to use ``precondition_frequency`` steps after their statistics were sent, and
            are computed in between; False: training waits for them.
        drift_bound: a root is reused if its statistics changed by at most this share (Frobenius norm of the change
            over that of the statistics); 0: only if they did not change.
        early_growth: while this share of the steps so far is less than ``precondition_frequency``, it is the number of
            steps between exchanges, and training waits for the roots, because early statistics change fast. 0: off.
        first: the first step whose statistics are exchanged for roots (PSO alg. II); None:
            ``start_preconditioning_step``.
        phase: later exchanges come at the steps ``t`` with ``t % precondition_frequency`` equal to this (PSO alg. II;
            PT alg. 2); None: every ``precondition_frequency`` steps from the first one on.
        identity: from the first exchange on, a matrix without a root of real statistics has the root of
            ``statistics.initial`` times the identity (PSO alg. II), or the identity; else the first-order step is used.
    """

    damping: Literal["relative", "absolute"] = "relative"
    asynchronous: Switch = True
    drift_bound: Share = 0.02
    early_growth: Share = 0.25
    first: Steps | None = None
    phase: Annotated[int, Field(strict=True, ge=0, lt=100_000), NUMPY] | None = None
    identity: Switch = False

    def __post_init__(self) -> None:
        if self.phase is not None and self.early_growth:
            raise ValueError("phase requires early_growth 0")


@option_dataclass()
class Limits:
    """Limits on the size of steps of dense weights (update_limit.py).

    Attributes:
        relative: ``r``: no step changes any weight W of a tensor by more than r |W| + a. If one would, the step of
            the tensor is scaled down (FF 4.1.3).
        absolute: ``a`` of this rule; 0: no limit.
    """

    relative: NotNegative = 0.0
    absolute: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.relative and not self.absolute:
            raise ValueError(
                "relative requires an absolute limit above 0: without, a tensor whose weights are 0 would never move"
            )


@option_dataclass()
class ShampooOptions:
    """Options of Shampoo except the learning rate. Symbols are as in PSO (Anil et al.) and PT (Shi et al.).

        >>> ShampooOptions(momentum=0.9, roots={"asynchronous": False}).roots.asynchronous
        False

    Attributes:
        beta1: decay of a moving average of the gradient, which is bias-corrected and preconditioned instead of the
            gradient itself (PT 3.1.1); 0: no average.
        beta2: decay of the statistics per collection; 1: they are summed.
        epsilon: damping of roots, by default relative to each matrix's largest eigenvalue (``roots.damping``).
        exponent_override: ``p`` of the inverse root A^(-1/p); None: twice the number of preconditioned dimensions. With
            eigenvalue correction second moments are raised to the power 1/p; None: 2, a square root.
        start_preconditioning_step: the first step that is preconditioned; training waits for its roots. None: never,
            only the first-order optimizer is used.
        precondition_frequency: ``tau1``: every so many steps, new roots are put to use and statistics are sent.
        block_size: tensors are split into blocks of at most this size in every dimension (PSO 3.1).
        method: how the statistics are used. ``shampoo``: L^(-1/4) G R^(-1/4), a root along every dimension
            (PSO 2); ``diagonal``: the same, and dimensions above ``blocking.max_dimension`` have diagonals (PT 4.2.3;
            THESIS 4.1.3); ``eigenvalue_corrected``: second moments in the eigenbases of the statistics instead of
            roots (PSO App. C; SOAP; eigenbasis.py).
        grafting: the optimizer whose step size each layer takes (PSO App. G), and which trains tensors without a
            preconditioner.
        momentum: ``mu`` of M = mu M + (1 - mu) P on the direction; 0: none.
        nesterov: step along mu M + (1 - mu) P instead of M.
        weight_decay: ``lambda``, decoupled (PT 3.1.2): P + lambda W, before momentum.
        rows: how tables learn from the rows that a batch touches: by AdaGrad, ``adagrad`` by element or ``adagrad_row``
            with one sum for each row; sums start like those of ``grafting``, or at 1e-6 if grafting has none; or
            ``one_sided``: Shampoo with the right side alone, at the size of AdaGrad's step on these rows (PSO App. D).
    """

    beta1: Decay = 0.0
    beta2: Annotated[float, Field(strict=True, gt=0, le=1), NUMPY] = 1.0
    epsilon: Share = 1e-6
    exponent_override: Annotated[int, Field(strict=True, ge=1, le=64), NUMPY] | None = None
    start_preconditioning_step: Steps | None = 1
    precondition_frequency: Frequency = 50
    statistics: Statistics = Statistics()
    roots: Roots = Roots()
    block_size: Size = 256
    method: Literal["shampoo", "diagonal", "eigenvalue_corrected"] = "shampoo"
    grafting: AnyGraft = AdaGrad()
    momentum: Decay = 0.0
    nesterov: Switch = False
    weight_decay: NotNegative = 0.0
    rows: Literal["adagrad", "adagrad_row", "one_sided"] = "adagrad"
    blocking: Blocking = Blocking()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        roots, start = self.roots, self.start_preconditioning_step
        if roots.phase is not None and roots.phase >= self.precondition_frequency:
            raise ValueError("roots.phase must be below precondition_frequency")
        if roots.first is not None and start is not None and roots.first > start:
            raise ValueError("roots.first must not be after start_preconditioning_step")
        refused = {
            "nesterov": self.nesterov,
            "grafting.momentum before": self.grafting.momentum == "before",
        }
        for name, value in refused.items():
            if value and not self.momentum:
                raise ValueError(f"{name} requires a momentum above 0")
        if self.grafting.momentum == "before" and self.grafting.norm != "tensor":
            raise ValueError("grafting.momentum before requires grafting.norm tensor")

    @property
    def corrects(self) -> bool:
        """Returns whether eigenvalue correction is on."""
        return self.method == "eigenvalue_corrected"

    @property
    def damps_zero(self) -> bool:
        """Returns whether a matrix of zeros has a root, the root of its damping."""
        return self.roots.damping == "absolute" and self.epsilon > 0

    @property
    def first_exchange(self) -> int:
        """Returns the step of the first exchange."""
        first = self.start_preconditioning_step if self.roots.first is None else self.roots.first
        assert first is not None
        return first

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Returns these options with ``changes`` merged in recursively. Raises ValueError or TypeError if invalid."""
        return type(self)(**merged(asdict(self), changes))

    def graft_alone(self) -> Self:
        """Returns options of the first-order optimizer: nothing is preconditioned, and there is no momentum."""
        grafting: Any = replace(self.grafting, momentum="after")
        off: dict[str, Any] = {"beta1": 0.0, "momentum": 0.0, "nesterov": False}
        return replace(self, start_preconditioning_step=None, grafting=grafting, **off)

    def root_order(self, preconditioned: int) -> int:
        """Returns p of the roots A^(-1/p) of a tensor with this number of preconditioned dimensions (PSO lemma 1)."""
        return self.exponent_override or 2 * preconditioned

    @property
    def correction_exponent(self) -> float:
        """Returns the exponent e of the divisor V^e in eigenvalue correction."""
        return 1.0 / (self.exponent_override or 2)

    @property
    def averages_in_bases(self) -> bool:
        """Returns whether averages of gradients are stored in the eigenbases, as no other coordinates are used."""
        return self.corrects and self.beta1 > 0 and self.grafting.norm == "none"

    @property
    def passes(self) -> int:
        """Returns how many times a step multiplies a block by its roots, or by its bases: into them and back."""
        if not self.corrects:
            return 1
        return 3 if self.beta1 and not self.averages_in_bases else 2


def soap(beta1: float = 0.95, beta2: float = 0.95, epsilon: float = 1e-8, **changed: Any) -> ShampooOptions:
    """Returns SOAP's options (Vyas et al., arXiv 2409.11321; PSO App. C).

    SOAP is Adam in the eigenbases of Shampoo's statistics, and plain Adam where there are none. The authors' code
    differs: it skips the first step, and updates bases after the step by one power iteration, as often as with
    ``statistics={"frequency": 1}, precondition_frequency=10``.

    Args:
        beta1: decay of the average of gradients.
        beta2: decay of the second moments at each step, and of the statistics each time they are collected.
        epsilon: added to the root of the second moments.
        **changed: other options. Raises TypeError for an unknown option.
    """
    return ShampooOptions(
        method="eigenvalue_corrected",
        grafting=Adam(beta2=beta2, epsilon=epsilon, norm="none"),
        roots=Roots(damping="absolute"),
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
    ).changed(changed)
