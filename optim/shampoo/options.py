"""Options of Shampoo: the usual ones at the top, the others in a group for the stage of the step that they belong to.

ShampooOptions(block_size=512, grafting=Adam(beta2=0.99), roots=Roots(asynchronous=False))
ShampooOptions(method=EigenvalueCorrected(), beta2=0.95)
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from ctr.optim.checked import Decay, Frequency, NotNegative, OneOf, Options, Real, Share, Size, Steps, Whole
from ctr.optim.first_order.options import AdaGrad, AnyGraft
from ctr.optim.shampoo.methods import Diagonal, EigenvalueCorrected, Method, Shampoo


@dataclass(frozen=True, kw_only=True)
class Blocking(Options):
    """How tensors are cut into blocks.

    Attributes:
        split: ``balanced`` blocks differ by at most one in size; ``full`` ones have ``block_size``, and what is left
            over is a smaller one.
        max_dimension: a longer dimension gets no preconditioner, and the other dimensions of its tensor get stronger
            exponents (PSO lemma 1). If no dimension is left, the tensor takes the first-order step.
        vectors: vectors get a full matrix, too, with the exponent 1/2; else they take the first-order step.
        merge: neighboring dimensions are merged while their product is at most this; None: never.
        merge_from: whether neighbors are merged from the left or, as in newer versions for PyTorch, from the right.
        merge_until: no more neighbors are merged once a tensor has this many dimensions; 2 keeps matrices.
        ones: what becomes of dimensions of 1 where nothing is merged. ``drop``: they do not count, so that a [256, 1]
            kernel is a vector; ``keep``: they do, as in other implementations.
    """

    split: Literal["balanced", "full"] = "balanced"
    max_dimension: Size = 8192
    vectors: bool = False
    merge: Annotated[int, Whole(1, 2**31)] | None = None
    merge_from: Literal["left", "right"] = "left"
    merge_until: Annotated[int, Whole(1, 100)] = 1
    ones: Literal["drop", "keep"] = "drop"


@dataclass(frozen=True, kw_only=True)
class Statistics(Options):
    """When statistics are collected, and what they begin with.

    Attributes:
        frequency: ``tau2``: they are collected every this many steps.
        initial: each matrix begins as this multiple of the identity.
        bias_correction: divide decayed statistics by the sum of their weights (PT 3.1.1).
    """

    frequency: Frequency = 10
    initial: NotNegative = 0.0
    bias_correction: bool = True


@dataclass(frozen=True, kw_only=True)
class Eigh(OneOf):
    """LAPACK's eigendecomposition, the fastest at every size."""

    kind: Literal["eigh"] = "eigh"


@dataclass(frozen=True, kw_only=True)
class Coupled(OneOf):
    """PSO App. E's coupled Newton iteration, for roots of whole order, from the previous root where that is good.

    Attributes:
        max_iterations: after so many, another solver is tried.
        desired_condition: ``kappa_d``: larger eigenvalues are projected until the condition is about this.
        projected: ``n_proj``: at least so many eigenvalues are projected.
        most_projected: at most so many.
        power_iterations: ``n_step``: of the power iteration for each of these.
    """

    kind: Literal["coupled"] = "coupled"
    max_iterations: Annotated[int, Whole(1, 10_000)] = 100
    desired_condition: Annotated[float, Real(1.0, math.inf, high_open=True)] = 500.0
    projected: Annotated[int, Whole(0, 1000)] = 0
    most_projected: Annotated[int, Whole(0, 1000)] = 8
    power_iterations: Annotated[int, Whole(1, 10_000)] = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projected > self.most_projected:
            raise ValueError(
                f"projected is {self.projected}; allowed: at most most_projected, {self.most_projected}"
            )


@dataclass(frozen=True, kw_only=True)
class Roots(Options):
    """How and when roots of statistics are computed and brought into use.

    Attributes:
        solver: ``eigh`` or ``coupled``. A step that XLA compiles, without a callback, has the coupled iteration.
        damping: whether ``epsilon`` is ``relative`` to the largest eigenvalue of each matrix or ``absolute``.
        asynchronous: roots are taken into use ``precondition_frequency`` steps after their statistics were sent, and
            are computed in between; False: training waits for them.
        drift_bound: a root is kept if its statistics changed by at most this share (Frobenius norm of the change
            over that of the statistics); 0: only if they did not change.
        early_growth: while this share of the steps so far is less than ``precondition_frequency``, it is the number of
            steps between exchanges, and training waits for the roots, because early statistics change fast. 0: off.
        first: the first step whose statistics are exchanged for roots; None: ``start_preconditioning_step``.
        phase: later exchanges come at the steps ``t`` with ``t % precondition_frequency`` equal to this; None: every
            ``precondition_frequency`` steps from the first one on.
        identity: from the first exchange on, what has no root of real statistics yet has that of ``statistics.initial``
            times the identity (PSO alg. II), or the identity; else its layer takes the first-order step.
    """

    solver: Eigh | Coupled = Eigh()
    damping: Literal["relative", "absolute"] = "relative"
    asynchronous: bool = True
    drift_bound: Share = 0.02
    early_growth: Share = 0.25
    first: Steps | None = None
    phase: Annotated[int, Whole(0, 99_999)] | None = None
    identity: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phase is not None and self.early_growth:
            raise ValueError("phase requires early_growth 0")


