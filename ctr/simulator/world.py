"""The simulated world: users, words, topics and advertisers; the ads and queries of each day; the random walks.

None of these depends on a policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

import numpy as np

from ctr.data.times import DAY_US
from ctr.simulator.config import WorldConfig

AGE_GROUPS = ("18-24", "25-34", "35-44", "45-54", "55-64", "65+")
DEVICES = ("phone", "desktop", "tablet")
FORMATS = ("text", "image", "video", "carousel")
RENDERINGS = ("compact", "standard", "large")
COUNTRIES = (
    "US", "IN", "BR", "DE", "JP", "GB", "FR", "MX", "IT", "KR", "ES", "CA", "TR", "PL", "AU", "NL", "SE", "CH",
)  # fmt: skip

TASTE_SIZE = 4
HOUR_US = DAY_US // 24
MAX_WORDS = 4
NO_WORD = -1
WORDS_PER_AD = 3

WORLD_STREAM, WALK_STREAM, ADS_STREAM, TRAFFIC_STREAM, RETRIEVAL_STREAM, EVENTS_STREAM = range(6)
_DEVICE_SHARES = (0.6, 0.3, 0.1)
_FORMAT_SHARES = (0.4, 0.3, 0.15, 0.15)
_WEEKEND_TRAFFIC = 0.75
_ON_TOPIC = 0.6
# For each position of a page, the share of ads in their richest format; the others are text.
_RICH_SHARES = np.array([1.0, 0.6, 0.4, 0.3])


def random_stream(seed: int, stream: int, *numbers: int) -> np.random.Generator:
    """Returns a random generator for a seed, a purpose ``stream``, and ``numbers`` such as the day."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream, *numbers])))


def draw_ranks(rng: np.random.Generator, counts: np.ndarray | int, shape: tuple[int, ...]) -> np.ndarray:
    """Draws integers of ``shape`` from 0 to ``counts - 1``, which broadcasts, by Zipf's law: p ~ rank^-1.1."""
    exponent = 1.1
    limit = (np.asarray(counts, np.float64) + 1) ** (1 - exponent)
    ranks = (1 + (limit - 1) * rng.random(shape)) ** (1 / (1 - exponent))
    return np.minimum(ranks.astype(np.int64) - 1, np.asarray(counts, np.int64) - 1)


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of the logit that follow a daily random walk; topics are the ad's, ages the user's."""

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
    advertiser_topic: np.ndarray  # [advertisers], the most frequent topic of its ads
    advertiser_quality: np.ndarray  # [advertisers], a part of the logit
    format_prominence: np.ndarray  # [formats, devices], a factor of visibility, at most 1
    first: Coefficients  # on the first day
    intercept: float = 0.0


def draw_world(config: WorldConfig) -> World:
    """Draws the world of a seed, with an intercept of 0."""
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
    """Yields the coefficients of each day from the first on, without end: a random walk with Gaussian steps."""
    now = world.first
    for day in count(1):
        yield now
        if config.drift:
            rng = random_stream(config.seed, WALK_STREAM, day)
            parts = (now.topic, now.age_topic, now.advertiser_device)
            now = Coefficients(*(part + rng.normal(0, config.drift, part.shape) for part in parts))


@dataclass(frozen=True)
class Ads:
    """The A ads of a day, ascending by their numbers, which identify an ad for its whole lifetime."""

    number: np.ndarray
    advertiser: np.ndarray
    topic: np.ndarray
    words: np.ndarray
    taste: np.ndarray  # [A, TASTE_SIZE], what kind of user and query it suits
    bid: np.ndarray  # the advertiser's bid for a click
    born: np.ndarray  # the ad's first day, negative where before the first one of the log
    gone: np.ndarray  # the first day after the ad's lifetime
    richest: np.ndarray  # the most prominent of ``FORMATS`` for which it has material
    quality: np.ndarray  # a part of the logit
    repute: np.ndarray  # the crude policy's error about it, in logits
    popularity: np.ndarray  # the higher it is, the more often it is retrieved

    def __len__(self) -> int:
        return len(self.number)

    def select(self, mask: np.ndarray) -> "Ads":
        return Ads(**{field.name: getattr(self, field.name)[mask] for field in fields(Ads)})


def ads_by_day(config: WorldConfig, world: World) -> Iterator[Ads]:
    """Yields the ads of each day from the first on, without end."""
    ads = _draw_ads(config, world, 0, 0, config.ads)
    next_number, day, owed = config.ads, 0, 0.0
    while True:
        yield ads
        day += 1
        owed += config.ads / config.ad_lifetime_days
        new = _draw_ads(config, world, day, next_number, int(owed))
        next_number += len(new)
        owed -= len(new)
        old = ads.select(ads.gone > day)
        names = [field.name for field in fields(Ads)]
        ads = Ads(*(np.concatenate([getattr(old, name), getattr(new, name)]) for name in names))


def _draw_ads(config: WorldConfig, world: World, day: int, first_number: int, count: int) -> Ads:
    """Draws the ads that appear on a day; the ads of day 0 have various ages."""
    rng = random_stream(config.seed, ADS_STREAM, day)
    advertiser = draw_ranks(rng, config.advertisers, (count,))
    is_usual = rng.random(count) < 0.7
    topic = np.where(is_usual, world.advertiser_topic[advertiser], rng.integers(0, config.topics, count))
    words_of_topic = np.diff(world.topic_words)[topic][:, None]
    # Exponential lifetimes: an ad's remaining lifetime does not depend on its age.
    age = rng.exponential(config.ad_lifetime_days, count) if day == 0 else np.zeros(count)
    return Ads(
        number=np.arange(first_number, first_number + count),
        advertiser=advertiser,
        topic=topic,
        words=world.topic_words[topic][:, None] + draw_ranks(rng, words_of_topic, (count, WORDS_PER_AD)),
        taste=world.topic_taste[topic] + rng.normal(0, 0.4, (count, TASTE_SIZE)),
        bid=rng.lognormal(-0.5, 0.8, count),
        born=day - np.floor(age).astype(np.int64),
        gone=day + 1 + np.floor(rng.exponential(config.ad_lifetime_days, count)).astype(np.int64),
        richest=rng.choice(len(FORMATS), count, p=_FORMAT_SHARES),
        quality=rng.normal(0, 0.35, count),
        repute=rng.normal(0, 0.5, count),
        popularity=rng.random(count),
    )


@dataclass(frozen=True)
class Retrieval:
    """Retrieval order of a day's ads, [A]: of all, and of each topic from its index in ``begins``, [topics + 1]."""

    everywhere: np.ndarray  # indices in ``Ads`` by descending popularity
    of_topics: np.ndarray  # the same topic by topic
    begins: np.ndarray


