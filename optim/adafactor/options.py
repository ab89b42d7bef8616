"""The settings of Adafactor, checked when they are made."""

from dataclasses import dataclass
from typing import Annotated

from ctr.optim.checked import Decay, NotNegative, Options, Real


@dataclass(frozen=True, kw_only=True)
class AdafactorOptions(Options):
    """Everything but the learning rate, which is the step size rho or its upper bound. Defaults are those of ADAFACTOR.

    Attributes:
        epsilon1: added to the squares of gradients (algorithm 4).
        epsilon2: the least root mean square of a weight that relative steps are relative to.
        clipping: ``d``: updates whose root mean square is above it are scaled down to it; 0: none.
        decay_power: ``c`` of the decay of second moments, beta2 = 1 - t^(-c) at step t (7.2); at 1 they are
            means over all steps.
        beta2: constant decay of second moments, corrected for its bias (7.1; table 2, lines A to J), in the place of
            ``decay_power``; None: that.
        relative_steps: steps are relative to the root mean square of the weight; else the learning rate is absolute.
        inverse_sqrt: the step size at step t is min(rho, 1 / sqrt(t)) (algorithm 6).
        factored: keep sums by row and by column instead of one number for each element, where there are two dimensions.
        beta1: decay of the moving average of updates; 0: none (section 4). Not for tables.
    """

    epsilon1: NotNegative = 1e-30
    epsilon2: NotNegative = 1e-3
    clipping: NotNegative = 1.0
    decay_power: Annotated[float, Real(0.0, 1.0)] = 0.8
    beta2: Annotated[float, Real(0.0, 1.0, low_open=True, high_open=True)] | None = None
    relative_steps: bool = True
    inverse_sqrt: bool = True
    factored: bool = True
    beta1: Decay = 0.0
