"""Masks that make one network, which holds all candidates of a search, equal to a smaller one (FF 3.2).

A candidate's weights are the network's weights times masks of ones and zeros, which are variables, so that no candidate
is compiled again. With M_i the mask of layer i's units, R_i the mask of its bottleneck, and s the layer that it reads,

    deep layer      h_i = activation(h_s W_i + b_i)         W_i := M_s' W_i M_i,   b_i := b_i M_i
    bottleneck      h_i = activation(h_s U_i V_i + b_i)     U_i := M_s' U_i R_i,   V_i := V_i M_i
    cross           U_i := U_i R_i,  b_i := b_i max(R_i);   if R_i is zero it is the identity
    features        a feature's embedding and linear weight times the mask of its columns
    factors         W_q := M_s' W_q M,  W_u := M_s' W_u M,  b_u := b_u M, with M the mask of the elements of Q and U

so that masked weights have a gradient of zero, whatever the activation, and neither they nor their accumulators
move. Masked embeddings are zeros in e_0, which masks the rows and columns of crosses that belong to them as well.

An absent layer i is skipped: the next present one reads h_s of the last present layer before it. Since units of
different layers have different meanings, a layer has a separate matrix for each layer that it may read; a mask
selects one of these matrices.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.models.architecture import Architecture, Tower
from ctr.models.dcn import Weights
from ctr.models.embeddings import LookedUp
from ctr.models.own_gradient import own_gradient
from ctr.models.row_curvature import Part, RowCurvature, of_present
from ctr.models.rows import TableLayout
from ctr.search.architecture import Shape


def passed_over(units: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the earlier layers that each deep layer, and last the head, may also read; see ``Tower.sources``.

    Args:
        units: for each deep layer, the widths that it may have; 0: it may be absent.
    """
    sources: list[tuple[int, ...]] = [()]
    for layer, widths in enumerate(units):
        # If this layer is absent, the next one reads its input.
        sources.append((layer, *sources[-1]) if 0 in widths else ())
    return tuple(sources)


def masks_of(
    candidate: Shape, architecture: Architecture, layouts: Sequence[TableLayout]
) -> dict[str, np.ndarray]:
    """Returns the masks, float32, that reduce the largest network to a candidate.

    Returns:
        ``features/TABLE``, [features, width + 1], for each table; for weights, by name, ``columns/NAME`` for the last
        dimension and ``rows/NAME``, [inputs, 1], for the first. Weights without a mask are used whole.
    """
    masks = {}
    for layout in layouts:
        mask = masks[f"features/{layout.name}"] = np.ones((len(layout.features), layout.width + 1))
        for row, feature in enumerate(layout.features):
            mask[row, candidate.widths.get(feature.name, layout.width) : layout.width] = 0
            mask[row] *= feature.name not in candidate.without
    outputs = 1 if architecture.factors is None else architecture.factors.width
    for name, tower in architecture.towers.items():
        units = candidate.ui_units if name == "ui" else candidate.deep_units
        masks |= _tower_masks(candidate, name, tower, units)
        head = _first(outputs, candidate.factor_width or 1)
        masks |= _reading_masks(name, tower, units, len(units), f"{name}_head", head)
        masks[f"columns/{name}_head_bias"] = head
    return {name: mask.astype(np.float32) for name, mask in masks.items()}


def _tower_masks(candidate: Shape, name: str, tower: Tower, units: Sequence[int]) -> dict[str, np.ndarray]:
    masks = {}
    for number in range(tower.crosses):
        first, last = ("u", "v") if tower.cross_rank else ("w", "w")
        count = number < candidate.crosses and (candidate.cross_rank if tower.cross_rank else 1)
        columns = _first(tower.cross_rank or 1, count)
        masks[f"columns/{name}/cross_{number}/{first}"] = columns
        masks[f"columns/{name}/cross_{number}/{last}_bias"] = columns[:1]
    for index, (width, rank) in enumerate(zip(tower.units, tower.ranks, strict=True)):
        layer, outputs = f"{name}/deep_{index}", _first(width, units[index])
        columns = _first(rank, candidate.deep_ranks[index]) if rank else outputs
        masks |= _reading_masks(name, tower, units, index, f"{layer}/{'u' if rank else 'w'}", columns)
        if rank:
            masks[f"columns/{layer}/v"] = outputs
        masks[f"columns/{layer}/{'v' if rank else 'w'}_bias"] = outputs
    return masks


