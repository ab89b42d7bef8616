"""Scores of rows outside the batches of a log."""

from functools import partial

import numpy as np
import pyarrow as pa

from ctr.data.batches import set_rejects_apart
from ctr.data.reader import FAULTS, Rows, add_query_size, rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import shard_schema
from ctr.io.errors import InputError
from ctr.training.compiled_step import CompiledStep, Ramps
from ctr.training.config import TrainConfig
from ctr.training.device import has_few_shapes
from ctr.training.feed import make_feed
from ctr.training.sizes import few_shapes

_SCORED_TOGETHER = 8192


def score_rows(
    step: CompiledStep, config: TrainConfig, rows: Rows | pa.Table, schema: Schema, ramps: Ramps
) -> np.ndarray:
    """Returns the logits, float32 [N], of good rows or of a shard's columns; they may be infinite or NaN.

    Raises InputError for a faulty row, or rows with other features.
    """
    good, state = _check_rows(rows, schema), step.state
    # A call of the compiled function costs as much as a thousand rows.
    at_once, shapes = max(config.batch.rows, _SCORED_TOGETHER), None
    if has_few_shapes(config.batch.shapes):
        at_once, shapes = config.batch.rows, partial(few_shapes, config, schema)
    logit = np.zeros(len(good), np.float32)
    for begin in range(0, len(good), at_once):
        end = min(begin + at_once, len(good))
        # Padded like the log's batches, so that nothing is compiled anew.
        feed = make_feed(
            set_rejects_apart(good.slice(begin, end)),
            state.active_layouts,
            config.batch.rows,
            config.objective.scored_part,
            state.families,
            placement=state.placement,
            shapes=shapes,
        )
        logit[begin:end] = step.score(feed, ramps).logit
    return logit


def _check_rows(rows: Rows | pa.Table, schema: Schema) -> Rows:
    if isinstance(rows, pa.Table):
        expected = shard_schema(schema)
        try:
            table = rows.select(expected.names).cast(expected)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise InputError(
                f"rows to score: not the columns of a shard of the log, {', '.join(expected.names)}: {error}"
            ) from None
        rows = rows_of_table(table, schema, 0)
    rows = add_query_size(rows, schema)
    actual = (rows.ids.shape[1], sorted(rows.multivalent))
    required = (len(schema.single_valued), sorted(schema.multivalent))
    if actual != required:
        raise InputError(
            f"rows to score: {actual[0]} single-valued features and the multivalent ones {actual[1]}; "
            f"the log has {required[0]} and {required[1]}"
        )
    faulty = np.flatnonzero(rows.fault)
    if len(faulty):
        raise InputError(
            f"rows to score: row {faulty[0]} (example_id {rows.example_id[faulty[0]]}): "
            f"{FAULTS[rows.fault[faulty[0]]]}; {len(faulty)} of {len(rows)} rows are faulty, none is allowed"
        )
    return rows
