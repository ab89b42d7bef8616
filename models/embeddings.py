"""Embedding tables, and the look-up of a batch's embeddings."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.io.hashing import splitmix64
from ctr.models.click_model import TowerInput
from ctr.models.dcn import stack
from ctr.models.own_gradient import own_gradient
from ctr.models.rows import TableLayout, with_numbers, with_products

Plan = Mapping[str, tf.Tensor]

_PHILOX = 1
# Rows that are drawn together; a multiple of four.
_PIECE = 65536
# Increment of splitmix64's sequence: element j of a row is its output for the row's key plus j increments.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)
# Mean and standard deviation of a sum of four uniform integers from 0 to 65535.
_MEAN = 4 * 65535 // 2
_DEVIATION = (4 * (65536**2 - 1) / 12) ** 0.5
# Elements that are computed together: few enough for the processor's cache.
_BLOCK = 2**14


def create_table(
    layout: TableLayout, init_scale: float, seed: int, first: int = 0, stride: int = 1
) -> tf.Variable:
    """Creates a table with its fixed rows ``first``, ``first + stride`` and so on; if its ids grow, it can be extended.

    Embeddings are normal with standard deviation ``init_scale``, linear weights 0.
    """
    value = _first_rows(layout, init_scale, seed, first, stride)
    rows = None if layout.growing else value.shape[0]
    return tf.Variable(value, name=f"rows/{layout.name}", shape=[rows, layout.columns])


def _seeds(layout: TableLayout, copy: int, seed: int) -> list[int]:
    # The name is in the seed, so that adding a table or a copy does not change the initial values of others.
    name = f"{layout.name}/{copy}" if copy else layout.name
    return [seed, int(tf.strings.to_hash_bucket_fast(name, 2**31 - 1))]


def _first_rows(layout: TableLayout, init_scale: float, seed: int, first: int, stride: int) -> np.ndarray:
    """Draws some of a table's fixed rows, float32, with the values that they would have in the whole table."""
    value = np.zeros((len(range(first, layout.rows, stride)), layout.copies, layout.width + 1), np.float32)
    for copy in range(layout.copies if layout.width else 0):
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_seeds(layout, copy, seed))
        for begin in range(0, layout.rows, _PIECE):
            rows = min(_PIECE, layout.rows - begin)
            # The draws of ``tf.random.stateless_normal``: each count of Philox gives four numbers.
            drawn = tf.raw_ops.StatelessRandomNormalV2(
                shape=[rows, layout.width],
                key=key,
                counter=counter + tf.constant([begin * layout.width // 4, 0], tf.uint64),
                alg=_PHILOX,
            )
            skipped = (first - begin) % stride
            start = (begin + skipped) // stride
            scaled = (init_scale * drawn).numpy()[skipped::stride]
            value[start : start + len(scaled), copy, : layout.width] = scaled
    return value.reshape(-1, layout.columns)


def new_rows(
    layout: TableLayout, features: np.ndarray, fingerprints: np.ndarray, init_scale: float, seed: int
) -> np.ndarray:
    """Draws the initial rows of growing ids, float32 [N, columns]; each depends only on its id and the seed.

    Args:
        features: int16 [N], indices in ``layout.growing``.
        fingerprints: int64 [N].
    """
    rows = np.zeros((len(fingerprints), layout.copies, layout.width + 1), np.float32)
    for number, feature in enumerate(layout.growing if layout.width else ()):
        members = np.flatnonzero(features == number)
        for copy in range(layout.copies if len(members) else 0):
            values = initial_rows(fingerprints[members], feature.name, layout.width, init_scale, seed, copy)
            rows[members, copy, : layout.width] = values
    return rows.reshape(len(fingerprints), layout.columns)


class LookedUp(NamedTuple):
    """Embeddings and linear weights of B rows, averaged for multivalent features (FF 4.3); a tensor per table copy.

    Attributes:
        embeddings: in the compute dtype, [B, features, width]; unspecified for features that ``pooling.py`` replaces.
        linear: float32 [B, features, 1], the linear weights.
    """

    embeddings: list[tf.Tensor]
    linear: list[tf.Tensor]


def look_up(
    layout: TableLayout,
    rows: tf.Tensor,
    plan: Plan,
    compute_dtype: str = "float32",
    gradient_by_products: bool = False,
) -> LookedUp:
    """Looks up the embeddings and linear weights of each batch row; a multivalent feature without values yields zeros.

    Means and the sums of the gradient, which may have thousands of terms, are always float32: bfloat16 would lose most
    of the terms.

    Args:
        rows: float32 [U, C], the distinct rows of the batch.
        plan: ``single``, ``values`` and ``segments`` of ``ctr.training.tables.plan.TablePlan`` as tensors.
        compute_dtype: ``float32`` or ``bfloat16``, the dtype of the returned embeddings.
        gradient_by_products: whether the gradient's sums by row are products with a sparse matrix, which take a fifth
            of the time on a CPU, but which XLA does not compile.
    """
    widths = [layout.width, 1] * layout.copies
    dtypes = [compute_dtype, "float32"] * layout.copies
    if gradient_by_products:
        # Columns are split where each row occurs once, not after the gather, where it may occur thousands of times.
        parts = tf.split(rows, widths, axis=1)
        entries = {name: _entries(tf.reshape(plan[name], [-1])) for name in ("single", "values")}
        lists = layout.multivalent
        # Attention replaces the means of embeddings and the sums of their gradient; linear weights keep the mean.
        singles = replace(layout, features=layout.single)
        attends = bool(lists and singles.features) and all(feature.pooled for feature in lists)
        expanded = []
        for number, (part, dtype) in enumerate(zip(parts, dtypes, strict=True)):
            if attends and number % 2 == 0:
                embeddings = _expand_with_gradient(singles, part, plan, entries, dtype)
                expanded.append(tf.pad(embeddings, [[0, 0], [0, len(lists)], [0, 0]]))
            else:
                expanded.append(_expand_with_gradient(layout, part, plan, entries, dtype))
    else:
        # An exported model looks up in the whole table, which must not be copied.
        looked_up = _expand(layout, rows, plan, "float32")
        ends = np.cumsum(widths)
        expanded = [
            tf.cast(looked_up[:, :, end - width : end], dtype)
            for end, width, dtype in zip(ends, widths, dtypes, strict=True)
        ]
    return LookedUp(expanded[::2], expanded[1::2])


def _expand(layout: TableLayout, part: tf.Tensor, plan: Plan, dtype: str) -> tf.Tensor:
    """Gathers some columns of the distinct rows, [U, C], for each batch row and feature: [B, S + M, C]."""
    count, single = len(layout.multivalent), plan["single"]
    parts = []
    if layout.single:
        parts.append(tf.gather(tf.cast(part, dtype), single))
    if count:
        # The last segment collects the padding.
        segments = tf.shape(single)[0] * count + 1
        totals = tf.math.unsorted_segment_sum(tf.gather(part, plan["values"]), plan["segments"], segments)
        means = totals / _sizes(plan["segments"], segments)
        parts.append(tf.cast(tf.reshape(means[:-1], [-1, count, part.shape[1]]), dtype))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


def _sizes(segments: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Counts the entries of each segment: float32 [count, 1], with 1 for empty segments."""
    ones = tf.ones_like(segments, tf.float32)
    return tf.maximum(tf.math.unsorted_segment_sum(ones, segments, count), 1.0)[:, tf.newaxis]


def _expand_with_gradient(
    layout: TableLayout, part: tf.Tensor, plan: Plan, entries: Plan, dtype: str
) -> tf.Tensor:
    """Computes ``_expand`` with a gradient that is a product with a sparse matrix, the plan's ``entries``."""
    columns, singles, count = part.shape[1], len(layout.single), len(layout.multivalent)
    if not columns:
        # Features of width 0 have linear weights alone; rows without columns cannot be inferred by a reshape.
        return tf.zeros([tf.shape(plan["single"])[0], singles + count, 0], dtype)

    @own_gradient
    def expand(part: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            with tf.name_scope("gradient_tape/look_up"):
                distinct = tf.shape(part)[0]
                upstream = tf.cast(upstream, tf.float32)
                # A split is a copy, even into a single part.
                pieces = tf.split(upstream, [singles, count], axis=1) if singles and count else [upstream] * 2
                sums = []
                if singles:
                    of_single = tf.reshape(pieces[0], [-1, columns])
                    sums.append(_sums(of_single, entries["single"], distinct))
                if count:
                    segments = plan["segments"]
                    of_means = tf.pad(tf.reshape(pieces[1], [-1, columns]), [[0, 1], [0, 0]])
                    of_totals = of_means / _sizes(segments, tf.shape(of_means)[0])
                    sums.append(_sums(tf.gather(of_totals, segments), entries["values"], distinct))
                return tf.add_n(sums)

        return _expand(layout, part, plan, dtype), gradient

    return expand(part)


def _entries(positions: tf.Tensor) -> tf.Tensor:
    """Returns the sparse matrix that sums rows by position: int32 [N, 2], the row and column of each 1."""
    return tf.stack([positions, tf.range(tf.size(positions))], axis=1)


def _sums(values: tf.Tensor, entries: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Sums ``values``, [N, C], by position: float32 [count, C]."""
    number = tf.shape(entries)[0]
    return tf.raw_ops.SparseTensorDenseMatMul(
        a_indices=entries,
        a_values=tf.ones([number]),
        a_shape=tf.cast(tf.stack([count, number]), tf.int64),
        b=values,
    )


def sum_by_position(values: tf.Tensor, positions: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Sums ``values``, float32 [N, C], by position, int32 [N], in order: float32 [count, C]. XLA cannot compile it."""
    return _sums(values, _entries(positions), count)


def gather_rows(rows: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Gathers ``rows``, float32 [U, C], at ``places``, int32 [...]: [..., C]; the gradient uses ``sum_by_position``."""

    @own_gradient
    def gather(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            values = tf.reshape(upstream, [-1, rows.shape[1]])
            return sum_by_position(values, tf.reshape(places, [-1]), tf.shape(rows)[0])

        return tf.gather(rows, places), gradient

    return gather(rows)


def tower_inputs(
    looked_up: Sequence[LookedUp], layouts: Sequence[TableLayout], factorized: bool
) -> dict[str, TowerInput]:
    """Concatenates the embeddings, and sums the linear weights, of each tower's tables.

    Args:
        looked_up: for each table, the result of ``look_up``.
        layouts: the layouts of these tables.
        factorized: whether towers are separate; otherwise ``quality`` has the features of both.

    Returns:
        The input of each tower that has a table.
    """
    towers: dict[str, list[tuple[LookedUp, TableLayout]]] = {}
    for both in zip(looked_up, layouts, strict=True):
        towers.setdefault(_tower(both[1], factorized), []).append(both)
    inputs = {}
    for tower, pairs in towers.items():
        by_copy = zip(
            *([_side_by_side(part, layout) for part in item.embeddings] for item, layout in pairs),
            strict=True,
        )
        linear = zip(
            *([tf.reduce_sum(part, axis=[1, 2]) for part in item.linear] for item, _ in pairs), strict=True
        )
        inputs[tower] = TowerInput(
            e0=stack([_concat_columns(parts) for parts in by_copy]),
            linear=stack([tf.add_n(parts) for parts in linear]),
        )
    return inputs


def _side_by_side(embeddings: tf.Tensor, layout: TableLayout) -> tf.Tensor:
    """Reshapes [B, features, width] to [B, features * width]."""
    rows = -1 if layout.width else tf.shape(embeddings)[0]
    return tf.reshape(embeddings, [rows, len(layout.features) * layout.width])


def _concat_columns(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors [B, ...] along axis 1, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


def tower_widths(layouts: Sequence[TableLayout], factorized: bool) -> dict[str, int]:
    """Returns the width of each tower's concatenated embeddings in ``tower_inputs``."""
    return {
        tower: max(part.stop for part in slices.values())
        for tower, slices in tower_columns(layouts, factorized).items()
    }


def tower_columns(layouts: Sequence[TableLayout], factorized: bool) -> dict[str, dict[str, slice]]:
    """Returns, by tower, the columns of each feature's embedding in the result of ``tower_inputs``."""
    by_tower: dict[str, dict[str, slice]] = {}
    for layout in with_numbers(with_products(layouts)):
        slices = by_tower.setdefault(_tower(layout, factorized), {})
        for feature in layout.features:
            begin = max((columns.stop for columns in slices.values()), default=0)
            slices[feature.name] = slice(begin, begin + layout.width)
    return by_tower


def _tower(layout: TableLayout, factorized: bool) -> str:
    return layout.tower if factorized or layout.tower != "ui" else "quality"


def initial_rows(
    fingerprints: np.ndarray, feature: str, columns: int, scale: float, seed: int, copy: int = 0
) -> np.ndarray:
    """Draws values that depend only on the seed, the copy, the feature, the fingerprint and the column.

    They depend neither on the slot of an id, nor on the table's size, nor on other ids. Each is the sum of the four
    16-bit parts of 64 random bits, less its mean and scaled: nearly normal (kurtosis 2.7, no value beyond 3.5
    deviations). Except for the scaling, one product in float32, it is integer arithmetic, so that the bits are the same
    on every machine.

    Args:
        fingerprints: int64 [N].
        feature: the feature's name.
        columns: number of values per row; more columns do not change the first ones.
        scale: the standard deviation.
        seed: the seed of the run.
        copy: the index of the ensemble component that the values are for.

    Returns:
        float32 [N, columns].
    """
    digest = hashlib.sha256(f"{seed}/{copy}/{feature}".encode()).digest()
    first, second = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    mixed = fingerprints.view(np.uint64)
    steps = np.arange(columns, dtype=np.uint64) * _INCREMENT
    rows = np.empty((len(mixed), columns), np.float32)
    block = max(1, _BLOCK // max(1, columns))
    for begin in range(0, len(rows), block):
        keys = splitmix64(splitmix64(mixed[begin : begin + block] ^ first) ^ second)
        bits = splitmix64(keys[:, np.newaxis] + steps)
        pairs = bits & _LOW_HALVES
        bits >>= np.uint64(16)
        bits &= _LOW_HALVES
        pairs += bits
        halves = pairs.view(np.uint32)
        np.add(halves[:, ::2], halves[:, 1::2], out=rows[begin : begin + block], casting="unsafe")
    # Whole numbers below 2^24 are exact.
    rows -= np.float32(_MEAN)
    rows *= np.float32(scale / _DEVIATION)
    return rows
