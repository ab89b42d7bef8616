"""Pooling by attention: averages the embeddings of a row's list, weighted by their similarity to a target's.

After Deep Interest Network (Zhou et al., arXiv 1706.06978, eq. 3), with weights that sum to less than 1,
so that a list without similar items, or an empty one, yields little or nothing::

    s_l = x_l . (W q) / sqrt(width) + r_l,    pooled = sum_l e^{s_l} x_l / (1 + sum_l e^{s_l})

for the embeddings x_l of the list, q of the target, and a learned r_l for the position from the end of the list. The
network also gets the element-wise product ``c * (pooled o W q)``, where c is 1 over the standard deviation of new
embeddings: the sum of its elements is the similarity of both, which hidden layers would learn slowly. All computations
are in float32.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from ctr.models.dcn import Weights
from ctr.models.embeddings import LookedUp, Plan, gather_rows
from ctr.models.rows import Pooled, TableLayout, with_products


def pool(
    weights: Weights,
    layouts: Sequence[TableLayout],
    looked_up: Sequence[LookedUp],
    rows: Sequence[tf.Tensor],
    plans: Sequence[Plan],
    gradient_by_products: bool = False,
) -> tuple[list[LookedUp], tuple[TableLayout, ...]]:
    """Replaces the mean embeddings of features that are pooled by attention, and appends their products with targets.

    ``looked_up``: for each table, with one copy, the result of ``ctr.models.embeddings.look_up`` for ``rows``,
    ``plans`` and ``gradient_by_products``. Returns ``looked_up`` and ``layouts``, with products, for ``tower_inputs``.
    """
    # Tables of width 0 have linear weights only.
    singles = {
        feature.name: (layout, distinct, plan["single"][:, index], gradient_by_products)
        for layout, distinct, plan in zip(layouts, rows, plans, strict=True)
        for index, feature in enumerate(layout.single)
        if layout.width
    }
    lists_of = {
        feature.name: (layout, number, distinct, plan, gradient_by_products)
        for layout, distinct, plan in zip(layouts, rows, plans, strict=True)
        for number, feature in enumerate(layout.multivalent)
        if layout.width
    }
    replaced, products = [], []
    for layout, entries in zip(layouts, looked_up, strict=True):
        (embeddings,) = entries.embeddings
        for number, feature in enumerate(layout.multivalent):
            attention = feature.pooled
            if attention is not None:
                lists, there = _lists(*lists_of[attention.name], attention.most)
                target = _embeddings(*singles[attention.of])
                pooled, product = (
                    tf.cast(part, embeddings.dtype)[:, tf.newaxis]
                    for part in _attend(weights, attention, lists, there, target)
                )
                index = len(layout.single) + number
                embeddings = tf.concat([embeddings[:, :index], pooled, embeddings[:, index + 1 :]], axis=1)
                products.append(LookedUp([product], [tf.zeros([tf.shape(product)[0], 1, 1])]))
        replaced.append(entries._replace(embeddings=[embeddings]))
    return [*replaced, *products], with_products(layouts)


def _embeddings(layout: TableLayout, rows: tf.Tensor, places: tf.Tensor, by_products: bool) -> tf.Tensor:
    if by_products:
        return gather_rows(rows[:, : layout.width], places)
    # An exported model looks up in the whole table, which must not be copied.
    return tf.gather(rows, places)[..., : layout.width]


def _lists(
    layout: TableLayout, number: int, rows: tf.Tensor, plan: Plan, by_products: bool, most: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a feature's lists, right-aligned: float32 [B, L, w], and which positions have a value, bool [B, L]."""
    count = len(layout.multivalent)
    batch = tf.shape(plan["single"])[0]
    segments = plan["segments"]
    each = batch * count + 1
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, each)[number:-1:count]
    # Values may be ordered by row or by feature: those of a list are contiguous in both.
    ends = tf.math.unsorted_segment_max(tf.range(1, tf.size(segments) + 1), segments, each)[number:-1:count]
    from_end = tf.range(most, 0, -1)
    there = from_end <= sizes[:, tf.newaxis]
    places = tf.where(there, ends[:, tf.newaxis] - from_end, 0)
    # So that a batch without values has one to gather.
    values = tf.pad(plan["values"], [[0, 1]])
    embeddings = _embeddings(layout, rows, tf.gather(values, places), by_products)
    return tf.where(there[:, :, tf.newaxis], embeddings, 0.0), there


def _attend(
    weights: Weights, pooled: Pooled, lists: tf.Tensor, there: tf.Tensor, target: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    parameters = {part: weights[f"pooling/{pooled.name}/{part}"] for part in pooled.shapes}
    scale = 1 / math.sqrt(max(pooled.width, 1))
    query = target @ parameters["query"]
    scores = scale * tf.linalg.matvec(lists, query) + parameters["recency"]
    # The softmax has one more term, the zero vector with score 0.
    largest = tf.maximum(tf.reduce_max(tf.where(there, scores, 0.0), axis=1, keepdims=True), 0.0)
    parts = tf.where(there, tf.exp(scores - largest), 0.0)
    shares = parts / (tf.reduce_sum(parts, axis=1, keepdims=True) + tf.exp(-largest))
    mean = tf.linalg.matvec(lists, shares, transpose_a=True)
    return mean, pooled.scale * mean * query
