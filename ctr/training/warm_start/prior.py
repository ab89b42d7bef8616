"""What a run that begins from another one's weights takes over of learned priors, and of what is fitted at the end."""

from collections.abc import Set

import numpy as np

from ctr.training.optimizers import table_optimizer
from ctr.training.warm_start.weights import Arrays, Side


def take_priors(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side, names: Set[str]
) -> None:
    """Puts in what the old run has learned of whole features.

    Args:
        arrays, old_arrays: by the names of ``TrainState.variables``; the first is changed.
        names: the features whose rows were taken.
    """
    mine, theirs = (side.config.optimizer.embeddings for side in (new, old))
    if mine.linear_rule != theirs.linear_rule:
        return
    groups = table_optimizer(new.config.optimizer.embeddings, new.layouts).feature_state
    places, old_places = _places(new), _places(old)
    for name in names & places.keys() & old_places.keys():
        (table, copies, at), (old_table, old_copies, old_at) = places[name], old_places[name]
        for group in groups:
            target, source = arrays[f"{group}/{table}"][at], old_arrays[f"{group}/{old_table}"][old_at]
            if copies == old_copies:
                target[...] = source


def take_fitted(arrays: dict[str, np.ndarray], old_arrays: Arrays) -> None:
    """Puts in what is known of the biases, the offset and the gate, where both runs fit them."""
    for name in arrays:
        if name.startswith("newton/") and name in old_arrays and old_arrays[name].shape == arrays[name].shape:
            arrays[name][...] = old_arrays[name]


def _places(side: Side) -> dict[str, tuple[str, int, int]]:
    """By feature: its table, the copies there, and its number."""
    return {
        feature.name: (layout.name, layout.copies, number)
        for layout in side.layouts
        for number, feature in enumerate(layout.features)
    }
