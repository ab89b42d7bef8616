"""Candidates trained by themselves: which are drawn, on which prefixes of a log, and who goes on (FF 3.2).

Successive halving trains candidates on longer and longer prefixes, and the best by progressive logloss go on
to the next, where they learn from the log's beginning: the result is the same as if they had gone on, to the
same bits. Random search is its one rung.

    Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError, joined
from ctr.io.hashing import uniform_hash
from ctr.search.cost import Cost
from ctr.search.record import Rung, Tried
from ctr.search.space import Choice, Content, Space

_LISTED = 2**20  # largest space whose candidates are put in an order; of larger ones places are drawn
_MOST_TRIES = 2**14
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Prefix:
    """First rows of what a configuration trains on."""

    end_us: int | None  # the first query time, in microseconds, that is not in it; None: it is everything
    rows: int

    @property
    def end(self) -> str | None:
        """The same time in ISO 8601."""
        if self.end_us is None:
            return None
        return (_EPOCH + timedelta(microseconds=self.end_us)).isoformat()


def find_prefixes(log: Path, time_range: TimeRange, shares: list[float]) -> list[Prefix]:
    """Finds prefixes with given shares of a log's rows, each up to a query time: no query is divided.

    ``shares``: above 0 and at most 1. Raises InputError: the log is damaged, has no row in the time range,
    or a prefix would have none.
    """
    manifests = read_manifests(log)
    blocks = read_selection(log, read_schema(log), manifests, Selection(time_range=time_range))
    times = np.concatenate([block.query_time for block in blocks] or [np.zeros(0, np.int64)])
    if not len(times):
        raise InputError(f"{log}: the log has no rows in the time range of the configuration")
    found = []
    for share in shares:
        place = int(share * len(times))
        if place >= len(times):
            found.append(Prefix(None, len(times)))
            continue
        end_us = int(times[place])
        rows = int(np.searchsorted(times, end_us))
        if not rows:
            raise InputError(
                f"{log}: no query ends within the first {share:.3g} of the {len(times)} rows; "
                "a larger prefix is required"
            )
        found.append(Prefix(end_us, rows))
    return found


def halve(
    candidates: Sequence[Tried], rungs: int, eta: int, run: Callable[[int, Sequence[Tried]], Rung]
) -> list[Rung]:
    """Successive halving: the best 1 / eta of each rung go on; the last one keeps the result.

    ``run`` runs candidates on a rung, from 0, and ranks them. Raises InputError where all candidates of a
    rung failed.
    """
    found = []
    for number in range(rungs):
        rung = run(number, candidates)
        names = {candidate.name for candidate in candidates}
        ranked = [one.name for one in rung.tried if one.logloss is not None and one.name in names]
        if not ranked:
            failures = joined([f"{one.name}: {one.failure}" for one in rung.tried if one.failure])
            raise InputError(f"{rung.folder}: no candidate of the search could be trained: {failures}")
        kept = ranked[: 1 if number == rungs - 1 else max(1, len(candidates) // eta)]
        candidates = [candidate for candidate in candidates if candidate.name in kept]
        found.append(rung.model_copy(update={"kept": kept}))
    return found


def draw_candidates(
    space: Space, base: Content, cost: Cost, target: float, count: int, seed: int
) -> list[Choice]:
    """Draws different candidates that cost at most the target, ``count`` or as many as there are.

    Candidates with the same configuration count as one, and none is the base itself. Raises InputError: a
    candidate's configuration is not possible, or none costs so little.
    """
    known = {space.apply_values(base, {}).sha256()}
    drawn: list[Choice] = []
    is_base_alone = False
    for choice in _in_drawn_order(space, seed):
        if cost.of(choice) > target:
            continue
        config = space.apply(base, choice).sha256()
        is_base_alone |= config in known
        if config not in known:
            known.add(config)
            drawn.append(choice)
        if len(drawn) == count:
            break
    if not drawn and not is_base_alone:
        raise InputError(
            f"space: none of {min(space.size, _MOST_TRIES)} candidates costs at most {target:g} of the baseline's; "
            "a higher target or smaller choices are required"
        )
    return drawn


def _in_drawn_order(space: Space, seed: int) -> Iterator[Choice]:
    salt = f"search {seed}"
    if space.size <= _LISTED:
        places = np.argsort(uniform_hash(np.arange(space.size), salt), kind="stable")[:_MOST_TRIES]
        yield from (space.number(int(place)) for place in places)
        return
    # A product of large spaces exceeds 64 bits: each decision is drawn by itself.
    for number in range(_MOST_TRIES):
        parts = uniform_hash(np.arange(len(space.decisions)), f"{salt} candidate {number}")
        sizes = [len(decision.choices) for decision in space.decisions]
        yield tuple(int(part * size) for part, size in zip(parts, sizes, strict=True))