@dataclass(frozen=True, kw_only=True)
class GradientAverage(Options):
    """What is preconditioned in place of the gradient itself (PT 3.1.1).

    Attributes:
        beta1: decay of a moving average of the gradient; 0: no average.
        beta3: the weight of that average in what is preconditioned, beta3 M + (1 - beta3) G with the average M from
            before the step; None: as ``beta1``, which makes it the average itself.
        bias_correction: divide the average by the sum of its weights.
        l2: lambda W is added to the gradient (L2 regularization, PT eq. 27).
    """

    beta1: Decay = 0.0
    beta3: Share | None = None
    bias_correction: bool = True
    l2: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta3 is not None and not self.beta1:
            raise ValueError("beta3 requires a beta1 above 0")


@dataclass(frozen=True, kw_only=True)
class Limits(Options):
    """Limits on the size of steps of dense weights (update_limit.py).

    Attributes:
        rms: ``d``: a direction whose root mean square is above it is scaled down to it, before decay and momentum
            (ADAFACTOR 6); 0: none.
        relative: ``r``: no step moves any weight W of a tensor by more than r |W| + a. If one would, the whole step of
            the tensor is scaled down (FF 4.1.3).
        absolute: ``a`` of this rule; 0: no limit.
    """

    rms: NotNegative = 0.0
    relative: NotNegative = 0.0
    absolute: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relative and not self.absolute:
            raise ValueError(
                "relative requires an absolute limit above 0: without, a tensor whose weights are 0 would never move"
            )


@dataclass(frozen=True, kw_only=True)
class Rows(Options):
    """How tables learn from the rows that a batch touches.

    Attributes:
        rule: ``adagrad`` by element, ``adagrad_row`` with one sum for each row, or ``one_sided``: Shampoo with the
            right side alone, at the size of AdaGrad's step on these rows.
        initial_accumulator: initial value of AdaGrad's sums of squares; None: that of ``grafting``, or 1e-6.
        graft_rows: with ``one_sided``, each row takes the norm of its own AdaGrad step; else one factor gives all
            touched rows of a table together the norm of theirs.
    """

    rule: Literal["adagrad", "adagrad_row", "one_sided"] = "adagrad"
    initial_accumulator: NotNegative | None = None
    graft_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class RootOptions(Options):
    """Options of statistics and roots.

    Attributes:
        beta2: decay of the statistics per collection; 1: they are summed.
        epsilon: damping of roots, relative to the largest eigenvalue of each statistics matrix.
        exponent_override: ``p`` of the inverse root A^(-1/p); None: twice the number of preconditioned dimensions. With
            eigenvalue correction that of the second moments; None: 2.
        start_preconditioning_step: the first step that is preconditioned; training waits for its roots. None: never,
            only the first-order optimizer is used.
        precondition_frequency: ``tau1``: every this many steps, roots are taken into use and new statistics are sent.
    """

    beta2: Annotated[float, Real(0.0, 1.0, low_open=True)] = 1.0
    epsilon: Annotated[float, Real(0.0, 1.0)] = 1e-6
    exponent_override: Annotated[int, Whole(1, 64)] | None = None
    start_preconditioning_step: Steps | None = 1
    precondition_frequency: Frequency = 50
    statistics: Statistics = Statistics()
    roots: Roots = Roots()

    def __post_init__(self) -> None:
        super().__post_init__()
        roots, start = self.roots, self.start_preconditioning_step
        if roots.phase is not None and roots.phase >= self.precondition_frequency:
            raise ValueError("roots.phase must be below precondition_frequency")
        if roots.first is not None and start is not None and roots.first > start:
            raise ValueError("roots.first must not be after start_preconditioning_step")

    @property
    def damps_zero(self) -> bool:
        """True where a matrix of zeros has a root: that of its damping."""
        return self.roots.damping == "absolute" and self.epsilon > 0

    @property
    def first_exchange(self) -> int:
        """The step of the first exchange."""
        first = self.start_preconditioning_step if self.roots.first is None else self.roots.first
        assert first is not None
        return first


