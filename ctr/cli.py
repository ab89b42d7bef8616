"""Command line ``ctr``: its commands, and the output of their errors. ``--help`` loads no TensorFlow."""

import contextlib
import io
import itertools
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

try:
    import click
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: the package {missing.name} is not installed: the command line requires clicktrain with the extra "
        "train (in a checkout: pip install '.[train]')"
    ) from None
from click.shell_completion import get_completion_class, shell_complete

from ctr import __version__, cli_output
from ctr.cli_output import is_json, is_quiet, log, print_error, print_result, print_stopped
from ctr.cli_parser import Command, Group
from ctr.io.errors import (
    DEFECT,
    INPUT,
    INTERRUPTED,
    USAGE,
    InputError,
    error_lines,
    exit_status,
    one_line,
    printable,
)
from ctr.io.log_lines import JSON, TEXT, log_format, say, say_crash
from ctr.io.signals import Interrupted
from ctr.loading import load_tensorflow
from ctr.workers.cluster import WorkerLostError

# The mappings that the package ships, each with the files that it reads.
FORMATS = {
    "criteo": "Criteo display ads: train.txt, tab-separated, without a header",
    "avazu": "Avazu mobile ads: train.csv, compressed or not",
    "movielens": "MovieLens ratings with RecBole's column names: *.inter, *.item and *.user",
    "yambda": "Yambda, flat: listens.parquet; a track played to at least half is the label",
    "open_bandit": "Open Bandit, one campaign of one policy: its CSV file, and item_context.csv beside it",
}
_MODULES = {
    "Make a log": {
        **dict.fromkeys(("quickstart", "ingest", "simulate", "sample"), "cli_logs"),
        "demo": "cli",
        "sync": "cli_trained",
    },
    "Train": {"train": "cli_train", **dict.fromkeys(("replay", "search"), "cli_trained")},
    "Evaluate": dict.fromkeys(("compare", "evaluate", "report"), "cli_trained"),
    "Serve": dict.fromkeys(("export", "score"), "cli_trained"),
    "Look": {**dict.fromkeys(("inspect", "history", "config"), "cli_trained"), "completion": "cli"},
}
_RESUMED = ("demo", "quickstart", "replay", "search", "train")
_COMPLETE = "_CTR_COMPLETE"  # the environment variable by which a shell asks for completions


def make_commands() -> Group:
    """Makes the command ``ctr`` with all its subcommands; a command's module is imported when the command is used."""
    formats: list[click.Command] = [
        Command(name, "cli_logs", "ingest_format", name, text=f"Ingest {files}.")
        for name, files in FORMATS.items()
    ]
    formats += [Command(name, "cli_logs", f"ingest_{name}") for name in ("table", "events")]
    text = "Turn raw logs into an ordered example log.\n\nctr ingest FORMAT --help lists the options of a format."
    ingest = Group("ingest", {"Formats": formats}, help=text)
    listed: dict[str, list[click.Command]] = {
        title: [ingest if name == "ingest" else Command(name, module, name) for name, module in below.items()]
        for title, below in _MODULES.items()
    }
    text = "Train click-through-rate models in a single pass over time-ordered logs."
    group = Group("ctr", listed, help=text)
    return click.version_option(__version__, message="ctr %(version)s")(group)


def read_words(arguments: Sequence[str]) -> click.Context:
    """Parses the options before a command; ``context.command.invoke(context)`` parses the rest and runs the command."""
    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return make_commands().make_context("ctr", [*arguments], obj=[*arguments], **settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns 0, 2 for wrong usage, or ``exit_status`` of the error that ended the command. The error is printed on one
    line, a defect with its traceback.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if _COMPLETE in os.environ:
        return shell_complete(make_commands(), {}, "ctr", _COMPLETE, os.environ[_COMPLETE])
    if arguments[:1] in ([], ["help"]):
        arguments = [*arguments[1:], "--help"]
    # Needed before the options are parsed: usage errors also have this form.
    is_lines = f"--log-format={JSON}" in arguments or ("--log-format", JSON) in itertools.pairwise(arguments)
    context = None
    with log_format(JSON if is_lines else TEXT):
        try:
            cli_output.connect()
            cli_output.set_verbosity(0)
            context = read_words(arguments)
            with context:
                context.command.invoke(context)
            sys.stdout.flush()
            log.info("done")
            status = 0
        except click.exceptions.Exit as end:
            status = end.exit_code
        except SystemExit as end:
            if end.code:
                raise
            package = RuntimeError("a package ended the process (sys.exit) before the command was done")
            status = _print_failure(package.with_traceback(end.__traceback__), False)
        except (Exception, KeyboardInterrupt) as error:
            status = _print_failure(error, context is not None and context.invoked_subcommand in _RESUMED)
        training = sys.modules.get("ctr.cli_train")
        if training is not None and training.has_joined:
            # At the usual end of a worker TensorFlow may wait for others that are gone.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return status


def _print_failure(error: BaseException, resumes: bool) -> int:
    """Prints why a command ends, and returns its exit status."""
    if isinstance(error, click.UsageError):
        context = error.ctx or click.Context(make_commands(), info_name="ctr")
        usage, message = context.get_usage(), printable(error.format_message())
        text = f"{usage}\n{context.command_path}: error: {message}"
        say(text, f"{message}; {' '.join(usage.split())}", logging.ERROR, exit_status=USAGE)
        return USAGE
    status = exit_status(error)
    if isinstance(error, BrokenPipeError):
        # The reader of the output is gone; Python would fail to flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return INPUT
    if isinstance(error, Interrupted):
        print_stopped(str(error), status)
    elif status == INTERRUPTED:
        print_stopped(f"interrupted{'; the same command resumes' if resumes else ''}", status)
    elif status == DEFECT and not isinstance(error, InputError):
        say_crash(error, status)
        print_error(f"{type(error).__name__}: {one_line(error)}", status=status)
    elif isinstance(error, ModuleNotFoundError):
        print_error(
            f"the package {error.name} is not installed: the command line requires clicktrain with the extra "
            "train (in a checkout: pip install '.[train]')"
        )
    else:
        print_error(*error_lines(error), status=status, is_lost=isinstance(error, WorkerLostError))
    return status


def demo(
    *,
    out: Annotated[Path, "DIR", "output directory (runs/demo)"] = Path("runs/demo"),
    examples: Annotated[int, "N", "examples to simulate (60000)"] = 60_000,
) -> None:
    """Simulate a log, run the commands of examples/factory-floor.yaml on it, compare, and write a report."""
    from ctr.demo import check_demo_folder, demo_commands

    check_demo_folder(out)
    load_tensorflow(keeps_loops=True)
    # The report alone is the result.
    output = io.StringIO() if is_quiet() else sys.stderr if is_json() else sys.stdout
    with contextlib.redirect_stdout(output):
        for command in demo_commands(out, examples):
            print(f"\nctr {shlex.join(command)}", flush=True)
            with read_words(command) as context:
                context.command.invoke(context)
    report = out / "report.html"
    print_result({"report": str(report)}, f"The report: {report}")


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], "SHELL", "bash, zsh or fish; e.g. source <(ctr completion bash)"
    ],
) -> None:
    """Print a script with which a shell completes commands, options and keys."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(make_commands(), {}, "ctr", _COMPLETE).source()
    if shell == "bash":
        # No space after a key, since its value follows.
        script = script.replace(
            "return 0", "if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi\n    return 0"
        )
    print_result({"shell": shell, "script": script}, script.rstrip("\n"))
