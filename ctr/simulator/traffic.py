"""A day's queries and impressions, and the probability with which each is clicked."""

from dataclasses import dataclass, replace

import numpy as np

from ctr.simulator.config import DAY_US, SimulatorConfig
from ctr.simulator.world import DEVICES, Coefficients, World, draw_ranks

HOUR_US = DAY_US // 24
MAX_WORDS = 4
NO_WORD = -1

_WEEKEND_TRAFFIC = 0.75
# Examination falls with the position as position^-exponent, fastest on a small screen.
_EXAMINATION = {"phone": 0.8, "desktop": 0.5, "tablet": 0.6}


@dataclass(frozen=True)
class Impressions:
    """N impressions of Q queries in the order of the log; of a query in the order of their positions.

    Attributes:
        query: [N], the query of each impression, from 0 to Q - 1.
        ad: [N].
        position: [N], from 1.
        time_us: [Q], rising.
        user: [Q].
        device: [Q].
        topic: [Q], which the log does not show.
        words: [Q, MAX_WORDS], ``NO_WORD`` after the last one.
        day: since 1970-01-01.
        first_day: the first day of the log, since 1970-01-01.
    """

    query: np.ndarray
    ad: np.ndarray
    position: np.ndarray
    time_us: np.ndarray
    user: np.ndarray
    device: np.ndarray
    topic: np.ndarray
    words: np.ndarray
    day: int
    first_day: int

    @property
    def hour(self) -> np.ndarray:
        """[Q], 0 to 23, UTC."""
        return self.time_us % DAY_US // HOUR_US

    @property
    def day_of_week(self) -> int:
        """0 is Monday."""
        return day_of_week(self.day)

    def first(self, count: int) -> "Impressions":
        """The first ``count`` impressions."""
        queries = int(self.query[count - 1]) + 1
        return replace(
            self,
            **{name: getattr(self, name)[:count] for name in ("query", "ad", "position")},
            **{
                name: getattr(self, name)[:queries]
                for name in ("time_us", "user", "device", "topic", "words")
            },
        )


def day_of_week(day: int) -> int:
    """Of a day since 1970-01-01, a Thursday; 0 is Monday."""
    return (day + 3) % 7


def draw_day(config: SimulatorConfig, world: World, day: int, rng: np.random.Generator) -> Impressions:
    """All impressions of day number ``day`` of the log, from 0."""
    first_day = config.start_us // DAY_US
    weekend = day_of_week(first_day + day) >= 5
    queries = max(round(config.queries_per_day * (_WEEKEND_TRAFFIC if weekend else 1)), 1)
    share = 1.2 - np.cos(2 * np.pi * (np.arange(24) - 4) / 24)  # the quietest hour is the fifth
    hour = rng.choice(24, queries, p=share / share.sum())
    time = np.sort(hour * HOUR_US + rng.integers(0, HOUR_US, queries))
    user = draw_ranks(rng, config.users, (queries,))
    # Of three topics, the one that the user likes best.
    topics = draw_ranks(rng, config.topics, (queries, 3))
    liking = np.einsum("qt,qct->qc", world.user_taste[user], world.topic_taste[topics])
    topic = topics[np.arange(queries), np.argmax(liking + rng.gumbel(0, 0.5, liking.shape), axis=1)]
    device = np.where(
        rng.random(queries) < 0.8, world.user_device[user], rng.integers(0, len(DEVICES), queries)
    )
    query, ad, position = _draw_ads(config, world, topic, rng)
    return Impressions(
        query=query,
        ad=ad,
        position=position,
        time_us=config.start_us + day * DAY_US + time,
        user=user,
        device=device,
        topic=topic,
        words=_draw_words(config, world, topic, rng),
        day=first_day + day,
        first_day=first_day,
    )


