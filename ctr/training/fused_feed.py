"""Feeds of many small batches together, built with NumPy in one pass, in the thread that reads ahead."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter

import numpy as np

from ctr.data.batches import Batch
from ctr.data.reader import Rows, join_rows
from ctr.models.rows import TableLayout
from ctr.objective.bias_constraints import Family
from ctr.objective.config import ObjectiveConfig
from ctr.objective.targets import Targets, make_targets, query_begins, query_numbers
from ctr.training.experts.pairs import with_pair_ids
from ctr.training.feed import Feed, ids_and_lengths, rows_drawn
from ctr.training.ids.config import IdsConfig
from ctr.training.sizes import FewShapes, Shape, TableSizes, fit_shape
from ctr.training.tables.plan import BatchPlans, BatchRows, plan_batches

Layouts = tuple[TableLayout, ...]


@dataclass(frozen=True)
class FusedFeed:
    """K batches of one shape, for one call that scores each before learning from it (``ctr.training.fused_steps``)."""

    batches: tuple[Batch, ...]
    joined: Rows  # of all batches
    targets: Targets  # [K, B] or [K, B, .]: for each batch, the targets of a ``Feed``
    plans: tuple[BatchPlans, ...]
    shape: Shape
    layouts: Layouts
    again: Callable[[Sequence[Batch], Layouts], "FusedFeed"]  # makes a feed of some batches for other tables
    make_feed: Callable[[Batch, Layouts], Feed]  # makes the feed of a single batch

    preconditions = False

    @cached_property
    def batch(self) -> Batch:
        """Joins all batches into one."""
        rejects = [batch.rejects for batch in self.batches]
        rejects = [rows for rows in rejects if len(rows)] or rejects[:1]
        return Batch(self.joined, join_rows(rejects), self.batches[-1].end, self.batches[-1].last)

    @property
    def rows(self) -> int:
        return len(self.joined)

    @cached_property
    def counts(self) -> np.ndarray:
        """Returns the number of good rows of each batch, int64 [K]."""
        return np.array([len(batch.rows) for batch in self.batches])

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """Joins the results for the padded rows of each batch, [K, B], without the padding."""
        joined: np.ndarray = values[np.arange(values.shape[1]) < self.counts[:, np.newaxis]]
        return joined

    def part(self, begin: int, end: int) -> "FusedFeed":
        """Returns the batches ``begin`` to ``end`` (exclusive)."""
        if (begin, end) == (0, len(self.batches)):
            return self
        return replace(
            self,
            batches=self.batches[begin:end],
            joined=self.joined.slice(int(self.counts[:begin].sum()), int(self.counts[:end].sum())),
            targets={name: array[begin:end] for name, array in self.targets.items()},
            plans=tuple(plans.part(begin, end) for plans in self.plans),
        )

    def of_tables(self, layouts: Layouts) -> "FusedFeed":
        """Returns the feed of the same batches for these tables."""
        return self if len(layouts) == len(self.layouts) else self.again(self.batches, layouts)


AnyFeed = Feed | FusedFeed


def make_fused_feed(
    batches: Sequence[Batch],
    layouts: Layouts,
    shapes: Callable[[Layouts], FewShapes],
    objective: ObjectiveConfig,
    families: Sequence[Family],
    ids: IdsConfig,
    make_feed: Callable[[Batch, Layouts], Feed],
) -> FusedFeed:
    """Makes the feed of K batches of the same shape; ``shapes`` returns the allowed shapes for the tables."""
    shape = shape_of(batches[0], layouts, shapes(layouts))
    assert shape is not None
    rows = join_rows([batch.rows for batch in batches])
    places = BatchRows.of([len(batch.rows) for batch in batches])
    source = np.zeros(len(rows), np.int8)
    # The rows are followed by the values of a padding row.
    unpadded = make_targets(objective, families, rows, source, len(rows) + 1, layouts=layouts)
    queries = query_numbers(query_begins(rows, source), len(rows))
    firsts = np.cumsum(places.counts) - places.counts
    unpadded["query"] = np.append(queries - queries[firsts][places.batch], shape.rows - 1).astype(np.int32)
    targets = {}
    for name, values in unpadded.items():
        padded = np.empty((len(batches), shape.rows, *values.shape[1:]), values.dtype)
        padded[:] = values[-1]
        padded[places.batch, places.within] = values[:-1]
        targets[name] = padded
    all_ids, multivalent = with_pair_ids(rows.ids, layouts), ids_and_lengths(rows)
    drawn = rows_drawn(ids, rows)
    plans = [
        plan_batches(layout, places, all_ids, multivalent, shape.rows, sizes.values, drawn)
        for layout, sizes in zip(layouts, shape.tables, strict=True)
    ]

    def again(batches: Sequence[Batch], layouts: Layouts) -> FusedFeed:
        return make_fused_feed(batches, layouts, shapes, objective, families, ids, make_feed)

    return FusedFeed(tuple(batches), rows, targets, tuple(plans), shape, layouts, again, make_feed)


def shape_of(batch: Batch, layouts: Layouts, shapes: FewShapes) -> Shape | None:
    """Returns the smallest shape that holds a batch, or None if none does or the batch has no good rows."""
    rows = batch.rows
    values = [
        sum(len(rows.multivalent[feature.source][0]) for feature in layout.multivalent) for layout in layouts
    ]
    # Shapes have room for all ids that this many rows and values can have.
    sizes = Shape(len(rows), 0, tuple(TableSizes(0, count) for count in values))
    return fit_shape(shapes, sizes) if len(rows) else None


def in_groups(
    batches: Iterable[tuple[Batch, Shape | None]], most: Callable[[int], int]
) -> Iterator[tuple[list[Batch], Shape | None]]:
    """Groups consecutive batches of equal shape; a batch without a shape is a group by itself.

    ``most``: returns the maximum number of batches in a group, for the padded rows of each.
    """
    for shape, group in groupby(batches, itemgetter(1)):
        while together := [batch for batch, _ in islice(group, most(shape.rows) if shape else 1)]:
            yield together, shape
