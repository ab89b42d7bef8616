"""Options of ``ctr ingest events`` by the way to run the job: as a batch, following folders, or streaming."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

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
    max_reject_share: float = 0.01  # of the latest events; more of them end the job

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


@dataclass(frozen=True)
class EventOptions:
    """Options of ``ctr ingest events``, each with its value and help as the command line shows them."""

    # Events may come from Kafka instead.
    inputs: Annotated[tuple[Path, ...], "INPUT", "directories of events"] = ()
    _: KW_ONLY
    out: Annotated[Path, "LOG", "output directory of the log"]
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


def choose_settings(options: EventOptions) -> FollowSettings | KafkaSettings | None:
    """Reads the options of the driver that is asked for; None: a batch, which has none of its own.

    Raises InputError for flags of no driver, or an option of another one.
    """
    if options.kafka and not (options.stream or options.follow):
        raise InputError("--kafka requires --stream")
    if options.follow and (options.stream or options.kafka):
        raise InputError(f"--follow and {'--stream' if options.stream else '--kafka'} cannot be combined")
    if options.beam_options and not options.stream:
        raise InputError(
            "--beam-options requires --stream; with --drain it joins all files that are there, and ends"
        )
    if bool(options.inputs) == bool(options.kafka):
        raise InputError("either folders or --kafka are required")
    followed = {"--drain": options.drain, "--idle-timeout": options.idle_timeout, "--poll": options.poll}
    for flag, value in followed.items():
        # A number that was given may be 0.
        if value is None or value is False:
            continue
        if options.kafka:
            raise InputError(f"{flag} applies to folders, not to --kafka")
        if not (options.follow or options.stream):
            raise InputError(f"{flag} requires --follow or --stream")
    if options.kafka:
        if not options.expansion_service:
            raise InputError(
                "--kafka requires a running expansion service: --expansion-service HOST:PORT; one that Beam starts "
                "would listen on all networks"
            )
        return KafkaSettings(options.kafka, options.expansion_service, options.kafka_option)
    topics = {"--expansion-service": options.expansion_service, "--kafka-option": options.kafka_option}
    for flag, text in topics.items():
        if text:
            raise InputError(f"{flag} requires --kafka")
    if not (options.follow or options.stream):
        return None
    return FollowSettings(
        poll_seconds=0.5 if options.poll is None else options.poll,
        idle_seconds=options.idle_timeout,
        drain=options.drain,
        max_reject_share=options.max_reject_share,
    )
