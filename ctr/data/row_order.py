"""Order of a log's rows: by (query_time, query_id, example_id), in a shard and from one to the next."""

import numpy as np
import pyarrow as pa

from ctr.io.errors import InputError

KEY_COLUMNS = ("query_time", "query_id", "example_id")
Key = tuple[int, int, int]


def sort_rows(table: pa.Table) -> pa.Table:
    """Sorts by (query_time, query_id, example_id), the order of a log; rows with equal keys keep their order."""
    order = np.lexsort([table.column(name).to_numpy() for name in reversed(KEY_COLUMNS)])
    # Moving the rows costs more than finding their order, and many logs come sorted.
    return table if (order[1:] > order[:-1]).all() else table.take(pa.array(order))


def check_order(table: pa.Table, where: str) -> np.ndarray:
    """Finds the row numbers at which a query begins, int64. Raises InputError where rows are out of order."""
    time, query, example = (table.column(name).to_numpy() for name in KEY_COLUMNS)
    later = time[1:] > time[:-1]
    same_time = time[1:] == time[:-1]
    same_query = same_time & (query[1:] == query[:-1])
    in_order = later | (same_time & (query[1:] > query[:-1])) | (same_query & (example[1:] > example[:-1]))
    if not in_order.all():
        row = int(np.flatnonzero(~in_order)[0]) + 1
        repeated = same_query[row - 1] and example[row] == example[row - 1]
        problem = "repeats an example_id of its query" if repeated else "is out of order"
        raise InputError(
            f"{where}: row {row} (example_id {example[row]}) {problem}; rows are sorted by {', '.join(KEY_COLUMNS)}"
        )
    return np.concatenate([[0], np.flatnonzero(~same_query) + 1]) if len(time) else np.zeros(0, np.int64)


def key_at(table: pa.Table, row: int) -> Key:
    """Reads the key of a row; -1 is the last one."""
    time, query, example = (int(table.column(name)[row].as_py()) for name in KEY_COLUMNS)
    return time, query, example


def check_goes_on(last: Key, first: Key, where: str) -> None:
    """Raises InputError where a shard does not continue the one before it, or not with another query."""
    if first[:2] > last[:2]:
        return
    problem = (
        "belongs to the query of the last row of the shard before it; all rows of a query belong in one shard"
        if first[:2] == last[:2]
        else f"comes before the last row of the shard before it (query_time {last[0]}, query_id {last[1]}); "
        f"rows are sorted by {', '.join(KEY_COLUMNS)}"
    )
    raise InputError(
        f"{where}: row 0 (query_time {first[0]}, query_id {first[1]}, example_id {first[2]}) {problem}"
    )
