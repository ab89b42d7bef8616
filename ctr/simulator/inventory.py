"""Ads of each day: new ones every day, old ones gone."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from ctr.simulator.config import WorldConfig
from ctr.simulator.world import ADS_STREAM, FORMATS, TASTE_SIZE, World, draw_ranks, random_stream

WORDS_PER_AD = 3
_FORMAT_SHARES = (0.4, 0.3, 0.15, 0.15)


@dataclass(frozen=True)
class Ads:
    """The A ads of a day, in the order of their numbers, which name an ad for as long as it is there.

    Attributes:
        taste: [A, TASTE_SIZE], what kind of user and query it suits.
        bid: what its advertiser offers for a click.
        born: the day from which it is there, negative where before the first one.
        gone: the first day on which it is there no more.
        richest: the most prominent of ``FORMATS`` for which it has material.
        quality: a part of the logit.
        repute: what the crude policy wrongly believes of it, in the logarithm.
        popularity: the higher it is, the more often it is retrieved.
    """

    number: np.ndarray
    advertiser: np.ndarray
    topic: np.ndarray
    words: np.ndarray
    taste: np.ndarray
    bid: np.ndarray
    born: np.ndarray
    gone: np.ndarray
    richest: np.ndarray
    quality: np.ndarray
    repute: np.ndarray
    popularity: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def select(self, mask: np.ndarray) -> "Ads":
        return Ads(**{field.name: getattr(self, field.name)[mask] for field in fields(Ads)})


def ads_by_day(config: WorldConfig, world: World) -> Iterator[Ads]:
    """Yields the ads of the first day, the second, and so on without end."""
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
    """Ads that appear on a day; those of day 0 have been there for a while."""
    rng = random_stream(config.seed, ADS_STREAM, day)
    advertiser = draw_ranks(rng, config.advertisers, (count,))
    is_usual = rng.random(count) < 0.7
    topic = np.where(is_usual, world.advertiser_topic[advertiser], rng.integers(0, config.topics, count))
    words_of_topic = np.diff(world.topic_words)[topic][:, None]
    # Exponential lifetimes: how long an ad has been there says nothing of how long it will be.
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
    """Order in which the ads of a day are retrieved: numbers in ``Ads`` by falling popularity, [A].

    ``of_topics`` has the same topic by topic, which begin at ``begins``, [topics + 1].
    """

    everywhere: np.ndarray
    of_topics: np.ndarray
    begins: np.ndarray


def retrieval_order(ads: Ads, topics: int) -> Retrieval:
    """Sorts a day's ads."""
    order = np.argsort(-ads.popularity, kind="stable")
    of_topics = order[np.argsort(ads.topic[order], kind="stable")]
    begins = np.concatenate([[0], np.cumsum(np.bincount(ads.topic, minlength=topics))])
    return Retrieval(order, of_topics, begins)