def retrieval_order(ads: Ads, topics: int) -> Retrieval:
    """Returns the order in which a day's ads are retrieved, by descending popularity."""
    order = np.argsort(-ads.popularity, kind="stable")
    of_topics = order[np.argsort(ads.topic[order], kind="stable")]
    begins = np.concatenate([[0], np.cumsum(np.bincount(ads.topic, minlength=topics))])
    return Retrieval(order, of_topics, begins)


@dataclass(frozen=True)
class Queries:
    """Q queries in the order of the log."""

    number: np.ndarray  # [Q], of the day
    time_us: np.ndarray  # [Q], ascending
    user: np.ndarray
    device: np.ndarray
    topic: np.ndarray  # [Q], which the log does not show
    words: np.ndarray  # [Q, MAX_WORDS], ``NO_WORD`` after the last one
    rendering: np.ndarray  # [Q], how the page is drawn; an experiment, independent of everything else
    intent: np.ndarray  # [Q], a part of the logit that the log does not show
    reads: np.ndarray  # [Q], in [0, 1): the user examines an ad whose visibility is above it
    randomized: np.ndarray
    day: int
    weekday: int  # 0 is Monday

    def __len__(self) -> int:
        return len(self.number)

    @property
    def hour(self) -> np.ndarray:
        """Returns the hour of each query, 0 to 23, UTC, [Q]."""
        return self.time_us % DAY_US // HOUR_US

    def slice(self, begin: int, end: int) -> "Queries":
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        part: dict[str, Any] = {name: value[begin:end] for name, value in arrays.items()}
        return replace(self, **part)


def weekday_of(config: WorldConfig, day: int) -> int:
    """Returns the weekday of day number ``day`` of the log; 0 is Monday."""
    return (config.start.weekday() + day) % 7


