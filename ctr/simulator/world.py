"""Constants of the simulated world, users, words, topics and advertisers; and the coefficients that walk."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from ctr.simulator.config import WorldConfig

AGE_GROUPS = ("18-24", "25-34", "35-44", "45-54", "55-64", "65+")
DEVICES = ("phone", "desktop", "tablet")
FORMATS = ("text", "image", "video", "carousel")
RENDERINGS = ("compact", "standard", "large")
COUNTRIES = (
    "US", "IN", "BR", "DE", "JP", "GB", "FR", "MX", "IT", "KR", "ES", "CA", "TR", "PL", "AU", "NL", "SE", "CH",
)  # fmt: skip

TASTE_SIZE = 4

WORLD_STREAM, WALK_STREAM, ADS_STREAM, TRAFFIC_STREAM, RETRIEVAL_STREAM, EVENTS_STREAM = range(6)
_DEVICE_SHARES = (0.6, 0.3, 0.1)


def random_stream(seed: int, stream: int, *numbers: int) -> np.random.Generator:
    """Makes random numbers that depend on the seed, the purpose, and numbers such as the day alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream, *numbers])))


def draw_ranks(rng: np.random.Generator, counts: np.ndarray | int, shape: tuple[int, ...]) -> np.ndarray:
    """Draws 0 to ``counts - 1`` (which broadcasts to ``shape``), with Zipf's law: p ~ rank^-1.1."""
    exponent = 1.1
    limit = (np.asarray(counts, np.float64) + 1) ** (1 - exponent)
    ranks = (1 + (limit - 1) * rng.random(shape)) ** (1 / (1 - exponent))
    return np.minimum(ranks.astype(np.int64) - 1, np.asarray(counts, np.int64) - 1)


@dataclass(frozen=True)
class Coefficients:
    """Parts of the logit that walk from day to day; topics are the ad's, ages the user's."""

    topic: np.ndarray
    age_topic: np.ndarray
    advertiser_device: np.ndarray


@dataclass(frozen=True)
class World:
    """Constant part of the world. Entities are numbered from 0; lower numbers are more frequent."""

    user_age: np.ndarray  # [users]
    user_country: np.ndarray  # [users]
    user_device: np.ndarray  # [users], the device of most of a user's queries
    user_taste: np.ndarray  # [users, TASTE_SIZE]
    user_activity: np.ndarray  # [users], a part of the logit
    topic_words: np.ndarray  # [topics + 1], the words of topic t are topic_words[t] up to topic_words[t + 1]
    word_taste: np.ndarray  # [words, TASTE_SIZE]
    topic_taste: np.ndarray  # [topics, TASTE_SIZE]
    topic_intent: np.ndarray  # [topics], by the query's topic
    topic_topic: np.ndarray  # [topics, topics], the query's and the ad's
    topic_peak: np.ndarray  # [topics], the hour at which an ad's topic draws the most clicks
    topic_weekend: np.ndarray  # [topics]
    country_topic: np.ndarray  # [countries, topics]
    advertiser_topic: np.ndarray  # [advertisers], that of most of its ads
    advertiser_quality: np.ndarray  # [advertisers], a part of the logit
    format_prominence: np.ndarray  # [formats, devices], a factor of visibility, at most 1
    first: Coefficients  # on the first day
    intercept: float = 0.0


def draw_world(config: WorldConfig) -> World:
    """Draws the world of a seed, its intercept still 0."""
    rng = random_stream(config.seed, WORLD_STREAM)
    topics = config.topics
    return World(
        user_age=rng.integers(0, len(AGE_GROUPS), config.users),
        user_country=draw_ranks(rng, len(COUNTRIES), (config.users,)),
        user_device=rng.choice(len(DEVICES), config.users, p=_DEVICE_SHARES),
        user_taste=rng.normal(0, 0.35, (config.users, TASTE_SIZE)),
        user_activity=rng.normal(0, 0.4, config.users),
        topic_words=np.linspace(0, config.words, topics + 1).astype(np.int64),
        word_taste=rng.normal(0, 0.5, (config.words, TASTE_SIZE)),
        topic_taste=rng.normal(0, 0.7, (topics, TASTE_SIZE)),
        topic_intent=rng.normal(0, 0.4, topics),
        topic_topic=np.eye(topics) * 2.0 + rng.normal(0, 0.3, (topics, topics)),
        topic_peak=rng.uniform(0, 24, topics),
        topic_weekend=rng.normal(0, 0.3, topics),
        country_topic=rng.normal(0, 0.5, (len(COUNTRIES), topics)),
        advertiser_topic=draw_ranks(rng, topics, (config.advertisers,)),
        advertiser_quality=rng.normal(0, 0.35, config.advertisers),
        format_prominence=rng.uniform(0.6, 1.0, (len(FORMATS), len(DEVICES))),
        first=Coefficients(
            topic=rng.normal(0, 0.2, topics),
            age_topic=rng.normal(0, 1.0, (len(AGE_GROUPS), topics)),
            advertiser_device=rng.normal(0, 0.7, (config.advertisers, len(DEVICES))),
        ),
    )


def walk(config: WorldConfig, world: World) -> Iterator[Coefficients]:
    """Yields the coefficients of the first day, the second, and so on without end: independent Gaussian steps."""
    now = world.first
    for day in count(1):
        yield now
        if config.drift:
            rng = random_stream(config.seed, WALK_STREAM, day)
            parts = (now.topic, now.age_topic, now.advertiser_device)
            now = Coefficients(*(part + rng.normal(0, config.drift, part.shape) for part in parts))
