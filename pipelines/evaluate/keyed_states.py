"""Metric states of one or two sets of predictions, to which whole queries are added by key."""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from ctr.eval.arrays import IntArray
from ctr.eval.prediction_difference import JoinedPredictions, PredictionDifference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.pipelines.evaluate.rows import Piece, gather, join_rows


class JoinedDifference(PredictionDifference):
    """PD over joined predictions, and the numbers of examples in only the first or only the second set (int64 [])."""

    LAYOUT: ClassVar = {**PredictionDifference.LAYOUT, "only_a": ((), np.int64), "only_b": ((), np.int64)}

    only_a: IntArray
    only_b: IntArray

    def add(self, joined: JoinedPredictions) -> None:
        """Adds joined examples, each of which must be added only once."""
        self.update(joined.first, joined.second, joined.query_id)
        self.only_a += joined.only_first
        self.only_b += joined.only_second


# The states of two sets; a single set has only ``a``.
KINDS: dict[str, type[Any]] = {
    "a": ProgressiveMetrics,
    "b": ProgressiveMetrics,
    "difference": JoinedDifference,
}
States = dict[str, Any]


def new_states(sides: Iterable[str]) -> States:
    """Makes the empty states of the set ``a``, or of ``a`` and ``b`` and their difference."""
    names = KINDS if len(list(sides)) > 1 else ["a"]
    return {name: KINDS[name]() for name in names}


def add_key(states: States, pieces: Iterable[tuple[str, Piece]]) -> None:
    """Adds all (side, piece) pairs of a key, hence whole queries. Raises InputError for a repeated example_id."""
    held: dict[str, list[Piece]] = {name: [] for name in states if name != "difference"}
    for side, piece in pieces:
        held[side].append(piece)
    whole = {side: gather(parts) for side, parts in held.items()}
    for side, rows in whole.items():
        states[side].update(rows["label"], rows["logit"], rows["weight"], rows["query_id"])
    if "difference" in states:
        states["difference"].add(join_rows(whole["a"], whole["b"]))