def draw_queries(config: WorldConfig, world: World, day: int) -> Queries:
    """Draws the queries of day number ``day`` of the log, from 0."""
    rng = random_stream(config.seed, TRAFFIC_STREAM, day)
    weekday = weekday_of(config, day)
    count = max(round(config.queries_per_day * (_WEEKEND_TRAFFIC if weekday >= 5 else 1)), 1)
    share = 1.2 - np.cos(2 * np.pi * (np.arange(24) - 4) / 24)  # the quietest hour is the fifth
    hour = rng.choice(24, count, p=share / share.sum())
    time = np.sort(hour * HOUR_US + rng.integers(0, HOUR_US, count))
    user = draw_ranks(rng, config.users, (count,))
    # The user's preferred topic of three.
    topics = draw_ranks(rng, config.topics, (count, 3))
    liking = np.einsum("qt,qct->qc", world.user_taste[user], world.topic_taste[topics])
    topic = topics[np.arange(count), np.argmax(liking + rng.gumbel(0, 0.5, liking.shape), axis=1)]
    usual = rng.random(count) < 0.8
    return Queries(
        number=np.arange(count),
        time_us=config.day_us(day) + time,
        user=user,
        device=np.where(usual, world.user_device[user], rng.integers(0, len(DEVICES), count)),
        topic=topic,
        words=_draw_words(config, world, topic, rng),
        rendering=rng.integers(0, len(RENDERINGS), count),
        intent=rng.normal(0, config.intent, count),
        reads=rng.random(count),
        randomized=rng.random(count) < config.randomized_share,
        day=day,
        weekday=weekday,
    )


def _draw_words(config: WorldConfig, world: World, topic: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    shape = (len(topic), MAX_WORDS)
    # Every tenth word is of another topic.
    subject = np.where(rng.random(shape) < 0.1, rng.integers(0, config.topics, shape), topic[:, None])
    words = world.topic_words[subject] + draw_ranks(rng, np.diff(world.topic_words)[subject], shape)
    count = rng.integers(1, MAX_WORDS + 1, len(topic))
    return np.where(np.arange(MAX_WORDS) < count[:, None], words, NO_WORD)


@dataclass(frozen=True)
class Candidates:
    """C ads, [Q, C], for each of Q queries, and the uniform random numbers of their auction and clicks."""

    ad: np.ndarray  # indices in ``Ads``
    present: np.ndarray  # false where an ad was drawn twice
    richness: np.ndarray  # decides an ad's format
    mind: np.ndarray  # decides whether an examined ad is clicked
    shuffle: np.ndarray  # the order in which randomized queries show their ads
    depth: np.ndarray  # [Q], how many ads they show

    def take(self, order: np.ndarray) -> "Candidates":
        part: dict[str, Any] = {}
        for name in ("ad", "present", "richness", "mind", "shuffle"):
            part[name] = np.take_along_axis(getattr(self, name), order, axis=1)
        return replace(self, **part)


def draw_candidates(
    config: WorldConfig, ads: Ads, retrieval: Retrieval, queries: Queries, day: int
) -> Candidates:
    """Draws the candidate ads of queries: most by the query's topic, the others from all ads."""
    first = int(queries.number[0]) if len(queries) else 0
    rng = random_stream(config.seed, RETRIEVAL_STREAM, day, first)
    shape = (len(queries), config.candidates)
    begins = retrieval.begins[queries.topic][:, None]
    counts = np.diff(retrieval.begins)[queries.topic][:, None]
    some = np.maximum(counts, 1)
    on_topic = retrieval.of_topics[np.minimum(begins + draw_ranks(rng, some, shape), len(ads) - 1)]
    elsewhere = retrieval.everywhere[draw_ranks(rng, len(ads), shape)]
    ad = np.where((rng.random(shape) < _ON_TOPIC) & (counts > 0), on_topic, elsewhere)
    order = np.argsort(ad, axis=1, kind="stable")
    ad = np.take_along_axis(ad, order, axis=1)
    present = np.ones(shape, bool)
    present[:, 1:] = ad[:, 1:] != ad[:, :-1]
    return Candidates(
        ad=ad,
        present=present,
        richness=rng.random(shape, np.float32),
        mind=rng.random(shape, np.float32),
        shuffle=rng.random(shape, np.float32),
        depth=rng.random(len(queries)),
    )


def shown_format(ads: Ads, ad: np.ndarray, richness: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Chooses the formats, indices in ``FORMATS``, of ads at positions from 1; richer ones are higher on the page."""
    share = _RICH_SHARES[np.minimum(position, len(_RICH_SHARES)) - 1]
    return np.where(richness < share, ads.richest[ad], 0)
