"""The settings of Shampoo, checked when they are made."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

import numpy as np

from ctr.optim.checked import Decay, Frequency, NotNegative, Real, Share, Size, Steps, Whole, check_options

Grafting = Literal["adagrad", "sgd", "rmsprop", "adam", "lars", "lamb", "sign"]
Solver = Literal["auto", "eigh", "coupled"]
BasisChange = Literal["project", "keep"]
FactorUpdate = Literal["shampoo", "kl", "kl_undivided"]
Damping = Literal["relative", "absolute"]
LargeDimensions = Literal["none", "diagonal", "skip"]
BlockSplit = Literal["balanced", "full"]
MergeOrder = Literal["left", "right"]
DimensionsOfOne = Literal["drop", "keep"]
GraftingScope = Literal["tensor", "block"]
WeightDecayKind = Literal["decoupled", "coupled"]
Sparse = Literal["adagrad", "adagrad_row", "one_sided"]


@dataclass(frozen=True, kw_only=True)
class OneSidedOptions:
    """Options of statistics and roots: those of one-sided Shampoo on the rows of tables in a trainer.

    Attributes:
        beta2: decay of the statistics per collection, bias-corrected; 1: they are summed.
        damping: whether ``epsilon`` is ``relative`` or ``absolute``.
        epsilon: damping, relative to the largest eigenvalue of each statistics matrix.
        exponent_override: ``p`` of the inverse root A^(-1/p); None: twice the number of preconditioned
            dimensions, and with ``factor_update`` kl 2, as in its paper. With ``eigenvalue_correction`` that of the
            second moments; None: 2.
        exponent_multiplier: ``eta`` of A^(-eta/p) (PT 3.1.4).
        start_preconditioning_step: the first step that is preconditioned; training waits for its roots. None:
            never, only the grafted optimizer is used.
        blend_steps: number of steps from there on over which the direction changes linearly from the grafted
            one to Shampoo's.
        statistics_frequency: ``tau2``: statistics are collected every this many steps.
        precondition_frequency: ``tau1``: every this many steps, roots are taken into use and new statistics
            are sent.
        early_growth: while this share of the steps so far is less than ``precondition_frequency``, it is the
            number of steps between exchanges, and training waits for the roots, because early statistics
            change fast. 0: off.
        asynchronous: roots are taken into use ``precondition_frequency`` steps after their statistics were
            sent, and are computed in between; False: training waits for them.
        drift_bound: a root is kept if its statistics changed by at most this share (Frobenius norm of the
            change over that of the statistics); 0: only if they did not change.
        solver: how roots are computed: ``eigh`` by LAPACK's eigendecomposition, ``coupled`` by PSO App. E's iteration;
            ``auto`` is ``eigh``, the fastest at every size.
        graft_rows: of tables with one-sided Shampoo, each touched row takes the norm of its own AdaGrad step; else
            one factor gives all touched rows of a table together the norm of theirs.
    """

    damping: Damping = "relative"
    beta2: Annotated[float, Real(0.0, 1.0, low_open=True)] = 1.0
    # Below, the damping would drown in the rounding of float64.
    epsilon: Annotated[float, Real(1e-14, 1.0)] = 1e-6
    exponent_override: Annotated[int, Whole(1, 64)] | None = None
    exponent_multiplier: Annotated[float, Real(0.0, 4.0, low_open=True)] = 1.0
    start_preconditioning_step: Steps | None = 1
    blend_steps: Steps = 0
    statistics_frequency: Frequency = 10
    precondition_frequency: Frequency = 50
    early_growth: Share = 0.25
    asynchronous: bool = True
    drift_bound: Share = 0.02
    solver: Solver = "auto"
    graft_rows: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.integer | np.floating):
                # As sweeps over NumPy ranges give them; JSON would not take them.
                object.__setattr__(self, name, value.item())
        check_options(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True, kw_only=True)
class ShampooOptions(OneSidedOptions):
    """Everything but the learning rate. Symbols are those of PSO (Anil et al.) and PT (Shi et al.).

    Attributes:
        block_size: tensors are split into blocks of at most this size in every dimension (PSO 3.1).
        block_split: ``balanced`` blocks differ by at most one in size; ``full`` ones have ``block_size``, and what is
            left over is a smaller one.
        max_dimension: a longer dimension gets no preconditioner, and the other dimensions of its tensor get
            stronger exponents (PSO lemma 1). If no dimension is left, the tensor takes the grafted step.
        large_dimensions: what else becomes of a longer dimension: ``diagonal`` preconditions it by the diagonal of its
            statistics alone (PT 4.2.3); with ``skip`` the whole tensor takes the grafted step (PT 4.2.2).
        precondition_vectors: vectors get a full matrix, too, with the exponent 1/2; else they take the grafted step.
        merge_dimensions: neighboring dimensions are merged while their product is at most this; None: never.
        merge_order: whether neighbors are merged from the left or, as in newer versions for PyTorch, from the right.
        merge_until: no more neighbors are merged once a tensor has this many dimensions; 2 keeps matrices.
        dimensions_of_one: what becomes of dimensions of 1 where nothing is merged. ``drop``: they do not count, so
            that a [256, 1] kernel is a vector; ``keep``: they do, as in other implementations.
        beta1: decay of the moving average of the gradient that is preconditioned (PT 3.1.1); 0: no average.
        beta3: the weight of that average in what is preconditioned, beta3 M + (1 - beta3) G with the average M from
            before the step; None: as ``beta1``, which makes it the average itself.
        bias_correction: divide averages by the sum of their weights (PT 3.1.1): of gradients, and of statistics that
            decay.
        initial_statistics: each matrix of statistics begins as this multiple of the identity.
        factor_update: ``kl`` collects the products of the gradient that is preconditioned along all other dimensions,
            as KL-Shampoo does (factor_update.py), divided by the size of these dimensions. ``kl_undivided`` leaves that
            out, as PyTorch's version does; with ``beta2`` below 1 its statistics then grow and vanish without end
            wherever a block is not a square.
        eigenvalue_correction: precondition in the eigenbases of the statistics by second moments that are collected
            there, instead of by roots (PSO App. C; SOAP; eigenbasis.py).
        basis_change: what becomes of these second moments when the bases change: ``project`` moves them into the new
            bases, ``keep`` leaves them as they are.
        left_share: ``1/p`` of PSO lemma 1, by which the exponents of a matrix are divided between its left and its
            right side, 1/p + 1/q = 1; at 1 and 0 one side remains.
        first_exchange: the first step whose statistics are exchanged for roots; None: ``start_preconditioning_step``.
        exchange_phase: later exchanges come at the steps ``t`` with ``t % precondition_frequency`` equal to this, as
            in other implementations; None: every ``precondition_frequency`` steps from the first one on.
        grafting: the optimizer whose step size each layer takes (PSO App. G), and which trains tensors
            without a preconditioner.
        grafted_norm: whether a layer takes the norm of the grafted step; else its direction keeps its own, as in SOAP.
        grafting_scope: whether a whole ``tensor`` takes the norm of its grafted step, or each ``block``.
        grafting_beta2: decay of the second moment in ``rmsprop``, ``adam`` and ``lamb``.
        grafting_epsilon: added to the square root of the second moment in ``rmsprop``, ``adam`` and ``lamb``.
        adagrad_epsilon: added to the square root of AdaGrad's sums.
        initial_accumulator: initial value of AdaGrad's sums of squares (FF 4.2).
        momentum: ``mu`` of M = mu M + (1 - mu) P on the preconditioned direction; 0: none.
        nesterov: step along mu M + (1 - mu) P instead of M.
        separate_momenta: keep a momentum of the grafted step beside that of Shampoo's, each of which is an average of
            its own steps alone; the step changes from the first to the second as ``blend_steps`` says.
        weight_decay: ``lambda``, decoupled (PT 3.1.2): P + lambda W, before momentum.
        weight_decay_kind: ``coupled`` adds lambda W to the gradient instead (L2 regularization, PT eq. 27).
        update_clipping: ``d``: a direction whose root mean square is above it is scaled down to it, before decay and
            momentum (ADAFACTOR 6); 0: none. Not for tables.
        update_limit_relative: ``r``: no step moves any weight W of a tensor by more than r |W| + a. If one
            would, the whole step of the tensor is scaled down (FF 4.1.3, update_limit.py). Not for tables.
        update_limit_absolute: ``a`` in the rule of ``update_limit_relative``; 0: no limit.
        sparse: how tables learn from the rows that a batch touches: element-wise AdaGrad, AdaGrad with one
            sum per row, or Shampoo with the right side only.
    """

    block_size: Size = 256
    block_split: BlockSplit = "balanced"
    max_dimension: Size = 8192
    large_dimensions: LargeDimensions = "none"
    precondition_vectors: bool = False
    merge_dimensions: Annotated[int, Whole(1, 2**31)] | None = None
    merge_order: MergeOrder = "left"
    merge_until: Annotated[int, Whole(1, 100)] = 1
    dimensions_of_one: DimensionsOfOne = "drop"
    beta1: Decay = 0.0
    beta3: Share | None = None
    bias_correction: bool = True
    initial_statistics: NotNegative = 0.0
    factor_update: FactorUpdate = "shampoo"
    eigenvalue_correction: bool = False
    basis_change: BasisChange = "project"
    left_share: Share = 0.5
    first_exchange: Steps | None = None
    exchange_phase: Annotated[int, Whole(0, 99_999)] | None = None
    grafting: Grafting = "adagrad"
    grafted_norm: bool = True
    grafting_scope: GraftingScope = "tensor"
    grafting_beta2: Decay = 0.999
    grafting_epsilon: NotNegative = 1e-8
    adagrad_epsilon: NotNegative = 0.0
    initial_accumulator: NotNegative = 1e-6
    momentum: Decay = 0.0
    nesterov: bool = False
    separate_momenta: bool = False
    weight_decay: NotNegative = 0.0
    weight_decay_kind: WeightDecayKind = "decoupled"
    update_clipping: NotNegative = 0.0
    update_limit_relative: NotNegative = 0.0
    update_limit_absolute: NotNegative = 0.0
    sparse: Sparse = "adagrad"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov requires a momentum above 0")
        if self.update_limit_relative and not self.update_limit_absolute:
            raise ValueError(
                "update_limit_relative requires an update_limit_absolute above 0: without it, a tensor whose "
                "weights are 0 "
                "would never be updated"
            )
        if self.exponent_override is not None:
            self.exponent(1)
        largest = 2.0 * max(self.left_share, 1.0 - self.left_share) * self.exponent(2)
        if self.left_share not in (0.0, 0.5, 1.0) and largest > 1.0:
            raise ValueError(
                f"left_share is {self.left_share!r}: roots A^(-{largest:g}); allowed: exponents of at most 1"
            )
        self._check_together()
        if self.solver == "coupled" and not self.has_integer_root:
            raise ValueError(
                f"solver coupled computes roots of whole order, which exponent_multiplier "
                f"{self.exponent_multiplier} and left_share {self.left_share} do not give; allowed: solver auto or eigh"
            )

    def _check_together(self) -> None:
        refused = {
            "separate_momenta requires a momentum above 0": self.separate_momenta and not self.momentum,
            "beta3 requires a beta1 above 0": self.beta3 is not None and not self.beta1,
            "exchange_phase requires early_growth 0": self.exchange_phase is not None
            and self.early_growth > 0,
            "exchange_phase must be below precondition_frequency": self.exchange_phase is not None
            and self.exchange_phase >= self.precondition_frequency,
            "first_exchange must not be after start_preconditioning_step": self.first_exchange is not None
            and self.start_preconditioning_step is not None
            and self.first_exchange > self.start_preconditioning_step,
            "solver coupled computes roots; eigenvalue_correction requires solver auto or eigh": self.solver
            == "coupled"
            and self.eigenvalue_correction,
            f"factor_update {self.factor_update} and eigenvalue_correction exclude each other": self.is_kl
            and self.eigenvalue_correction,
            f"factor_update {self.factor_update} requires that no dimension is preconditioned by a diagonal": self.is_kl
            and self.large_dimensions == "diagonal",
            "eigenvalue_correction and large_dimensions diagonal exclude each other": self.eigenvalue_correction
            and self.large_dimensions == "diagonal",
            "eigenvalue_correction divides by one power; allowed: left_share 0, 0.5 or 1": self.eigenvalue_correction
            and self.left_share not in (0.0, 0.5, 1.0),
            "large_dimensions diagonal requires a left_share above 0 and below 1": self.left_share
            in (0.0, 1.0)
            and self.large_dimensions == "diagonal",
            "basis_change keep requires eigenvalue_correction": self.basis_change == "keep"
            and not self.eigenvalue_correction,
            "grafting_scope block requires grafted_norm": self.grafting_scope == "block"
            and not self.grafted_norm,
        }
        for message, wrong in refused.items():
            if wrong:
                raise ValueError(message)

    @property
    def is_kl(self) -> bool:
        return self.factor_update != "shampoo"

    @property
    def has_integer_root(self) -> bool:
        """True where roots are of whole order whatever the tensor."""
        return self.exponent_multiplier == 1.0 and self.left_share in (0.0, 0.5, 1.0)

    def exponent(self, preconditioned: int) -> float:
        """Returns e of the inverse roots A^(-e) of a tensor with so many preconditioned dimensions (PSO lemma 1)."""
        order = self.exponent_override or (2 if self.factor_update == "kl" else 2 * preconditioned)
        if self.exponent_multiplier > order:
            raise ValueError(
                f"exponent_multiplier is {self.exponent_multiplier!r} and exponent_override is "
                f"{self.exponent_override!r}: roots A^(-{self.exponent_multiplier / order:g}) of tensors with "
                f"{preconditioned} preconditioned dimensions; allowed: exponents of at most 1"
            )
        return self.exponent_multiplier / order

    def side_exponent(self, axis: int, preconditioned: int, order: int) -> float:
        """Returns e of the root along an axis of a tensor of this order (PSO lemma 1).

        Of a matrix with both sides ``left_share`` divides the exponents' sum between them.
        """
        exponent = self.exponent(preconditioned)
        if order != 2 or preconditioned != 2:
            return exponent
        return 2.0 * exponent * (self.left_share if axis == 0 else 1.0 - self.left_share)

    @property
    def correction_exponent(self) -> float:
        """Exponent e of V^e, by which ``eigenvalue_correction`` divides."""
        return self.exponent_multiplier / (self.exponent_override or 2)

    @property
    def averages_in_bases(self) -> bool:
        """True where averages of gradients are kept in the eigenbases: nothing needs them in their own coordinates."""
        needs_grafts = self.grafted_norm or self.separate_momenta
        return self.eigenvalue_correction and self.beta1 > 0 and not needs_grafts

    @property
    def passes(self) -> int:
        """Number of times that a step multiplies a block by its roots, or by its bases: into them and back."""
        if not self.eigenvalue_correction:
            return 1
        return 3 if self.beta1 and not self.averages_in_bases else 2

    @property
    def decay(self) -> float:
        return self.weight_decay if self.weight_decay_kind == "decoupled" else 0.0

    @property
    def has_identities(self) -> bool:
        """True where matrices that miss their first exchange have identities for roots, as in other implementations."""
        return self.exchange_phase is not None

    @property
    def damps_zero(self) -> bool:
        """True where a matrix of zeros has a root: that of its damping."""
        return self.damping == "absolute" and self.epsilon > 0
