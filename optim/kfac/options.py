"""The settings of K-FAC, checked when they are made."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ctr.optim.checked import CheckedOptions, Decay, Frequency, NotNegative, Real, Whole


@dataclass(frozen=True, kw_only=True)
class KfacOptions(CheckedOptions):
    """Everything but the learning rate.

    Attributes:
        damping: ``lambda`` of THESIS eq. 3.1.
        relative_damping: lambda is a share of the mean eigenvalue of the factorization, tr A tr G / (dim A dim G), so
            that its effect does not depend on the scale of the loss.
        form: ``inverse`` divides the damping between both factors by pi (eq. 3.2); ``eigen`` adds it to the products of
            their eigenvalues.
        fisher: whether output gradients are those of labels ``sampled`` from the model, or of the labels themselves
            (``empirical``).
        decay: of the factors, per collection, bias-corrected.
        statistics_frequency: factors are collected every this many steps, and at every step of the first
            ``inverse_frequency``.
        statistics_rows: factors are of about so many rows of a batch, every n-th one, which the passes that collect
            them are made with; of a batch below twice that, of all. They change slowly, and their average is over many
            batches.
        inverse_frequency: inverses, or eigenvectors, are computed every this many steps.
        grafting: the step size that each layer takes: ``adagrad``'s, or its ``own``. AdaGrad also trains what is in no
            linear product.
        initial_accumulator: initial value of AdaGrad's sums of squares.
        momentum: ``mu`` of M = mu M + (1 - mu) P; 0: none.
        nesterov: step along mu M + (1 - mu) P instead of M.
        weight_decay: ``lambda`` of decoupled decay, before momentum; of matrices alone.
        seed: of sampled labels.
    """

    damping: Annotated[float, Real(0.0, 1e6, low_open=True)] = 1e-2
    relative_damping: bool = True
    form: Literal["inverse", "eigen"] = "inverse"
    fisher: Literal["sampled", "empirical"] = "sampled"
    decay: Decay = 0.95
    statistics_frequency: Frequency = 10
    statistics_rows: Annotated[int, Whole(1, 2**31 - 1)] = 512
    inverse_frequency: Frequency = 50
    grafting: Literal["adagrad", "own"] = "adagrad"
    initial_accumulator: NotNegative = 1e-6
    momentum: Decay = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0
    seed: Annotated[int, Whole(0, 2**31 - 1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov requires a momentum above 0")
