"""Options of ``ctr ingest events`` by the way to run the job: as a batch, following folders, or streaming."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctr.io.errors import InputError


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
    expansion_service: str  # HOST:PORT
    consumer: Sequence[str] = ()  # settings of Kafka's consumer, each written KEY=VALUE


# The flags, and the field that each of them sets.
_FOLLOWED = {"--drain": "drain", "--idle-timeout": "idle_seconds", "--poll": "poll_seconds"}
_TOPICS = {"--expansion-service": "expansion_service", "--kafka": "servers", "--kafka-option": "consumer"}
_DRIVERS: tuple[set[str], ...] = (set(), {"--follow"}, {"--stream"}, {"--stream", "--kafka"})


def choose_settings(arguments: argparse.Namespace) -> FollowSettings | KafkaSettings | None:
    """Reads the options of the driver that the arguments ask for; None: a batch, which has none of its own.

    Raises InputError for flags of no driver, or an option of another one.
    """
    flags = sorted({"--follow", "--stream", *_FOLLOWED, *_TOPICS})
    values = {flag: vars(arguments)[flag.removeprefix("--").replace("-", "_")] for flag in flags}
    # Numbers have no default: 0 was given, too.
    given: dict[str, Any] = {
        flag: value for flag, value in values.items() if value or isinstance(value, float)
    }
    chosen = {"--follow", "--stream", "--kafka"} & set(given)
    if chosen == {"--kafka"}:
        raise InputError("--kafka requires --stream")
    if chosen not in _DRIVERS:
        raise InputError(f"{' and '.join(sorted(chosen))} cannot be combined")
    if arguments.beam_options and "--stream" not in chosen:
        raise InputError(
            "--beam-options requires --stream; with --drain it joins all files that are there, and ends"
        )
    is_kafka = "--kafka" in chosen
    if bool(arguments.input) == is_kafka:
        raise InputError("either folders or --kafka are required")
    fields = _TOPICS if is_kafka else _FOLLOWED if chosen else {}
    for flag in given:
        if flag not in chosen and flag not in fields:
            raise InputError(_misplaced(flag, chosen))
    settings = {fields[flag]: value for flag, value in given.items() if flag in fields}
    if is_kafka:
        if "--expansion-service" not in given:
            raise InputError(
                "--kafka requires a running expansion service: --expansion-service HOST:PORT; one that Beam starts "
                "would listen on all networks"
            )
        return KafkaSettings(**settings)
    return FollowSettings(**settings) if chosen else None


def _misplaced(flag: str, chosen: set[str]) -> str:
    if flag in _FOLLOWED and not chosen:
        return f"{flag} requires --follow or --stream"
    if flag in _FOLLOWED:
        return "--drain, --poll and --idle-timeout apply to folders, not to --kafka"
    if "--follow" in chosen:
        return "--kafka, --kafka-option and --expansion-service apply to --kafka, not to folders"
    return f"{flag} requires {' and '.join(sorted({'--kafka', '--stream'} - chosen))}"
