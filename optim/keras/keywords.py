"""Types of the keywords of the optimizers, for editors and type checkers; the options validate the values.

The dataclasses of options describe each keyword; a test compares them with these types.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from ctr.optim.first_order.options import Graft
from ctr.optim.shampoo.options import Blocking, Limits, Roots, Statistics

Changes = Mapping[str, Any]
"""Mapping of the options that differ from a group's defaults."""


class KerasKeywords(TypedDict, total=False):
    """Keywords of every optimizer here: ``tables``, and the keywords of Keras' optimizers."""

    tables: str | None
    name: str | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None


class ShampooKeywords(KerasKeywords, total=False):
    """Options of Shampoo and SOAP (``ctr.optim.ShampooOptions``)."""

    beta1: float
    beta2: float
    epsilon: float
    exponent_override: int | None
    start_preconditioning_step: int | None
    precondition_frequency: int
    statistics: Statistics | Changes
    roots: Roots | Changes
    block_size: int
    method: Literal["shampoo", "diagonal", "eigenvalue_corrected"]
    grafting: Graft | Changes | Literal["adagrad", "sgd", "rmsprop", "adam", "lars", "lamb"]
    momentum: float
    nesterov: bool
    weight_decay: float
    rows: Literal["adagrad", "adagrad_row", "one_sided"]
    blocking: Blocking | Changes
    limits: Limits | Changes
    num_replicas_per_group: int | None


class AdafactorKeywords(KerasKeywords, total=False):
    """Options of Adafactor (``ctr.optim.AdafactorOptions``)."""

    epsilon1: float
    epsilon2: float
    clipping: float
    decay_power: float
    beta2: float | None
    relative_steps: bool
    inverse_sqrt: bool
    factored: bool
    beta1: float
