"""Selects the state of an earlier run that a new run starts with: by feature, and by name and equal shape.

==================  ==================================================================================================
rows of tables      for each feature that both runs define alike, in any table; with their optimizer's state
                    under the same rule
dense weights       by name and shape, if the network reads the same embeddings in the same order
dense optimizer     if all dense weights were taken and its options are the same except rate and schedule
everything else     by name and shape, if it is defined alike
==================  ==================================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ctr.config import differing_keys
from ctr.data.schema import Schema, feature_meanings
from ctr.models.embeddings import tower_columns
from ctr.models.rows import APART, STATISTICS, FeatureRows, TableLayout, all_numbers
from ctr.objective.config import SliceConfig
from ctr.training.config import TrainConfig
from ctr.training.experts.forward import dense_shapes
from ctr.training.experts.names import has_linear_inside
from ctr.training.ids.id_map import restored_maps
from ctr.training.optimizers import table_optimizer
from ctr.training.state import TrainState

Arrays = Mapping[str, np.ndarray]


class Line(NamedTuple):
    """Outcome of the warm start for one part of the model."""

    part: str  # ``feature``, ``weight``, ``optimizer``, ``slices``, ``ramp`` or ``schedule``
    name: str
    status: Literal["taken", "fresh", "left"]  # ``left``: only the old run has the part
    why: str  # why it starts fresh, or where it continues; otherwise empty


@dataclass(frozen=True)
class Side:
    """Configuration and features of the old or the new run."""

    config: TrainConfig
    schema: Schema

    @property
    def layouts(self) -> tuple[TableLayout, ...]:
        return self.config.table_layouts(self.schema)

    def features(self) -> dict[str, tuple[TableLayout, int, FeatureRows]]:
        """Returns, for each feature with ids, the layout of its table, its first row there, and its own layout."""
        return {
            feature.name: (layout, layout.offsets()[feature.name], feature)
            for layout in self.layouts
            for feature in layout.features
        }

    def meaning(self, feature: FeatureRows) -> dict[str, Any]:
        """Returns the definitions of the log's features that a feature's ids come from; empty if one is missing."""
        meanings = feature_meanings(self.schema)
        definitions = [meanings.get(name) for name in feature.of or (feature.name,)]
        if any(definition is None for definition in definitions):
            return {}
        return definitions[0] or {} if len(definitions) == 1 else {"of": definitions}

    def network_inputs(self) -> dict[str, Any]:
        """Returns the settings that, besides names and shapes, determine the meaning of dense weights."""
        model, layouts = self.config.model, self.config.model.table_layouts(self.schema, 1)
        return {
            "embeddings": tower_columns(layouts, model.factorized is not None),
            "model.experts": has_linear_inside(model),
            "model.network": model.network,
        }


def take_state(
    state: TrainState, old_arrays: Arrays, new: Side, old: Side
) -> tuple[dict[str, np.ndarray], list[Line]]:
    """Returns the initial arrays of the new run, and a line for each part.

    ``state`` is the new run's fresh state; its id maps get the old run's ids. Raises KeyError or ValueError if
    ``old_arrays`` do not fit ``old``.
    """
    slots = _take_ids(state, new, old, old_arrays)
    arrays = {name: np.array(array) for name, array in state.arrays().items()}
    lines = [
        *_take_rows(arrays, old_arrays, new, old, slots),
        *_take_numbers(arrays, old_arrays, new, old),
        *_take_dense(arrays, old_arrays, new, old, [*state.dense_optimizer.variables]),
        *_take_slices(arrays, old_arrays, new, old),
    ]
    take_combination(arrays, old_arrays)
    return arrays, lines


def _take_ids(
    state: TrainState, new: Side, old: Side, old_arrays: Arrays
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Assigns slots in the new run's maps to the ids of shared features, with their usage statistics.

    Returns, by feature, the rows of these ids in the new table and in the old one, int32 [N] each.
    """
    old_ids = {}
    for number, id_map in restored_maps(old.layouts, old.config.ids, old_arrays).items():
        occupants = id_map.occupants()
        for index, feature in enumerate(old.layouts[number].growing):
            old_ids[feature.name] = occupants.of_feature(index)
    slots = {}
    for number, layout in enumerate(new.layouts):
        for index, feature in enumerate(layout.growing):
            name = feature.name
            if name in old_ids and new.meaning(feature) == old.meaning(feature):
                rows = state.tables.adopt(number, index, old_ids[name])
                fits = rows >= 0
                slots[name] = rows[fits], old_ids[name].rows[fits]
    return slots


