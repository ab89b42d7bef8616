"""Options of first-order optimizers whose step sizes are grafted (PSO App. G; PT 2.4)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field

from ctr.optim.option_types import STRICT, Decay, NotNegative, option_dataclass

# Without ``kind`` the options are AdaGrad's.
_OF_A_KIND = ConfigDict(**STRICT, json_schema_extra={"required": ["kind"]})


@option_dataclass()
class Graft:
    """Transfer of a first-order optimizer's step size to a layer.

    Attributes:
        kind: the optimizer.
        norm: whether a whole ``tensor`` takes the norm of the first-order step, or each ``block`` (PT 4.2.1); ``none``:
            directions keep their norm, as in SOAP, and this optimizer trains only tensors without a preconditioner.
        momentum: ``after``: it averages grafted directions (FF 4.2; PT). ``before``: it averages Shampoo's and
            first-order directions each, before one takes the norm of the other (PSO II).
    """

    norm: Literal["tensor", "block", "none"] = "tensor"
    momentum: Literal["after", "before"] = "after"


@option_dataclass(_OF_A_KIND)
class SGD(Graft):
    """Gradient descent: the direction is the gradient itself."""

    kind: Literal["sgd"] = "sgd"


@option_dataclass(_OF_A_KIND)
class LARS(Graft):
    """LARS: the gradient, scaled layer by layer to the norm of the weights (PSO App. G)."""

    kind: Literal["lars"] = "lars"


@option_dataclass()
class AdaGrad(Graft):
    """AdaGrad: the gradient divided by the root of its sum of squares.

    Attributes:
        initial_accumulator: initial value of the sums of squares (FF 4.2).
        epsilon: added to their square root.
    """

    kind: Literal["adagrad"] = "adagrad"
    initial_accumulator: NotNegative = 1e-6
    epsilon: NotNegative = 0.0


@option_dataclass()
class SecondMoments(Graft):
    """Optimizers that divide by the root of decayed second moments.

    Attributes:
        beta2: decay of the second moments.
        epsilon: added to their square root.
    """

    beta2: Decay = 0.999
    epsilon: NotNegative = 1e-8


@option_dataclass(_OF_A_KIND)
class RMSprop(SecondMoments):
    """RMSprop, without a bias correction (PT 2.4)."""

    kind: Literal["rmsprop"] = "rmsprop"


@option_dataclass(_OF_A_KIND)
class Adam(SecondMoments):
    """Adam: RMSprop with bias-corrected second moments."""

    kind: Literal["adam"] = "adam"


@option_dataclass(_OF_A_KIND)
class LAMB(SecondMoments):
    """LAMB: Adam's direction, scaled layer by layer to the norm of the weights (PSO App. G)."""

    kind: Literal["lamb"] = "lamb"


_Kind = Literal["adagrad", "sgd", "rmsprop", "adam", "lars", "lamb"]
_AnyKind = AdaGrad | SGD | RMSprop | Adam | LARS | LAMB


def _with_kind(graft: Any) -> Any:
    """Converts a kind to a mapping, and adds the kind ``adagrad`` to a mapping without one."""
    if isinstance(graft, _AnyKind):
        return graft
    options = {"kind": "adagrad", **(graft if isinstance(graft, Mapping) else {"kind": graft})}
    if options["kind"] not in get_args(_Kind):
        raise ValueError(f"{options['kind']!r} is no optimizer; allowed: {', '.join(get_args(_Kind))}")
    return options


AnyGraft = Annotated[
    _AnyKind,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind, json_schema_input_type=_AnyKind | _Kind),
]
