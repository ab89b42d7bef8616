"""Beam's options as a user writes them, and pipelines made with them; wrong ones are refused in one line."""

# mypy: allow-untyped-calls

import contextlib
import io
import shlex
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ctr.io.errors import InputError


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
    return ["--runner=FnApiRunner", mode, f"--direct_num_workers={threads}"]


def make_pipeline(options: PipelineOptions, given: str = "--beam-options") -> beam.Pipeline:
    """Makes an empty pipeline; InputError, which names where they were ``given``, for options that fit no runner."""
    try:
        return beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as error:
        raise InputError(f"{given}: {' '.join(str(error).split())}") from None
