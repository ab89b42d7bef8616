"""Maps of the tables in which ids grow, and their arrays by the names that states and checkpoints have for them."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from ctr.models.rows import TableLayout
from ctr.training.ids.config import IdsConfig
from ctr.training.ids.id_map import GrowingFeature, IdMap, Occupants
from ctr.workers.group import ONE, Group

ValueT = TypeVar("ValueT")


def make_id_map(layout: TableLayout, ids: IdsConfig, group: Group = ONE) -> IdMap:
    """Makes the map, empty yet, of a table in which ids grow; of several workers each keeps a part of it."""
    offsets = layout.offsets()
    features = [
        GrowingFeature(
            feature.name,
            offsets[feature.name] + 1,
            ids.shared_rows,
            ids.capacity_of(feature.name),
        )
        for feature in layout.growing
    ]
    return IdMap(features, layout.rows, ids.admission, ids.eviction, group)


def id_arrays(layout: TableLayout, arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Selects what a table's map restores itself from, of all arrays of a state, or of something for each of them."""
    prefix = _prefix(layout)
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def restored_maps(
    layouts: Sequence[TableLayout], ids: IdsConfig, arrays: Mapping[str, np.ndarray]
) -> dict[int, IdMap]:
    """Restores the maps of tables from a state's arrays, by the tables' numbers; for a process alone."""
    maps = {number: make_id_map(layout, ids) for number, layout in enumerate(layouts) if layout.growing}
    for number, id_map in maps.items():
        id_map.restore(id_arrays(layouts[number], arrays))
    return maps


def find_slots(id_maps: Sequence[IdMap], ids: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Finds the slots of ids in several maps that the same workers have, in one exchange: int64 [U], -1 for none.

    ``ids``: for each map features, int16 [U], and fingerprints, int64 [U].
    """
    if not ids:
        return []
    held = [id_map.held_slots(*own) for id_map, own in zip(id_maps, ids, strict=True)]
    found = id_maps[0].group.sum_numbers(np.concatenate(held)).astype(np.int64) - 1
    return np.split(found, np.cumsum([len(own) for own in held])[:-1])


def live_ids(layouts: Sequence[TableLayout], id_maps: Mapping[int, IdMap]) -> dict[str, Occupants]:
    """Returns the ids that have a slot, by feature; of several workers those that this one keeps."""
    return {
        feature.name: occupants.of_feature(index)
        for number, occupants in ((number, id_map.occupants()) for number, id_map in id_maps.items())
        for index, feature in enumerate(layouts[number].growing)
    }


def named(layouts: Sequence[TableLayout], of_maps: Mapping[int, Mapping[str, ValueT]]) -> dict[str, ValueT]:
    """Names what there is of each array of maps, given by the numbers of their tables, as states do."""
    return {
        f"{_prefix(layouts[number])}{name}": value
        for number, of_map in of_maps.items()
        for name, value in of_map.items()
    }


def _prefix(layout: TableLayout) -> str:
    return f"ids/{layout.name}/"
