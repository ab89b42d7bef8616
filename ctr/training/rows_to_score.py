"""Rows that a program gives a session to score, checked: from the log's reader, or a table of a shard's columns."""

import numpy as np
import pyarrow as pa

from ctr.data.log import shard_schema
from ctr.data.reader import FAULTS, Rows, rows_of_table
from ctr.data.schema import Schema
from ctr.io.errors import InputError


def rows_to_score(rows: Rows | pa.Table, schema: Schema) -> Rows:
    """The rows as arrays. Raises InputError: a faulty row, or rows of other features than the schema's."""
    if isinstance(rows, pa.Table):
        expected = shard_schema(schema)
        try:
            table = rows.select(expected.names).cast(expected)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise InputError(
                f"rows to score: not the columns of a shard of the log, {', '.join(expected.names)}: {error}"
            ) from None
        rows = rows_of_table(table, schema, 0)
    found = (rows.ids.shape[1], sorted(rows.multivalent))
    wanted = (len(schema.single_valued), sorted(schema.multivalent))
    if found != wanted:
        raise InputError(
            f"rows to score: {found[0]} single-valued features and the multivalent ones {found[1]}; "
            f"the log has {wanted[0]} and {wanted[1]}"
        )
    faulty = np.flatnonzero(rows.fault)
    if len(faulty):
        raise InputError(
            f"rows to score: row {faulty[0]} (example_id {rows.example_id[faulty[0]]}): "
            f"{FAULTS[rows.fault[faulty[0]]]}; {len(faulty)} of {len(rows)} rows are faulty, none is allowed"
        )
    return rows
