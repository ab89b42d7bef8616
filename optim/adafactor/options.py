"""Options of Adafactor, validated at construction."""

from typing import Annotated

from pydantic import Field

from ctr.optim.option_types import NUMPY, Decay, NotNegative, Share, Switch, option_dataclass


@option_dataclass()
class AdafactorOptions:
    """Options of Adafactor without the learning rate: the step size rho, or its upper bound.

        >>> AdafactorOptions(beta1=0.9).beta1
        0.9

    The defaults are from ADAFACTOR.

    Attributes:
        epsilon1: added to the squares of gradients (algorithm 4).
        epsilon2: the lower bound of the weight's root mean square in relative steps.
        clipping: ``d``: updates with a larger root mean square are scaled down to it; 0: none.
        decay_power: ``c`` of the decay of second moments, beta2 = 1 - t^(-c) at step t (7.2); 1: their means.
        beta2: constant decay of second moments, corrected for its bias (7.1; table 2, lines A to J), instead of
            ``decay_power``; None: ``decay_power`` decides.
        relative_steps: steps are relative to the root mean square of the weight; else the learning rate is absolute.
        inverse_sqrt: the step size at step t is min(rho, 1 / sqrt(t)) (algorithm 6).
        factored: store sums by row and by column instead of one number for each element, if there are two dimensions.
        beta1: decay of the moving average of updates; 0: none (section 4). Tables trained by rows have none.
    """

    epsilon1: NotNegative = 1e-30
    epsilon2: NotNegative = 1e-3
    clipping: NotNegative = 1.0
    decay_power: Share = 0.8
    beta2: Annotated[float, Field(strict=True, gt=0, lt=1), NUMPY] | None = None
    relative_steps: Switch = True
    inverse_sqrt: Switch = True
    factored: Switch = True
    beta1: Decay = 0.0
