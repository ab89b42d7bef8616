"""Twenty simulated logs of very different shape: what each is made of.

Those of ``TO_CHOOSE`` are for choosing defaults, those of ``TO_REPORT`` for reporting what they do. A world is a
seed, a size, a click rate, and features.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["id", "attribute", "number", "tags", "text", "hour", "weekday"]


@dataclass(frozen=True)
class Feature:
    """A feature of a world.

    Attributes:
        name: its column.
        kind: ``id``: Zipf values; ``attribute``: a value that another feature's value determines; ``number``:
            log-normal; ``tags``: a list of ids; ``text``: a sentence; ``hour``, ``weekday``: of the time.
        size: the number of values at any time.
        effect: the standard deviation of its values' effects, in logits; 0: a useless feature.
        zipf: the exponent of the frequencies; 0: all are alike.
        growth: the share of the values that appear only as time passes.
        churn: how many times, over the pass, a value is replaced by a new one.
        shared: one value for all rows of a query.
        of: the feature whose value determines this one (attribute; also tags and text).
        length: the mean number of tags or words.
        missing: the share of rows without a value.
    """

    name: str
    kind: Kind = "id"
    size: int = 0
    effect: float = 0.0
    zipf: float = 1.1
    growth: float = 0.0
    churn: float = 0.0
    shared: bool = False
    of: str = ""
    length: float = 4.0
    missing: float = 0.0


@dataclass(frozen=True)
class World:
    """A simulated log.

    Attributes:
        name: also of its directory.
        seed: of everything random.
        rows: the number of rows.
        rate: the share of clicks.
        features: in the order of the log.
        query_rows: the mean number of rows of a query; 1: each row is its own query.
        max_query_rows: the largest number of rows of a query.
        interactions: pairs of features with a joint effect (scalar products of random vectors), and its standard
            deviation in logits.
        crosses: pairs that the mapping names as crosses.
        drift: the standard deviation of the drift of the base rate, in logits.
        query_noise: the standard deviation of what the rows of a query share and no feature shows, in logits.
        days: the span of time.
    """

    name: str
    seed: int
    rows: int
    rate: float
    features: tuple[Feature, ...]
    query_rows: float = 1.0
    max_query_rows: int = 1
    interactions: tuple[tuple[str, str, float], ...] = ()
    crosses: tuple[tuple[str, str], ...] = ()
    drift: float = 0.0
    query_noise: float = 0.0
    days: int = 10


F = Feature
_HOUR, _WEEKDAY = F("hour", "hour", effect=0.2, shared=True), F("weekday", "weekday", effect=0.1, shared=True)


def _useless(count: int, size: int, shared: bool = False) -> tuple[Feature, ...]:
    return tuple(
        F(f"useless_{n}", size=size * (1 + n % 3), zipf=0.3 * (n % 5), shared=shared) for n in range(count)
    )


def _anonymous(count: int, effect: float) -> tuple[Feature, ...]:
    """Columns as of display ads: numbers, and categories of few to very many values; some say nothing."""
    numbers = tuple(
        F(f"n{k}", "number", effect=effect * (k % 3 > 0), missing=0.1 * (k % 4)) for k in range(count // 3)
    )
    sizes = (3, 20, 100, 1000, 20_000, 300_000)
    categories = tuple(
        F(
            f"c{k}",
            size=sizes[k % 6],
            effect=effect * (k % 4 > 0),
            zipf=0.9 + 0.1 * (k % 5),
            missing=0.05 * (k % 3),
        )
        for k in range(count - count // 3)
    )
    return numbers + categories


TO_CHOOSE = (
    World(
        "hotels",
        101,
        5_000,
        0.045,
        (
            F("user", size=800, effect=0.3, shared=True),
            F("hotel", size=1500, effect=0.6),
            F("position", size=25, effect=0.5, zipf=0),
            F("price", "number", effect=0.3),
            F("nights", size=12, shared=True),
            F("device", size=4, effect=0.2, shared=True),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=15,
        max_query_rows=38,
        query_noise=0.4,
    ),
    World(
        "two_columns",
        102,
        20_000,
        0.5,
        (F("user", size=2000, effect=0.7, zipf=0.6), F("item", size=800, effect=0.8, zipf=0.8)),
    ),
    World(
        "forum",
        103,
        60_000,
        0.12,
        (
            F("reader", size=6000, effect=0.5, shared=True),
            F("thread", size=3000, effect=0.7, growth=0.7, churn=2),
            F("author", "attribute", size=500, effect=0.4, of="thread"),
            F("title", "text", size=2000, effect=0.5, of="thread"),
            F("tags", "tags", size=60, effect=0.4, of="thread", length=3),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=8,
        max_query_rows=60,
        query_noise=0.5,
        drift=0.2,
    ),
    World(
        "installs",
        104,
        100_000,
        0.0023,
        (
            F("app", size=300, effect=1.6, zipf=0.8),
            F("publisher", size=2000, effect=1.2),
            F("device", size=500, effect=0.5),
            F("os", "attribute", size=6, effect=0.3, of="device"),
            F("country", size=60, effect=0.5),
            F("connection", size=3, effect=0.2),
            _HOUR,
        ),
        drift=0.2,
    ),
    World(
        "display",
        105,
        100_000,
        0.22,
        _anonymous(39, 0.3),
        drift=0.1,
    ),
    World(
        "sessions",
        106,
        150_000,
        0.55,
        (
            F("user", size=1500, effect=0.6, zipf=0.7, shared=True),
            F("item", size=4000, effect=0.9),
            F("genre", "attribute", size=18, effect=0.2, of="item"),
            F("month", size=8, effect=0.1, shared=True),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=60,
        max_query_rows=300,
        query_noise=0.5,
        interactions=(("user", "genre", 0.5),),
        days=60,
    ),
    World(
        "useless",
        107,
        250_000,
        0.08,
        (
            F("user", size=20_000, effect=0.5),
            F("ad", size=3000, effect=0.7),
            F("slot", size=8, effect=0.4, zipf=0),
            *_useless(16, 400),
            *(F(f"request_{n}", size=40_000, zipf=0) for n in range(2)),
        ),
    ),
    World(
        "matching",
        108,
        400_000,
        0.1,
        (
            F("user", size=3000, effect=0.2, zipf=0.7, shared=True),
            F("item", size=2000, effect=0.2, zipf=0.7),
            F("segment", "attribute", size=30, of="user"),
            F("category", "attribute", size=40, of="item"),
            F("placement", size=6, effect=0.3, zipf=0),
        ),
        query_rows=5,
        max_query_rows=20,
        interactions=(("segment", "category", 1.2), ("user", "category", 0.5)),
        crosses=(("segment", "category"),),
    ),
    World(
        "news",
        109,
        1_000_000,
        0.04,
        (
            F("user", size=60_000, effect=0.4, shared=True),
            F("article", size=3000, effect=0.9, churn=8, growth=0.3),
            F("section", "attribute", size=20, effect=0.3, of="article"),
            F("history", "tags", size=3000, effect=0.2, shared=True, length=6),
            F("length", "number", effect=0.1),
            _HOUR,
        ),
        query_rows=35,
        max_query_rows=280,
        query_noise=0.3,
        drift=0.3,
        interactions=(("user", "section", 0.6),),
    ),
    World(
        "exchange",
        110,
        3_000_000,
        0.006,
        (
            F("user", size=1_000_000, effect=0.5, zipf=0.8, churn=1, missing=0.1),
            F("site", size=30_000, effect=0.8),
            F("campaign", size=800, effect=0.9, churn=3),
            F("slot", size=12, effect=0.4),
            F("agent", size=200, effect=0.2),
            _HOUR,
        ),
        drift=0.3,
        interactions=(("site", "campaign", 0.5),),
    ),
)
"""Worlds 1 to 10."""

TO_REPORT = (
    World(
        "flights",
        211,
        5_000,
        0.06,
        (
            F("route", size=600, effect=0.5, shared=True),
            F("airline", size=60, effect=0.5),
            F("price", "number", effect=0.5),
            F("stops", size=4, effect=0.4),
            F("channel", size=5, effect=0.3, shared=True),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=20,
        max_query_rows=50,
        query_noise=0.3,
    ),
    World(
        "coupons",
        212,
        10_000,
        0.3,
        (
            F("shop", size=120, effect=0.5),
            F("customer", size=4000, effect=0.5, zipf=0.4),
            F("value", "number", effect=0.4),
        ),
        drift=0.4,
    ),
    World(
        "questions",
        213,
        40_000,
        0.25,
        (
            F("asker", size=4000, effect=0.3, shared=True),
            F("question", size=2500, effect=0.6, growth=0.8),
            F("body", "text", size=5000, effect=0.6, of="question", length=10),
            F("topics", "tags", size=100, effect=0.5, of="question"),
            F("length", "number", effect=0.2, shared=False),
            _HOUR,
        ),
        query_rows=4,
        max_query_rows=15,
        query_noise=0.3,
    ),
    World(
        "purchases",
        214,
        80_000,
        0.001,
        (
            F("product", size=500, effect=1.3),
            F("store", size=200, effect=1.2),
            F("buyer", size=30_000, effect=0.3),
            F("price", "number", effect=0.5),
            F("payment", size=5, effect=0.3),
        ),
    ),
    World(
        "columns",
        215,
        200_000,
        0.17,
        (*_anonymous(36, 0.25), _HOUR, _WEEKDAY, *_useless(2, 100_000)),
        drift=0.2,
    ),
    World(
        "ratings",
        216,
        200_000,
        0.6,
        (
            F("user", size=5000, effect=0.7, zipf=0.5, shared=True),
            F("film", size=3000, effect=0.8),
            F("decade", "attribute", size=9, effect=0.1, of="film"),
            F("genres", "tags", size=18, effect=0.3, of="film", length=2),
            F("occupation", "attribute", size=21, effect=0.1, of="user"),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=40,
        max_query_rows=250,
        query_noise=0.4,
        interactions=(("user", "decade", 0.4),),
        days=90,
    ),
    World(
        "noise",
        217,
        300_000,
        0.03,
        (
            F("ad", size=2000, effect=0.8),
            F("page", size=5000, effect=0.4),
            *_useless(12, 1000),
            F("session", size=50_000, zipf=0, shared=True),
            F("build", size=30, shared=True),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=10,
        max_query_rows=40,
        query_noise=0.6,
    ),
    World(
        "dating",
        218,
        500_000,
        0.35,
        (
            F("viewer", size=8000, effect=0.5, zipf=0.6, shared=True),
            F("profile", size=10_000, effect=0.7, zipf=0.7, churn=1),
            F("type", "attribute", size=25, of="viewer"),
            F("style", "attribute", size=25, of="profile"),
            F("age", "number", effect=0.2),
        ),
        query_rows=12,
        max_query_rows=100,
        interactions=(("type", "style", 1.0),),
    ),
    World(
        "feed",
        219,
        1_000_000,
        0.015,
        (
            F("user", size=80_000, effect=0.5, shared=True, growth=0.5),
            F("post", size=8000, effect=0.9, churn=12),
            F("author", size=3000, effect=0.5),
            F("kind", "attribute", size=5, effect=0.3, of="post"),
            F("position", size=30, effect=0.5, zipf=0.5),
            F("device", size=12, effect=0.1, shared=True),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=25,
        max_query_rows=150,
        query_noise=0.4,
        drift=0.3,
        interactions=(("user", "kind", 0.6),),
        crosses=(("user", "kind"),),
    ),
    World(
        "search_ads",
        220,
        3_000_000,
        0.03,
        (
            F("query", size=400_000, effect=0.6, zipf=1.0, shared=True, growth=0.4),
            F("ad", size=200_000, effect=0.7, churn=2),
            F("advertiser", "attribute", size=4000, effect=0.4, of="ad"),
            F("position", size=8, effect=0.6, zipf=0.3),
            F("region", size=200, effect=0.1, shared=True),
            F("device", size=3, effect=0.2, shared=True),
            _HOUR,
            _WEEKDAY,
        ),
        query_rows=4,
        max_query_rows=8,
        query_noise=0.3,
        drift=0.2,
        interactions=(("device", "position", 0.3),),
        crosses=(("query", "advertiser"),),
    ),
)
"""Worlds 11 to 20."""
