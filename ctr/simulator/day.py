"""One day of the simulated system: its queries are served by a policy, and some ads are clicked."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.io.errors import InputError
from ctr.simulator.auction import (
    Impressions,
    Policy,
    crude_policy,
    logistic,
    quality_logit,
    run_auction,
    visibility,
)
from ctr.simulator.config import WorldConfig
from ctr.simulator.features import FeatureIds
from ctr.simulator.traffic import (
    Ads,
    Queries,
    Retrieval,
    ads_by_day,
    draw_candidates,
    draw_queries,
    retrieval_order,
)
from ctr.simulator.world import Coefficients, World, draw_world, walk

QUERIES_PER_DAY_LIMIT = 10**6
ADS_PER_QUERY_LIMIT = 64
# Of the arrays of so many queries most fit in a processor's cache.
_CHUNK = 8_192


@dataclass(frozen=True)
class Day:
    """The world on a day; ``number``: of the log, from 0."""

    number: int
    queries: Queries
    ads: Ads
    retrieval: Retrieval
    now: Coefficients


def make_world(config: WorldConfig) -> World:
    """Draws the world of a seed, calibrated to its base rate."""
    return calibrate(config, draw_world(config))


def days(config: WorldConfig, world: World, first: int = 0) -> Iterator[Day]:
    """Yields day number ``first``, the next one, and so on without end."""
    seasons = zip(walk(config, world), ads_by_day(config, world), strict=False)
    for number, (now, ads) in islice(enumerate(seasons), first, None):
        queries = draw_queries(config, world, number)
        yield Day(number, queries, ads, retrieval_order(ads, config.topics), now)


def calibrate(config: WorldConfig, world: World) -> World:
    """Sets the intercept, as far as visibility allows, so that the crude policy's click rate is ``base_ctr``."""
    sample = config.model_copy(update={"queries_per_day": 20_000, "randomized_share": 0.0})
    day = next(days(sample, world))
    candidates = draw_candidates(sample, day.ads, day.retrieval, day.queries, 0)
    shown = run_auction(sample, crude_policy(config, world), day.queries, day.ads, candidates)
    if not len(shown):
        raise InputError(
            f"world: reserve {config.reserve}: with base_ctr {config.base_ctr} the crude policy expects less "
            "from every ad and shows none; use a lower reserve"
        )
    seen = visibility(world, day.queries, shown)
    logit = quality_logit(world, world.first, day.queries, day.ads, shown)
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.mean(seen * logistic(middle + logit)) < config.base_ctr:
            low = middle
        else:
            high = middle
    return replace(world, intercept=middle)


@dataclass(frozen=True)
class Served:
    """Queries, and the impressions and clicks that they led to."""

    queries: Queries
    impressions: Impressions
    quality: np.ndarray  # probability of a click on the ad when it is examined
    visibility: np.ndarray
    examined: np.ndarray
    clicked: np.ndarray


def serve(config: WorldConfig, world: World, day: Day, policy: Policy) -> Iterator[Served]:
    """Serves a day's queries, some at a time, in their order."""
    for begin in range(0, len(day.queries), _CHUNK):
        queries = day.queries.slice(begin, begin + _CHUNK)
        candidates = draw_candidates(config, day.ads, day.retrieval, queries, day.number)
        shown = run_auction(config, policy, queries, day.ads, candidates)
        quality = logistic(quality_logit(world, day.now, queries, day.ads, shown)).astype(np.float32)
        seen = visibility(world, queries, shown).astype(np.float32)
        # Whoever examines a place examines all that are more visible.
        examined = queries.reads[shown.query] < seen
        yield Served(queries, shown, quality, seen, examined, examined & (shown.mind < quality))


def log_rows(ids: FeatureIds, day: Day, first_day: int, served: Served) -> pa.Table:
    """Makes the rows of a shard of a log from ``first_day`` (since 1970) on. Ids rise with time and never repeat."""
    shown, queries = served.impressions, served.queries
    query_id = (first_day + day.number) * QUERIES_PER_DAY_LIMIT + queries.number[shown.query]
    time = queries.time_us[shown.query]
    keys: dict[str, Any] = {
        **dict.fromkeys(("query_time", "timestamp"), time),
        "query_id": query_id,
        "example_id": query_id * ADS_PER_QUERY_LIMIT + shown.position,
        "label": served.clicked.astype(np.int8),
        **dict.fromkeys(("train_weight", "metric_weight"), np.ones(len(shown), np.float32)),
    }
    return ids.table(keys, queries, shown)
