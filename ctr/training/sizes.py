"""Padded sizes of rows, pairs, multivalent values and distinct ids: few, since each costs a trace or a buffer.

``fit`` rounds each size of a batch by itself. Where XLA compiles the step for each combination of sizes, which may
take minutes, whole batches are padded to few shapes: at most four, for any log, fixed before it is read::

    small    a sixteenth of ``batch.rows``; only where batches grow
    usual    ``batch.rows`` rows; half of the distinct ids that their single-valued features can have, and an eighth
             of the multivalent values and pairs
    full     the same rows, and the maximum of ids, values and pairs that they can have
    large    ``batch.max_query_rows`` rows, for a query that is larger than a batch, with the same maxima

A batch uses the first shape that holds it, which depends on the batch alone, so that a resumed run uses the same one.
The maxima follow from the features (``max_values``) and from K, ``ranking.max_pairs``: a query of s rows has up to
s^2 / 4 pairs, but at most K, so that n rows have at most n sqrt(K) / 2. Shapes have room for the rows that constraint
logs add to a batch.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ctr.data.batches import BatchSize
from ctr.data.features import Category, Cross, Feature, Text
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.models.rows import TableLayout
from ctr.training.config import TrainConfig
from ctr.training.experts.pairs import ids_of

FUSED_FROM = 4096
"""Position from which batches have ``fused_shapes``: a shorter log is processed before a loop would be compiled.

Where batches may be smaller than ``_FEW_ROWS``, one call per batch would take longer: these are fused from the start.
"""
_FEW_ROWS = 8
_FUSED_ROWS, _FUSED_VALUES = (8, 64, 256), 8
"""Rows of ``fused_shapes``, and the multivalent values that they hold per row and feature."""
_SMALL, _USUAL_IDS, _USUAL_VALUES = 16, 2, 8
"""Divisors of the maximum rows, ids, and values or pairs."""
_LEAST = 64


class TableSizes(NamedTuple):
    """Padded sizes for one table: distinct ids and multivalent values."""

    ids: int
    values: int


class Shape(NamedTuple):
    """Padded sizes of a batch."""

    rows: int
    pairs: int
    tables: tuple[TableSizes, ...]


FewShapes = tuple[Shape, ...]
"""Shapes of a run, at most four, in ascending order; the last one holds every batch that another shape holds."""


def fit(count: int, least: int = 64, step: int = 1, parts: int = 4) -> int:
    """Returns a padded size for ``count`` entries: above ``least`` a multiple of ``step``, at most 1/``parts`` empty.

    ``parts``, a power of two, is the number of sizes from a power of two to the next one.
    """
    if count <= least:
        return least
    step = max(step, (1 << (count - 1).bit_length() >> 1) // parts)
    return -(-count // step) * step


def fit_ids(count: int) -> int:
    """Returns a padded size for ``count`` distinct ids, in finer steps than other sizes, as every row costs time."""
    return fit(count, least=256, step=256, parts=32)


def fit_shape(shapes: FewShapes, sizes: Shape) -> Shape | None:
    """Returns the smallest shape that holds a batch of these unpadded sizes, or None if none does."""
    for shape in shapes:
        tables = zip(sizes.tables, shape.tables, strict=True)
        holds = all(has.ids <= size.ids and has.values <= size.values for has, size in tables)
        if sizes.rows <= shape.rows and sizes.pairs <= shape.pairs and holds:
            return shape
    return None


def require_shape(shapes: FewShapes, position: int, sizes: Shape) -> Shape:
    """Returns the smallest shape that holds the batch at a position of the log. Raises InputError if there is none."""
    shape = fit_shape(shapes, sizes)
    if shape is not None:
        return shape
    largest = shapes[-1]
    raise InputError(
        f"the batch from row {position} of the log on has {sizes.rows} rows and, of each table, "
        f"{', '.join(f'{has.ids} ids and {has.values} multivalent values' for has in sizes.tables)}; "
        f"batch.shapes few allows {largest.rows} rows and "
        f"{', '.join(f'{size.ids} ids and {size.values} values' for size in largest.tables)}, by the features' "
        "max_values; allowed: batch.shapes many"
    )


def few_shapes(config: TrainConfig, schema: Schema, layouts: Sequence[TableLayout]) -> FewShapes:
    """Returns the few shapes that a run's batches are padded to, without repetitions."""
    batch, constraints = config.batch, config.objective.bias_constraints
    logs = 0 if constraints is None else len(constraints.logs)
    # A constraint log gives a batch at most as many rows as it has itself; most give few.
    usual = batch.rows * min(2, 1 + logs)
    most = max(batch.rows, batch.max_query_rows) * (1 + logs)
    shapes = [
        _shape(config, schema, layouts, usual, is_usual=True),
        _shape(config, schema, layouts, batch.rows * (1 + logs)),
        _shape(config, schema, layouts, most),
    ]
    if batch.growth is not None:
        shapes.insert(0, _shape(config, schema, layouts, -(-usual // _SMALL)))
    return tuple(dict.fromkeys(shapes))


def fused_shapes(config: TrainConfig, layouts: Sequence[TableLayout]) -> FewShapes:
    """Returns the shapes of small batches, many of which one call learns from (``ctr.training.fused_steps``).

    Empty if the host has work between two steps, if batches have pairs or rows of several logs, or
    if all batches have few shapes (``batch.shapes``).
    """
    if config.batch.steps_per_execution == 1 or config.jit is False or not config.fuses_steps:
        return ()
    shapes = []
    for rows in _FUSED_ROWS:
        values = [_FUSED_VALUES * rows * len(layout.multivalent) for layout in layouts]
        sizes = zip(layouts, values, strict=True)
        tables = [TableSizes(rows * len(layout.single) + count, count) for layout, count in sizes]
        shapes.append(Shape(rows, 0, tuple(tables)))
    return tuple(shapes)


def is_fused_from(size: BatchSize, position: int) -> bool:
    """Returns whether a batch that begins at this position may be fused with others."""
    return position - size.origin >= FUSED_FROM or (size.growth is not None and size.first < _FEW_ROWS)


def most_rows(config: TrainConfig, layout: TableLayout) -> int:
    """Returns the maximum number of rows of a table."""
    ids = ids_of(config.ids, layout)
    return layout.rows + sum(ids.capacity_of(feature.name) for feature in layout.growing)


def _shape(
    config: TrainConfig,
    schema: Schema,
    layouts: Sequence[TableLayout],
    rows: int,
    is_usual: bool = False,
) -> Shape:
    ranking = config.objective.ranking
    pairs = 0 if ranking is None else int(rows * math.sqrt(ranking.max_pairs) / 2)
    ids_divisor, values_divisor = (_USUAL_IDS, _USUAL_VALUES) if is_usual else (1, 1)
    tables = []
    for layout in layouts:
        each = sum(_max_values(schema, feature.source) for feature in layout.multivalent)
        values = max(_LEAST, rows * each // values_divisor) if each else 0
        ids = -(-rows * len(layout.single) // ids_divisor) + values
        tables.append(TableSizes(min(ids, most_rows(config, layout)), values))
    return Shape(rows, max(_LEAST, pairs // values_divisor), tuple(tables))


def _max_values(schema: Schema, name: str) -> int:
    feature: Feature = schema.by_name[name]
    if isinstance(feature, Cross):
        return max(_max_values(schema, part) for part in feature.of)
    return feature.max_values if isinstance(feature, Text | Category) else 1
