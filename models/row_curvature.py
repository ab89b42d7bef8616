"""Curvature of the loss with respect to rows' linear weights, and the part of a model that a step uses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.models.dcn import Weights
from ctr.models.embeddings import LookedUp
from ctr.models.query_effect import shared_by_query
from ctr.models.rows import TableLayout


class RowCurvature(NamedTuple):
    """Curvature of the loss for the U distinct rows of a batch in one table.

    Attributes:
        curvature: float32 [U], the second derivative of the loss with respect to the row's linear weight.
        groups: int32 [U], the index of the row's feature in ``TableLayout.features``; -1 for padding.
    """

    curvature: tf.Tensor
    groups: tf.Tensor


def row_curvatures(
    layouts: Sequence[TableLayout],
    plans: Sequence[Mapping[str, tf.Tensor]],
    bends: Sequence[tuple[tf.Tensor, tf.Tensor]],
    query: tf.Tensor,
) -> list[RowCurvature]:
    """Sums a batch's curvature by the rows of all tables at once, since XLA compiles a loop for each such sum.

    Args:
        plans: for each table, ``distinct``, ``single``, ``values`` and ``segments`` of
            ``ctr.training.tables.plan.TablePlan`` as tensors.
        bends: for each table, float32 [B], the second derivative of the loss in each row's logit, 0 for padding; and
            float32 [B], its replacement for an id that all rows of a query share.
        query: int32 [B], the index of each row's query.
    """
    counts = [plan["distinct"].shape[0] or tf.size(plan["distinct"]) for plan in plans]
    singles = [plan["single"] for plan in plans]
    is_row = [
        tf.tile((bend > 0)[:, tf.newaxis], [1, ids.shape[1]])
        for ids, (bend, _) in zip(singles, bends, strict=True)
    ]
    same = shared_by_query(tf.concat(singles, axis=1), query, tf.concat(is_row, axis=1))
    of_tables = tf.split(same, [ids.shape[1] for ids in singles], axis=1)
    # Curvature, row and feature of each id: of single-valued features, then of multivalent ones.
    ids_of = list[tuple[tf.Tensor, ...]](), list[tuple[tf.Tensor, ...]]()
    size, begin = tf.shape(query)[0], 0
    for layout, plan, (curvature, shared), is_shared, count in zip(
        layouts, plans, bends, of_tables, counts, strict=True
    ):
        if layout.single:
            share = tf.where(is_shared, shared[:, tf.newaxis], curvature[:, tf.newaxis])
            parts = tf.reshape(share, [-1]), tf.reshape(plan["single"], [-1]) + begin
            ids_of[0].append((*parts, tf.tile(tf.range(len(layout.single)), [size])))
        if multivalent := len(layout.multivalent):
            segments = plan["segments"]
            # The last segment collects the padding.
            sizes = tf.math.unsorted_segment_sum(
                tf.ones_like(segments, tf.float32), segments, size * multivalent + 1
            )
            share = tf.gather(tf.pad(curvature, [[0, 1]]), segments // multivalent)
            share /= tf.square(tf.gather(sizes, segments))
            ids_of[1].append((share, plan["values"] + begin, len(layout.single) + segments % multivalent))
        begin += count
    total, groups = tf.zeros([begin]), tf.fill([begin], -1)
    for entries in filter(None, ids_of):
        share, rows, features = (tf.concat(parts, axis=0) for parts in zip(*entries, strict=True))
        total += tf.math.unsorted_segment_sum(share, rows, begin)
        features = tf.where(share > 0, features, -1)
        groups = tf.maximum(groups, tf.math.unsorted_segment_max(features, rows, begin))
    return list(map(RowCurvature, tf.split(total, counts), tf.split(groups, counts)))


def of_present(curvatures: RowCurvature, present: tf.Tensor) -> RowCurvature:
    """Sets the curvature of rows of absent features to 0.

    Args:
        curvatures: the curvatures of a table's rows.
        present: float32 [F], 1 for a present feature, 0 for an absent one.
    """
    share = tf.gather(present, tf.maximum(curvatures.groups, 0))
    return curvatures._replace(curvature=curvatures.curvature * share)


class Part:
    """Part of a model that a step computes with: this class selects the whole model, subclasses a candidate's part."""

    def weights(self, weights: Weights) -> Weights:
        """Selects the part's dense weights from all dense weights of the model."""
        return weights

    def looked_up(self, layout: TableLayout, looked_up: LookedUp) -> LookedUp:
        """Selects the part's embeddings and linear weights from the model's look-up in a table."""
        return looked_up

    def curvature(self, layout: TableLayout, curvature: RowCurvature) -> RowCurvature:
        """Returns the curvature of a table's rows for the part, from the curvature for the whole model."""
        return curvature


WHOLE = Part()
