"""Feeds: the arrays of a step, made from a batch; first the sizes of all arrays, then their content."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import tensorflow as tf

from ctr.data.batches import Batch
from ctr.data.reader import Rows, join_rows
from ctr.models.rows import TableLayout
from ctr.objective.bias_constraints import Family
from ctr.objective.config import ObjectiveConfig
from ctr.objective.targets import Targets, make_targets, rank_pairs, whole_batch_weight
from ctr.training.division import ALL_HERE, Placement, Share
from ctr.training.experts.pairs import with_pair_ids
from ctr.training.ids.admission import drawn as is_drawn
from ctr.training.ids.config import IdsConfig
from ctr.training.sizes import FewShapes, Shape, TableSizes, fit, require_shape
from ctr.training.tables.plan import TablePlan, assign_rows, pad_plan, plan_table
from ctr.training.tables.tables import EmbeddingTables

_LOGISTIC = ObjectiveConfig()


@dataclass(frozen=True)
class Feed:
    """Arrays that a step takes for a batch, or for this worker's share of it: B rows, the last of them padding."""

    batch: Batch
    targets: Targets  # for the B rows, from ``ctr.objective.targets``
    plans: tuple[TablePlan, ...]  # of the whole batch; ids that grow have no rows yet (``with_rows``)
    share: Share
    layouts: tuple[TableLayout, ...]
    shape: Shape | None = None  # one of few shapes, to which it is padded; None: sizes are rounded one by one
    again: Callable[[tuple[TableLayout, ...]], "Feed"] | None = None  # makes the feed again, for other tables
    preconditions: bool = True  # the batch is large enough for more than first-order steps of dense weights

    @property
    def batches(self) -> tuple[Batch, ...]:
        return (self.batch,)

    @property
    def rows(self) -> int:
        return len(self.batch.rows) + sum(len(other.rows) for other in self.batch.others.values())

    @property
    def counts(self) -> np.ndarray:
        """Returns the number of the batch's good rows, without constraint logs, int64 [1]."""
        return np.array([len(self.batch.rows)])

    @cached_property
    def target_tensors(self) -> dict[str, tf.Tensor]:
        return {name: tf.constant(array) for name, array in self.targets.items()}

    @cached_property
    def plan_tensors(self) -> list[dict[str, tf.Tensor]]:
        """Returns the tensors of each table's plan, by name; all growing ids must have rows."""
        of_tables = self.share.arrays(self.layouts, self.plans)
        return [{name: tf.constant(array) for name, array in arrays.items()} for arrays in of_tables]

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """Reorders a step's results to the order of the batch's good rows."""
        return values[self.share.order]

    def prepare(self) -> None:
        _ = self.target_tensors
        if all(plan.pending is None for plan in self.plans):
            _ = self.plan_tensors

    def of_tables(self, layouts: tuple[TableLayout, ...]) -> "Feed":
        """Returns the feed of the same batch for these tables."""
        return self if len(layouts) == len(self.layouts) or self.again is None else self.again(layouts)

    def with_rows(self, tables: EmbeddingTables, learning: bool = False) -> "Feed":
        """Returns the feed with rows for its growing ids (``EmbeddingTables.find_rows``), or itself if it has them."""
        rows, begun = tables.find_rows(self.plans, self.batch.times[1], learning)
        if not rows:
            return self
        tables.begin_rows(begun)
        plans = [
            assign_rows(plan, rows[number], tables.count(number)) if number in rows else plan
            for number, plan in enumerate(self.plans)
        ]
        feed = replace(self, plans=tuple(plans))
        feed.__dict__["target_tensors"] = self.target_tensors
        return feed


def make_feed(
    batch: Batch,
    layouts: tuple[TableLayout, ...],
    batch_rows: int,
    objective: ObjectiveConfig = _LOGISTIC,
    families: Sequence[Family] = (),
    ids: IdsConfig | None = None,
    placement: Placement = ALL_HERE,
    shapes: Callable[[tuple[TableLayout, ...]], FewShapes] | None = None,
) -> Feed:
    """Finds the distinct embedding rows of a batch, chooses the padded sizes, and fills the arrays.

    A feed without ``ids``, the configuration of growing ids, can only be scored. ``shapes`` returns the allowed shapes
    for the tables; without it each size is rounded up by itself. Raises InputError if no shape holds the batch.
    """
    rows, source = _all_rows(batch)
    share = placement.share(rows, source, batch_rows)
    part = rows.keep(share.local) if isinstance(share.local, np.ndarray) else rows
    pairs = rank_pairs(objective, part, source[share.local])
    all_ids, multivalent = with_pair_ids(rows.ids, layouts), ids_and_lengths(rows)
    drawn = rows_drawn(ids, rows)
    plans = [plan_table(layout, all_ids, multivalent, drawn) for layout in layouts]

    # Sizes that all arrays are padded to.
    shape = None
    if shapes is not None:
        needed = tuple(TableSizes(plan.distinct_count, len(plan.values)) for plan in plans)
        shape = require_shape(shapes(layouts), batch.begin, Shape(len(rows), len(pairs.weight), needed))
        capacity, most_pairs = shape.rows, shape.pairs
    else:
        capacity, most_pairs = share.capacity, fit(len(pairs.weight))

    # The arrays, padded.
    targets = make_targets(
        objective, families, part, source[share.local], capacity, pairs.padded(most_pairs), layouts
    )
    targets["batch_weight"] = whole_batch_weight(objective, rows, source)
    sizes = [None] * len(layouts) if shape is None else shape.tables
    padded = [
        pad_plan(layout, plan, *share.sizes(plan, capacity, size))
        for layout, plan, size in zip(layouts, plans, sizes, strict=True)
    ]
    return Feed(batch, targets, tuple(padded), share, layouts, shape)


def _all_rows(batch: Batch) -> tuple[Rows, np.ndarray]:
    """Joins the good rows of a batch and of constraint logs; returns them and the index of each row's log, int8 [N]."""
    parts = {0: batch.rows}
    for number, other in batch.others.items():
        # Rows of constraint logs are in no sidecar, and no further label is learned from them.
        joined = {name: np.full(len(other.rows), np.nan, np.float32) for name in batch.rows.joined}
        parts[number] = replace(other.rows, joined=joined)
    counts = [len(rows) for rows in parts.values()]
    return join_rows(list(parts.values())), np.repeat(np.array(list(parts), np.int8), counts)


def ids_and_lengths(rows: Rows) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns, for each multivalent feature, the ids of all N rows and their number in each row, int32 [N]."""
    return {
        name: (values, np.diff(offsets).astype(np.int32))
        for name, (values, offsets) in rows.multivalent.items()
    }


def rows_drawn(ids: IdsConfig | None, rows: Rows) -> np.ndarray | None:
    """Returns which rows admit their ids at once, bool [N], or None if admission does not draw rows."""
    if ids is None or ids.admission.rule != "probability":
        return None
    return is_drawn(rows.example_id, ids.admission.probability, ids.admission.salt)
