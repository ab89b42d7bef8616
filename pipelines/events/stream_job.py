"""Streaming job from its submission to its end: required options, signals and errors."""

# mypy: allow-untyped-calls

import contextlib
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from ctr.io.errors import InputError
from ctr.io.signals import Stop
from ctr.pipelines.beam import make_pipeline
from ctr.pipelines.events.run import beam_options, input_errors_of_workers

_FLINK = ("FlinkRunner", "PortableRunner")
_CHECKPOINTING = "--checkpointing_interval"
_CANCEL_SECONDS = 60
_CONNECT_SECONDS = 10

_WITH_CHECKPOINTS = {
    # Without it the output of a bundle that a checkpoint ends waits for the next bundle, which may never come.
    "--finish_bundle_before_checkpointing": "",
    # By default Flink restarts a failing job forever.
    "--number_of_execution_retries": "=3",
}
# How long finished sources stay; Flink's own default depends on whether there are checkpoints. Without these sources
# the watermark of Kafka no longer moves; with them a job that has read everything does not end.
_SOURCES_STAY = "--shutdown_sources_after_idle_ms"
_FOR_EVER = 2**63 - 1
# A watermark moves when a bundle ends, so that partitions are published this much late; by default a second.
_ALWAYS = {"--max_bundle_time_mills": "=100"}


def streaming_options(given: str, drain: bool) -> PipelineOptions:
    """Reads Beam's options, and adds for Flink those that a job of this kind needs where they are not given.

    Raises:
        InputError: an option that Beam does not read.
    """
    options = beam_options(given, 1)
    options.view_as(StandardOptions).streaming = True
    if runner_name(options) not in _FLINK:
        return options
    arguments = shlex.split(given)
    names = {argument.partition("=")[0] for argument in arguments}
    stay = {_SOURCES_STAY: f"={1 if drain else _FOR_EVER}"}
    needed = _ALWAYS | stay | (_WITH_CHECKPOINTS if _CHECKPOINTING in names else {})
    added = [name + value for name, value in needed.items() if name not in names]
    options = beam_options(shlex.join([*arguments, *added]), 1)
    options.view_as(StandardOptions).streaming = True
    return options


def runner_name(options: PipelineOptions) -> str:
    """Returns the name of the runner's class."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[2]


def run_until_stopped(options: PipelineOptions, build: Callable[[Any], object], stop: Stop) -> None:
    """Submits a pipeline and waits until it is done, or is canceled.

    Raises:
        InputError: of a worker, of options that fit no runner, or a runner that cannot be reached (any more).
    """
    _check_endpoint(options)
    pipeline = make_pipeline(options)
    build(pipeline)
    with _runner_errors(), input_errors_of_workers():
        _run(pipeline, stop)


def _check_endpoint(options: PipelineOptions) -> None:
    """Refuses a job server that does not answer; Beam itself would wait minutes for it."""
    endpoint = str(options.view_as(PortableOptions).job_endpoint or "")
    host, colon, port = endpoint.rpartition(":")
    if runner_name(options) not in _FLINK or not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(f"--beam-options: no job server at {endpoint}: {error.strerror or error}") from None


def _run(pipeline: Any, stop: Stop) -> None:
    submitted: list[Any] = []
    failures: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        try:
            submitted.append(pipeline.run())
            submitted[0].wait_until_finish()
        except Exception as error:
            failures.append(error)
        finally:
            ended.set()

    # A thread of its own: a signal must not interrupt Beam.
    threading.Thread(target=run, daemon=True).start()
    while not ended.wait(0.1):
        if stop() is not None:
            for result in submitted:
                result.cancel()
                ended.wait(_CANCEL_SECONDS)
            return
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _runner_errors() -> Iterator[None]:
    # A runner that cannot be reached, or cannot run the job, gives an error of one line.
    try:
        yield
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        details = error.details() if hasattr(error, "details") else "no answer"
        raise InputError(f"--beam-options: the runner cannot be reached (any more): {details}") from None
    except RuntimeError as error:
        if "Traceback" in str(error):
            raise
        # Not from a worker: the runner itself has failed.
        raise InputError(f"--beam-options: {error}") from None


@contextlib.contextmanager
def silent_workers() -> Iterator[None]:
    """Hides what workers inside this process print, in each try and thread again: the error of the job has it all."""
    # Also after the block: threads of a worker that has lost its runner end some time later.
    threading.excepthook = lambda failure: None
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
