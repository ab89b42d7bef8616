"""The settings of Muon, checked when they are made."""

from dataclasses import dataclass
from typing import Annotated

from ctr.optim.checked import CheckedOptions, Decay, NotNegative, Whole


@dataclass(frozen=True, kw_only=True)
class MuonOptions(CheckedOptions):
    """Everything but the learning rate. Defaults are those of Keras, but for the weight decay.

    Attributes:
        momentum: ``mu``.
        nesterov: whether the direction is G + mu M; else it is M.
        iterations: steps of the polynomial.
        rms: the root mean square of a matrix's update, in units of the learning rate, were all singular values 1.
        beta1: decay of Adam's average of gradients, for what is no matrix.
        beta2: decay of Adam's average of squared gradients.
        epsilon: added to the root of that average.
        weight_decay: ``lambda``, decoupled.
    """

    momentum: Decay = 0.95
    nesterov: bool = True
    iterations: Annotated[int, Whole(0, 100)] = 5
    rms: NotNegative = 0.2
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: NotNegative = 1e-7
    weight_decay: NotNegative = 0.0