def _take_rows(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    slots: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> list[Line]:
    """Copies the table rows of features that both runs define alike, with their optimizer state under the same rule."""
    features, old_features = new.features(), old.features()
    # The sum over a batch and its mean are gradients of different scales, and each rule has different state.
    rules, old_rules = (side.config.optimizer.embeddings for side in (new, old))
    differing = [
        f"optimizer.embeddings.{key} was {getattr(old_rules, key)}, is {getattr(rules, key)}"
        for key in ("rule", "gradient", "linear_rule")
        if getattr(rules, key) != getattr(old_rules, key)
    ]
    optimizer = table_optimizer(rules, new.layouts)
    lines = []
    for name, (layout, begin, feature) in features.items():
        why = ["the old run has none"]
        if name in old_features:
            old_layout, old_begin, old_feature = old_features[name]
            why = differing_keys(
                {**old.meaning(feature), "width": old_feature.width, "components": old_layout.copies},
                {**new.meaning(feature), "width": feature.width, "components": layout.copies},
            )
        if not feature.of:
            lines.append(Line("feature", name, "fresh" if why else "taken", "; ".join(why)))
        if why:
            continue
        # If ids grow, these are the row of a missing value and, if their number is equal, the shared rows.
        count = feature.buckets if feature.buckets == old_feature.buckets else 1
        pairs: list[tuple[Any, Any]] = [(slice(begin, begin + count), slice(old_begin, old_begin + count))]
        pairs += [slots[name]] if name in slots else []
        for group in ("rows", *(() if differing else optimizer.row_state)):
            target, source = arrays[f"{group}/{layout.name}"], old_arrays[f"{group}/{old_layout.name}"]
            for rows, old_rows in pairs:
                target[rows] = source[old_rows]
        for group in () if differing else optimizer.feature_state:
            number, old_number = layout.features.index(feature), old_layout.features.index(old_feature)
            arrays[f"{group}/{layout.name}"][number] = old_arrays[f"{group}/{old_layout.name}"][old_number]
    left = (name for name, (*_, removed) in old_features.items() if name not in features and not removed.of)
    lines += [Line("feature", name, "left", "") for name in left]
    return [*lines, Line("optimizer", "embeddings", "fresh" if differing else "taken", "; ".join(differing))]


def _take_numbers(arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side) -> list[Line]:
    """Copies the statistics of numeric features that both runs define alike."""
    before = {numbers.name: numbers for numbers in all_numbers(old.layouts)}
    meanings, old_meanings = feature_meanings(new.schema), feature_meanings(old.schema)
    lines = []
    for numbers in all_numbers(new.layouts):
        name, why = numbers.name, ["the old run has none"]
        if name in before:
            why = differing_keys(old_meanings[name], meanings[name])
        if not why:
            columns, old_columns = (slice(n.first, n.first + n.size) for n in (numbers, before[name]))
            for group in (STATISTICS, APART):
                arrays[group][:, columns] = old_arrays[group][:, old_columns]
        lines.append(Line("feature", name, "fresh" if why else "taken", "; ".join(why)))
    return lines + [Line("feature", name, "left", "") for name in before if name not in meanings]


def _take_dense(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side, optimizer_names: list[str]
) -> list[Line]:
    """Copies dense weights by name and shape, and the optimizer's state if all weights were taken."""
    names, old_names = (
        [*dense_shapes(side.config.model, side.config.objective, side.layouts)] for side in (new, old)
    )
    inputs, old_inputs = new.network_inputs(), old.network_inputs()
    changed = [f"other {key}" for key in inputs if inputs[key] != old_inputs[key]]
    lines = []
    for index, name in enumerate(names):
        target, why = arrays[f"dense/{index:03d}"], "; ".join(changed)
        if not why and name not in old_names:
            why = "the old run has none"
        elif not why:
            source = old_arrays[f"dense/{old_names.index(name):03d}"]
            if source.shape == target.shape:
                target[...] = source
            else:
                why = f"its shape was {[*source.shape]}, is {[*target.shape]}"
        lines.append(Line("weight", name, "fresh" if why else "taken", why))
    lines += [Line("weight", name, "left", "") for name in old_names if name not in names]
    options, old_options = (
        side.config.optimizer.dense.model_dump(
            exclude={"learning_rate", "schedule", "preconditioned_from_rows"}
        )
        for side in (new, old)
    )
    whys = [f"optimizer.dense.{change}" for change in differing_keys(old_options, options)]
    if any(line.status != "taken" for line in lines):
        whys.append("it knows all weights, and some were not taken")
    if not whys:
        names = optimizer_names
        if new.config.preconditions != old.config.preconditions:
            # One run's batches are too small for statistics and roots: only the graft's state is common.
            shapes = {name: array.shape for name, array in old_arrays.items()}
            names = [name for name in names if shapes.get(name) == arrays[name].shape]
        for name in names:
            arrays[name][...] = old_arrays[name]
    return [*lines, Line("optimizer", "dense", "fresh" if whys else "taken", "; ".join(whys))]


def take_combination(arrays: dict[str, np.ndarray], old_arrays: Arrays) -> None:
    """Copies the experts' biases and combination weights, with the state of their Newton steps, by name and shape."""
    for name, array in arrays.items():
        is_fitted = name.startswith(("experts/", "newton/")) and name in old_arrays
        if is_fitted and old_arrays[name].shape == array.shape:
            array[...] = old_arrays[name]


def _take_slices(arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side) -> list[Line]:
    """Copies the dual variables and slice statistics of families that are defined alike."""
    families, old_families = _families(new), _families(old)
    lines = []
    for name, family in families.items():
        why = ["the old run has none"]
        if name in old_families:
            why = differing_keys(old_families[name], family)
        if not why:
            for group in ("duals", "slices_seen"):
                arrays[f"{group}/{name}"][...] = old_arrays[f"{group}/{name}"]
        lines.append(Line("slices", name, "fresh" if why else "taken", "; ".join(why)))
    return lines + [Line("slices", name, "left", "") for name in old_families if name not in families]


def _families(side: Side) -> dict[str, dict[str, Any]]:
    """Returns the definition of each family's slices by name, without its learning rate."""
    constraints = side.config.objective.bias_constraints
    meanings = feature_meanings(side.schema)
    families: tuple[SliceConfig, ...] = () if constraints is None else constraints.families
    return {
        family.name: {
            "log": family.log,
            "estimated_ctr": family.estimated_ctr,
            "features": {
                name: {"values": values, "meaning": meanings[name]}
                for name, values in family.features.items()
            },
        }
        for family in families
    }


def take_ramps(
    new: Side, old: Side, trained: int, before: Mapping[str, int], lines: list[Line]
) -> tuple[list[Line], dict[str, int]]:
    """Continues the ramps and schedules that both runs have, unless their weights or terms start fresh.

    ``trained``: number of examples that the old run trained on; ``before``: by ramp, the number trained on before it.
    Returns lines, and the number of examples so far for each ramp or schedule that continues.
    """
    taken = {line.part for line in lines if line.status == "taken"}
    kernels = [line.name for line in lines if (line.part, line.status) == ("weight", "taken")]
    has_crosses = any("/cross_" in name and not name.endswith("_bias") for name in kernels)
    ramps = {name: name in old.config.objective.terms for name in new.config.objective.terms}
    if "bias_constraints" in ramps:
        ramps["bias_constraints"] &= "slices" in taken
    if new.config.model.crosses.layers or new.config.model.network:
        ramps = {"alpha2": has_crosses or bool(new.config.model.network and "weight" in taken), **ramps}
    parts = {"embeddings": "feature", "dense": "weight", "duals": "slices"}
    schedules = {
        f"rate_{group}": group in old.config.schedules and parts[group] in taken
        for group in new.config.schedules
    }
    continued = {
        name: trained + before.get(name, 0) for name, goes_on in {**ramps, **schedules}.items() if goes_on
    }
    return [
        Line(part, name, "taken", f"continues at {continued[name]} examples")
        if goes_on
        else Line(part, name, "fresh", "begins here")
        for part, names in (("ramp", ramps), ("schedule", schedules))
        for name, goes_on in names.items()
    ], continued
