"""``ctr ingest events``: which driver it runs, and what it says of the result."""

import argparse
import dataclasses
import signal
import sys
import threading
from typing import Any

from ctr.data.event_mapping import load_event_mapping
from ctr.data.log import Manifest
from ctr.errors import InputError
from ctr.pipelines.events.accounts import EventCounts
from ctr.pipelines.events.batch import EventsResult, ingest_events
from ctr.pipelines.events.watch import Progress, WatchSettings, watch_events


def run_events(arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Runs the driver that the arguments ask for; returns the result and its text."""
    mapping = load_event_mapping(arguments.mapping)
    share = arguments.max_reject_share
    if not 0 <= share <= 1:
        raise InputError(f"--max-reject-share {share} is not allowed: a share from 0 to 1")
    if arguments.follow:
        settings = WatchSettings(
            max_reject_share=share, drain=arguments.drain, beam_options=arguments.beam_options
        )
        given = {"poll_seconds": arguments.poll, "idle_seconds": arguments.idle_timeout}
        settings = dataclasses.replace(
            settings, **{name: value for name, value in given.items() if value is not None}
        )
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop_once(stop))
        progress = watch_events(mapping, arguments.input, arguments.out, settings, stop.is_set, _tell)
        return dataclasses.asdict(progress), f"{arguments.out}: {_progress_text(progress)}"
    for name in ("drain", "poll", "idle_timeout"):
        if getattr(arguments, name):
            raise InputError(f"--{name.replace('_', '-')} goes with --follow")
    result = ingest_events(
        mapping, arguments.input, arguments.out, max_reject_share=share, options=arguments.beam_options
    )
    return dataclasses.asdict(result), f"{arguments.out}: {_result_text(result)}"


def _stop_once(stop: threading.Event) -> Any:
    def handle(number: int, frame: object) -> None:
        stop.set()
        # Who asks twice does not want to wait for the round to end.
        signal.signal(number, signal.SIG_DFL)

    return handle


def _tell(progress: Progress, published: list[Manifest]) -> None:
    if published and sys.stderr.isatty():
        print(_progress_text(progress), file=sys.stderr, flush=True)


def _progress_text(progress: Progress) -> str:
    return (
        f"{progress.published} intervals, {progress.rows} examples published; {_counts_text(progress.counts)}; "
        f"{progress.pending} impressions pending"
    )


def _result_text(result: EventsResult) -> str:
    counters = result.counters
    told = ", ".join(
        f"{counters[name]} {name.replace('_', ' ')}" for name in sorted(counters) if counters[name]
    )
    return (
        f"{result.examples} examples, {result.clicks} clicks, {result.intervals} intervals, "
        f"{result.seconds['total']:.1f} s\n{_counts_text(result.counts)}\nin the intervals: {told}"
    )


def _counts_text(counts: EventCounts) -> str:
    parts = []
    for kind in ("impressions", "clicks"):
        found = getattr(counts, kind)
        aside = [f"{found.late} too late"] if found.late else []
        aside += [f"{found.rejected} rejected"] if found.rejected else []
        parts.append(f"{found.read} {kind} read" + (f" ({', '.join(aside)})" if aside else ""))
    if counts.damaged:
        parts.append(f"{counts.damaged} files damaged")
    return ", ".join(parts)
