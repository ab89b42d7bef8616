"""Interests of users that move: the themes that a user is interested in at a time, and what they add to the logit.

Nothing here is drawn from the streams of ``world.py``: a world with interests has the queries and ads of one without.
"""

import numpy as np

from ctr.data.times import duration_us
from ctr.io.hashing import splitmix64, uniform_hash
from ctr.simulator.config import InterestsConfig, WorldConfig
from ctr.simulator.world import Ads, Queries

# More changes within a span whose mean is one have a probability below 1e-14.
_MOST_CHANGES = 16


def interest_logit(
    config: WorldConfig, queries: Queries, ads: Ads, query: np.ndarray, ad: np.ndarray
) -> np.ndarray | float:
    """Computes the part of a click's logit, [N], that is due to the current interests: ``strength`` or 0.

    ``query`` and ``ad`` are places in ``queries`` and ``ads``, int64 [N]. A world without interests has 0.
    """
    interests = config.interests
    if interests is None:
        return 0.0
    current = current_themes(interests, config.seed, queries.user, queries.time_us)
    theme = themes_of_ads(interests, config.seed, ads.number[ad])
    return interests.strength * (current[query] == theme[:, None]).any(axis=1)


def themes_of_ads(interests: InterestsConfig, seed: int, number: np.ndarray) -> np.ndarray:
    """Draws the theme of each ad, int64 [N], from 0, by its number."""
    return (uniform_hash(number, f"theme of an ad {seed}") * interests.themes).astype(np.int64)


def current_themes(
    interests: InterestsConfig, seed: int, user: np.ndarray, time_us: np.ndarray
) -> np.ndarray:
    """Finds the themes that users are interested in at times, int64 [N, at_once]; ``user``, ``time_us``: int64 [N].

    Each of a user's interests is a Markov process in time since 1970, which draws its theme anew at the points of a
    Poisson process. They are hashes of seed, user and time, so they do not depend on which times are asked for.
    """
    lasting, count = duration_us(interests.lasting), interests.at_once
    process = splitmix64((user[:, None] * count + np.arange(count)).ravel().astype(np.uint64))
    # Within each span of the mean duration the Poisson process begins anew, which it may, as it has no memory.
    span, within = (np.repeat(part, count) for part in np.divmod(time_us, lasting))
    until = within / lasting
    theme = np.empty(len(process), np.int64)
    searched = np.arange(len(process))
    while len(searched):
        key = splitmix64(process[searched] + span[searched].view(np.uint64))
        chance = uniform_hash(key[:, None] + np.arange(_MOST_CHANGES, dtype=np.uint64), f"change {seed}")
        changes = np.cumsum(-np.log1p(-chance), axis=1) <= until[searched, None]
        number = changes.sum(axis=1)
        drawn = uniform_hash(key + number.astype(np.uint64), f"theme {seed}")
        theme[searched] = (drawn * interests.themes).astype(np.int64)
        # Where nothing changed before this time, the theme is that of the span before.
        searched = searched[number == 0]
        span[searched] -= 1
        until[searched] = 1.0
    return theme.reshape(-1, count)
