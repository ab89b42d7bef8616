"""What the log shows of the simulated world: raw columns, and the feature schema they go through."""

import numpy as np
import pyarrow as pa

from ctr.data.schema import Category, Cross, LogBuckets, Number, Schema, Text
from ctr.simulator.traffic import NO_WORD, Impressions, ad_age_days
from ctr.simulator.world import AGE_GROUPS, COUNTRIES, DEVICES, FORMATS, World

SCHEMA = Schema(
    features=(
        Category(name="user_id", source="user_id", buckets=50_000),
        Category(name="age_group", source="age_group", vocabulary=AGE_GROUPS),
        Category(name="country", source="country", buckets=1_000),
        Category(name="device", source="device", vocabulary=DEVICES),
        Category(name="hour", source="hour", vocabulary=tuple(str(hour) for hour in range(24))),
        Category(name="day_of_week", source="day_of_week", vocabulary=tuple(str(day) for day in range(7))),
        Text(name="query_words", source="query", words=(1, 2), buckets=50_000),
        Category(name="ad_id", source="ad_id", buckets=20_000),
        Category(name="advertiser", source="advertiser", buckets=5_000),
        Text(name="ad_words", source="ad_text", words=(1,), buckets=10_000),
        Number(name="bid", source="bid", boundaries=(0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)),
        Number(name="ad_age", source="ad_age_days", log=LogBuckets(per_octave=1, maximum=1024)),
        Category(name="format", source="format", vocabulary=FORMATS, tower="ui"),
        Category(
            name="position",
            source="position",
            vocabulary=tuple(str(place) for place in range(1, 33)),
            tower="ui",
        ),
        Cross(name="format_device", of=("format", "device"), buckets=100, tower="ui"),
    )
)


def _named(numbers: np.ndarray, names: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), names)


def _joined_words(words: np.ndarray) -> pa.Array:
    """[M, K] word numbers, ``NO_WORD`` for none -> M texts."""
    return pa.array([" ".join(f"w{word}" for word in row if word != NO_WORD) for row in words.tolist()])


def _numbered(prefix: str, count: int) -> pa.Array:
    return pa.array([f"{prefix}{number}" for number in range(count)])


class RawColumns:
    """Makes the raw columns of impressions; keeps the names of the world's entities."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._users = _numbered("u", len(world.user_age))
        self._ads = _numbered("a", len(world.ad_topic))
        self._advertisers = _numbered("r", len(world.advertiser_quality))
        self._ad_texts = _joined_words(world.ad_words)

    def table(self, impressions: Impressions) -> pa.Table:
        """The source columns of ``SCHEMA``, one row for each impression."""
        world, query, ad = self._world, impressions.query, impressions.ad
        user = impressions.user[query]
        return pa.table(
            {
                "user_id": _named(user, self._users),
                "age_group": _named(world.user_age[user], pa.array(AGE_GROUPS)),
                "country": _named(world.user_country[user], pa.array(COUNTRIES)),
                "device": _named(impressions.device[query], pa.array(DEVICES)),
                "hour": impressions.hour[query],
                "day_of_week": np.full(len(query), impressions.day_of_week),
                "query": _named(query, _joined_words(impressions.words)),
                "ad_id": _named(ad, self._ads),
                "advertiser": _named(world.ad_advertiser[ad], self._advertisers),
                "ad_text": _named(ad, self._ad_texts),
                "bid": world.ad_bid[ad],
                "ad_age_days": ad_age_days(world, impressions),
                "format": _named(world.ad_format[ad], pa.array(FORMATS)),
                "position": impressions.position,
            }
        )