@dataclass(frozen=True, kw_only=True)
class OneSidedOptions(RootOptions):
    """Options of one-sided Shampoo for the rows of tables.

    Attributes:
        graft_rows: each touched row takes the norm of its own AdaGrad step; else one factor gives all touched rows of a
            table together the norm of theirs.
    """

    graft_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class ShampooOptions(RootOptions):
    """Everything but the learning rate. Symbols are those of PSO (Anil et al.) and PT (Shi et al.).

    Attributes:
        block_size: tensors are split into blocks of at most this size in every dimension (PSO 3.1).
        method: what is done with the statistics.
        grafting: the optimizer whose step size each layer takes (PSO App. G), and which trains tensors without a
            preconditioner.
        momentum: ``mu`` of M = mu M + (1 - mu) P on the direction; 0: none.
        nesterov: step along mu M + (1 - mu) P instead of M.
        momentum_follows_rate: mu falls with the learning rate, as its share of the largest one so far (PT App. C.1).
        weight_decay: ``lambda``, decoupled (PT 3.1.2): P + lambda W, before momentum.
    """

    block_size: Size = 256
    method: Method = Shampoo()  # noqa: RUF009
    grafting: AnyGraft = AdaGrad()  # noqa: RUF009
    momentum: Decay = 0.0
    nesterov: bool = False
    momentum_follows_rate: bool = False
    weight_decay: NotNegative = 0.0
    rows: Rows = Rows()
    blocking: Blocking = Blocking()
    gradient: GradientAverage = GradientAverage()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        super().__post_init__()
        refused = {
            "nesterov": self.nesterov,
            "momentum_follows_rate": self.momentum_follows_rate,
            "grafting.momentum before": self.grafting.momentum == "before",
        }
        for name, given in refused.items():
            if given and not self.momentum:
                raise ValueError(f"{name} requires a momentum above 0")
        if self.exponent_override is not None:
            self.exponent(1)
        if isinstance(self.method, Shampoo | Diagonal):
            largest = max(self.side_exponent(axis, 2, 2) for axis in (0, 1))
            if largest > 1.0:
                share = self.method.left_share
                raise ValueError(
                    f"method.left_share is {share!r}: roots A^(-{largest:g}); allowed: exponents of at most 1"
                )
        if isinstance(self.roots.solver, Coupled) and not self.has_whole_roots:
            raise ValueError(
                f"roots.solver coupled computes roots of whole order, not for {self.method}; allowed: eigh"
            )

    @property
    def corrects(self) -> bool:
        """True with eigenvalue correction."""
        return isinstance(self.method, EigenvalueCorrected)

    @property
    def one_side(self) -> int | None:
        """The one dimension of matrices that is preconditioned; None: both."""
        side = getattr(self.method, "side", getattr(self.method, "sides", "both"))
        return {"left": 0, "right": 1}.get(side)

    @property
    def has_whole_roots(self) -> bool:
        """True where roots are of whole order whatever the tensor."""
        method = self.method
        multiplied = getattr(method, "exponent_multiplier", 1.0) != 1.0
        return not (self.corrects or multiplied or getattr(method, "left_share", 0.5) != 0.5)

    def exponent(self, preconditioned: int) -> float:
        """Returns e of the inverse roots A^(-e) of a tensor with so many preconditioned dimensions (PSO lemma 1)."""
        multiplier = getattr(self.method, "exponent_multiplier", 1.0)
        order = self.exponent_override or 2 * preconditioned
        if multiplier > order:
            raise ValueError(
                f"method.exponent_multiplier is {multiplier!r} and exponent_override is {self.exponent_override!r}: "
                f"roots A^(-{multiplier / order:g}) of tensors with {preconditioned} preconditioned dimensions; "
                "allowed: exponents of at most 1"
            )
        return float(multiplier / order)

    def side_exponent(self, axis: int, preconditioned: int, order: int) -> float:
        """Returns e of the root along an axis of a tensor of this order (PSO lemma 1).

        Of a matrix with both sides ``left_share`` divides the exponents' sum between them.
        """
        exponent = self.exponent(preconditioned)
        if order != 2 or preconditioned != 2:
            return exponent
        left = getattr(self.method, "left_share", 0.5)
        return 2.0 * exponent * (left if axis == 0 else 1.0 - left)

    @property
    def correction_exponent(self) -> float:
        """e of V^e, by which eigenvalue correction divides."""
        return 1.0 / (self.exponent_override or 2)

    @property
    def averages_in_bases(self) -> bool:
        """True where averages of gradients are kept in the eigenbases: nothing needs them in their own coordinates."""
        needs_grafts = self.grafting.norm != "none" or self.grafting.momentum == "before"
        return self.corrects and self.gradient.beta1 > 0 and not needs_grafts

    @property
    def passes(self) -> int:
        """Number of times that a step multiplies a block by its roots, or by its bases: into them and back."""
        if not self.corrects:
            return 1
        return 3 if self.gradient.beta1 and not self.averages_in_bases else 2
