"""Drivers of ``ctr ingest events``: the four ways to run the job, and the options that each of them takes."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ctr.io.errors import InputError


@dataclass(frozen=True)
class BatchSettings:
    """Settings of a batch, which reads everything that is there and has no options of its own."""


@dataclass(frozen=True)
class FollowSettings:
    """Settings of folders that are followed, by a watch of this process or as the source of a stream."""

    poll_seconds: float = 0.5  # between two scans of the folders
    settle_seconds: float = 0.5  # for which a file must not have changed before it is read
    # After which a kind without a new file no longer holds the clock back, and the time of day takes its place. It must
    # be longer than the time between two files. None: each kind is waited for as long as it takes.
    idle_seconds: float | None = None
    drain: bool = False  # whether to end when there is no new file, with every partition published

    def __post_init__(self) -> None:
        for name in ("poll_seconds", "settle_seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: {value:g} is not allowed; allowed: 0 or more")


@dataclass(frozen=True)
class KafkaSettings:
    """Settings of topics that are read."""

    servers: str  # HOST:PORT, several with commas between
    consumer: Sequence[str] = ()  # settings of Kafka's consumer, each written KEY=VALUE
    # HOST:PORT of a running one; empty: Beam starts its own, for which it fetches a jar.
    expansion_service: str = ""


Settings = BatchSettings | FollowSettings | KafkaSettings


@dataclass(frozen=True)
class Driver:
    """Way to run the job."""

    name: Literal["batch", "watch", "stream", "kafka"]
    chosen_by: frozenset[str]  # the flags of the command line that together choose it
    reads: str  # its source, in messages
    settings: type[Settings]
    # The flags that it takes, and the field of ``settings`` that each of them sets.
    options: Mapping[str, str]


_FOLLOWED = {"--drain": "drain", "--poll": "poll_seconds", "--idle-timeout": "idle_seconds"}
_TOPICS = {"--kafka": "servers", "--kafka-option": "consumer", "--expansion-service": "expansion_service"}

DRIVERS = (
    Driver("batch", frozenset(), "folders", BatchSettings, {}),
    Driver("watch", frozenset({"--follow"}), "folders", FollowSettings, _FOLLOWED),
    Driver("stream", frozenset({"--stream"}), "folders", FollowSettings, _FOLLOWED),
    Driver("kafka", frozenset({"--stream", "--kafka"}), "--kafka", KafkaSettings, _TOPICS),
)


def choose_driver(arguments: argparse.Namespace) -> tuple[Driver, Settings]:
    """Finds the driver that the arguments ask for, and its options; InputError for none, or an option of another."""
    flags = sorted({flag for driver in DRIVERS for flag in (*driver.chosen_by, *driver.options)})
    values = {flag: vars(arguments)[flag.removeprefix("--").replace("-", "_")] for flag in flags}
    # Numbers have no default: 0 was given, too.
    given: dict[str, Any] = {
        flag: value for flag, value in values.items() if value or isinstance(value, float)
    }
    chosen = {flag for driver in DRIVERS for flag in driver.chosen_by} & set(given)
    driver = next((driver for driver in DRIVERS if driver.chosen_by == chosen), None)
    if driver is None:
        raise InputError(_no_driver(chosen))
    if bool(arguments.input) != (driver.reads == "folders"):
        raise InputError("either folders or --kafka are required")
    for flag in given:
        if flag not in chosen and flag not in driver.options:
            raise InputError(_other_driver(flag, driver))
    settings = {driver.options[flag]: value for flag, value in given.items() if flag in driver.options}
    return driver, driver.settings(**settings)


def _no_driver(chosen: set[str]) -> str:
    given = " and ".join(sorted(chosen))
    for driver in DRIVERS:
        if chosen < driver.chosen_by:
            return f"{given} requires {' and '.join(sorted(driver.chosen_by - chosen))}"
    return f"{given} cannot be combined"


def _other_driver(flag: str, chosen: Driver) -> str:
    takers = [driver for driver in DRIVERS if flag in driver.options]
    missing = [taker.chosen_by - chosen.chosen_by for taker in takers if taker.chosen_by > chosen.chosen_by]
    if missing:
        return f"{flag} requires {' or '.join(' and '.join(sorted(flags)) for flags in missing)}"
    *others, last = takers[0].options
    return f"{', '.join(others)} and {last} apply to {takers[0].reads}, not to {chosen.reads}"
