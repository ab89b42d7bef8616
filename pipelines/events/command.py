"""Command ``ctr ingest events``: checks its arguments, runs the job and describes the result."""

import contextlib
import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.data.log import Manifest, check_log, read_manifests
from ctr.io.errors import InputError
from ctr.io.files import address_fault
from ctr.io.signals import stop_signals
from ctr.pipelines.events.addresses import MANIFESTS, for_workers, local_log
from ctr.pipelines.events.drivers import EventOptions, FollowSettings, choose_settings
from ctr.pipelines.processes import quiet_beam
from ctr.pipelines.tables.rejects import check_reject_share

if TYPE_CHECKING:
    from ctr.pipelines.events.accounts import EventCounts
    from ctr.pipelines.events.follow import Progress


def check_events(options: EventOptions) -> EventMapping:
    """Reads the mapping and refuses impossible options; loads no TensorFlow.

    Raises InputError for an invalid mapping, incompatible arguments, a missing folder, or an ``--out`` with other
    content.
    """
    mapping = load_event_mapping(options.mapping)
    check_reject_share(options.max_reject_share)
    choose_settings(options)
    if not options.stream:
        _local_paths(options)
    if isinstance(options.out, Path):
        check_log(options.out, mapping.feature_schema)
    for folder in options.inputs:
        if isinstance(folder, Path) and not folder.is_dir():
            raise InputError(f"events {folder}: no such folder")
    return mapping


def _local_paths(options: EventOptions) -> tuple[list[Path], Path]:
    """Returns the folders of events and the log. Raises InputError for an address, which only a stream takes."""
    named = [*(("INPUT", folder) for folder in options.inputs), ("--out", options.out)]
    for name, location in named:
        if isinstance(location, str):
            raise InputError(f"{name} {location}: {address_fault(location)}")
    *folders, log = (Path(location) for _, location in named)
    return folders, log


def run_events(options: EventOptions, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    """Runs the job with the selected driver; returns the result and its text."""
    from ctr.pipelines.events.unmatched import unmatched_warnings

    settings = choose_settings(options)
    # The error's message has all that a user must know.
    with quiet_beam() if options.stream else contextlib.nullcontext():
        if options.stream:
            result, text = _run_stream(options, mapping, settings)
        elif settings is None:
            result, text = _run_batch(options, mapping)
        else:
            result, text = _run_watch(options, mapping, settings)
    # The files of unmatched clicks and of the impressions beside them stay at an address.
    unmatched = unmatched_warnings(mapping, options.out) if isinstance(options.out, Path) else []
    result["warnings"] = [*result.get("warnings", ()), *unmatched]
    return result, "\nwarning: ".join([f"{options.out}: {text}", *unmatched])


def _run_batch(options: EventOptions, mapping: EventMapping) -> tuple[dict[str, Any], str]:
    from ctr.pipelines.events.follow import ingest_events

    share = options.max_reject_share
    result = ingest_events(mapping, *_local_paths(options), max_reject_share=share)
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

    def report(progress: "Progress", published: list[Manifest]) -> None:
        if published and sys.stderr.isatty() and logging.getLogger("ctr").isEnabledFor(logging.WARNING):
            print(_progress_text(progress), file=sys.stderr, flush=True)

    with stop_signals() as stop:
        progress = watch_events(mapping, *_local_paths(options), settings, lambda: stop() is not None, report)
    return dataclasses.asdict(progress), _progress_text(progress)


def _run_stream(
    options: EventOptions, mapping: EventMapping, settings: FollowSettings | None
) -> tuple[dict[str, Any], str]:
    # gRPC's messages of a lost connection are also in the final error. gRPC reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from ctr.pipelines.events.stream import first_needed, silent_workers, stream_events, streaming_options
    from ctr.pipelines.events.stream_sources import EventsInFolders, EventsInKafka

    log, *folders = (for_workers(location) for location in (options.out, *options.inputs))

    def source(pinned: EventMapping) -> Any:
        if settings is None:
            return EventsInKafka(pinned, options, first_needed(pinned, log))
        return EventsInFolders(pinned, folders, settings)

    with silent_workers(), stop_signals() as stop:
        beam = streaming_options(options.beam_options, options.drain)
        stream_events(mapping, log, source, beam, options.max_reject_share, stop, drain=options.drain)
    with local_log(log, "schema.json", MANIFESTS) as folder:
        manifests = read_manifests(folder)
    rows = sum(manifest.rows for manifest in manifests)
    last = manifests[-1].start if manifests else -1
    result = {"partitions": len(manifests), "rows": rows, "last_published": last}
    return result, f"{len(manifests)} partitions, {rows} examples"


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
