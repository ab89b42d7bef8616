"""Definitions of twenty simulated logs of very different shape.

``TO_CHOOSE`` are for choosing defaults, ``TO_REPORT`` for reporting their results. ``worlds.yaml`` defines a seed, a
size, a click rate, and features for each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

Kind = Literal["id", "attribute", "number", "tags", "text", "hour", "weekday"]


@dataclass(frozen=True)
class Feature:
    """A feature of a world.

    Attributes:
        name: name of its column.
        kind: ``id``: Zipf values; ``attribute``: a value that another feature's value determines; ``number``:
            log-normal; ``tags``: a list of ids; ``text``: a sentence; ``hour``, ``weekday``: from the row's time.
        size: the number of values at any time.
        effect: the standard deviation of its values' effects, in logits; 0: a useless feature.
        zipf: Zipf exponent of the frequencies; 0: all values are equally frequent.
        growth: the share of the values that appear only as time passes.
        churn: how many times, over the pass, a value is replaced by a new one.
        shared: whether all rows of a query have the same value.
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
        name: name of the log and its directory.
        seed: random seed.
        rows: the number of rows.
        rate: the share of clicks.
        features: its features, in the order of the log.
        query_rows: the mean number of rows of a query; 1: each row is its own query.
        max_query_rows: the largest number of rows of a query.
        interactions: pairs of features with a joint effect (scalar products of random vectors), and its standard
            deviation in logits.
        crosses: pairs that the mapping names as crosses.
        drift: the standard deviation of the drift of the base rate, in logits.
        query_noise: the standard deviation of the noise that the rows of a query share, in logits.
        days: the number of days that the log covers.
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


CLOCKS = {
    "hour": Feature("hour", "hour", effect=0.2, shared=True),
    "weekday": Feature("weekday", "weekday", effect=0.1, shared=True),
}


def _useless(count: int, size: int) -> tuple[Feature, ...]:
    return tuple(Feature(f"useless_{n}", size=size * (1 + n % 3), zipf=0.3 * (n % 5)) for n in range(count))


def _anonymous(count: int, effect: float) -> tuple[Feature, ...]:
    """Returns features as in display ads: numbers, and categories of few to very many values; some have no effect."""
    numbers = tuple(
        Feature(f"n{k}", "number", effect=effect * (k % 3 > 0), missing=0.1 * (k % 4))
        for k in range(count // 3)
    )
    sizes = (3, 20, 100, 1000, 20_000, 300_000)
    categories = tuple(
        Feature(
            f"c{k}",
            size=sizes[k % 6],
            effect=effect * (k % 4 > 0),
            zipf=0.9 + 0.1 * (k % 5),
            missing=0.05 * (k % 3),
        )
        for k in range(count - count // 3)
    )
    return numbers + categories


def _features(entry: str | dict[str, Any]) -> tuple[Feature, ...]:
    """Returns the features that an entry of ``worlds.yaml`` defines."""
    if isinstance(entry, str):
        return (CLOCKS[entry],)
    if "anonymous" in entry:
        return _anonymous(entry["anonymous"], entry["effect"])
    return _useless(entry["useless"], entry["size"]) if "useless" in entry else (Feature(**entry),)


def _world(name: str, content: dict[str, Any]) -> World:
    shape = {key: _tuples(value) for key, value in content["shape"].items()}
    return World(name, features=sum(map(_features, content["features"]), ()), **shape)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_CONTENT = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
TO_CHOOSE, TO_REPORT = (
    tuple(_world(*item) for item in _CONTENT[group].items()) for group in ("choose", "report")
)
