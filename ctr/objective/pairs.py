"""Pairs of a clicked and a non-clicked impression of one query, for the rank loss (FF 4.1.1), in NumPy.

A query with C clicked and N other rows has n = C N pairs, numbered row by row of a C x N rectangle:

    pair m:   clicked row m // N,   other row m % N

A query with n > ``max_pairs`` = K gets a systematic sample: the pairs (k n + S) // K for k in 0..K-1, with S
uniform in 0..n-1 from a hash of the query_id. With weights n / K the expected value of the sample's sum is the sum over
all pairs, and each clicked row is in K / C pairs, rounded up or down. To avoid resonance of the stride n / K with
patterns in the order of rows, a sampled query's rows are first sorted by a hash of their example_id; to avoid it in the
rectangle (a stride of N would pair all clicked rows with the same other row), the N pairs of each clicked row are
rotated by a hash of its example_id.

All hashes are of ids, so that a query has the same pairs in every run and in every batch.
"""

from typing import NamedTuple

import numpy as np

from ctr.io.hashing import uniform_hash


class Pairs(NamedTuple):
    """P pairs of rows of one batch: row indices, int32 [P], and float32 weights, times n / K in a sampled query."""

    clicked: np.ndarray
    other: np.ndarray
    weight: np.ndarray

    def padded(self, size: int) -> "Pairs":
        """Pads to ``size`` pairs with pairs of weight 0."""
        added = size - len(self.weight)
        return Pairs(*(np.concatenate([part, np.zeros(added, part.dtype)]) for part in self))


def click_pairs(
    query_begins: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray,
    query_id: np.ndarray,
    example_id: np.ndarray,
    max_pairs: int,
    query_exponent: float = 0.0,
) -> Pairs:
    """Returns all pairs of a clicked and a non-clicked row, query by query; a sample if a query has too many.

    Memory grows with the returned pairs, not with all pairs. Rows of weight 0 are in no pair. ``query_begins`` is int64
    [Q], ``max_pairs`` at most 2^20. The weights of a query's pairs are divided by the sum over all of its pairs, also
    those that a sample leaves out, to the power ``query_exponent``.
    """
    rows = len(label)
    queries = len(query_begins)
    query = np.repeat(np.arange(queries), np.diff(np.append(query_begins, rows)))
    clicked = np.flatnonzero((weight > 0) & (label == 1))
    other = np.flatnonzero((weight > 0) & (label != 1))
    clicked_counts = np.bincount(query[clicked], minlength=queries)
    other_counts = np.bincount(query[other], minlength=queries)
    all_pairs = clicked_counts * other_counts
    taken = np.minimum(all_pairs, max_pairs)
    sampled = all_pairs > max_pairs
    any_sampled = bool(sampled.any())
    if any_sampled:
        clicked = _order_by_hash(clicked, query, sampled, example_id)
        other = _order_by_hash(other, query, sampled, example_id)

    query_of = np.repeat(np.arange(queries), taken)
    number = np.arange(len(query_of)) - np.repeat(_begins(taken), taken)
    scale = np.ones(len(query_of), np.float32)
    if any_sampled:
        start = np.zeros(queries, np.int64)
        ids = query_id[query_begins[sampled]]
        start[sampled] = _random_below(ids, "start", all_pairs[sampled])
        of_sampled = np.flatnonzero(sampled[query_of])
        parts = query_of[of_sampled]
        # Below 2^62 for queries of up to 2^22 rows.
        number[of_sampled] = (number[of_sampled] * all_pairs[parts] + start[parts]) // max_pairs
        scale[of_sampled] = (all_pairs / max_pairs)[parts]
    others = other_counts[query_of]
    clicked_number, other_number = np.divmod(number, others)
    clicked_rows = clicked[_begins(clicked_counts)[query_of] + clicked_number]
    if any_sampled:
        ids = example_id[clicked_rows[of_sampled]]
        turn = _random_below(ids, "turn", others[of_sampled])
        other_number[of_sampled] = (other_number[of_sampled] + turn) % others[of_sampled]
    other_rows = other[_begins(other_counts)[query_of] + other_number]
    pair_weight = weight[clicked_rows] * weight[other_rows] * scale
    if query_exponent:
        sums = [np.bincount(query[part], weight[part], minlength=queries) for part in (clicked, other)]
        pair_weight /= (sums[0] * sums[1])[query_of] ** query_exponent
    return Pairs(clicked_rows.astype(np.int32), other_rows.astype(np.int32), pair_weight.astype(np.float32))


def _begins(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


def _order_by_hash(
    members: np.ndarray, query: np.ndarray, sampled: np.ndarray, example_id: np.ndarray
) -> np.ndarray:
    """Reorders ``members``, row indices grouped by query, within each sampled query."""
    of_sampled = np.flatnonzero(sampled[query[members]])
    mixed = members[of_sampled]
    order = np.lexsort((uniform_hash(example_id[mixed], "rank pairs: order"), query[mixed]))
    result = members.copy()
    result[of_sampled] = mixed[order]
    return result


def _random_below(ids: np.ndarray, purpose: str, bounds: np.ndarray) -> np.ndarray:
    """Draws integers, int64 [M], uniform in 0..bound-1, from hashes of ids; bounds are at most 2^42."""
    return np.floor(uniform_hash(ids, f"rank pairs: {purpose}") * bounds).astype(np.int64)
