"""Pooling of a feature's values by attention: the embeddings of a row's list as one, seen from the row's own item.

``target``, after Deep Interest Network (Zhou et al., arXiv 1706.06978, eq. 3), with weights that add up to less than 1,
so that a list without anything alike, or an empty one, gives little or nothing::

    s_l = x_l . (W q) / sqrt(width) + r_l,    pooled = sum_l e^{s_l} x_l / (1 + sum_l e^{s_l})

for the embeddings x_l of the list, q of the target, and a learned r_l for the place from the end of the list. The
network also gets ``c * (pooled o W q)``, element by element, where c is 1 over the standard deviation of new
embeddings: how alike both are is a sum of these, which hidden layers would take long to learn.

``sequence`` first computes one block of HSTU (Zhai et al., arXiv 2402.17152, eq. 1 to 3) over the list, in which an
item sees those before it and itself; the block's output takes the place of x_l::

    U, V, Q, K = split(SiLU((x_l + p_l) W_1)),    A = SiLU(Q K^T / sqrt(width) + b) / L,
    y_l = x_l + (norm(A V) * U) W_2

with p_l by the place, b by the distance of two places, and L the largest number of values. The weights of ``W_2`` begin
at 0, so that it begins as ``target``. All of it is float32.

Where the ages of a list's values are given, with embeddings a_l, ``a_l . u / sqrt(width)`` is added to s_l, and
``a_l W_a`` to the block's inputs, as HSTU's attention is biased by the time between two values.
"""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.dcn import Weights
from ctr.models.embeddings import LookedUp, Plan, gather_rows
from ctr.models.rows import Pooled, TableLayout, with_products

_EPSILON = 1e-6
_NEVER = -1e9


def pool(
    weights: Weights,
    layouts: Sequence[TableLayout],
    looked_up: Sequence[LookedUp],
    rows: Sequence[tf.Tensor],
    plans: Sequence[Plan],
    gradient_by_products: bool = False,
) -> tuple[list[LookedUp], tuple[TableLayout, ...]]:
    """Replaces the mean embeddings of the features that are pooled by attention, and adds their products.

    ``looked_up`` is what ``ctr.models.embeddings.look_up`` gives of each table, of one copy, by ``rows``, ``plans`` and
    ``gradient_by_products``. Returns what ``tower_inputs`` takes there, with the layouts ``with_products``.
    """
    # Linear weights beside the model have tables of their own, of width 0.
    singles = {
        feature.name: (layout, own, plan["single"][:, place], gradient_by_products)
        for layout, own, plan in zip(layouts, rows, plans, strict=True)
        for place, feature in enumerate(layout.single)
        if layout.width
    }
    lists_of = {
        feature.name: (layout, number, own, plan, gradient_by_products)
        for layout, own, plan in zip(layouts, rows, plans, strict=True)
        for number, feature in enumerate(layout.multivalent)
        if layout.width
    }
    made, products = [], []
    for layout, found in zip(layouts, looked_up, strict=True):
        (embeddings,) = found.embeddings
        for number, feature in enumerate(layout.multivalent):
            one = feature.pooled
            if one is not None:
                lists, there = _lists(*lists_of[one.name], one.most)
                ages = None if one.ages is None else _lists(*lists_of[one.ages[0]], one.most)[0]
                target = _embeddings(*singles[one.of])
                pooled, product = (
                    tf.cast(part, embeddings.dtype)[:, tf.newaxis]
                    for part in _attend(weights, one, lists, there, target, ages)
                )
                place = len(layout.single) + number
                embeddings = tf.concat([embeddings[:, :place], pooled, embeddings[:, place + 1 :]], axis=1)
                products.append(LookedUp([product], [tf.zeros([tf.shape(product)[0], 1, 1])]))
        made.append(found._replace(embeddings=[embeddings]))
    return [*made, *products], with_products(layouts)


def _embeddings(layout: TableLayout, rows: tf.Tensor, places: tf.Tensor, by_products: bool) -> tf.Tensor:
    if by_products:
        return gather_rows(rows[:, : layout.width], places)
    # An exported model looks up in the whole table, which must not be copied.
    return tf.gather(rows, places)[..., : layout.width]


def _lists(
    layout: TableLayout, number: int, rows: tf.Tensor, plan: Plan, by_products: bool, most: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gathers the lists of a multivalent feature, each at the end of L places: float32 [B, L, w], bool [B, L]."""
    count = len(layout.multivalent)
    batch = tf.shape(plan["single"])[0]
    segments = plan["segments"]
    each = batch * count + 1
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, each)[number:-1:count]
    # Of features in a row, or of rows in a feature: the values of a list are together in both.
    ends = tf.math.unsorted_segment_max(tf.range(1, tf.size(segments) + 1), segments, each)[number:-1:count]
    from_end = tf.range(most, 0, -1)
    there = from_end <= sizes[:, tf.newaxis]
    places = tf.where(there, ends[:, tf.newaxis] - from_end, 0)
    # A batch without any value has none to gather.
    values = tf.pad(plan["values"], [[0, 1]])
    embeddings = _embeddings(layout, rows, tf.gather(values, places), by_products)
    return tf.where(there[:, :, tf.newaxis], embeddings, 0.0), there


def _attend(
    weights: Weights,
    pooled: Pooled,
    lists: tf.Tensor,
    there: tf.Tensor,
    target: tf.Tensor,
    ages: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    own = {part: weights[f"pooling/{pooled.name}/{part}"] for part in pooled.shapes}
    scale = 1 / math.sqrt(max(pooled.width, 1))
    if pooled.kind == "sequence":
        inputs = lists if ages is None else lists + ages @ own["age_inputs"]
        lists += _block(own, inputs + own["places"], there, scale)
    query = target @ own["query"]
    scores = scale * tf.linalg.matvec(lists, query) + own["recency"]
    if ages is not None:
        scores += scale * tf.linalg.matvec(ages, own["age"])
    # The list has one more place, of score 0, with nothing.
    largest = tf.maximum(tf.reduce_max(tf.where(there, scores, 0.0), axis=1, keepdims=True), 0.0)
    parts = tf.where(there, tf.exp(scores - largest), 0.0)
    shares = parts / (tf.reduce_sum(parts, axis=1, keepdims=True) + tf.exp(-largest))
    made = tf.linalg.matvec(lists, shares, transpose_a=True)
    return made, pooled.scale * made * query


def _block(own: Mapping[str, tf.Tensor], inputs: tf.Tensor, there: tf.Tensor, scale: float) -> tf.Tensor:
    most = inputs.shape[1]
    # Splitting the products instead would copy them, and their gradients.
    u, v, q, k = (tf.nn.silu(inputs @ part) for part in tf.split(own["block"], 4, axis=1))
    # By how far one place is behind another, [L, L]; of a place that comes later SiLU makes 0. What has a row for each
    # pair of places takes most of the time: all that can be is done to what has one for each place.
    distance = tf.range(most)[:, tf.newaxis] - tf.range(most)
    bias = tf.where(distance >= 0, tf.gather(own["distances"], tf.maximum(distance, 0)), _NEVER)
    v *= tf.cast(there, tf.float32)[:, :, tf.newaxis] / most
    mixed = tf.nn.silu(tf.matmul(scale * q, k, transpose_b=True) + bias) @ v
    mean = tf.reduce_mean(mixed, axis=2, keepdims=True)
    variance = tf.reduce_mean(tf.square(mixed - mean), axis=2, keepdims=True)
    normed = (mixed - mean) * tf.math.rsqrt(variance + _EPSILON)
    return (normed * u) @ own["block_out"]
