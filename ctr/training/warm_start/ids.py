"""The ids that grow that one run's map has, in the map of a run that begins from it."""

from collections.abc import Mapping

import numpy as np

from ctr.data.schema import feature_meanings
from ctr.training.ids.id_map import IdMap
from ctr.training.ids.of_tables import make_id_map
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
    old_maps = {name: _old_map(name, old, old_arrays) for name in old.schema.growing}
    meanings, old_meanings = feature_meanings(new.schema), feature_meanings(old.schema)
    slots = {}
    for number, layout in enumerate(new.layouts):
        for place, feature in enumerate(layout.growing):
            name = feature.name
            if name in old_maps and meanings[name] == old_meanings[name]:
                old_map, old_place = old_maps[name]
                known = old_map.occupants()
                own = np.flatnonzero(known.features == old_place)
                rows = state.tables.adopt(number, place, known, own)
                fits = rows >= 0
                slots[name] = rows[fits], known.rows[own[fits]]
    return slots


def _old_map(name: str, old: Side, arrays: Arrays) -> tuple[IdMap, int]:
    """The map that has a feature's ids, and the feature's number in it."""
    layout, _, _ = old.places()[name]
    id_map = make_id_map(layout, old.config.ids)
    prefix = f"ids/{layout.name}/"
    id_map.restore(
        {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    )
    return id_map, [feature.name for feature in layout.growing].index(name)
