"""Options of first-order optimizers whose step sizes others take (grafting: PSO App. G; PT 2.4)."""

from dataclasses import dataclass
from typing import Literal

from ctr.optim.checked import Decay, NotNegative, OneOf


@dataclass(frozen=True, kw_only=True)
class Graft(OneOf):
    """How a layer takes the step size of a first-order optimizer.

    Attributes:
        norm: whether a whole ``tensor`` takes the norm of the first-order step, or each ``block`` (PT 4.2.1); ``none``:
            directions keep their own, as in SOAP, and this optimizer has only what is not preconditioned.
        momentum: ``after``: it averages grafted directions (FF 4.2; PT). ``before``: it averages Shampoo's and
            first-order directions each, before one takes the norm of the other (PSO II).
    """

    norm: Literal["tensor", "block", "none"] = "tensor"
    momentum: Literal["after", "before"] = "after"


@dataclass(frozen=True, kw_only=True)
class SGD(Graft):
    """The gradient itself."""

    kind: Literal["sgd"] = "sgd"


@dataclass(frozen=True, kw_only=True)
class LARS(Graft):
    """The gradient, layer by layer with the norm of the weights (PSO App. G)."""

    kind: Literal["lars"] = "lars"


@dataclass(frozen=True, kw_only=True)
class AdaGrad(Graft):
    """AdaGrad.

    Attributes:
        initial_accumulator: initial value of the sums of squares (FF 4.2).
        epsilon: added to their square root.
    """

    kind: Literal["adagrad"] = "adagrad"
    initial_accumulator: NotNegative = 1e-6
    epsilon: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class SecondMoments(Graft):
    """Optimizers that divide by the root of decayed second moments.

    Attributes:
        beta2: decay of the second moments.
        epsilon: added to their square root.
    """

    beta2: Decay = 0.999
    epsilon: NotNegative = 1e-8


@dataclass(frozen=True, kw_only=True)
class RMSprop(SecondMoments):
    """RMSprop, without a bias correction (PT 2.4)."""

    kind: Literal["rmsprop"] = "rmsprop"


@dataclass(frozen=True, kw_only=True)
class Adam(SecondMoments):
    """RMSprop with its second moments corrected for their start."""

    kind: Literal["adam"] = "adam"


@dataclass(frozen=True, kw_only=True)
class LAMB(SecondMoments):
    """Adam, layer by layer with the norm of the weights (PSO App. G)."""

    kind: Literal["lamb"] = "lamb"


AnyGraft = AdaGrad | SGD | RMSprop | Adam | LARS | LAMB
