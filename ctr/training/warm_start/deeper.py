"""Deeper network that begins with the function of a shallower one (Net2DeeperNet, Chen et al., arXiv 1511.05641).

A layer that begins as the identity keeps the function only where its activation is idempotent, which SmeLU and others
are not. But of ReLU, SmeLU, GELU, swish and softplus

    activation(x) - activation(-x) = x        for every x

holds exactly. So what the heads of the shallower network compute of its last layer h, x = h R with R [n, k], is carried
through the added layers by 2 k of their units: the first one has [R, -R] in these columns, each further one the same of
[I, -I], and the heads read the difference. The other units begin as in a fresh run, and are read with weights of 0.

An added cross layer e_i = alpha2 (e_0 * U V e_(i-1)) + e_(i-1) is residual: with V = 0 it adds nothing.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ctr.models.embeddings import tower_columns
from ctr.training.warm_start.weights import Arrays, Entry, Side, dense_key, match, weight_axes

ODD_PART_IS_LINEAR = frozenset(("relu", "smelu", "gelu", "swish", "softplus"))
"""Activations of which activation(x) - activation(-x) = x."""

Weights = Mapping[str, np.ndarray]


def deepen(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    kept: frozenset[str],
    entries: Sequence[Entry],
) -> list[Entry]:
    """Makes layers and crosses that the old model has not begin without effect.

    Arguments as of ``take_weights``, and the ``entries`` that it returned: all that both models have was taken already.
    Returns them, those of weights that were set here changed.
    """
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
    columns, old_columns = (
        tower_columns(side.layouts, side.config.model.factorized is not None) for side in (new, old)
    )
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
    """Makes added layers carry what the heads read of the layer before them.

    Args:
        layers: the names of the matrices of each added layer, one or, of a bottleneck, two.
        read: for each of the tower's heads its matrix before, [n, k_i], of the n units before the first added layer.
    """
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
