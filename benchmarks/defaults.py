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
from defaults.logs import SOURCES, Log, Source, absent, find_log, obtain_log
from defaults.report import table
from defaults.results import Result, Results
from defaults.systems import SYSTEMS, VOWPAL_TEXT, FailedError, Work, carry_out, works

from ctr.io.files import write_atomic_bytes

SMALL_ROWS = 200_000


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    out, compute = arguments.out, not arguments.report
    max_rows = arguments.rows or (SMALL_ROWS if arguments.small else None)
    with only_process(out) if compute else nullcontext():
        campaign = Campaign(out, arguments.set)
        ready: list[Log] = []
        for source in _chosen(arguments):
            if not compute:
                ready += filter(None, [find_log(source, out / "logs", max_rows)])
            elif reason := absent(source, arguments.data):
                _say(f"{source.name}: skipped: {reason}")
            else:
                ready.append(obtain_log(source, out / "logs", arguments.data, max_rows))
        # What is quick first: a table of most logs is soon there.
        for log in sorted(ready, key=lambda one: one.facts["rows"]):
            campaign.run(log, arguments.systems, compute)
        entries = [(log, campaign.run(log, SYSTEMS, False)) for log in ready]
        text = table(entries)
        if compute:
            write_atomic_bytes(out / "table.md", (text + "\n").encode())
    print(text)


class Campaign:
    """Passes of systems over logs, each made once.

    Args:
        out: where results are kept.
        sets: changes of this project's defaults, as ``ctr train --set`` takes them.
    """

    def __init__(self, out: Path, sets: Sequence[str] = ()) -> None:
        self._results = Results(out / "results")
        self._scratch = out / "scratch"
        self._sets = sets

    def run(self, log: Log, systems: Sequence[str], compute: bool) -> dict[str, list[Result]]:
        """What the systems did on a log; passes that are missing are made, if ``compute``."""
        found: dict[str, list[Result]] = {}
        try:
            for system in systems:
                if compute and system.startswith("vw") and not vowpal.version():
                    _say(f"{log.folder.name}: {system} skipped: Vowpal Wabbit is not installed")
                    continue
                results = [self._obtain(work, compute) for work in works(log, system, self._sets)]
                found[system] = [result for result in results if result is not None]
        finally:
            if compute:
                (log.folder / VOWPAL_TEXT).unlink(missing_ok=True)
        return found

    def _obtain(self, work: Work, compute: bool) -> Result | None:
        result = self._results.find(work)
        if result is not None or not compute:
            return result
        who = f"{work.log.folder.name}: {work.system} ({work.setting})"
        try:
            result = self._results.add(work, *carry_out(work, self._scratch))
        except FailedError as error:
            _say(f"{who} failed: {error}")
            return None
        numbers = " ".join(f"{name} {result.record[name]}" for name in ("auc", "logloss"))
        _say(f"{who}: {numbers}, {result.seconds:.0f} s")
        return result


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
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a change of the defaults, to try another one",
    )
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
