"""The ids that grow that one run's map has, in the map of a run that begins from it."""

from collections.abc import Mapping

import numpy as np

from ctr.data.schema import feature_meanings
from ctr.training.ids.of_tables import live_ids, restored_maps
from ctr.training.state import TrainState
from ctr.training.warm_start.weights import Arrays, Side

Slots = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By feature, int32 [N] each: rows in the new table, and the rows of the same ids in the old one."""


def take_ids(state: TrainState, new: Side, old: Side, old_arrays: Arrays) -> Slots:
    """Gives the ids of the features that both runs have slots in the new run's maps, with what is known of their use.

    Args:
        state: of the new run, as it begins; the slots begin as those of new ids do.
        new, old: the two runs.
        old_arrays: of the old run, by the names of ``TrainState.arrays``.
    """
    old_ids = live_ids(old.layouts, restored_maps(old.layouts, old.config.ids, old_arrays))
    meanings, old_meanings = feature_meanings(new.schema), feature_meanings(old.schema)
    slots = {}
    for number, layout in enumerate(new.layouts):
        for index, feature in enumerate(layout.growing):
            name = feature.name
            if name in old_ids and meanings[name] == old_meanings[name]:
                rows = state.tables.adopt(number, index, old_ids[name])
                fits = rows >= 0
                slots[name] = rows[fits], old_ids[name].rows[fits]
    return slots
