"""The four ways to run the job of ``ctr ingest events``, and the options that each of them takes."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ctr.io.errors import InputError


@dataclass(frozen=True)
class BatchSettings:
    """A batch reads everything that is there, and has no options of its own."""


@dataclass(frozen=True)
class FollowSettings:
    """How folders are followed, by a watch of this process or as the source of a stream.

    Attributes:
        poll_seconds: between two scans of the folders.
        settle_seconds: for which a file must not have changed before it is read.
        idle_seconds: after which a kind without a new file no longer holds the clock back, and the time of day takes
            its place. It must be longer than the time between two files. None: each kind is waited for as long as it
            takes.
        drain: whether to end when there is no new file, with every partition published.
    """

    poll_seconds: float = 0.5
    settle_seconds: float = 0.5
    idle_seconds: float | None = None
    drain: bool = False

    def __post_init__(self) -> None:
        """Raises InputError for a negative, infinite or undefined number of seconds."""
        for name in ("poll_seconds", "settle_seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: {value:g} is not allowed; allowed: 0 or more")


@dataclass(frozen=True)
class KafkaSettings:
    """How topics are read.

    Attributes:
        servers: HOST:PORT, several with commas between.
        consumer: settings of Kafka's consumer, each written KEY=VALUE.
        expansion_service: HOST:PORT of a running one; empty: Beam starts its own, for which it fetches a jar.
    """

    servers: str
    consumer: Sequence[str] = ()
    expansion_service: str = ""


Settings = BatchSettings | FollowSettings | KafkaSettings


@dataclass(frozen=True)
class Driver:
    """One way to run the job.

    Attributes:
        name: of the driver.
        chosen_by: the flags of the command line that together choose it.
        reads: its source, in messages.
        settings: the class of its options.
        options: the flags that it takes, and the field of ``settings`` that each of them sets.
    """

    name: Literal["batch", "watch", "stream", "kafka"]
    chosen_by: frozenset[str]
    reads: str
    settings: type[Settings]
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
    """Finds the driver that the arguments of the command line ask for, and reads its options.

    Raises:
        InputError: flags that choose no driver, or an option of another driver.
    """
    flags = sorted({flag for driver in DRIVERS for flag in (*driver.chosen_by, *driver.options)})
    given = {flag: value for flag in flags if _is_given(value := vars(arguments)[_name(flag)])}
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


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _is_given(value: object) -> bool:
    """Whether the user gave an argument; numbers have no default."""
    return isinstance(value, float) or bool(value)


def _no_driver(chosen: set[str]) -> str:
    for driver in DRIVERS:
        if chosen < driver.chosen_by:
            return (
                f"{' and '.join(sorted(chosen))} requires {' and '.join(sorted(driver.chosen_by - chosen))}"
            )
    return f"{' and '.join(sorted(chosen))} cannot be combined"


def _other_driver(flag: str, chosen: Driver) -> str:
    takers = [driver for driver in DRIVERS if flag in driver.options]
    missing = [
        driver.chosen_by - chosen.chosen_by for driver in takers if driver.chosen_by > chosen.chosen_by
    ]
    if missing:
        return f"{flag} requires {' or '.join(' and '.join(sorted(flags)) for flags in missing)}"
    *others, last = takers[0].options
    return f"{', '.join(others)} and {last} apply to {takers[0].reads}, not to {chosen.reads}"
