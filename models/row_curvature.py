"""Curvature of the loss by the linear weights of a batch's rows, and the part of a model that a step computes with."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from ctr.models.dcn import Weights
from ctr.models.embeddings import LookedUp
from ctr.models.query_effect import shared_by_query
from ctr.models.rows import TableLayout


class RowCurvature(NamedTuple):
    """Of the U distinct rows of a batch in one table.

    Attributes:
        curvature: float32 [U], the second derivative of the loss by the row's linear weight.
        groups: int32 [U], the number of its feature in ``TableLayout.features``; -1 where nothing refers to it.
    """

    curvature: tf.Tensor
    groups: tf.Tensor


def row_curvature(
    layout: TableLayout,
    plan: Mapping[str, tf.Tensor],
    curvature: tf.Tensor,
    shared: tf.Tensor,
    query: tf.Tensor,
) -> RowCurvature:
    """Adds up the curvature of a batch by the rows of a table.

    Args:
        plan: ``distinct``, ``single``, ``values`` and ``segments`` of ``ctr.training.tables.plan.TablePlan``, tensors.
        curvature: float32 [B], of the loss by the logit of each batch row; 0 for padding.
        shared: float32 [B], the same for an id that all rows of a query have.
        query: int32 [B], the number of each row's query.
    """
    singles, multivalent = len(layout.single), len(layout.multivalent)
    count, size = tf.shape(plan["distinct"])[0], tf.shape(curvature)[0]
    total, groups = tf.zeros([count]), tf.fill([count], -1)
    if singles:
        positions = tf.reshape(plan["single"], [-1])
        is_shared = shared_by_query(plan, query, curvature > 0)
        parts = tf.where(is_shared, shared[:, tf.newaxis], curvature[:, tf.newaxis])
        parts = tf.reshape(parts, [-1])
        own = tf.where(parts > 0, tf.tile(tf.range(singles), [size]), -1)
        total += tf.math.unsorted_segment_sum(parts, positions, count)
        groups = tf.maximum(groups, tf.math.unsorted_segment_max(own, positions, count))
    if multivalent:
        segments = plan["segments"]
        # The last segment collects the padding.
        sizes = tf.math.unsorted_segment_sum(
            tf.ones_like(segments, tf.float32), segments, size * multivalent + 1
        )
        share = tf.gather(tf.pad(curvature, [[0, 1]]), segments // multivalent)
        share /= tf.square(tf.gather(sizes, segments))
        own = tf.where(share > 0, singles + segments % multivalent, -1)
        total += tf.math.unsorted_segment_sum(share, plan["values"], count)
        groups = tf.maximum(groups, tf.math.unsorted_segment_max(own, plan["values"], count))
    return RowCurvature(total, groups)


def of_present(found: RowCurvature, present: tf.Tensor) -> RowCurvature:
    """The same where some features are absent, whose rows have no curvature.

    Args:
        found: of all rows.
        present: float32 [F], 1 for a feature that is there, 0 for one that is not.
    """
    share = tf.gather(present, tf.maximum(found.groups, 0))
    return found._replace(curvature=found.curvature * share)


class Part:
    """All of a model; a search steps with other parts, of its candidates."""

    def weights(self, weights: Weights) -> Weights:
        """The dense weights that are computed with."""
        return weights

    def looked_up(self, layout: TableLayout, looked_up: LookedUp) -> LookedUp:
        """Returns what is computed with of what a table gives."""
        return looked_up

    def curvature(self, layout: TableLayout, curvature: RowCurvature) -> RowCurvature:
        """The curvature of the rows of a table by their own linear weights."""
        return curvature


WHOLE = Part()