def _draw_words(
    config: SimulatorConfig, world: World, topic: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    shape = (len(topic), MAX_WORDS)
    # Every tenth word is of another topic.
    subject = np.where(rng.random(shape) < 0.1, rng.integers(0, config.topics, shape), topic[:, None])
    words = world.topic_words[subject] + draw_ranks(rng, np.diff(world.topic_words)[subject], shape)
    count = rng.integers(1, MAX_WORDS + 1, len(topic))
    return np.where(np.arange(MAX_WORDS) < count[:, None], words, NO_WORD)


def _draw_ads(
    config: SimulatorConfig, world: World, topic: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chooses and ranks each query's ads; returns query, ad and position of every impression."""
    shape = (len(topic), config.max_ads + 2)  # two more, because an ad is shown once in a query
    counts = np.diff(world.topic_ads)[topic][:, None]
    on_topic = world.ads_by_topic[world.topic_ads[topic][:, None] + draw_ranks(rng, counts, shape)]
    ads = np.where(rng.random(shape) < 0.6, on_topic, draw_ranks(rng, config.ads, shape))
    by_number = np.sort(ads, axis=1)
    distinct = np.ones(shape, bool)
    distinct[:, 1:] = by_number[:, 1:] != by_number[:, :-1]
    # The auction: bids and what is known of quality decide, not perfectly.
    score = (
        0.5 * np.log(world.ad_bid) + world.ad_quality + 0.5 * world.advertiser_quality[world.ad_advertiser]
    )
    ranking = np.where(distinct, score[by_number] + rng.gumbel(0, 0.5, shape), -np.inf)
    order = np.argsort(-ranking, axis=1, kind="stable")
    wanted = rng.integers(config.min_ads, config.max_ads + 1, len(topic))
    shown = np.arange(shape[1]) < np.minimum(wanted, distinct.sum(axis=1))[:, None]
    query, place = np.nonzero(shown)
    return query, np.take_along_axis(by_number, order, axis=1)[query, place], place + 1


def click_probability(world: World, now: Coefficients, impressions: Impressions) -> np.ndarray:
    """[N] float32: the chance that the position is examined, times the logistic function of the ad's appeal."""
    examined, appeal = _examination_and_appeal(world, now, impressions)
    return (examined / (1 + np.exp(-(world.intercept + appeal)))).astype(np.float32)


def _examination_and_appeal(
    world: World, now: Coefficients, impressions: Impressions
) -> tuple[np.ndarray, np.ndarray]:
    query, ad = impressions.query, impressions.ad
    user, device = impressions.user[query], impressions.device[query]
    age, country = world.user_age[user], world.user_country[user]
    topic, advertiser, form = world.ad_topic[ad], world.ad_advertiser[ad], world.ad_format[ad]
    common = (impressions.words[query][:, :, None] == world.ad_words[ad][:, None, :]).any(axis=2).sum(axis=1)
    phase = 2 * np.pi * (impressions.hour[query] - world.topic_peak[topic]) / 24
    appeal = (
        world.ad_quality[ad]
        + world.advertiser_quality[advertiser]
        + now.topic[topic]
        + now.age_topic[age, topic]
        + now.advertiser_device[advertiser, device]
        + world.country_topic[country, topic]
        + np.einsum("nt,nt->n", world.user_taste[user], world.topic_taste[topic])
        + world.topic_topic[impressions.topic[query], topic]
        + 0.5 * common
        + world.format_device[form, device]
        + world.age_format[age, form]
        + 0.4 * np.cos(phase)
        + world.topic_weekend[topic] * (impressions.day_of_week >= 5)
        - 0.1 * np.log1p(ad_age_days(world, impressions))
    )
    exponent = np.array([_EXAMINATION[name] for name in DEVICES])[device]
    return impressions.position**-exponent, appeal


def ad_age_days(world: World, impressions: Impressions) -> np.ndarray:
    """[N], how long each impression's ad has been there, in whole days."""
    return np.floor(world.ad_birth[impressions.ad] + impressions.day - impressions.first_day)


def calibrate(config: SimulatorConfig, world: World, rng: np.random.Generator) -> World:
    """Sets the intercept so that the mean click probability of a working day's traffic is ``base_ctr``.

    Examination bounds the probability from above, so that an intercept exists for every allowed rate
    below the mean examination; for a higher one the closest is taken.
    """
    sample = draw_day(config.model_copy(update={"queries_per_day": 20_000}), world, 0, rng)
    examined, appeal = _examination_and_appeal(world, world.first, sample)
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.mean(examined / (1 + np.exp(-(middle + appeal)))) < config.base_ctr:
            low = middle
        else:
            high = middle
    return world.with_intercept(middle)
