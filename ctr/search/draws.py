"""Candidates drawn at random: by hashes of the seed, each architecture once, and none above the target."""

from collections.abc import Iterator

import numpy as np

from ctr.io.errors import InputError
from ctr.io.hashing import uniform_hash
from ctr.search.cost import Cost
from ctr.search.space import Choice, Content, Space

_LISTED = 2**20
"""Largest space whose candidates are put in an order; of larger ones places are drawn."""
_MOST_TRIES = 2**14


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
