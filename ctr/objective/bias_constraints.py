"""Slices of examples whose mean bias is driven to zero by dual variables (FF 7).

    min_W max_lambda   sum_i L(y_i, p_i) + sum_k sum_{i in S_k} lambda_k (y_i - p_i) - alpha3 / 2 lambda_k^2

The weights descend on the first two sums (``constraint_term``) with lambda fixed; each lambda_k ascends by
``dual_step``, which uses the mean over the slice, so that it is independent of the batch size. At equilibrium
the weighted mean of y - p over S_k is alpha3 lambda_k. Serving uses no lambda.

A family of slices is the product of its axes: features, computed with NumPy while reading (``feature_slices``), and the
bucket of the estimated CTR, computed in the graph (``slice_index``). Slices are numbered
``((axis_1 * size_2 + axis_2) * ...) * buckets + bucket``, features in alphabetical order, values in the order of the
configuration, -1 for no slice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.data.ids.values import feature_ids
from ctr.data.schema import Schema
from ctr.io.errors import InputError, listed
from ctr.objective.config import BiasConstraintsConfig, RawValue, SliceConfig

MOST_SLICES = 1_000_000
SLICES_MEASURED = 1000
"""Larger families have no calibration by slice, which takes 8 kB per slice, also in every checkpoint."""
_FORGETTING = 0.01


@dataclass(frozen=True)
class Axis:
    """A feature of a family: its column in the single-valued id matrix, and the ids that have a slice (None: all)."""

    column: int
    size: int
    ids: tuple[int, ...] | None


@dataclass(frozen=True)
class Family:
    """A family of slices of the training log (source 0) or the i-th constraint log, with its duals' learning rate."""

    name: str
    source: int
    axes: tuple[Axis, ...]
    boundaries: tuple[float, ...]
    learning_rate: float

    @property
    def slices(self) -> int:
        return math.prod(axis.size for axis in self.axes) * (len(self.boundaries) + 1)


def resolve_families(config: BiasConstraintsConfig | None, schema: Schema) -> tuple[Family, ...]:
    """Resolves the configured families for logs with this schema; returns none without a configuration.

    Raises InputError if a feature is unknown, multivalent or has no ids, a value has no distinct id, "all" is set for
    growing ids, or a family has more than ``MOST_SLICES`` slices.
    """
    if config is None:
        return ()
    return tuple(_resolve(config, family, index, schema) for index, family in enumerate(config.families))


def _resolve(config: BiasConstraintsConfig, family: SliceConfig, index: int, schema: Schema) -> Family:
    where = f"config: objective.bias_constraints.families.{index}"
    axes = []
    for name, values in sorted(family.features.items()):
        if name not in schema.single_ids:
            problem = "is multivalent" if name in schema.multivalent else "is not a feature of the log"
            problem = "has no ids" if name in schema.single_valued else problem
            raise InputError(
                f"{where}.features.{name}: {name} {problem}; allowed: {listed(schema.single_ids, name)}"
            )
        column = schema.single_valued.index(name)
        if values == "all":
            buckets = schema.by_name[name].buckets
            if buckets is None:
                raise InputError(
                    f'{where}.features.{name}: the ids of {name} grow, so that "all" has no end; name its values, '
                    "or give the feature buckets or a vocabulary at ingestion"
                )
            axes.append(Axis(column, buckets, None))
            continue
        try:
            ids = feature_ids(schema, name, values)
        except InputError as error:
            raise InputError(f"{where}.features.{name}: {error}") from None
        axes.append(Axis(column, len(ids), tuple(ids.tolist())))
    source = 0 if family.log is None else 1 + [log.name for log in config.logs].index(family.log)
    rate = config.learning_rate if family.learning_rate is None else family.learning_rate
    resolved = Family(family.name, source, tuple(axes), family.estimated_ctr or (), rate)
    if resolved.slices > MOST_SLICES:
        raise InputError(
            f"{where}: the family {family.name} has {resolved.slices} slices; allowed: up to {MOST_SLICES}"
        )
    return resolved


