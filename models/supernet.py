"""One network that holds all candidates of a search: masks make it compute what a smaller one would (FF 3.2).

A mask is a vector of ones and zeros, an input of the compiled step, so that no candidate is compiled anew. Masks
multiply weights, not activations: with M_i the mask of layer i's units and R_i that of its bottleneck,

    deep layer      h_i = activation(h_s W_i + b_i)         W_i := M_s' W_i M_i,   b_i := b_i M_i
    bottleneck      h_i = activation(h_s U_i V_i + b_i)     U_i := M_s' U_i R_i,   V_i := V_i M_i
    cross           U_i := U_i R_i,  b_i := b_i max(R_i);   without any rank it is the identity
    features        what a table gives for each feature, the linear weight included, times the feature's columns
    factors         W_q := M_s' W_q M,  W_u := M_s' W_u M,  b_u := b_u M, with M the mask of the numbers of Q and U

so that what is masked has a gradient of zero, whatever the activation, and neither it nor its AdaGrad accumulator
moves. Masked embeddings are zeros in e_0, which masks the rows and columns of crosses that belong to them as well.

A layer i that is absent is passed over: the next present one reads h_s of the last present layer before it. Units of
different layers mean different things, so that a layer has a matrix of its own for each layer that it may read, of
which a mask selects one.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from ctr.models.crosses import crosses
from ctr.models.dcn import DCN
from ctr.models.linear import (
    Initializer,
    Linear,
    Weights,
    glorot_uniform,
    he_normal,
    is_recording,
    lecun_normal,
    multiply,
    stack_matrices,
    stack_weights,
)
from ctr.models.own_gradient import own_gradient
from ctr.models.rows import TableLayout

Masks = Mapping[str, tf.Tensor]
"""float32, by the names of ``mask_shapes``."""

_Mask = TypeVar("_Mask")


@dataclass(frozen=True)
class Candidate:
    """The architecture of a candidate, in which layers that are absent keep their places.

    Attributes:
        deep_units: the width of each deep layer; 0: it is absent, and the next one reads its input.
        deep_ranks: for each of them the rank of its bottleneck, of no effect where it has none.
        crosses: the number of crosses.
        cross_rank: the rank of their matrices, of no effect where these are full.
        widths: embedding widths by feature; of others all columns.
        without: the features that it does not have.
        ui_units: as ``deep_units``, of the UI tower.
        factor_width: of the learned part of Q and U; 0 of a plain model.
    """

    deep_units: tuple[int, ...]
    deep_ranks: tuple[int, ...]
    crosses: int
    cross_rank: int
    widths: Mapping[str, int]
    without: Collection[str]
    ui_units: tuple[int, ...] = ()
    factor_width: int = 0


class Detours(tf.Module):
    """The first matrices of deep layers and of the head where they read another layer than the one before them.

    Args:
        tower: the largest network.
        sources: for each deep layer, and last for the head, which others it may read: 0 for the crosses' output, i for
            that of deep layer i - 1.
        width: of the tower's input.
        outputs: of the head.
        seeds: of the initial weights.
    """

    def __init__(
        self, tower: DCN, sources: Sequence[Sequence[int]], width: int, outputs: int, seeds: random.Random
    ) -> None:
        super().__init__()
        widths = [width, *(int(layer.matrices[-1].shape[1]) for layer in tower.deep)]
        self.sources = [tuple(own) for own in sources]
        self.layers: dict[str, Linear] = {}
        for place, own in enumerate(self.sources):
            is_head = place == len(tower.deep)
            columns = outputs if is_head else int(tower.deep[place].matrices[0].shape[1])
            dtype = "float32" if is_head else tower.compute_dtype
            initializer: Initializer = glorot_uniform
            if not is_head:
                initializer = lecun_normal if len(tower.deep[place].matrices) > 1 else he_normal
            for source in own:
                layer = Linear([widths[source], columns], [initializer], seeds, None, dtype)
                self.layers[self.name_of(place, source)] = layer

    def name_of(self, place: int, source: int) -> str:
        """The name of the matrix by which a deep layer, or the head, reads another one's output."""
        reader = "head" if place == len(self.sources) - 1 else f"deep_{place}"
        return f"{reader}_from_{source}"

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """Yields all weights with readable names: ``deep_1_from_0``, ``head_from_1``."""
        for name, layer in self.layers.items():
            yield name, layer.matrices[0]


