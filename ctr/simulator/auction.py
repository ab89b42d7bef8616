"""A day of the simulated system: the auction that decides which ads a query shows, and the clicks on them.

The auction uses a policy's predictions; clicks follow the true probabilities. Interests of users move: this module
also computes the themes that a user is interested in at a time, and their effect on the logit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ctr.data.times import duration_us
from ctr.io.errors import InputError
from ctr.io.hashing import splitmix64, uniform_hash
from ctr.simulator.config import InterestsConfig, WorldConfig
from ctr.simulator.world import (
    DEVICES,
    NO_WORD,
    RENDERINGS,
    Ads,
    Candidates,
    Coefficients,
    Queries,
    Retrieval,
    World,
    ads_by_day,
    draw_candidates,
    draw_queries,
    draw_world,
    retrieval_order,
    shown_format,
    walk,
)

# Visibility falls with the position as position^-exponent, fastest on a small screen.
_EXPONENT = {"phone": 0.8, "desktop": 0.5, "tablet": 0.6}
_RENDERING = {"compact": 0.75, "standard": 0.9, "large": 1.0}
# Arrays of this many queries mostly fit in a processor's cache.
_CHUNK = 8_192
# A Poisson number with mean 1 exceeds this with a probability below 1e-14.
_MOST_CHANGES = 16


@dataclass(frozen=True)
class Placed:
    """N ads on the pages of queries: indices in ``Queries``, ``Ads`` and ``FORMATS``; positions from 1."""

    query: np.ndarray
    ad: np.ndarray
    position: np.ndarray
    format: np.ndarray

    def __len__(self) -> int:
        return len(self.query)


def visibility(world: World, queries: Queries, placed: Placed) -> np.ndarray:
    """Computes the share of users that examine each ad, [N], by position, device, rendering and format."""
    device = queries.device[placed.query]
    exponent = np.array([_EXPONENT[name] for name in DEVICES])[device]
    rendering = np.array([_RENDERING[name] for name in RENDERINGS])[queries.rendering[placed.query]]
    return rendering * world.format_prominence[placed.format, device] * placed.position**-exponent


def common_words(queries: Queries, ads: Ads, query: np.ndarray, ad: np.ndarray) -> np.ndarray:
    """Counts the words of each query that are in the ad's text, [N]."""
    words, text = queries.words[query], ads.words[ad]
    common = np.zeros(len(query), np.int64)
    for index in range(words.shape[1]):
        is_common = np.zeros(len(query), bool)
        for other in range(text.shape[1]):
            is_common |= words[:, index] == text[:, other]
        common += is_common
    return common


def quality_logit(world: World, now: Coefficients, queries: Queries, ads: Ads, placed: Placed) -> np.ndarray:
    """Computes the logit, [N], of a click on an examined ad, apart from interests; its presentation has no effect."""
    query, ad = placed.query, placed.ad
    user, device = queries.user[query], queries.device[query]
    topic, advertiser = ads.topic[ad], ads.advertiser[ad]
    is_word = queries.words != NO_WORD
    words = np.where(is_word[:, :, None], world.word_taste[queries.words], 0).sum(axis=1)
    subject = words / np.maximum(is_word.sum(axis=1), 1)[:, None]
    phase = 2 * np.pi * (queries.hour[query] - world.topic_peak[topic]) / 24
    return (
        world.intercept
        + queries.intent[query]
        + world.topic_intent[queries.topic[query]]
        + world.user_activity[user]
        + ads.quality[ad]
        + world.advertiser_quality[advertiser]
        + now.topic[topic]
        + now.age_topic[world.user_age[user], topic]
        + now.advertiser_device[advertiser, device]
        + world.country_topic[world.user_country[user], topic]
        + world.topic_topic[queries.topic[query], topic]
        + np.einsum("nt,nt->n", world.user_taste[user] + subject[query], ads.taste[ad])
        + 0.5 * common_words(queries, ads, query, ad)
        + 0.4 * np.cos(phase)
        + world.topic_weekend[topic] * (queries.weekday >= 5)
        - 0.1 * np.log1p(ad_age_days(ads, ad, queries.day))
    )


def true_logit(
    config: WorldConfig, world: World, now: Coefficients, queries: Queries, ads: Ads, placed: Placed
) -> np.ndarray:
    """Computes the logit of a click on an examined ad, [N], with the effect of current interests."""
    interest = interest_logit(config, queries, ads, placed.query, placed.ad)
    return quality_logit(world, now, queries, ads, placed) + interest


