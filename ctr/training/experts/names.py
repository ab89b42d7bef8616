"""Names of a model's experts; loads no TensorFlow."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from ctr.data.schema import Schema

ExpertName = Literal["linear", "network", "pairs"]

LINEAR: ExpertName = "linear"
NETWORK: ExpertName = "network"
PAIRS: ExpertName = "pairs"
EXPERTS: tuple[ExpertName, ...] = (LINEAR, NETWORK, PAIRS)
"""All experts in order: the prediction starts from a model's first expert."""

_MOST_PAIRED = 32
"""Maximum features for which ``auto`` includes pairs: the 496 pairs of 32 features cost more than a network."""


class Model(Protocol):
    """Interface to the keys of a ``ctr.training.model_config.ModelConfig`` that determine its experts."""

    @property
    def experts(self) -> Literal["auto"] | tuple[ExpertName, ...]: ...
    @property
    def has_layers(self) -> bool: ...
    @property
    def factorized(self) -> object: ...
    @property
    def ensemble(self) -> Any: ...
    @property
    def pooling(self) -> Mapping[str, Any]: ...
    @property
    def without(self) -> tuple[str, ...]: ...
    def features(self, schema: Schema) -> Schema: ...


def expert_names(model: Model) -> tuple[ExpertName, ...]:
    """Returns the experts of a model in order; ``auto`` excludes pairs here, since their use depends on the log."""
    if model.experts != "auto":
        return tuple(name for name in EXPERTS if name in model.experts)
    if model.factorized is not None:
        return (NETWORK,)
    return (LINEAR, NETWORK) if model.has_layers else (LINEAR,)


def reads_embeddings(model: Model) -> bool:
    """Returns whether a network is among the experts."""
    return NETWORK in expert_names(model)


def has_linear_inside(model: Model) -> bool:
    """Returns whether the linear weights are part of the network instead of a linear expert."""
    return LINEAR not in expert_names(model)


def check_experts(model: Model) -> None:
    """Raises ValueError if a configuration's experts do not fit its other keys."""
    names = expert_names(model)
    if len(names) < len(model.experts) and model.experts != "auto":
        raise ValueError("experts names one twice")
    if not {LINEAR, NETWORK} & {*names}:
        raise ValueError("experts must name linear or network: pairs alone are no model")
    if NETWORK in names:
        if not model.has_layers:
            raise ValueError("experts: network needs crosses or deep layers")
        return
    attention = [name for name, pooling in model.pooling.items() if pooling.kind != "mean"]
    needing = {
        "factorized": model.factorized is not None,
        "ensemble.components above 1": model.ensemble.components > 1,
        f"pooling.{''.join(attention[:1])}": bool(attention),
    }
    for key, is_set in needing.items():
        if is_set:
            raise ValueError(f"{key} needs the expert network, with crosses or deep layers")


def choose_experts(model: Model, schema: Schema) -> tuple[tuple[ExpertName, ...], list[str]]:
    """Chooses the experts of a model for the features of a log if ``experts`` is ``auto``.

    Returns the experts, and one line for each expert that another key or the log excludes.
    """
    names = expert_names(model)
    if model.experts != "auto":
        return names, []
    if model.factorized is not None:
        return names, [
            "model.experts is network alone, and its linear weights learn by AdaGrad, as model.factorized makes the "
            "prediction of Q and U"
        ]
    notes = []
    if not model.has_layers:
        notes.append("model.experts is without network, as there are neither crosses nor deep layers")
    singles = len(paired_features(model, schema))
    if 2 <= singles <= _MOST_PAIRED:
        names += (PAIRS,)
    elif singles > _MOST_PAIRED:
        limit = f"more than {_MOST_PAIRED}"
        notes.append(
            f"model.experts is without pairs, as the log has {singles} single-valued features, {limit}"
        )
    return names, notes


def paired_features(model: Model, schema: Schema) -> list[str]:
    """Returns the names of the single-valued features that form pairs."""
    return [name for name in model.features(schema).single_ids if name not in model.without]
