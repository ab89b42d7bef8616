"""The simulated world: users, words, advertisers, ads, and the coefficients of the true click probability."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ctr.simulator.config import SimulatorConfig

AGE_GROUPS = ("18-24", "25-34", "35-44", "45-54", "55-64", "65+")
DEVICES = ("phone", "desktop", "tablet")
FORMATS = ("text", "image", "video", "carousel")
COUNTRIES = (
    "US",
    "IN",
    "BR",
    "DE",
    "JP",
    "GB",
    "FR",
    "MX",
    "IT",
    "KR",
    "ES",
    "CA",
    "TR",
    "PL",
    "AU",
    "NL",
    "SE",
    "CH",
)

WORDS_PER_AD = 3
TASTE_SIZE = 4

_WORLD_STREAM, _WALK_STREAM, TRAFFIC_STREAM, CALIBRATION_STREAM = range(4)
_DEVICE_SHARES = (0.6, 0.3, 0.1)


def random_stream(config: SimulatorConfig, stream: int, day: int = 0) -> np.random.Generator:
    """Random numbers that depend on the seed, the purpose and the day alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, stream, day])))


def draw_ranks(rng: np.random.Generator, counts: np.ndarray | int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers from 0 to ``counts - 1`` (which broadcasts to ``shape``), with Zipf's law: p ~ rank^-1.1."""
    exponent = 1.1
    limit = (np.asarray(counts, np.float64) + 1) ** (1 - exponent)
    ranks = (1 + (limit - 1) * rng.random(shape)) ** (1 / (1 - exponent))
    return np.minimum(ranks.astype(np.int64) - 1, np.asarray(counts, np.int64) - 1)


@dataclass(frozen=True)
class Coefficients:
    """The parts of the logit that walk from day to day.

    Attributes:
        topic: [topics], by the ad's topic.
        age_topic: [ages, topics], by the user's age group and the ad's topic.
        advertiser_device: [advertisers, devices].
    """

    topic: np.ndarray
    age_topic: np.ndarray
    advertiser_device: np.ndarray


@dataclass(frozen=True)
class World:
    """All that stays. Entities are numbered from 0; lower numbers of words of a topic and of ads are more frequent."""

    user_age: np.ndarray  # [users]
    user_country: np.ndarray  # [users]
    user_device: np.ndarray  # [users], the device of most of a user's queries
    user_taste: np.ndarray  # [users, TASTE_SIZE]
    topic_words: np.ndarray  # [topics + 1], the words of topic t are topic_words[t] up to topic_words[t + 1]
    topic_taste: np.ndarray  # [topics, TASTE_SIZE]
    ads_by_topic: np.ndarray  # [ads], sorted by topic, then by number
    topic_ads: np.ndarray  # [topics + 1], where each topic's begin in it
    ad_topic: np.ndarray  # [ads]
    ad_advertiser: np.ndarray  # [ads]
    ad_format: np.ndarray  # [ads]
    ad_words: np.ndarray  # [ads, WORDS_PER_AD]
    ad_bid: np.ndarray  # [ads]
    ad_birth: np.ndarray  # [ads], in days before the first day
    ad_quality: np.ndarray  # [ads], a part of the logit
    advertiser_quality: np.ndarray  # [advertisers]
    country_topic: np.ndarray  # [countries, topics]
    topic_topic: np.ndarray  # [topics, topics], the query's and the ad's
    format_device: np.ndarray  # [formats, devices]
    age_format: np.ndarray  # [ages, formats]
    topic_peak: np.ndarray  # [topics], the hour at which an ad's topic draws the most clicks
    topic_weekend: np.ndarray  # [topics]
    first: Coefficients  # on the first day
    intercept: float = 0.0

    def with_intercept(self, intercept: float) -> "World":
        """The same world with another base rate."""
        return replace(self, intercept=intercept)


def draw_world(config: SimulatorConfig) -> World:
    """The world of a seed, its intercept still 0."""
    rng = random_stream(config, _WORLD_STREAM)
    topics, ads = config.topics, config.ads
    user_country = draw_ranks(rng, len(COUNTRIES), (config.users,))
    topic_words = np.linspace(0, config.words, topics + 1).astype(np.int64)
    advertiser_topic = draw_ranks(rng, topics, (config.advertisers,))
    ad_advertiser = draw_ranks(rng, config.advertisers, (ads,))
    ad_topic = np.where(rng.random(ads) < 0.7, advertiser_topic[ad_advertiser], rng.integers(0, topics, ads))
    ad_topic[rng.permutation(ads)[:topics]] = np.arange(topics)  # so that every topic has an ad
    word_counts = np.diff(topic_words)[ad_topic][:, None]
    match = np.eye(topics) * 2.0 + rng.normal(0, 0.3, (topics, topics))
    return World(
        user_age=rng.integers(0, len(AGE_GROUPS), config.users),
        user_country=user_country,
        user_device=rng.choice(len(DEVICES), config.users, p=_DEVICE_SHARES),
        user_taste=rng.normal(0, 0.35, (config.users, TASTE_SIZE)),
        topic_words=topic_words,
        topic_taste=rng.normal(0, 0.7, (topics, TASTE_SIZE)),
        ads_by_topic=np.argsort(ad_topic, kind="stable"),
        topic_ads=np.concatenate([[0], np.cumsum(np.bincount(ad_topic, minlength=topics))]),
        ad_topic=ad_topic,
        ad_advertiser=ad_advertiser,
        ad_format=rng.choice(len(FORMATS), ads, p=(0.4, 0.3, 0.15, 0.15)),
        ad_words=topic_words[ad_topic][:, None] + draw_ranks(rng, word_counts, (ads, WORDS_PER_AD)),
        ad_bid=rng.lognormal(-0.5, 0.8, ads),
        ad_birth=rng.exponential(30, ads),
        ad_quality=rng.normal(0, 0.35, ads),
        advertiser_quality=rng.normal(0, 0.35, config.advertisers),
        country_topic=rng.normal(0, 0.5, (len(COUNTRIES), topics)),
        topic_topic=match,
        format_device=rng.normal(0, 0.5, (len(FORMATS), len(DEVICES))),
        age_format=rng.normal(0, 0.4, (len(AGE_GROUPS), len(FORMATS))),
        topic_peak=rng.uniform(0, 24, topics),
        topic_weekend=rng.normal(0, 0.3, topics),
        first=Coefficients(
            topic=rng.normal(0, 0.2, topics),
            age_topic=rng.normal(0, 1.0, (len(AGE_GROUPS), topics)),
            advertiser_device=rng.normal(0, 0.7, (config.advertisers, len(DEVICES))),
        ),
    )


def walk(config: SimulatorConfig, world: World) -> Iterator[Coefficients]:
    """The coefficients of the first day, the second, and so on without end: independent Gaussian steps."""
    now = world.first
    day = 0
    while True:
        yield now
        day += 1
        if config.drift:
            rng = random_stream(config, _WALK_STREAM, day)
            now = Coefficients(
                topic=now.topic + rng.normal(0, config.drift, now.topic.shape),
                age_topic=now.age_topic + rng.normal(0, config.drift, now.age_topic.shape),
                advertiser_device=now.advertiser_device
                + rng.normal(0, config.drift, now.advertiser_device.shape),
            )
