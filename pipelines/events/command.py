"""Command ``ctr ingest events``: checks its arguments, runs the job and describes the result."""

import contextlib
import dataclasses
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.data.log import Manifest, check_log, read_manifests
from ctr.io.errors import InputError
from ctr.io.signals import stop_signals
from ctr.pipelines.events.drivers import EventOptions, FollowSettings, KafkaSettings, choose_settings
from ctr.pipelines.processes import quiet_beam
from ctr.pipelines.tables.rejects import check_reject_share

if TYPE_CHECKING:
    from ctr.pipelines.events.accounts import EventCounts
    from ctr.pipelines.events.follow import Progress


def check_events(options: EventOptions) -> EventMapping:
    """Reads the mapping and refuses what cannot be run; loads no TensorFlow.

    Raises InputError: a wrong mapping, arguments that do not go together, a missing folder, or an ``--out`` that holds
    something else.
    """
    mapping = load_event_mapping(options.mapping)
    check_reject_share(options.max_reject_share)
    choose_settings(options)
    check_log(options.out, mapping.feature_schema)
    for folder in options.inputs:
        if not folder.is_dir():
            raise InputError(f"events {folder}: no such folder")
    return mapping


def run_events(options: EventOptions, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    """Runs the job as the options ask for it; returns the result and its text."""
    from ctr.pipelines.events.unmatched import unmatched_warnings

    settings = choose_settings(options)
    # The error's message has all that a user must know.
    with quiet_beam() if options.stream else contextlib.nullcontext():
        if settings is None:
            result, text = _run_batch(options, mapping)
        elif isinstance(settings, KafkaSettings) or options.stream:
            result, text = _run_stream(options, mapping, settings)
        else:
            result, text = _run_watch(options, mapping, settings)
    unmatched = unmatched_warnings(mapping, options.out)
    result["warnings"] = [*result.get("warnings", ()), *unmatched]
    return result, "\nwarning: ".join([f"{options.out}: {text}", *unmatched])


def _run_batch(options: EventOptions, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    from ctr.pipelines.events.follow import ingest_events

    share = options.max_reject_share
    result = ingest_events(mapping, options.inputs, options.out, max_reject_share=share)
    counters = sorted(result.counters.items())
    counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counters if count)
    warnings = "".join(f"\nwarning: {warning}" for warning in result.warnings)
    return dataclasses.asdict(result), (
        f"{result.examples} examples, {result.clicks} clicks, {result.partitions} partitions, "
        f"{result.seconds['total']:.1f} s\n{_counts_text(result.counts)}\nin the partitions: {counted}{warnings}"
    )


def _run_watch(
    options: EventOptions, mapping: EventMapping, settings: FollowSettings
) -> tuple[dict[str, Any], str]:
    from ctr.pipelines.events.follow import watch_events

    with stop_signals() as stop:
        progress = watch_events(
            mapping, options.inputs, options.out, settings, lambda: stop() is not None, _report_progress
        )
    return dataclasses.asdict(progress), _progress_text(progress)


def _run_stream(
    options: EventOptions, mapping: EventMapping, settings: FollowSettings | KafkaSettings
) -> tuple[dict[str, Any], str]:
    # gRPC's messages of a lost connection are also in the final error. gRPC reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from ctr.pipelines.events.kafka import EventsInKafka
    from ctr.pipelines.events.publish import last_published
    from ctr.pipelines.events.stream import first_needed, silent_workers, stream_events, streaming_options
    from ctr.pipelines.events.stream_files import EventsInFolders

    log = options.out.resolve()

    def source(pinned: EventMapping) -> Any:
        if isinstance(settings, KafkaSettings):
            return EventsInKafka(pinned, settings, first_needed(pinned, log))
        return EventsInFolders(pinned, [folder.resolve() for folder in options.inputs], settings)

    drain = isinstance(settings, FollowSettings) and settings.drain
    with silent_workers(), stop_signals() as stop:
        beam = streaming_options(options.beam_options, drain)
        stream_events(mapping, log, source, beam, options.max_reject_share, stop, drain=drain)
    manifests = read_manifests(log)
    rows = sum(manifest.rows for manifest in manifests)
    result = {"partitions": len(manifests), "rows": rows, "last_published": last_published(log)}
    return result, f"{len(manifests)} partitions, {rows} examples"


def _report_progress(progress: "Progress", published: list[Manifest]) -> None:
    if published and sys.stderr.isatty() and logging.getLogger("ctr").isEnabledFor(logging.WARNING):
        print(_progress_text(progress), file=sys.stderr, flush=True)


def _progress_text(progress: "Progress") -> str:
    return (
        f"{progress.published} partitions, {progress.rows} examples published; {_counts_text(progress.counts)}; "
        f"{progress.pending} impressions pending"
    )


def _counts_text(counts: "EventCounts") -> str:
    parts = []
    for kind, count in counts.by_kind.items():
        unused = [f"{count.late} too late"] if count.late else []
        unused += [f"{count.rejected} rejected"] if count.rejected else []
        parts.append(f"{count.read} {kind} read" + (f" ({', '.join(unused)})" if unused else ""))
    if counts.damaged:
        parts.append(f"{counts.damaged} files damaged")
    return ", ".join(parts)
