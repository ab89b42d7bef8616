"""The defaults on any log: `ctr train LOG` without a configuration, beside Vowpal Wabbit and logistic regression.

    python benchmarks/defaults.py --out runs/defaults [--data FOLDER] [--to-choose | --to-report] [--only hotels,mind]

Twenty simulated logs of very different shape, and the real ones in FOLDER (or in what the environment variable CTR_DATA
names): half for choosing defaults, half for reporting what they do. Each is ingested without a number of buckets, and
every system makes one pass over it, scoring each query before it learns any of it. The same command again goes on after
the last finished pass; what was computed with other code, of another log or with another setting is computed anew.
``--report`` prints the table of what is there. Vowpal Wabbit is needed for its own part alone:
``pip install 'clicktrain[benchmark]'``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from convergence import only_process
from defaults import vowpal
from defaults.logs import SOURCES, Log, Source, absent, obtain_log
from defaults.report import Entry, table
from defaults.results import Result, Results
from defaults.systems import SYSTEMS, FailedError, carry_out, works

from ctr.io.files import write_atomic_bytes

SMALL_ROWS = 200_000


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    out, compute = arguments.out, not arguments.report
    max_rows = arguments.rows or (SMALL_ROWS if arguments.small else None)
    with only_process(out) if compute else nullcontext():
        ready: list[Log] = []
        entries: list[Entry] = []
        for source in _chosen(arguments):
            if reason := absent(source, arguments.data):
                _say(f"{source.name}: skipped: {reason}")
                continue
            ready.append(obtain_log(source, out / "logs", arguments.data, max_rows))
        # What is quick first: a table of most logs is soon there.
        for log in sorted(ready, key=lambda one: one.facts["rows"]):
            run_systems(log, arguments.systems, Results(out / "results"), out / "scratch", compute)
        for log in ready:
            entries.append((log, run_systems(log, SYSTEMS, Results(out / "results"), out / "scratch", False)))
        text = table(entries)
        if compute:
            write_atomic_bytes(out / "table.md", (text + "\n").encode())
    print(text)


def run_systems(
    log: Log, systems: Sequence[str], results: Results, scratch: Path, compute: bool
) -> dict[str, list[Result]]:
    """What the systems did on a log; passes that are missing are made, if ``compute``."""
    found: dict[str, list[Result]] = {}
    for system in systems:
        if compute and system.startswith("vw") and not vowpal.version():
            _say(f"{log.folder.name}: {system} skipped: Vowpal Wabbit is not installed")
            continue
        found[system] = []
        for work in works(log, system):
            result = results.find(work)
            if result is None and compute:
                try:
                    result = results.add(work, *carry_out(work, scratch))
                except FailedError as error:
                    _say(f"{log.folder.name}: {system} ({work.setting}) failed: {error}")
                    continue
                numbers = " ".join(f"{name} {result.record[name]}" for name in ("auc", "logloss"))
                _say(f"{log.folder.name}: {system} ({work.setting}): {numbers}, {result.seconds:.0f} s")
            if result is not None:
                found[system].append(result)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("CTR_DATA")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/defaults"), help="where logs and results are kept"
    )
    parser.add_argument(
        "--data", type=Path, default=Path(data) if data else None, help="the folder of real logs"
    )
    parser.add_argument("--only", type=_names, help="these logs: hotels,mind")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--to-choose", action="store_true", help="the logs for choosing defaults")
    group.add_argument("--to-report", action="store_true", help="the logs for reporting what defaults do")
    parser.add_argument("--systems", type=_systems, default=list(SYSTEMS), help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--small", action="store_true", help=f"at most {SMALL_ROWS:,} rows of simulated logs")
    parser.add_argument("--rows", type=int, help="at most so many rows of simulated logs")
    parser.add_argument(
        "--report", action="store_true", help="compute nothing, print the table of what is there"
    )
    return parser


def _chosen(arguments: argparse.Namespace) -> list[Source]:
    group = "choose" if arguments.to_choose else "report" if arguments.to_report else ""
    return [
        source
        for source in SOURCES
        if (not group or source.group == group) and (arguments.only is None or source.name in arguments.only)
    ]


def _names(text: str) -> list[str]:
    return _of(text, [source.name for source in SOURCES], "log")


def _systems(text: str) -> list[str]:
    return _of(text, SYSTEMS, "system")


def _of(text: str, allowed: Sequence[str], what: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in allowed]:
        raise argparse.ArgumentTypeError(f"no {what} {unknown[0]}; there are {', '.join(allowed)}")
    return names


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