def feature_slices(family: Family, ids: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Returns the feature slice of each row, int32 [N], from single-valued ids [N, F]; -1 for another log or value."""
    index = np.zeros(len(ids), np.int32)
    inside = source == family.source
    for axis in family.axes:
        column = ids[:, axis.column]
        if axis.ids is None:
            position = column.astype(np.int32)
        else:
            axis_ids = np.array(axis.ids, ids.dtype)
            order = np.argsort(axis_ids).astype(np.int32)
            nearest = np.minimum(np.searchsorted(axis_ids[order], column), len(axis_ids) - 1)
            position = order[nearest]
            inside = inside & (axis_ids[position] == column)
        index = index * np.int32(axis.size) + position
    return np.where(inside, index, np.int32(-1))


def slice_index(feature_index: tf.Tensor, probability: tf.Tensor, boundaries: Sequence[float]) -> tf.Tensor:
    """Returns each row's slice, int32 [B], from its feature slice and its estimated CTR; -1 for none; no gradient.

    Bucket i holds boundaries[i - 1] <= p < boundaries[i], compared in the precision of ``probability``.
    """
    if not boundaries:
        return feature_index
    edges = tf.constant(boundaries, probability.dtype)
    bucket = tf.searchsorted(edges, tf.stop_gradient(probability), side="right")
    return tf.where(feature_index >= 0, feature_index * (len(boundaries) + 1) + bucket, -1)


class SliceRows(NamedTuple):
    """Rows of a batch for one family of slices: tensors [B]; ``index`` is the result of ``slice_index``."""

    index: tf.Tensor
    label: tf.Tensor
    probability: tf.Tensor
    weight: tf.Tensor


def constraint_term(duals: tf.Tensor, rows: SliceRows) -> tf.Tensor:
    """Sums w_i lambda_k (y_i - p_i) over the rows of one family's slices; lambda is constant for the gradient.

    Rows of weight 0 or without a slice (index -1) have a gradient of zero with respect to p, even if p is not
    finite (the gradient of the logit below it may be NaN, as in ``weighted_sum``).
    """
    _, error = _errors(rows)
    factor = tf.gather(tf.stop_gradient(duals), tf.maximum(rows.index, 0)) * rows.weight
    return tf.reduce_sum(factor * error)


def dual_step(
    duals: tf.Tensor,
    seen: tf.Tensor,
    rows: SliceRows,
    learning_rate: tf.Tensor | float,
    regularization: tf.Tensor | float,
    total_of: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]] = lambda sums: sums,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns lambda_k + eta c (weighted mean of y - p over S_k in the batch - alpha3 lambda_k), and the next ``seen``.

    c is the slice's weight in the batch divided by its running mean. With c the steps add up to the weighted sum of
    y - p over S_k; without it, a batch in which sampling has left few rows of the slice, mostly clicks, would count as
    much as any, and lambda_k would settle where the slice is over-predicted. For slices without weight in the batch,
    both results are unchanged.

    Args:
        seen: float32 [2, K], each slice's mean weight in the batches with rows of it, and their number; initially 0.
        learning_rate: eta, times the ramp.
        regularization: alpha3.
        total_of: adds up the sums over this worker's rows to sums over the batch.
    """
    inside, error = _errors(rows)
    weight = tf.where(inside, rows.weight, tf.zeros_like(rows.weight))
    segments = tf.maximum(rows.index, 0)
    count = duals.shape[0] if duals.shape[0] is not None else tf.shape(duals)[0]
    total, errors = total_of(
        [
            tf.math.unsorted_segment_sum(weight, segments, count),
            tf.math.unsorted_segment_sum(weight * error, segments, count),
        ]
    )
    mean = tf.math.divide_no_nan(errors, total)
    usual, batches = seen[0], seen[1] + 1
    # The mean of all batches at first, later of about the last hundred. It includes this batch, so that c starts at 1.
    usual += tf.maximum(1 / batches, _FORGETTING) * (total - usual)
    rate = learning_rate * tf.math.divide_no_nan(total, usual)
    stepped = duals + rate * (mean - regularization * duals)
    here = total > 0
    return tf.where(here, stepped, duals), tf.where(here, tf.stack([usual, batches]), seen)


def _errors(rows: SliceRows) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which rows count, bool [B], and their y - p; for other rows 0, with a zero gradient."""
    inside = (rows.index >= 0) & (rows.weight > 0)
    return inside, tf.where(inside, rows.label - rows.probability, tf.zeros_like(rows.probability))


def measured_families(families: Sequence[Family], source: int) -> dict[str, int]:
    """Returns the indices of the families whose slices a log's metrics include, by names that no feature has."""
    return {
        f"constraint:{family.name}": index
        for index, family in enumerate(families)
        if family.source == source and family.slices <= SLICES_MEASURED
    }


def slice_names(config: SliceConfig, family: Family) -> list[str]:
    """Describes each slice in words, in the order of the dual variables."""
    axes = []
    for (feature, values), axis in zip(sorted(config.features.items()), family.axes, strict=True):
        if values == "all":
            axes.append([f"{feature} id {number}" for number in range(axis.size)])
        else:
            axes.append([f"{feature} {_value(value)}" for value in values])
    if bounds := family.boundaries:
        inner = [f"estimated CTR {low:g} to {high:g}" for low, high in pairwise(bounds)]
        axes.append([f"estimated CTR < {bounds[0]:g}", *inner, f"estimated CTR >= {bounds[-1]:g}"])
    return [", ".join(parts) or "all examples" for parts in product(*axes)]


def _value(value: RawValue) -> str:
    return "missing" if value is None or value == "" else str(value)