def _reading_masks(
    name: str, tower: Tower, units: Sequence[int], layer: int, matrix: str, columns: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns masks of the matrices with which a deep layer or the head reads its sources; all but one are zeroed.

    Args:
        name: the tower's name.
        units: the candidate's layer widths.
        layer: the index of the layer; for the head, the number of layers.
        matrix: the name of the matrix that reads the layer before.
        columns: the mask of the matrices' columns.
    """
    reader = "head" if layer == len(units) else f"deep_{layer}"
    matrices = {layer: matrix, **{at: f"{name}/{reader}_from_{at}" for at in tower.sources[layer]}}
    present = layer
    while len(matrices) > 1 and present and not units[present - 1]:
        present -= 1
    masks = {}
    for source, weight in matrices.items():
        masks[f"columns/{weight}"] = columns * (source == present)
        if source:
            masks[f"rows/{weight}"] = _first(tower.units[source - 1], units[source - 1])[:, np.newaxis]
    return masks


def _first(size: int, count: int) -> np.ndarray:
    return np.arange(size) < count


def candidate_weights(weights: Weights, masks: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns a candidate's weights: the largest network's weights times their masks."""
    masked = dict(weights)
    for name, weight in weights.items():
        factors = [masks[mask] for mask in (f"rows/{name}", f"columns/{name}") if mask in masks]
        if factors:
            masked[name] = weight * math.prod(factors)
    return masked


@own_gradient
def masked(values: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, object]:
    """Multiplies ``values``, and their gradient, by a mask that broadcasts to them and is cast to their dtypes."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return upstream * tf.cast(mask, upstream.dtype), None

    return values * tf.cast(mask, values.dtype), gradient


class MaskedPart(Part):
    """The current candidate, as a part of the largest network; ``set_to`` switches to another candidate.

    Args:
        masks: the masks of the first candidate.
    """

    def __init__(self, masks: Mapping[str, np.ndarray]) -> None:
        self._shapes = {name: mask.shape for name, mask in masks.items()}
        # One variable, since each assignment takes time.
        self._values = tf.Variable(self.packed(masks), trainable=False)

    @staticmethod
    def packed(masks: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the flattened masks, concatenated, for ``set_to``."""
        return np.concatenate([mask.ravel() for mask in masks.values()])

    def set_to(self, packed: np.ndarray) -> None:
        """Switches to the candidate with these ``packed`` masks."""
        self._values.assign(packed)

    @property
    def masks(self) -> dict[str, tf.Tensor]:
        """Returns the current candidate's masks as tensors, by the names of ``masks_of``."""
        parts = tf.split(self._values, [math.prod(shape) for shape in self._shapes.values()])
        both = zip(self._shapes.items(), parts, strict=True)
        return {name: tf.reshape(part, shape) for (name, shape), part in both}

    def weights(self, weights: Weights) -> Weights:
        """Returns the candidate's weights; see ``candidate_weights``."""
        return candidate_weights(weights, self.masks)

    def looked_up(self, layout: TableLayout, looked_up: LookedUp) -> LookedUp:
        """Masks the columns of features and dimensions that the candidate lacks."""
        mask = self.masks[f"features/{layout.name}"]
        return LookedUp(
            [masked(part, mask[:, :-1]) for part in looked_up.embeddings],
            [masked(part, mask[:, -1:]) for part in looked_up.linear],
        )

    def curvature(self, layout: TableLayout, curvature: RowCurvature) -> RowCurvature:
        """Sets the curvature of rows to 0 if the candidate lacks their feature."""
        return of_present(curvature, self.masks[f"features/{layout.name}"][:, -1])
