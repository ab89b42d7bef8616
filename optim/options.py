"""The settings of Shampoo, checked when they are made."""

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

import numpy as np

Grafting = Literal["adagrad", "sgd", "rmsprop", "adam"]
Solver = Literal["auto", "eigh", "coupled"]
Sparse = Literal["adagrad", "adagrad_row", "one_sided"]


@dataclass(frozen=True)
class _Whole:
    """Whole numbers from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"a whole number in {self.low}..{self.high}"

    def holds(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class _Real:
    """Numbers from ``low`` to ``high``, without an end that is open."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    @property
    def allowed(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low}, {self.high}{')' if self.high_open else ']'}"

    def holds(self, value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        inside = self.low <= value <= self.high
        return (
            inside
            and not (self.low_open and value == self.low)
            and not (self.high_open and value == self.high)
        )


_Share = Annotated[float, _Real(0.0, 1.0)]
_Decay = Annotated[float, _Real(0.0, 1.0, high_open=True)]
_NotNegative = Annotated[float, _Real(0.0, math.inf, high_open=True)]
_Steps = Annotated[int, _Whole(0, 2**62)]
# float32 sums collect for so many steps before they go into float64 (see state.py).
_Frequency = Annotated[int, _Whole(1, 100_000)]
_Size = Annotated[int, _Whole(1, 65536)]


@dataclass(frozen=True, kw_only=True)
class ShampooOptions:
    """Everything but the learning rate. Symbols are those of PSO (Anil et al.) and PT (Shi et al.).

    Attributes:
        block_size: tensors are split into blocks of at most this size in every dimension (PSO 3.1).
        max_dimension: a longer dimension gets no preconditioner, and the other dimensions of its tensor get
            stronger exponents (PSO lemma 1). If no dimension is left, the tensor takes the grafted step.
        merge_dimensions: neighboring dimensions are merged while their product is at most this; None: never.
        beta1: decay of the moving average of the gradient that is preconditioned (PT 3.1.1); 0: no average.
        beta2: decay of the statistics per collection, bias-corrected; 1: they are summed.
        epsilon: damping, relative to the largest eigenvalue of each statistics matrix.
        exponent_override: ``p`` of the inverse root A^(-1/p); None: twice the number of preconditioned
            dimensions.
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
        grafting: the optimizer whose step size each layer takes (PSO App. G), and which trains tensors
            without a preconditioner.
        grafting_beta2: decay of the second moment in ``rmsprop`` and ``adam``.
        grafting_epsilon: added to the square root of the second moment in ``rmsprop`` and ``adam``.
        initial_accumulator: initial value of AdaGrad's sums of squares (FF 4.2).
        momentum: ``mu`` of M = mu M + (1 - mu) P on the preconditioned direction; 0: none.
        nesterov: step along mu M + (1 - mu) P instead of M.
        weight_decay: ``lambda``, decoupled (PT 3.1.2): P + lambda W, before momentum.
        update_limit_relative: ``r``: no step moves any weight W of a tensor by more than r |W| + a. If one
            would, the whole step of the tensor is scaled down (FF 4.1.3, update_limit.py). Not for tables.
        update_limit_absolute: ``a`` in the rule of ``update_limit_relative``; 0: no limit.
        sparse: how tables learn from the rows that a batch touches: element-wise AdaGrad, AdaGrad with one
            sum per row, or Shampoo with the right side only.
    """

    block_size: _Size = 256
    max_dimension: _Size = 8192
    merge_dimensions: Annotated[int, _Whole(1, 2**31)] | None = None
    beta1: _Decay = 0.0
    beta2: Annotated[float, _Real(0.0, 1.0, low_open=True)] = 1.0
    # Below, the damping would drown in the rounding of float64.
    epsilon: Annotated[float, _Real(1e-14, 1.0)] = 1e-6
    exponent_override: Annotated[int, _Whole(1, 64)] | None = None
    exponent_multiplier: Annotated[float, _Real(0.0, 4.0, low_open=True)] = 1.0
    start_preconditioning_step: _Steps | None = 1
    blend_steps: _Steps = 0
    statistics_frequency: _Frequency = 10
    precondition_frequency: _Frequency = 50
    early_growth: _Share = 0.25
    asynchronous: bool = True
    drift_bound: _Share = 0.02
    solver: Solver = "auto"
    grafting: Grafting = "adagrad"
    grafting_beta2: _Decay = 0.999
    grafting_epsilon: _NotNegative = 1e-8
    initial_accumulator: _NotNegative = 1e-6
    momentum: _Decay = 0.0
    nesterov: bool = False
    weight_decay: _NotNegative = 0.0
    update_limit_relative: _NotNegative = 0.0
    update_limit_absolute: _NotNegative = 0.0
    sparse: Sparse = "adagrad"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.integer | np.floating):
                # As sweeps over NumPy ranges give them; JSON would not take them.
                object.__setattr__(self, name, value.item())
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            _check(name, getattr(self, name), hint)
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
        if self.solver == "coupled" and not self.has_integer_root:
            raise ValueError(
                f"solver coupled computes roots of whole order, which exponent_multiplier "
                f"{self.exponent_multiplier} does not give; allowed: solver auto or eigh"
            )

    @property
    def has_integer_root(self) -> bool:
        """Whether roots are of whole order whatever the tensor."""
        return self.exponent_multiplier == 1.0

    def exponent(self, preconditioned: int) -> float:
        """e of the inverse roots A^(-e) of a tensor with so many preconditioned dimensions (PSO lemma 1)."""
        order = self.exponent_override or 2 * preconditioned
        if self.exponent_multiplier > order:
            raise ValueError(
                f"exponent_multiplier is {self.exponent_multiplier!r} and exponent_override is "
                f"{self.exponent_override!r}: roots A^(-{self.exponent_multiplier / order:g}) of tensors with "
                f"{preconditioned} preconditioned dimensions; allowed: exponents of at most 1"
            )
        return self.exponent_multiplier / order

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(field.name for field in fields(cls))


def _check(name: str, value: Any, hint: Any) -> None:
    """Raises ValueError where a value is not what the annotation of its option allows."""
    ranges = [part for part in _parts(hint) if isinstance(part, _Whole | _Real)]
    if ranges:
        optional = type(None) in get_args(hint)
        fits = (value is None and optional) or ranges[0].holds(value)
        allowed = ranges[0].allowed + (" or None" if optional else "")
    elif hint is bool:
        fits, allowed = isinstance(value, bool), "True, False"
    else:
        fits, allowed = value in get_args(hint), ", ".join(get_args(hint))
    if not fits:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def _parts(hint: Any) -> list[Any]:
    """What an annotation is made of, however it is nested."""
    return [
        hint,
        *(inner for part in getattr(hint, "__metadata__", ()) for inner in _parts(part)),
        *(inner for part in get_args(hint) for inner in _parts(part)),
    ]
