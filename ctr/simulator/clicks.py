"""True click probability: quality times visibility."""

from dataclasses import dataclass

import numpy as np

from ctr.simulator.inventory import Ads
from ctr.simulator.traffic import NO_WORD, Queries
from ctr.simulator.world import DEVICES, RENDERINGS, Coefficients, World

# Visibility falls with the position as position^-exponent, fastest on a small screen.
_EXPONENT = {"phone": 0.8, "desktop": 0.5, "tablet": 0.6}
_RENDERING = {"compact": 0.75, "standard": 0.9, "large": 1.0}


@dataclass(frozen=True)
class Placed:
    """N ads at places of the pages of queries: numbers in ``Queries``, ``Ads`` and ``FORMATS``; positions from 1."""

    query: np.ndarray
    ad: np.ndarray
    position: np.ndarray
    format: np.ndarray

    def __len__(self) -> int:
        return len(self.query)


def visibility(world: World, queries: Queries, placed: Placed) -> np.ndarray:
    """Computes the share of users that examine each place, [N]: by position, device, rendering and format."""
    device = queries.device[placed.query]
    exponent = np.array([_EXPONENT[name] for name in DEVICES])[device]
    rendering = np.array([_RENDERING[name] for name in RENDERINGS])[queries.rendering[placed.query]]
    return rendering * world.format_prominence[placed.format, device] * placed.position**-exponent


def common_words(queries: Queries, ads: Ads, query: np.ndarray, ad: np.ndarray) -> np.ndarray:
    """Counts the words of each query that are in the ad's text, [N]."""
    words, text = queries.words[query], ads.words[ad]
    common = np.zeros(len(query), np.int64)
    for place in range(words.shape[1]):
        found = np.zeros(len(query), bool)
        for other in range(text.shape[1]):
            found |= words[:, place] == text[:, other]
        common += found
    return common


def quality_logit(world: World, now: Coefficients, queries: Queries, ads: Ads, placed: Placed) -> np.ndarray:
    """Computes the logit of a click on an ad that is examined, [N]. No part depends on how the ad is shown."""
    query, ad = placed.query, placed.ad
    user, device = queries.user[query], queries.device[query]
    topic, advertiser = ads.topic[ad], ads.advertiser[ad]
    known = queries.words != NO_WORD
    words = np.where(known[:, :, None], world.word_taste[queries.words], 0).sum(axis=1)
    subject = words / np.maximum(known.sum(axis=1), 1)[:, None]
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


def ad_age_days(ads: Ads, ad: np.ndarray, day: int) -> np.ndarray:
    """Counts the whole days that each ad has been there, [N], on day number ``day`` of the log."""
    return day - ads.born[ad]


def logistic(logit: np.ndarray) -> np.ndarray:
    """Computes 1 / (1 + exp(-logit))."""
    return 1 / (1 + np.exp(-logit))
