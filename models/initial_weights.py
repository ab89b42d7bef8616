"""Weights of a model: their names, shapes and initial values.

In an ensemble all names begin with the component's prefix, such as ``component_0/``. Checkpoints have the same order.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import tensorflow as tf

from ctr.models.architecture import LABELS, NETWORK, Architecture, Tower, label_weights

Initializer = Callable[[Sequence[int], int], tf.Tensor]
"""Maps the shape of a matrix, [inputs, units], and a seed to its initial values, float32."""

# The standard deviation of the standard normal distribution truncated at -2 and 2.
_TRUNCATED_DEVIATION = 0.87962566103423978

# Seeds are drawn in the order of these prefixes; those of skip connections are drawn last.
_SEEDED = ("quality/", "quality_head", "rank_head", "ui/", "ui_head", "pooling/", LABELS)


def small_normal(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws from a truncated normal distribution with standard deviation 0.05 before truncation."""
    return _truncated_normal(shape, seed, 0.05)


def lecun_normal(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws truncated normal values with variance 1 / inputs, so that outputs keep the variance of inputs."""
    return _truncated_normal(shape, seed, math.sqrt(1 / shape[0]) / _TRUNCATED_DEVIATION)


def he_normal(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws truncated normal values with variance 2 / inputs, for a following ReLU (He et al., arXiv 1502.01852)."""
    return _truncated_normal(shape, seed, math.sqrt(2 / shape[0]) / _TRUNCATED_DEVIATION)


def glorot_uniform(shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws uniform values with variance 2 / (inputs + units) (Glorot and Bengio, 2010)."""
    limit = math.sqrt(3 / (sum(shape) / 2))
    return tf.random.stateless_uniform(shape, [seed, 0], -limit, limit)


def _truncated_normal(shape: Sequence[int], seed: int, deviation: float) -> tf.Tensor:
    return tf.random.stateless_truncated_normal(shape, [seed, 0], 0.0, deviation)


class _Start(NamedTuple):
    """Shape of a weight, and its initializer or the initial value of all its elements."""

    shape: tuple[int, ...]
    values: Initializer | float


def init_weights(architecture: Architecture, widths: Mapping[str, int], seed: int) -> dict[str, tf.Tensor]:
    """Draws the weights of a model except its embedding tables, float32, by names such as ``quality/deep_0/w``.

    Args:
        widths: the width of each tower's input: ``quality``, and ``ui`` in a factorized model.
        seed: the same seed gives the same weights.
    """
    seeds, starts = random.Random(seed), _starts(architecture, widths)
    weights: dict[str, tf.Tensor] = {}
    for prefix in architecture.prefixes:
        matrices = [name for name, start in starts.items() if callable(start.values)]
        numbers = {name: seeds.randint(1, 10**9) for name in sorted(matrices, key=_turn)}
        for name, (shape, values) in starts.items():
            drawn = values(shape, numbers[name]) if callable(values) else tf.fill(shape, values)
            weights[f"{prefix}{name}"] = drawn
    return weights


def weight_shapes(architecture: Architecture, widths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the weights that ``init_weights`` draws, by name, in the same order."""
    starts = _starts(architecture, widths)
    return {
        f"{prefix}{name}": start.shape for prefix in architecture.prefixes for name, start in starts.items()
    }


def _turn(name: str) -> tuple[bool, int]:
    return "_from_" in name, next(n for n, begin in enumerate(_SEEDED) if name.startswith(begin))


def _starts(architecture: Architecture, widths: Mapping[str, int]) -> dict[str, _Start]:
    """Returns the shapes and initial values of one component's weights, by name, in the order of checkpoints."""
    a, towers = architecture, architecture.towers
    prior, outputs = math.log(a.prior / (1 - a.prior)), 1 if a.factors is None else a.factors.width
    inits: dict[str, _Start] = {}
    for name, tower in towers.items():
        if a.network is not None and name == "quality":
            inits |= {NETWORK + key: _Start(*start) for key, start in a.network.weights(widths[name]).items()}
        else:
            inits |= _tower(name, tower, widths[name])
    heads = {
        name: _Start(([widths[name], *tower.units][-1], outputs), glorot_uniform)
        for name, tower in towers.items()
    }
    if "ui" in heads:
        # U starts nearly constant, so that Q learns as with one more layer: with both near 0, neither would learn.
        inits |= {"ui_head": heads["ui"], "ui_head_bias": _Start((outputs,), 1 / math.sqrt(outputs))}
    if "quality" in heads:
        inits["quality_head"] = heads["quality"]
    if a.rank_head:
        inits["rank_head"] = heads["quality"]
    for name, tower in towers.items():
        inits |= _detours(name, tower, widths[name], outputs)
    if a.factors is None:
        inits["output_bias"] = _Start((), prior)
    elif a.factors.pieces:
        # The inverse of the softplus of 1.
        inits["transfer_slopes"] = _Start((a.factors.pieces,), math.log(math.e - 1))
    else:
        inits["transfer_scale"] = _Start((), 1.0)
    if a.factors is not None:
        inits["transfer_bias"] = _Start((), prior)
    for pooled in a.pooled:
        for part, shape in pooled.shapes.items():
            draw = glorot_uniform if part == "query" else 0.0
            inits[f"pooling/{pooled.name}/{part}"] = _Start(shape, draw)
    for matrix, bias in map(label_weights, a.labels):
        inits |= {matrix: heads["quality"], bias: _Start((), prior)}
    return inits


def _tower(name: str, tower: Tower, width: int) -> dict[str, _Start]:
    """Returns a tower's layer weights: ``NAME/cross_0/u``, ``NAME/cross_0/v_bias``, ``NAME/deep_0/w`` and so on."""
    starts: dict[str, _Start] = {}
    for number in range(tower.crosses):
        sizes = [width, tower.cross_rank, width] if tower.cross_rank else [width, width]
        starts |= _layer(f"{name}/cross_{number}", sizes, [small_normal] * (len(sizes) - 1))
    for number, (size, rank) in enumerate(zip(tower.units, tower.ranks, strict=True)):
        sizes = [width, rank, size] if rank else [width, size]
        # U keeps the variance of its inputs, which he_normal assumes for V.
        starts |= _layer(f"{name}/deep_{number}", sizes, [lecun_normal, he_normal] if rank else [he_normal])
        width = size
    return starts


def _layer(name: str, sizes: Sequence[int], draws: Sequence[Initializer]) -> dict[str, _Start]:
    names = ["w"] if len(draws) == 1 else ["u", "v"]
    parts = zip(names, pairwise(sizes), draws, strict=True)
    starts = {f"{name}/{part}": _Start(shape, draw) for part, shape, draw in parts}
    return starts | {f"{name}/{names[-1]}_bias": _Start((sizes[-1],), 0.0)}


def _detours(name: str, tower: Tower, width: int, outputs: int) -> dict[str, _Start]:
    """Returns the matrices of a tower's skip connections: ``NAME/deep_1_from_0``, ``NAME/head_from_1`` and so on."""
    widths, starts = [width, *tower.units], {}
    for index, sources in enumerate(tower.sources):
        is_head = index == len(tower.units)
        reader = "head" if is_head else f"deep_{index}"
        rank = 0 if is_head else tower.ranks[index]
        columns = outputs if is_head else rank or tower.units[index]
        draw = glorot_uniform if is_head else lecun_normal if rank else he_normal
        for source in sources:
            starts[f"{name}/{reader}_from_{source}"] = _Start((widths[source], columns), draw)
    return starts