def ad_age_days(ads: Ads, ad: np.ndarray, day: int) -> np.ndarray:
    """Counts the whole days since each ad appeared, [N], on day number ``day`` of the log."""
    return day - ads.born[ad]


def logistic(logit: np.ndarray) -> np.ndarray:
    """Computes 1 / (1 + exp(-logit))."""
    return 1 / (1 + np.exp(-logit))


Policy = Callable[[Queries, Ads, Placed], np.ndarray]
"""Predicts the click probability, float32 [N], of ads where they are placed."""


@dataclass(frozen=True)
class Impressions(Placed):
    """N displayed ads, in the order of queries and positions."""

    mind: np.ndarray  # uniform; an examined ad is clicked if its quality is above it
    predicted: np.ndarray  # by the policy, at the ad's position
    price: np.ndarray  # of a click; 0 in randomized queries


def run_auction(
    config: WorldConfig, policy: Policy, queries: Queries, ads: Ads, candidates: Candidates
) -> Impressions:
    """Ranks candidates by bid times the prediction for the first position; clicks cost the second price.

    From the first position down, an ad is shown if its bid times the prediction for that position is at least the
    reserve; the first one that fails ends the page. A click costs the lowest bid that preserves the rank and reaches
    the reserve at that position. Randomized queries show a random number of ads in random order.
    """
    shape = candidates.ad.shape
    bid = ads.bid[candidates.ad]
    first = _placed(ads, candidates, np.nonzero(candidates.present), np.ones(shape, np.int64))
    worth = np.full(shape, -1.0)
    worth[candidates.present] = bid[candidates.present] * policy(queries, ads, first)
    rank_by = np.where(queries.randomized[:, None], candidates.present * (1 + candidates.shuffle), worth)
    order = np.argsort(-rank_by, axis=1, kind="stable")[:, : config.slots + 1]
    ranked = candidates.take(order)
    worth, bid = (np.take_along_axis(each, order, axis=1) for each in (worth, bid))
    position = np.broadcast_to(np.arange(1, order.shape[1] + 1), order.shape)
    in_slot = ranked.present & (position <= config.slots)
    predicted = np.zeros(order.shape, np.float32)
    predicted[in_slot] = policy(queries, ads, _placed(ads, ranked, np.nonzero(in_slot), position))
    drawn = 1 + np.floor(ranked.depth * config.slots)
    is_worth = bid * predicted >= config.reserve
    wanted = np.where(queries.randomized[:, None], position <= drawn[:, None], is_worth)
    is_served = np.logical_and.accumulate(in_slot & wanted, axis=1)
    query, slot = np.nonzero(is_served)
    following = np.zeros(order.shape)
    following[:, :-1] = np.maximum(worth[:, 1:], 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.maximum(bid * following / worth, config.reserve / predicted)
    # Without a reserve, worthless ads appear too, at price 0.
    price = np.where(queries.randomized[:, None] | (worth == 0), 0, np.minimum(price, bid))
    placed = _placed(ads, ranked, (query, slot), position)
    return Impressions(
        **vars(placed),
        mind=ranked.mind[query, slot],
        predicted=predicted[query, slot],
        price=price[query, slot].astype(np.float32),
    )


def _placed(ads: Ads, candidates: Candidates, where: tuple[np.ndarray, ...], position: np.ndarray) -> Placed:
    ad, positions = candidates.ad[where], position[where]
    return Placed(where[0], ad, positions, shown_format(ads, ad, candidates.richness[where], positions))


def crude_policy(config: WorldConfig, world: World) -> Policy:
    """Returns a policy without a trained model, based on equal topics and words, advertiser, repute and position."""

    def predict(queries: Queries, ads: Ads, placed: Placed) -> np.ndarray:
        query, ad = placed.query, placed.ad
        believed = (
            np.log(config.base_ctr)
            + 0.7 * (queries.topic[query] == ads.topic[ad])
            + 0.25 * common_words(queries, ads, query, ad)
            + 0.5 * world.advertiser_quality[ads.advertiser[ad]]
            + ads.repute[ad]
        )
        # 0.6 everywhere, as if every page were on the same device.
        return (logistic(believed) * placed.position**-0.6).astype(np.float32)

    return predict


@dataclass(frozen=True)
class Day:
    """The world on a day; ``number`` counts the days of the log from 0."""

    number: int
    queries: Queries
    ads: Ads
    retrieval: Retrieval
    now: Coefficients


def make_world(config: WorldConfig) -> World:
    """Draws the world of a seed, calibrated to its base rate."""
    return calibrate(config, draw_world(config))


def days(config: WorldConfig, world: World) -> Iterator[Day]:
    """Yields the days of the log from the first on, without end."""
    seasons = zip(walk(config, world), ads_by_day(config, world), strict=False)
    for number, (now, ads) in enumerate(seasons):
        queries = draw_queries(config, world, number)
        yield Day(number, queries, ads, retrieval_order(ads, config.topics), now)


def calibrate(config: WorldConfig, world: World) -> World:
    """Sets the intercept so that the crude policy's click rate is ``base_ctr``, as far as visibility allows."""
    sample = config.model_copy(update={"queries_per_day": 20_000, "randomized_share": 0.0})
    day = next(days(sample, world))
    candidates = draw_candidates(sample, day.ads, day.retrieval, day.queries, 0)
    impressions = run_auction(sample, crude_policy(config, world), day.queries, day.ads, candidates)
    if not len(impressions):
        raise InputError(
            f"world: reserve {config.reserve}: with base_ctr {config.base_ctr} the crude policy expects less "
            "from every ad and shows none; use a lower reserve"
        )
    seen = visibility(world, day.queries, impressions)
    logit = true_logit(config, world, world.first, day.queries, day.ads, impressions)
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
    """A block of served queries with their N impressions; arrays are [N]."""

    queries: Queries
    impressions: Impressions
    quality: np.ndarray  # probability of a click on the ad when it is examined
    visibility: np.ndarray
    examined: np.ndarray
    clicked: np.ndarray


def serve(config: WorldConfig, world: World, day: Day, policy: Policy) -> Iterator[Served]:
    """Serves a day's queries in order; yields them in blocks of at most 8,192 queries."""
    for begin in range(0, len(day.queries), _CHUNK):
        queries = day.queries.slice(begin, begin + _CHUNK)
        candidates = draw_candidates(config, day.ads, day.retrieval, queries, day.number)
        impressions = run_auction(config, policy, queries, day.ads, candidates)
        logit = true_logit(config, world, day.now, queries, day.ads, impressions)
        quality = logistic(logit).astype(np.float32)
        seen = visibility(world, queries, impressions).astype(np.float32)
        # A user who examines a position examines all that are more visible.
        examined = queries.reads[impressions.query] < seen
        yield Served(queries, impressions, quality, seen, examined, examined & (impressions.mind < quality))


def interest_logit(
    config: WorldConfig, queries: Queries, ads: Ads, query: np.ndarray, ad: np.ndarray
) -> np.ndarray | float:
    """Computes the part of a click's logit, [N], that is due to the current interests: ``strength`` or 0.

    Interests use none of the random streams of ``world.py``, so that a world has the same queries and ads with and
    without them. ``query`` and ``ad`` are indices in ``queries`` and ``ads``, int64 [N]. Without interests the result
    is the number 0.
    """
    interests = config.interests
    if interests is None:
        return 0.0
    current = current_themes(interests, config.seed, queries.user, queries.time_us)
    theme = themes_of_ads(interests, config.seed, ads.number[ad])
    return interests.strength * (current[query] == theme[:, None]).any(axis=1)


def themes_of_ads(interests: InterestsConfig, seed: int, number: np.ndarray) -> np.ndarray:
    """Draws the theme of each ad, int64 [N], counted from 0, by a hash of the ad's number."""
    return (uniform_hash(number, f"theme of an ad {seed}") * interests.themes).astype(np.int64)


def current_themes(
    interests: InterestsConfig, seed: int, user: np.ndarray, time_us: np.ndarray
) -> np.ndarray:
    """Returns the themes of users' interests at times, int64 [N, at_once]; ``user``, ``time_us``: int64 [N].

    Each of a user's interests is a Markov process in time since 1970, which draws its theme anew at the points of a
    Poisson process. All draws are hashes of seed, user and time, and do not depend on which times are requested.
    """
    lasting, count = duration_us(interests.lasting), interests.at_once
    process = splitmix64((user[:, None] * count + np.arange(count)).ravel().astype(np.uint64))
    # The Poisson process, which has no memory, restarts in each span of the mean duration.
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
        # Without a change before this time, the theme of the previous span holds.
        searched = searched[number == 0]
        span[searched] -= 1
        until[searched] = 1.0
    return theme.reshape(-1, count)
