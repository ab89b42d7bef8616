"""Rows that a model has learned from, by how far it got in time; their scores say nothing about new rows.

Training passes over a log in the order of query time and query id.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

LEARNED = "learned"  # column of scores: true for rows that are not later than the last one that the model learned from

TIME = "time"  # key of raw rows that has their time, in microseconds; null where times are made of the numbers of rows


def learned_until(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns query time, in microseconds, and query id of the last row that a model learned from; None: from none."""
    until = metadata["position"]["learned_until"]
    return None if until is None else (int(until[0]), int(until[1]))


def is_learned(
    until: tuple[int, int] | None, times: np.ndarray, queries: np.ndarray | None = None
) -> np.ndarray:
    """Tells rows that are not later than the last one that was learned from, bool [N], by time and query id.

    Times are in microseconds, int64 [N]. Without ``queries`` all rows of the last time count as learned from.
    """
    if until is None:
        return np.zeros(len(times), bool)
    if queries is None:
        return times <= until[0]
    return (times < until[0]) | ((times == until[0]) & (queries <= until[1]))
