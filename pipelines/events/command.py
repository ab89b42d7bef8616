"""``ctr ingest events``: which driver it runs, and what it says of the result."""

import argparse
import dataclasses
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.data.log import Manifest, check_log, read_manifests
from ctr.io.errors import InputError
from ctr.io.signals import stop_signals
from ctr.pipelines.processes import safe_workers
from ctr.pipelines.quiet import quiet_beam
from ctr.pipelines.rows.rejects import check_reject_share

if TYPE_CHECKING:
    from ctr.pipelines.events.accounts import EventCounts
    from ctr.pipelines.events.batch import EventsResult
    from ctr.pipelines.events.watch import Progress


def check_events(arguments: argparse.Namespace) -> EventMapping:
    """Reads the mapping and refuses what cannot be run; loads no TensorFlow.

    Raises:
        InputError: a wrong mapping, arguments that do not go together, a missing folder, or an ``--out`` that holds
            something else.
    """
    mapping = load_event_mapping(arguments.mapping)
    check_reject_share(arguments.max_reject_share)
    _check_arguments(arguments)
    check_log(arguments.out, mapping.feature_schema)
    for folder in arguments.input:
        if not folder.is_dir():
            raise InputError(f"events {folder}: no such folder")
    return mapping


def run_events(arguments: argparse.Namespace, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    """Runs the driver that the arguments ask for; returns the result and its text."""
    # What a user must know of an error is in its message.
    with quiet_beam(), safe_workers():
        if arguments.stream:
            return _stream(arguments, mapping)
        return (_follow if arguments.follow else _ingest)(arguments, mapping)


def _follow(arguments: argparse.Namespace, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    from ctr.pipelines.events.watch import WatchSettings, watch_events

    settings = WatchSettings(
        max_reject_share=arguments.max_reject_share,
        drain=arguments.drain,
        beam_options=arguments.beam_options,
    )
    given = {"poll_seconds": arguments.poll, "idle_seconds": arguments.idle_timeout}
    settings = dataclasses.replace(
        settings, **{name: value for name, value in given.items() if value is not None}
    )
    with stop_signals() as stop:
        progress = watch_events(
            mapping, arguments.input, arguments.out, settings, lambda: stop() is not None, _tell
        )
    return dataclasses.asdict(progress), f"{arguments.out}: {_progress_text(progress)}"


def _ingest(arguments: argparse.Namespace, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    from ctr.pipelines.events.batch import ingest_events

    result = ingest_events(
        mapping,
        arguments.input,
        arguments.out,
        max_reject_share=arguments.max_reject_share,
        options=arguments.beam_options,
    )
    return dataclasses.asdict(result), f"{arguments.out}: {_result_text(result)}"


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Refuses what does not go together."""
    lasting = arguments.follow or arguments.stream
    wrong = {
        "--follow and --stream cannot be combined": arguments.follow and arguments.stream,
        "--drain requires --follow or --stream": arguments.drain and not lasting,
        "--poll requires --follow or --stream": arguments.poll is not None and not lasting,
        "--idle-timeout requires --follow or --stream": arguments.idle_timeout is not None and not lasting,
        "--drain, --poll and --idle-timeout apply to folders, not to --kafka": arguments.kafka
        and (arguments.drain or arguments.poll is not None or arguments.idle_timeout is not None),
        "--kafka requires --stream": arguments.kafka and not arguments.stream,
        "--kafka-option requires --kafka": arguments.kafka_option and not arguments.kafka,
        "--expansion-service requires --kafka": arguments.expansion_service and not arguments.kafka,
        "either folders or --kafka are required": bool(arguments.kafka) == bool(arguments.input),
    }
    for complaint, found in wrong.items():
        if found:
            raise InputError(complaint)


def _stream(arguments: argparse.Namespace, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    # What it says of a lost connection the error at the end says too. Read when gRPC is loaded, here at the latest.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from ctr.pipelines.events.kafka import EventsInKafka, kafka_options
    from ctr.pipelines.events.stream import first_needed, last_published, stream_events
    from ctr.pipelines.events.stream_files import EventsInFolders
    from ctr.pipelines.events.stream_job import silent_workers, streaming_options

    log = arguments.out.resolve()

    def source(pinned: EventMapping) -> Any:
        if arguments.kafka:
            return EventsInKafka(
                pinned,
                arguments.kafka,
                first_needed(pinned, log),
                kafka_options(arguments.kafka_option),
                arguments.expansion_service,
            )
        given = {"poll_seconds": arguments.poll, "idle_seconds": arguments.idle_timeout}
        settings = {name: value for name, value in given.items() if value is not None}
        return EventsInFolders(
            pinned, [folder.resolve() for folder in arguments.input], arguments.drain, **settings
        )

    with silent_workers(), stop_signals() as stop:
        options = streaming_options(arguments.beam_options, arguments.drain)
        stream_events(mapping, log, source, options, arguments.max_reject_share, stop)
    manifests = read_manifests(log)
    rows = sum(manifest.rows for manifest in manifests)
    result = {"partitions": len(manifests), "rows": rows, "last_published": last_published(log)}
    return result, f"{arguments.out}: {len(manifests)} partitions, {rows} examples"


def _tell(progress: "Progress", published: list[Manifest]) -> None:
    if published and sys.stderr.isatty() and logging.getLogger("ctr").isEnabledFor(logging.WARNING):
        print(_progress_text(progress), file=sys.stderr, flush=True)


def _progress_text(progress: "Progress") -> str:
    return (
        f"{progress.published} partitions, {progress.rows} examples published; {_counts_text(progress.counts)}; "
        f"{progress.pending} impressions pending"
    )


def _result_text(result: "EventsResult") -> str:
    counters = result.counters
    told = ", ".join(
        f"{counters[name]} {name.replace('_', ' ')}" for name in sorted(counters) if counters[name]
    )
    return (
        f"{result.examples} examples, {result.clicks} clicks, {result.partitions} partitions, "
        f"{result.seconds['total']:.1f} s\n{_counts_text(result.counts)}\nin the partitions: {told}"
    )


def _counts_text(counts: "EventCounts") -> str:
    parts = []
    for kind in ("impressions", "clicks"):
        found = getattr(counts, kind)
        aside = [f"{found.late} too late"] if found.late else []
        aside += [f"{found.rejected} rejected"] if found.rejected else []
        parts.append(f"{found.read} {kind} read" + (f" ({', '.join(aside)})" if aside else ""))
    if counts.damaged:
        parts.append(f"{counts.damaged} files damaged")
    return ", ".join(parts)
