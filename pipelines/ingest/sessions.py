"""Which rows form one query, and the query's id and time."""

import numpy as np

from ctr.pipelines.rows.convert import mix_ids


def assign_queries(
    groups: np.ndarray, times: np.ndarray, gap_us: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Gives each row its query.

    Args:
        groups: [N] int64, rows of different groups never share a query.
        times: [N] int64, microseconds.
        gap_us: a new session of the group starts after a longer pause than this; None: one query a group.

    Returns:
        [N] int64 query ids (the group, or a hash of the group and the session's first time) and [N] int64
        query times: the time of the query's last row, so that no label is known before its query.
    """
    order = np.lexsort((times, groups))
    sorted_groups, sorted_times = groups[order], times[order]
    starts = np.ones(len(order), bool)
    starts[1:] = sorted_groups[1:] != sorted_groups[:-1]
    if gap_us is not None:
        starts[1:] |= sorted_times[1:] - sorted_times[:-1] > gap_us
    begins = np.flatnonzero(starts)
    lengths = np.diff(np.append(begins, len(order)))
    ids = sorted_groups[begins]
    if gap_us is not None:
        ids = mix_ids(ids, sorted_times[begins])
    query_ids = np.empty(len(order), np.int64)
    query_times = np.empty(len(order), np.int64)
    query_ids[order] = np.repeat(ids, lengths)
    query_times[order] = np.repeat(sorted_times[begins + lengths - 1], lengths)
    return query_ids, query_times
