"""Options of ``ctr ingest events`` by driver: as a batch, following folders, or streaming."""

import math
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from ctr.io.errors import InputError

Location: TypeAlias = Path | str
"""A path of this machine, or an address: a text with ``://``."""


@dataclass(frozen=True)
class FollowSettings:
    """Settings for following folders, in a watch in this process or as the source of a stream."""

    poll_seconds: float = 0.5  # between two scans of the folders
    settle_seconds: float = 0.5  # for which a file must not have changed before it is read
    # Seconds after which a kind without a new file no longer holds the clock back, and the time of day is used instead.
    # It must exceed the time between two files. If None, the clock waits for each kind without limit.
    idle_seconds: float | None = None
    drain: bool = False  # whether to end when there is no new file, with every partition published
    max_reject_share: float = 0.01  # of the latest events; more of them end the job

    def __post_init__(self) -> None:
        for name in ("poll_seconds", "settle_seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: {value:g} is not allowed; allowed: 0 or more")


@dataclass(frozen=True)
class EventOptions:
    """Options of ``ctr ingest events``, each with its type and help for the command line."""

    # Events may come from Kafka instead.
    inputs: Annotated[tuple[Location, ...], "INPUT", "directories of events"] = ()
    _: KW_ONLY
    out: Annotated[Location, "LOG", "output directory of the log"]
    mapping: Annotated[Path, "FILE", "YAML file that names columns and features"]
    max_reject_share: Annotated[float, "SHARE", "stop when more of the rows is malformed (0.01)"] = 0.01
    follow: Annotated[bool, "keep reading files as they come, and publish as time goes on"] = False
    stream: Annotated[bool, "join as a streaming pipeline of a Beam runner such as Flink"] = False
    drain: Annotated[bool, "publish everything and end as soon as no file is new"] = False
    poll: Annotated[float | None, "SECONDS", "seconds between scans for files (0.5)"] = None
    idle_timeout: Annotated[float | None, "SECONDS", "when to stop waiting for a kind of event (never)"] = (
        None
    )
    beam_options: Annotated[str, "OPTIONS", "of a Beam runner: --beam-options='--runner=FlinkRunner ...'"] = (
        ""
    )
    kafka: Annotated[str | None, "HOST:PORT", "with --stream: read topics instead of files"] = None
    kafka_option: Annotated[tuple[str, ...], "KEY=VALUE", "setting of Kafka's consumer; repeatable"] = ()
    expansion_service: Annotated[str, "HOST:PORT", "with --kafka: a running expansion service of Beam"] = ""


def choose_settings(options: EventOptions) -> FollowSettings | None:
    """Returns the settings for following folders, or None for a batch or for Kafka topics.

    Raises InputError for flags that cannot be combined, and for an option of another driver.
    """
    is_live = options.stream or options.follow
    # A number may be 0.
    followed = {
        "--drain": options.drain or None,
        "--idle-timeout": options.idle_timeout,
        "--poll": options.poll,
    }
    of_folders = [flag for flag, value in followed.items() if value is not None]
    of_topics = {"--expansion-service": options.expansion_service, "--kafka-option": options.kafka_option}
    rival = "--stream" if options.stream else "--kafka"
    faults = {
        "--kafka requires --stream": options.kafka and not is_live,
        f"--follow and {rival} cannot be combined": options.follow and (options.stream or options.kafka),
        "--beam-options requires --stream; with --drain it joins all files that are there, and ends": (
            options.beam_options and not options.stream
        ),
        "either folders or --kafka are required": bool(options.inputs) == bool(options.kafka),
        **{f"{flag} applies to folders, not to --kafka": options.kafka for flag in of_folders},
        **{f"{flag} requires --follow or --stream": not is_live for flag in of_folders},
        "--kafka requires a running expansion service: --expansion-service HOST:PORT; one that Beam starts would "
        "listen on all networks": options.kafka and not options.expansion_service,
        **{f"{flag} requires --kafka": text and not options.kafka for flag, text in of_topics.items()},
    }
    for message, is_fault in faults.items():
        if is_fault:
            raise InputError(message)
    if options.kafka or not is_live:
        return None
    return FollowSettings(
        poll_seconds=0.5 if options.poll is None else options.poll,
        idle_seconds=options.idle_timeout,
        drain=options.drain,
        max_reject_share=options.max_reject_share,
    )
