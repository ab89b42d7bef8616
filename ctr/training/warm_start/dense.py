"""Dense weights of another run, with what the optimizer knows of them: matched by meaning, never by place.

Weights go by name, and each of their dimensions has a meaning of its own, which has to be the same in both models::

    ("columns", tower)   the features' embeddings side by side: those of the same features are taken
    ("units", kernel)    what a layer puts out: the same only if that layer itself was taken; where there are more of
                         them, the first ones are taken
    ("size", "")         nothing but a number

So a layer behind one that begins fresh begins fresh too: its input means something else. Units that a wider layer adds
begin as in a fresh run, and what reads them with weights of 0: so the network computes what the narrower one did, as
with Net2WiderNet (Chen et al., arXiv 1511.05641), whose copies of units would need noise to come apart.

A deeper network begins with the function of the shallower one, too (Net2DeeperNet, in the same paper).
A layer that begins as the identity keeps the function only where its activation is idempotent, which SmeLU and others
are not. But of ReLU, SmeLU, GELU, swish and softplus

    activation(x) - activation(-x) = x        for every x

holds exactly. So what the heads of the shallower network compute of its last layer h, x = h R with R [n, k], is carried
through the added layers by 2 k of their units: the first one has [R, -R] in these columns, each further one the same of
[I, -I], and the heads read the difference. The other units begin as in a fresh run, and are read with weights of 0.

An added cross layer e_i = alpha2 (e_0 * U V e_(i-1)) + e_(i-1) is residual: with V = 0 it adds nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ctr.models.architecture import LABELS, NETWORK
from ctr.optim.protocol import Saved
from ctr.training.optimizers import dense_optimizer
from ctr.training.warm_start.weights import Arrays, Entry, Side, Status

ODD_PART_IS_LINEAR = frozenset(("relu", "smelu", "gelu", "swish", "softplus"))
"""Activations of which activation(x) - activation(-x) = x."""

Weights = Mapping[str, np.ndarray]

Axis = tuple[str, str]


class Moved(NamedTuple):
    """Which elements of an old weight become which of a new one: int64 indices along each dimension."""

    new: tuple[np.ndarray, ...]
    old: tuple[np.ndarray, ...]
    exact: bool  # whether all of it is taken, in its own order

    def fills(self, shape: Sequence[int]) -> bool:
        return all(len(index) == size for index, size in zip(self.new, shape, strict=False))

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        if not self.new:
            target[...] = source
        else:
            target[np.ix_(*self.new)] = source[np.ix_(*self.old)]


def take_dense(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side, kept: frozenset[str]
) -> list[Entry]:
    """Puts in what both models have of the dense weights; arguments as for ``take_weights``, a line for each."""
    found, moves = take_weights(arrays, old_arrays, new, old, kept)
    entries = deepen(arrays, old_arrays, new, old, kept, found)
    statuses, why = take_optimizer(arrays, old_arrays, new, old, moves)
    numbers = {name: index for index, name in enumerate(new.shapes)}

    def line(entry: Entry) -> Entry:
        optimizer = None if entry.status == "left" else statuses.get(numbers[entry.name])
        if optimizer is None:
            return entry
        whys = [entry.why, why if optimizer != entry.status else ""]
        return entry._replace(optimizer=optimizer, why="; ".join(filter(None, whys)))

    return [line(entry) for entry in entries]


def take_optimizer(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    moves: Mapping[int, tuple[int, Moved]],
) -> tuple[dict[int, Status], str]:
    """Puts in what the optimizer knew of weights that were taken; returns what became of it by number, and why."""
    optimizer, before = (dense_optimizer(side.config.optimizer.dense) for side in (new, old))
    taken = optimizer.take_over(
        Saved(arrays, list(new.shapes.values())), before, Saved(old_arrays, list(old.shapes.values())), moves
    )
    reasons = [f"optimizer.dense.{optimizer.name}.{option}" for option in taken.differing]
    return {**taken.statuses}, "; ".join([*reasons, *([taken.why] if taken.why else [])])


def weight_axes(names: Sequence[str]) -> dict[str, tuple[Axis, ...]]:
    """Returns what the dimensions of dense weights, all within a component, mean; nothing where only the shape does."""
    inputs: dict[str, Axis] = {}
    axes: dict[str, tuple[Axis, ...]] = {}
    for name in names:
        component, _, inner = name.partition("/")
        tower, _, layer = inner.partition("/")
        columns = ("columns", tower)
        if name.removesuffix("_bias") in axes:
            # That of a kernel.
            axes[name] = axes[name.removesuffix("_bias")][-1:]
        elif inner.endswith("_head"):
            tower = "ui" if inner == "ui_head" else "quality"
            axes[name] = inputs.get(f"{component}/{tower}", ("columns", tower)), ("size", "")
        elif inner.startswith(LABELS):
            if inner.endswith("/out"):
                axes[name] = inputs.get(f"{component}/quality", ("columns", "quality")), ("size", "")
        elif f"{tower}/{layer}".startswith(NETWORK):
            # Of a network of another package the shapes alone are known; the head reads what comes of all of it.
            inputs[f"{component}/{tower}"] = ("units", name)
        elif layer.startswith("cross_"):
            rank = ("units", f"{name[:-1]}u")
            matrices = {"u": (columns, rank), "v": (rank, columns), "w": (columns, columns)}
            axes[name] = matrices[name[-1]]
        elif layer:
            axes[name] = inputs.get(f"{component}/{tower}", columns), ("units", name)
            inputs[f"{component}/{tower}"] = ("units", name)
    return axes


def take_weights(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side, kept: frozenset[str]
) -> tuple[list[Entry], dict[int, tuple[int, Moved]]]:
    """Puts what the same dense weights of both models have in common into the new run's; see ``take_rows``.

    Returns a line for each, and by number of what was taken its number in the old run and the elements.
    """
    keys, old_keys = new.keys(), old.keys()
    axes, old_axes = weight_axes(list(keys)), weight_axes(list(old_keys))
    fresh: set[str] = set()
    entries = []
    moves: dict[int, tuple[int, Moved]] = {}
    columns, old_columns = new.columns(), old.columns()
    old_shapes = list(old.shapes.values())
    names = list(new.shapes)
    for key, index in keys.items():
        if key not in old_keys:
            found: Moved | str = "the old model has none"
        elif axes.get(key) != old_axes.get(key):
            found = "it has another input"
        elif key.removesuffix("_bias") in fresh or any(owner in fresh for _, owner in axes.get(key, ())):
            found = "its layer or its input begins fresh"
        elif NETWORK in key and _network_of(new) != _network_of(old):
            found = "the network or its input is another one"
        elif key.endswith("transfer_slopes") and _knot_range(new) != _knot_range(old):
            found = f"model.factorized.knot_range was {_knot_range(old)}, is {_knot_range(new)}"
        else:
            # Where components had embeddings of their own and share them now, they share those of the first.
            own = not key.startswith("component_0/") and _copies(new) == 1 < _copies(old)
            shape, old_shape = new.shapes[names[index]], old_shapes[old_keys[key]]
            found = match(
                axes.get(key, ()), shape, old_shape, columns, old_columns, frozenset() if own else kept
            )
        if isinstance(found, str):
            fresh.add(key)
            entries.append(Entry("weight", names[index], "fresh", "fresh", found))
            continue
        found.move(arrays[dense_key(index)], old_arrays[dense_key(old_keys[key])])
        moves[index] = old_keys[key], found
        shape, old_shape = new.shapes[names[index]], old_shapes[old_keys[key]]
        grown = _grown(axes.get(key, ()), shape, old_shape)
        if 0 in grown and len(shape) > 1:
            arrays[dense_key(index)][old_shape[0] :] = 0
        whole = shape == old_shape and found.fills(shape)
        why = "" if found.exact else ("in another order" if whole else "the part of the same features")
        why = "what a narrower layer had" if grown else why
        entries.append(Entry("weight", names[index], "taken" if whole else "partly", None, why))
    gone = [name for name, key in zip(old.shapes, old_keys, strict=True) if key not in keys]
    entries += [Entry("weight", name, "left", None, "the new model has none") for name in gone]
    return entries, moves


def _network_of(side: Side) -> tuple[object, object]:
    return side.config.model.network, side.columns()


def _grown(axes: Sequence[Axis], shape: Sequence[int], old_shape: Sequence[int]) -> list[int]:
    """Returns the dimensions along which a layer has more units than it had."""
    return [
        place
        for place, (axis, size, old_size) in enumerate(zip(axes, shape, old_shape, strict=False))
        if axis[0] == "units" and size > old_size
    ]


def dense_key(index: int) -> str:
    """Names a dense weight as in checkpoints (``ctr.training.state.dense_weights``)."""
    return f"dense/{index:03d}"


def _knot_range(side: Side) -> float | None:
    factorized = side.config.model.factorized
    return None if factorized is None else factorized.knot_range


def _copies(side: Side) -> int:
    return side.layouts[0].copies


def match(
    axes: Sequence[Axis],
    shape: Sequence[int],
    old_shape: Sequence[int],
    columns: Mapping[str, Mapping[str, slice]],
    old_columns: Mapping[str, Mapping[str, slice]],
    kept: frozenset[str],
) -> Moved | str:
    """Finds what of a weight is taken, or says why nothing is."""
    differs = f"its shape was {list(old_shape)}, is {list(shape)}"
    if len(shape) != len(old_shape):
        return differs
    indices, old_indices, exact = [], [], True
    for place, (size, old_size) in enumerate(zip(shape, old_shape, strict=True)):
        kind, tower = axes[place] if axes else ("size", "")
        if kind != "columns":
            if size != old_size and not (kind == "units" and size > old_size):
                return differs
            exact = exact and size == old_size
            indices.append(np.arange(old_size))
            old_indices.append(np.arange(old_size))
            continue
        common = [
            (own, old_columns[tower][name])
            for name, own in columns[tower].items()
            if name in kept and name in old_columns[tower]
        ]
        index, old_index = (
            np.concatenate(
                [np.zeros(0, np.int64), *(np.arange(pair[side].start, pair[side].stop) for pair in common)]
            )
            for side in (0, 1)
        )
        if not len(index):
            return "none of its features' embeddings were taken"
        exact = exact and size == old_size == len(index) and bool((index == old_index).all())
        indices.append(index)
        old_indices.append(old_index)
    return Moved(tuple(indices), tuple(old_indices), exact)


def take_fitted(arrays: dict[str, np.ndarray], old_arrays: Arrays) -> None:
    """Puts in what is known of the biases, the offset and the gate, where both runs fit them."""
    by_calibrator: dict[str, list[str]] = {}
    for name in arrays:
        if name.startswith("newton/"):
            by_calibrator.setdefault(name.rpartition("/")[0], []).append(name)
    for names in by_calibrator.values():
        # What a calibrator has seen means nothing without the information that it had of it.
        if all(name in old_arrays and old_arrays[name].shape == arrays[name].shape for name in names):
            for name in names:
                arrays[name][...] = old_arrays[name]


# Added layers.


def deepen(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    kept: frozenset[str],
    entries: Sequence[Entry],
) -> list[Entry]:
    """Makes layers and crosses that the old model has not begin without effect; returns ``entries``, those changed."""
    names = dict(zip(new.keys(), new.shapes, strict=True))
    weights = {key: arrays[dense_key(index)] for key, index in new.keys().items()}
    begun_fresh = {entry.name for entry in entries if entry.status == "fresh"}
    fresh = {key for key, name in names.items() if name in begun_fresh}
    changed: dict[str, Entry] = {}
    for tower, heads in _heads_by_tower(names).items():
        layers, old_layers = (tower_layers(list(side.keys()), tower, "deep") for side in (new, old))
        added = layers[len(old_layers) :]
        was_there = old.keys().keys() >= set(heads)
        if (
            added
            and was_there
            and not any(name in fresh for one in layers[: len(old_layers)] for name in one)
        ):
            biases = [bias for head in heads if (bias := f"{head}_bias") in names]
            why = _grow(weights, added, heads, old_arrays, new, old, kept)
            if not why:
                why = "carries what a shallower network computed"
                for bias in biases:
                    weights[bias][...] = old_arrays[dense_key(old.keys()[bias])]
                own = [*heads, *biases, *(f"{n}{end}" for one in added for n in one for end in ("", "_bias"))]
                fresh.difference_update(own)
                changed |= {
                    names[n]: Entry("weight", names[n], "partly", "fresh", why) for n in own if n in names
                }
            else:
                changed |= {names[n]: Entry("weight", names[n], "fresh", "fresh", why) for n in heads}
        crosses, old_crosses = (tower_layers(list(side.keys()), tower, "cross") for side in (new, old))
        if (layers[0] if layers else heads)[0] not in fresh:
            silence_crosses(weights, crosses[len(old_crosses) :])
    return [changed.get(entry.name, entry) for entry in entries]


def _heads_by_tower(keys: Collection[str]) -> dict[str, list[str]]:
    """Finds the heads by the tower, such as component_0/quality, whose last layer they read."""
    found: dict[str, list[str]] = {}
    for key in keys:
        component, _, head = key.rpartition("/")
        if head.endswith("_head"):
            found.setdefault(f"{component}/{'ui' if head == 'ui_head' else 'quality'}", []).append(key)
    return found


def _grow(
    weights: Weights,
    added: Sequence[Sequence[str]],
    heads: Sequence[str],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    kept: frozenset[str],
) -> str:
    """Makes added layers carry what the old heads computed, or returns why they cannot."""
    axes = weight_axes(list(old.keys()))
    columns, old_columns = new.columns(), old.columns()
    read = []
    for head in heads:
        source = old_arrays[dense_key(old.keys()[head])]
        matrix = np.zeros((len(weights[added[0][0]]), weights[head].shape[1]), source.dtype)
        found = match(axes[head], matrix.shape, source.shape, columns, old_columns, kept)
        if isinstance(found, str):
            return found
        found.move(matrix, source)
        read.append(matrix)
    outputs = sum(matrix.shape[1] for matrix in read)
    why = unable_to_carry(weights, added, outputs, new.config.model.deep.activation)
    if not why:
        carry(weights, added, heads, read)
    return why


def tower_layers(names: Sequence[str], tower: str, kind: str) -> list[tuple[str, ...]]:
    """Returns the names of the matrices of each ``deep`` layer or ``cross`` of a tower, such as component_0/quality."""
    found: list[tuple[str, ...]] = []
    while own := tuple(
        name
        for name in names
        if name.startswith(f"{tower}/{kind}_{len(found)}/") and not name.endswith("_bias")
    ):
        found.append(own)
    return found


def silence_crosses(weights: Weights, crosses: Sequence[Sequence[str]]) -> None:
    """Makes crosses add nothing: the last matrix of each, and its bias, becomes 0."""
    for *_, last in crosses:
        weights[last][...] = 0
        weights[f"{last}_bias"][...] = 0


def unable_to_carry(weights: Weights, layers: Sequence[Sequence[str]], outputs: int, activation: str) -> str:
    """Says why layers cannot carry some outputs of heads; empty: they can."""
    if activation not in ODD_PART_IS_LINEAR:
        return f"layers with the activation {activation} cannot begin without effect"
    for layer in layers:
        rank, units = weights[layer[0]].shape[1], weights[layer[-1]].shape[1]
        if units < 2 * outputs or (len(layer) > 1 and rank < outputs):
            return f"an added layer needs {2 * outputs} units, and a bottleneck of {outputs}, to begin without effect"
    return ""


def carry(
    weights: Weights, layers: Sequence[Sequence[str]], heads: Sequence[str], read: Sequence[np.ndarray]
) -> None:
    """Makes added layers carry what heads read of the layer before them: ``read``, by head [n, k_i], of its n units."""
    reader = np.concatenate(read, axis=1)
    outputs = reader.shape[1]
    for layer in layers:
        *_, last = layer
        both = np.concatenate([reader, -reader], axis=1)
        if len(layer) > 1:
            weights[layer[0]][:, :outputs] = reader
            both = np.zeros((weights[last].shape[0], 2 * outputs), reader.dtype)
            both[:outputs] = np.concatenate([np.eye(outputs), -np.eye(outputs)], axis=1)
        weights[last][:, : 2 * outputs] = both
        weights[f"{last}_bias"][: 2 * outputs] = 0
        reader = np.zeros((weights[last].shape[1], outputs), reader.dtype)
        reader[: 2 * outputs] = np.concatenate([np.eye(outputs), -np.eye(outputs)])
    begin = 0
    for head, own in zip(heads, read, strict=True):
        weights[head][...] = reader[:, begin : begin + own.shape[1]]
        begin += own.shape[1]