def passed_over(units: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Which layers each deep layer, and last the head, may read beside the one before it; see ``Detours``.

    Args:
        units: for each deep layer the widths that it may have, 0 for none.
    """
    sources: list[tuple[int, ...]] = [()]
    for place, own in enumerate(units):
        # The next one reads what this one would read, where this one is absent.
        sources.append((place, *sources[-1]) if 0 in own else ())
    return tuple(sources)


class Tower(NamedTuple):
    """A tower of the largest network: its layers, its head, and the matrices that are there for candidates alone."""

    network: DCN
    head: Linear
    detours: Detours | None


def mask_shapes(towers: Mapping[str, Tower], layouts: Sequence[TableLayout]) -> dict[str, tuple[int, ...]]:
    """The shapes of all masks of a network, by name: ``features/TABLE``, ``quality/deep_0``, ``ui/head``."""
    shapes: dict[str, tuple[int, ...]] = {
        f"features/{layout.name}": (len(layout.features), layout.width + 1) for layout in layouts
    }
    for name, (network, head, detours) in towers.items():
        for index, layer in enumerate(network.crosses):
            shapes[f"{name}/cross_{index}"] = (_rank(layer) or 1,)
        for index, layer in enumerate(network.deep):
            shapes[f"{name}/deep_{index}"] = (int(layer.matrices[-1].shape[1]),)
            if _rank(layer):
                shapes[f"{name}/deep_{index}_rank"] = (_rank(layer),)
        for place, sources in enumerate(detours.sources if detours is not None else ()):
            if sources:
                shapes[f"{name}/source_{place}"] = (1 + len(sources),)
        shapes[f"{name}/head"] = (int(head.matrices[0].shape[1]),)
    return shapes


def masks_of_tower(masks: Mapping[str, _Mask], tower: str) -> dict[str, _Mask]:
    """The masks of a tower's layers, without its name."""
    begin = f"{tower}/"
    return {name.removeprefix(begin): mask for name, mask in masks.items() if name.startswith(begin)}


def _rank(layer: Linear) -> int:
    return int(layer.matrices[0].shape[1]) if len(layer.matrices) > 1 else 0


def masks_of(
    candidate: Candidate,
    shapes: Mapping[str, tuple[int, ...]],
    layouts: Sequence[TableLayout],
    towers: Mapping[str, Tower],
) -> dict[str, np.ndarray]:
    """The masks under which the network is a candidate: float32, by the names of ``mask_shapes``."""
    masks = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    for layout in layouts:
        mask = masks[f"features/{layout.name}"]
        for row, feature in enumerate(layout.features):
            mask[row, candidate.widths.get(feature.name, layout.width) : layout.width] = 0
            mask[row] *= feature.name not in candidate.without
    for tower, (_, _, detours) in towers.items():
        units = candidate.ui_units if tower == "ui" else candidate.deep_units
        for name, mask in masks_of_tower(masks, tower).items():
            kind, _, rest = name.partition("_")
            place = int(rest.partition("_")[0] or 0)
            if kind == "cross":
                kept = candidate.cross_rank if mask.size > 1 else 1
                mask[kept if place < candidate.crosses else 0 :] = 0
            elif kind == "deep":
                mask[(candidate.deep_ranks if rest.endswith("rank") else units)[place] :] = 0
            elif kind == "head":
                mask[candidate.factor_width or 1 :] = 0
            elif detours is not None:
                before = place
                while before and not units[before - 1]:
                    before -= 1
                mask[:] = [source == before for source in (place, *detours.sources[place])]
    return masks


@own_gradient
def masked(values: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, object]:
    """``values`` times a mask that broadcasts to them; a gradient may be of another dtype than they are."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return upstream * tf.cast(mask, upstream.dtype), None

    return values * tf.cast(mask, values.dtype), gradient


def masked_output(parts: Tower, e0: tf.Tensor, alpha2: tf.Tensor, masks: Masks) -> tf.Tensor:
    """Computes the outputs of a tower's head under masks, float32 [1, B, outputs].

    Args:
        parts: of the largest network.
        e0: [1, B, m], the concatenated embeddings, masked; float32 or the compute dtype.
        alpha2: float32 scalar in [0, 1].
        masks: of the tower, see ``masks_of_tower``.
    """
    tower, head, detours = parts
    hidden = e0
    if tower.crosses:
        with tf.name_scope("crosses"):
            cross = crosses if is_recording() else tower.cross
            layers = [
                _masked_cross(stack_weights([layer]), masks[f"cross_{index}"])
                for index, layer in enumerate(tower.crosses)
            ]
            hidden = cross(tf.cast(hidden, tower.compute_dtype), alpha2, layers)
    outputs, units = [tf.cast(hidden, tower.compute_dtype) if tower.deep else hidden], [None]
    for index, layer in enumerate(tower.deep):
        with tf.name_scope("deep"):
            own = masks[f"deep_{index}"]
            matrices, bias = stack_weights([layer])
            columns = masks[f"deep_{index}_rank"] if len(matrices) > 1 else own
            inner = _read(index, matrices[0], columns, outputs, units, detours, masks)
            inner = multiply(inner, [masked(matrix, own) for matrix in matrices[1:]])
            outputs.append(tower.activation(inner, masked(bias, own)))
            units.append(own)
    outputs = [tf.cast(output, tf.float32) for output in outputs]
    (matrix,) = stack_matrices([head])
    read = _read(len(tower.deep), matrix, masks["head"], outputs, units, detours, masks)
    return read if head.bias is None else read + masked(head.bias, masks["head"])


def _masked_cross(weights: Weights, mask: tf.Tensor) -> Weights:
    (first, *rest), bias = weights
    return [masked(first, mask), *rest], masked(bias, tf.reduce_max(mask))


def _read(
    place: int,
    matrix: tf.Tensor,
    columns: tf.Tensor,
    outputs: Sequence[tf.Tensor],
    units: Sequence[tf.Tensor | None],
    detours: Detours | None,
    masks: Masks,
) -> tf.Tensor:
    """The product of a layer's first matrix with what it reads.

    Args:
        place: of the layer.
        matrix: [1, ., .], by which it reads the output before it.
        columns: the mask of the matrix's columns.
        outputs, units: of the layers before it, that of the crosses being the first one, and the masks of their units.
        detours: the other matrices.
        masks: of the network.
    """
    sources = {place: matrix}
    if detours is not None:
        for source in detours.sources[place]:
            (sources[source],) = stack_matrices([detours.layers[detours.name_of(place, source)]])
    selected = tf.unstack(masks[f"source_{place}"]) if len(sources) > 1 else [1.0]
    read = []
    for (source, own), share in zip(sources.items(), selected, strict=True):
        mask, rows = share * columns[tf.newaxis, :], units[source]
        if rows is not None:
            mask *= rows[:, tf.newaxis]
        read.append(multiply(outputs[source], [masked(own, mask)]))
    return read[0] if len(read) == 1 else tf.add_n(read)
