"""Number of rows of a query, the size of its page, as a feature that the reader counts: no log stores it.

The size of a page is fixed before any of its rows is clicked. The size of a session is not: it depends on rows after
its first one. So the value is missing for a query whose rows have different times.
"""

from typing import Literal

import numpy as np

from ctr.data.features import Number
from ctr.data.schema import MISSING_ID, QUERY_SIZE, Schema

_BOUNDARIES = (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512)
"""Up to 5 rows each number has a distinct id; beyond, boundaries grow by the square root of 2."""

FEATURE = Number(name=QUERY_SIZE, source=QUERY_SIZE, boundaries=_BOUNDARIES, tower="ui")
"""Page size describes an ad's presentation, not the ad: it belongs to the tower of positions and formats."""

_FEW_SESSIONS = 0.005

Pages = dict[Literal["pages", "sessions", "largest"], int]
"""Counts of queries of several rows, with one time (pages) and with several (sessions), and the most rows."""


def find_pages(begins: np.ndarray, times: np.ndarray) -> Pages:
    """Counts the queries of several rows for a manifest; empty if there are none.

    Args:
        begins: int64, the row numbers at which a query begins.
        times: int64 [N], of the rows, in microseconds.
    """
    sizes = np.diff(begins, append=len(times))
    several = sizes > 1
    if not several.any():
        return {}
    is_page = several & _is_of_one_time(begins, times)
    pages, sessions = int(np.count_nonzero(is_page)), int(np.count_nonzero(several & ~is_page))
    return {"pages": pages, "sessions": sessions, "largest": int(sizes.max())}


def pages_differ(rows: int, queries: int, pages: Pages) -> bool:
    """Returns whether the queries of a log are pages of different sizes, by the counts of ``find_pages``.

    A few sessions do not matter. If they are common, the size is not usable: whether it is missing,
    or 1, would reveal if more rows follow.
    """
    if not pages or pages["sessions"] > _FEW_SESSIONS * (pages["pages"] + pages["sessions"]):
        return False
    return rows < pages["largest"] * queries


def with_query_size(schema: Schema) -> Schema:
    """Adds the feature to a log's schema, which must not have a feature or source column of this name."""
    return schema.model_copy(update={"features": (*schema.features, FEATURE), "counts_rows": True})


def query_size_ids(schema: Schema, begins: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Computes the feature's ids, [N], for rows of whole queries; other arguments as for ``find_pages``."""
    feature = schema.by_name[QUERY_SIZE]
    assert isinstance(feature, Number)
    sizes = np.diff(begins, append=len(times)).astype(np.int64)
    ids = 1 + np.searchsorted(feature.edges(), sizes, side="right")
    ids_by_query = np.where(_is_of_one_time(begins, times), ids, MISSING_ID).astype(schema.id_type)
    return np.repeat(ids_by_query, sizes)


def _is_of_one_time(begins: np.ndarray, times: np.ndarray) -> np.ndarray:
    if not len(begins):
        return np.zeros(0, bool)
    return np.minimum.reduceat(times, begins) == np.maximum.reduceat(times, begins)
