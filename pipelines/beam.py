"""Beam's options as a user writes them, and pipelines made and run with them; faults are refused in one line."""

# mypy: allow-untyped-calls

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from ctr.io.errors import InputError
from ctr.io.stores import UnavailableError
from ctr.pipelines.rows.sources import UnreadableNowError

# What a runner reports of an error in a worker has its class and its message.
_KINDS = {
    f"{kind.__module__}.{kind.__name__}": kind for kind in (InputError, UnreadableNowError, UnavailableError)
}
_INPUT_ERROR = re.compile(
    rf"({'|'.join(map(re.escape, _KINDS))}|\bOSError|PermissionError): (.*?)(?: \[while running|\n|$)"
)

_ENVIRONMENTS = ("DOCKER", "EXTERNAL", "LOOPBACK", "PROCESS")
IN_THIS_PROCESS = "FnApiRunner"  # the name of the runner of ``in_this_process``

# The text of the system's errors, which differs from that of the command line.
_SYSTEM_ERROR = re.compile(r"^\[Errno \d+\] (.*): '(.*)'$")


def read_beam_options(arguments: Sequence[str], given: str) -> PipelineOptions:
    """Reads Beam's options such as ``--runner=...``; ``given`` is how the user wrote them, for the InputError."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = PipelineOptions(list(arguments))
            # Reads them; otherwise that comes later, one group after another.
            options.get_all_options()
    except SystemExit:
        fault = complaint.getvalue().strip().rpartition("error: ")[2]
        raise InputError(f"{given}: {fault}") from None
    return options


def split_beam_options(given: str) -> list[str]:
    """Splits the arguments of ``--beam-options``. Raises InputError for a quote that is never closed."""
    try:
        return shlex.split(given)
    except ValueError as error:
        raise InputError(f"--beam-options {given}: {error}") from None


def in_this_process(threads: int) -> list[str]:
    """Returns the options of the runner inside this process with so many threads."""
    mode = "--direct_running_mode=multi_threading"
    return [f"--runner={IN_THIS_PROCESS}", mode, f"--direct_num_workers={threads}"]


def options_or_threads(given: str, threads: int) -> PipelineOptions:
    """Reads ``--beam-options`` (or InputError); without a runner among them, that of this process with threads."""
    arguments = split_beam_options(given)
    if not any(argument.startswith("--runner") for argument in arguments):
        arguments += in_this_process(threads)
    return read_beam_options(arguments, f"--beam-options {given}")


def runner_name(options: PipelineOptions) -> str:
    """Returns the name of the runner's class."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[2]


def make_pipeline(options: PipelineOptions, given: str = "--beam-options") -> beam.Pipeline:
    """Makes an empty pipeline; InputError, which names where they were ``given``, for options that fit no runner."""
    environment = str(options.view_as(PortableOptions).environment_type or _ENVIRONMENTS[0])
    if environment not in _ENVIRONMENTS and not environment.startswith("beam:env:"):
        allowed = ", ".join(_ENVIRONMENTS)
        raise InputError(f"{given}: --environment_type={environment}: no kind of workers; allowed: {allowed}")
    try:
        return beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as error:
        raise InputError(f"{given}: {' '.join(str(error).split())}") from None


def run_pipeline(options: PipelineOptions, build: Callable[[beam.Pipeline], object]) -> None:
    """Builds a pipeline and waits until it is done; InputError of a worker, or of options that fit no runner."""
    pipeline = make_pipeline(options)
    build(pipeline)
    with input_errors_of_workers():
        pipeline.run().wait_until_finish()


@contextlib.contextmanager
def input_errors_of_workers() -> Iterator[None]:
    """Turns a runner's report of an InputError in a worker into that InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        found = _INPUT_ERROR.search(str(error))
        if found is None:
            raise
        kind = _KINDS.get(found[1], InputError)
        raise kind(_SYSTEM_ERROR.sub(r"\2: \1", found[2])) from None
