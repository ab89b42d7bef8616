"""Parses Beam's options as a user writes them, and runs pipelines; errors become one-line InputErrors."""

# mypy: allow-untyped-calls

import contextlib
import io
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)

from ctr.io.errors import InputError, one_line
from ctr.io.signals import Stop
from ctr.pipelines.tables.input_files import UnreadableNowError

# A runner's report of an error in a worker has its class and its message.
_KINDS = {f"{kind.__module__}.{kind.__name__}": kind for kind in (InputError, UnreadableNowError)}
_INPUT_ERROR = re.compile(
    rf"({'|'.join(map(re.escape, _KINDS))}|\bOSError|PermissionError): (.*?)(?: \[while running|\n|$)"
)
# The text of the system's errors, which differs from the command line's.
_SYSTEM_ERROR = re.compile(r"^\[Errno \d+\] (.*): '(.*)'$")
# Beam's errors for a runner that cannot start, cannot be reached, or cannot run the job.
_RUNNER_ERRORS = (grpc.RpcError, grpc.FutureTimeoutError, ImportError, OSError, RuntimeError, ValueError)

# Names of runners as Beam reads them: in lower case, with or without "runner" at the end.
_IN_THIS_PROCESS = {"bundlebaseddirect", "direct", "fnapi", "switchingdirect"}
_ON_A_JOB_SERVER = {"flink", "kafkastreams", "portable", "prism", "spark"}
# No LOOPBACK: this process would have to listen, and Beam's servers do so on all networks, without a password.
_ENVIRONMENTS = ("DOCKER", "EXTERNAL", "PROCESS")
_CONNECT_SECONDS = 10
_CANCEL_SECONDS = 60


class _JobServerOptions(PipelineOptions):
    """Pipeline options that refuse any option unknown to both Beam's Python SDK and its job server."""

    def get_all_options(self, *args: Any, add_extra_args_fn: Any = None, **more: Any) -> dict[str, Any]:
        def add(parser: Any) -> None:
            add_extra_args_fn(parser)
            _refuse_unknown(parser, self._flags or ())

        more["add_extra_args_fn"] = add_extra_args_fn and add
        options: dict[str, Any] = super().get_all_options(*args, **more)
        return options


def read_beam_options(arguments: Sequence[str]) -> PipelineOptions:
    """Parses Beam's options such as ``--runner=...``; by default Beam runs inside this process.

    The default runner has one worker, in memory. Raises InputError for an option that Beam does not know or with
    which it would start a server on this machine, and for a job server without an address.
    """
    text = shlex.join(arguments)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = PipelineOptions(list(arguments))
            # Parses all options now; Beam would do so later, one group after another.
            if _short_name(options) in _ON_A_JOB_SERVER:
                options = _JobServerOptions(list(arguments))
                options.get_all_options()
            else:
                options.get_all_options(add_extra_args_fn=lambda parser: _refuse_unknown(parser, arguments))
    except SystemExit:
        fault = complaint.getvalue().strip().rpartition("error: ")[2]
        raise InputError(f"--beam-options {text}: {fault}") from None
    _refuse_servers(options)
    if runs_in_this_process(options):
        # The others of these names look for a program on the network first.
        options.view_as(StandardOptions).runner = "FnApiRunner"
    return options


def _refuse_unknown(parser: Any, arguments: Sequence[str]) -> None:
    if unknown := parser.parse_known_args(arguments)[1]:
        raise InputError(f"--beam-options: {unknown[0]}: Beam knows no such option")


def _refuse_servers(options: PipelineOptions) -> None:
    """Raises InputError for options with which Beam would listen on networks; sets a job server's environment."""
    direct, portable = options.view_as(DirectOptions), options.view_as(PortableOptions)
    if direct.direct_running_mode != "in_memory" or direct.direct_num_workers != 1:
        mode = f"--direct_running_mode={direct.direct_running_mode}"
        raise InputError(
            f"--beam-options: {mode} --direct_num_workers={direct.direct_num_workers}: inside this process Beam "
            "listens to no port; allowed: in_memory with 1"
        )
    environment = str(portable.environment_type or _ENVIRONMENTS[0])
    if environment not in _ENVIRONMENTS and not environment.startswith("beam:env:"):
        raise InputError(
            f"--beam-options: --environment_type={environment}: no kind of workers that this command starts; allowed: "
            f"{', '.join(_ENVIRONMENTS)}"
        )
    if _short_name(options) not in _ON_A_JOB_SERVER:
        return
    host, _, port = str(portable.job_endpoint or "").rpartition(":")
    if not host or not port.isdecimal():
        runner = options.view_as(StandardOptions).runner
        raise InputError(
            f"--beam-options: --runner={runner} requires a job server that runs: --job_endpoint=HOST:PORT"
        )
    # Beam's environment for a local Flink or Spark is LOOPBACK.
    portable.environment_type = environment


def split_beam_options(text: str) -> list[str]:
    """Splits the arguments of ``--beam-options``. Raises InputError for a quote that is never closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--beam-options {text}: {error}") from None


def _short_name(options: PipelineOptions) -> str:
    name = str(options.view_as(StandardOptions).runner or "direct")
    return name.rpartition(".")[2].lower().removesuffix("runner")


def runs_in_this_process(options: PipelineOptions) -> bool:
    """Returns whether Beam runs the pipeline inside this process, in memory."""
    return _short_name(options) in _IN_THIS_PROCESS


def run_pipeline(
    options: PipelineOptions, build: Callable[[beam.Pipeline], object], stop: Stop = lambda: None
) -> None:
    """Builds a pipeline and waits until it is done; a signal from ``stop``, called ten times a second, cancels it.

    Raises InputError if a worker raised one, the options fit no runner, or the runner cannot start, cannot be reached
    or has failed.
    """
    with _errors_of_runners(options):
        if _short_name(options) in _ON_A_JOB_SERVER:
            # Beam itself would wait for it for minutes.
            endpoint = str(options.view_as(PortableOptions).job_endpoint)
            host, _, port = endpoint.rpartition(":")
            try:
                socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            except OSError as error:
                raise InputError(
                    f"--beam-options: no job server at {endpoint}: {error.strerror or error}"
                ) from None
        try:
            pipeline = beam.Pipeline(options=options)
        except (ValueError, ImportError, AttributeError) as error:
            raise InputError(f"--beam-options: {one_line(error)}") from None
        build(pipeline)
        _run(pipeline, stop)


def _run(pipeline: beam.Pipeline, stop: Stop) -> None:
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

    # A separate thread: a signal must not interrupt Beam.
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
def _errors_of_runners(options: PipelineOptions) -> Iterator[None]:
    """Reraises an InputError that a worker reported, and converts errors of the runner itself into one."""
    try:
        yield
    except InputError as error:
        # In this process Beam adds the step to the message.
        error.args = (str(error).partition(" [while running ")[0],)
        raise
    except Exception as error:
        if (reported := _INPUT_ERROR.search(str(error))) is not None:
            kind = _KINDS.get(reported[1], InputError)
            raise kind(_SYSTEM_ERROR.sub(r"\2: \1", reported[2])) from None
        # A traceback comes from a worker and shows a defect, as any exception of this process does.
        if (
            runs_in_this_process(options)
            or not isinstance(error, _RUNNER_ERRORS)
            or "Traceback" in str(error)
        ):
            raise
        details = error.details() if isinstance(error, grpc.Call) else one_line(error)
        raise InputError(
            f"--beam-options: the runner cannot start, or be reached any more: {details}"
        ) from None
