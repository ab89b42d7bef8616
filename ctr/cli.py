"""Command line ``ctr``: its commands, and what becomes of their errors. ``--help`` loads no TensorFlow."""

import argparse
import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ctr import cli_logs, cli_trained
from ctr.cli_output import (
    Bar,
    connect,
    is_quiet,
    load_tensorflow,
    log,
    print_crash,
    print_error,
    print_result,
    print_stopped,
    set_verbosity,
)
from ctr.cli_parser import SHELLS, build_parser, command, completion_script, given_log_format, parse
from ctr.cli_train import end_worker, train
from ctr.io.errors import DEFECT, INPUT, INTERRUPTED, InputError, error_lines, exit_status
from ctr.io.log_lines import log_format
from ctr.io.signals import Interrupted
from ctr.workers.cluster import WorkerLostError


@command(
    "demo",
    "simulate a log, run the commands of examples/factory-floor.yaml on it, compare and write a report",
    {"[--out DIR]": "output directory (runs/demo)", "[--examples N]": "examples to simulate (60000)"},
    out=Path("runs/demo"),
    examples=60_000,
)
def _demo(arguments: argparse.Namespace) -> None:
    from ctr.demo import check_demo_folder, demo_commands

    check_demo_folder(arguments.out)
    load_tensorflow(keeps_loops=True)
    # The report alone is the result.
    shown = io.StringIO() if is_quiet() else sys.stderr if arguments.json else sys.stdout
    with contextlib.redirect_stdout(shown):
        for words in demo_commands(arguments.out, arguments.examples):
            print(f"\nctr {shlex.join(words)}", flush=True)
            step = parse(make_parser(), words)
            step.call(step)
    report = arguments.out / "report.html"
    print_result(arguments, {"report": str(report)}, f"The report: {report}")


@command(
    "sync",
    "copy a log, a run, an export or any directory between this machine and an object store",
    {
        "SRC": "a directory, or s3://BUCKET/NAME (gs://, az://)",
        "DST": "another one, which gets what it lacks; nothing in it is deleted",
        "[--from DAY]": "of a log the partitions from this day (UTC) on alone, e.g. 2026-03-01",
        "[--follow]": "go on copying what is new until stopped",
        "[--poll SECONDS]": "with --follow, seconds between two looks (5)",
    },
    poll=5.0,
)
def _sync(arguments: argparse.Namespace) -> None:
    from ctr.config import parse_model
    from ctr.data.time_range import TimeRange
    from ctr.io.sync import sync

    begin_us = parse_model(TimeRange, {"start": vars(arguments)["from"]}, "--from").start_us
    if not 0 < arguments.poll < float("inf"):
        raise InputError(f"--poll {arguments.poll:g}: allowed: a number of seconds above 0")
    seconds = arguments.poll if arguments.follow else None
    with closing(Bar(None, "files")) as bar:
        files = sync(arguments.src, arguments.dst, begin_us, seconds, bar)
    print_result(arguments, {"dst": arguments.dst, "files": files}, f"{arguments.dst}: {files} files copied")


@command(
    "completion",
    "print a script with which a shell completes commands, flags and keys",
    {f"shell {{{','.join(SHELLS)}}}": "for instance: source <(ctr completion bash)"},
)
def _completion(arguments: argparse.Namespace) -> None:
    script = completion_script(make_parser(), arguments.shell)
    print_result(arguments, {"shell": arguments.shell, "script": script}, script.rstrip("\n"))


_COMMANDS = (_demo, *cli_logs.COMMANDS, _sync, train, *cli_trained.COMMANDS, _completion)


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of ``ctr``: ``command`` of the arguments names the command, ``format`` that of an ingest."""
    return build_parser(_COMMANDS)


_RESUMED = ("demo", "quickstart", "replay", "search", "train")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns 0, or what ``exit_status`` says of the error that ended it, after one line, of a defect after a traceback;
    usage errors exit with 2.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] in ([], ["help"]):
        given = [*given[1:], "--help"]
    resumes = False
    # Known before the rest is read: usage errors have this form, too.
    with log_format(given_log_format(given)):
        try:
            arguments = parse(make_parser(), given)
            resumes = arguments.command in _RESUMED
            _run(arguments, given)
            status = 0
        except (Exception, KeyboardInterrupt) as error:
            status = _print_failure(error, resumes)
        end_worker(status)
    return status


def _run(arguments: argparse.Namespace, given: list[str]) -> None:
    arguments.words = given
    arguments.given = shlex.join(["ctr", *given])
    connect()
    set_verbosity(arguments.verbosity)
    try:
        arguments.call(arguments)
    except SystemExit as end:
        if not end.code:
            raise RuntimeError("a package ended the process (sys.exit) before the command was done") from end
        raise
    sys.stdout.flush()
    log.info("done")


def _print_failure(error: BaseException, resumes: bool) -> int:
    """Prints why a command ends, and returns its exit status."""
    status = exit_status(error)
    if isinstance(error, BrokenPipeError):
        # Whoever read the output is gone; Python would complain about what is left of it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return INPUT
    if isinstance(error, Interrupted):
        print_stopped(str(error), status)
    elif status == INTERRUPTED:
        print_stopped(f"interrupted{'; the same command resumes' if resumes else ''}", status)
    elif status == DEFECT and not isinstance(error, InputError):
        print_crash(error, status)
    elif isinstance(error, ModuleNotFoundError):
        print_error(
            f"the package {error.name} is not installed: the command line requires clicktrain with the extra "
            "train (in a checkout: pip install '.[train]')"
        )
    else:
        print_error(*error_lines(error), status=status, is_lost=isinstance(error, WorkerLostError))
    return status
