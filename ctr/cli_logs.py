"""Commands that create logs, and ``ctr quickstart``. Each imports its modules when it runs."""

import functools
import shutil
import sys
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ctr.cli_output import Bar, is_json, is_quiet, print_result
from ctr.cli_parser import Log, NewLog, Text, Texts, keys_of
from ctr.io.errors import InputError, printable
from ctr.loading import load_tensorflow
from ctr.pipelines.events.drivers import EventOptions

if TYPE_CHECKING:
    from ctr.data.mapping import Mapping

_TIME = (
    "column of the time (none: the order of the rows is the order of time), read as s, ms, us, ns, serial, iso8601 or "
    "a format: 'when=%d.%m.%y %H:%M'"
)


def quickstart(
    file: Annotated[Path, "FILE", "CSV, TSV, JSON lines or Parquet file, or a directory of them"],
    *,
    out: Annotated[Path | None, "DIR", "output directory (FILE's name with -quickstart); resumes"] = None,
    label: Annotated[Text, "RULE", "column, or 'rating>=4'; without it: lists what it could be"] = None,
    time: Annotated[Text, "COLUMN[=FORM]", _TIME] = None,
    query: Annotated[Text, "COLUMN", "column of the query (none: each row is a query)"] = None,
    session_gap: Annotated[
        Text, "DURATION", "with --query: a longer pause, e.g. 30m, begins a new one"
    ] = None,
    weight: Annotated[Text, "COLUMN", "column of importance weights (none: each row counts once)"] = None,
    drop: Annotated[Texts, "COLUMN", "column that must be no feature; repeatable"] = (),
    keep: Annotated[Texts, "COLUMN", "column that is a feature although it was excluded; repeatable"] = (),
    dry_run: Annotated[bool, "write the mapping file and nothing else, to be read and edited"] = False,
) -> None:
    """Find how to read a table whose label is named, write a mapping file, ingest, train, and write a report."""
    from ctr import quickstart
    from ctr.pipelines.infer.roles import Options

    def say(text: str) -> None:
        if not is_quiet():
            print(printable(text), file=sys.stderr if is_json() else sys.stdout, flush=True)

    out = out or quickstart.default_out(file)
    options = Options(label, time, query, session_gap, weight, drop, keep)
    width = shutil.get_terminal_size((200, 24)).columns
    load = functools.partial(load_tensorflow, keeps_loops=True)
    tools = quickstart.Tools(say, width, Bar, load)
    result = quickstart.run_quickstart(file, out, options, tools, dry_run)
    by_hand = "\n".join(["By hand:", *(f"  {line}" for line in result["commands"])])
    print_result(result, by_hand if dry_run else quickstart.result_text(out, result))


def simulate(
    *,
    examples: Annotated[
        int | None, "N", "examples to simulate; these or --days, or one of both in FILE"
    ] = None,
    days: Annotated[int | None, "N", "whole days to simulate"] = None,
    config: Annotated[Path | None, "FILE", "YAML file with the world's settings"] = None,
    out: NewLog,
    randomized: Annotated[Path | None, "LOG", "also write the randomized traffic to a separate log"] = None,
    events: Annotated[Path | None, "DIR", "also write the same traffic as raw impressions and clicks"] = None,
    events_format: Annotated[Text, "NAME", "format of --events: parquet (default), jsonl or csv"] = None,
    set_: Annotated[
        Texts, "KEY=VALUE", "change a setting, e.g. seed=3; repeatable", keys_of("simulator")
    ] = (),
) -> None:
    """Write an example log of a simulated world with known click probabilities."""
    if events_format and not events:
        raise InputError("--events-format needs --events, the output directory of the events")
    if examples is not None and days is not None:
        raise InputError("--examples does not go with --days")
    from ctr.config import load_model
    from ctr.simulator.config import SimulatorConfig, check_simulation

    changes = [f"events.format={events_format}"] if events_format else []
    if examples is not None or days is not None:
        changes += [f"examples={examples or 'null'}", f"days={days or 'null'}"]
    settings = load_model(SimulatorConfig, config, "config", [*changes, *set_])
    check_simulation([path for path in (out, randomized) if path], events)
    load_tensorflow()
    from ctr.simulator.simulate import simulate

    with closing(Bar(settings.examples, "examples")) as bar:
        result = simulate(settings, out, bar, randomized, events)
    print_result(result, "  ".join(f"{key}: {value}" for key, value in result.items()))


@dataclass(frozen=True)
class IngestOptions:
    """Parameters of ``ctr ingest FORMAT``."""

    # Without any, the rows that are held back are published.
    inputs: Annotated[tuple[Path, ...], "INPUT", "files or directories"] = ()
    _: KW_ONLY
    out: NewLog
    max_reject_share: Annotated[float, "SHARE", "stop when more of the rows is malformed (0.01)"] = 0.01
    without_labels: Annotated[bool, "make a log of rows without labels, which only ctr score takes"] = False
    append: Annotated[bool, "more files follow: hold back the last partition until later rows come"] = False
    allowed_lateness: Annotated[Text, "DURATION", "with --append: hold back for this much longer (0s)"] = None


@dataclass(frozen=True, kw_only=True)
class TableOptions(IngestOptions):
    """Parameters of ``ctr ingest table``."""

    mapping: Annotated[Path, "FILE", "YAML file that names columns and features"]


def ingest_format(name: str, options: IngestOptions) -> None:
    """Ingest files of a format whose mapping the package has."""
    from ctr.data.mapping import load_format

    _ingest(options, load_format(name))


def ingest_table(options: TableOptions) -> None:
    """Ingest CSV, TSV, JSON lines or Parquet files with your own mapping."""
    from ctr.data.mapping import load_mapping

    _ingest(options, load_mapping(options.mapping))


def _ingest(options: IngestOptions, mapping: "Mapping") -> None:
    from ctr.data.mapping import without_labels
    from ctr.data.times import read_duration
    from ctr.pipelines.tables.rejects import check_reject_share
    from ctr.pipelines.tables.state import input_files

    if options.allowed_lateness is not None and not options.append:
        raise InputError("--allowed-lateness goes with --append")
    lateness_us = read_duration("--allowed-lateness", options.allowed_lateness or "0s")
    if options.without_labels:
        mapping = without_labels(mapping)
    check_reject_share(options.max_reject_share)
    input_files(options.out, mapping, options.inputs, options.append)
    # Only n-grams require TensorFlow.
    if any(feature.kind == "text" for feature in mapping.features):
        load_tensorflow()
    from ctr.pipelines.tables.ingest import IngestSettings, ingest

    with closing(Bar(None, "rows")) as bar:
        settings = IngestSettings(options.append, lateness_us, options.max_reject_share, bar.advance)
        result = ingest(mapping, options.inputs, options.out, settings)
    print_result(result.as_dict(), f"{options.out}: {result.as_text()}")


def ingest_events(options: EventOptions) -> None:
    """Join impressions and clicks that come as separate events."""
    from ctr.pipelines.events.command import check_events, run_events

    mapping = check_events(options)
    load_tensorflow()
    print_result(*run_events(options, mapping))


def sample(
    log: Log,
    *,
    name: Annotated[str, "NAME", "name of the sampling and of the sidecar that it writes"],
    config: Annotated[Path | None, "FILE", "YAML file with rates and conditions"] = None,
    out: Annotated[
        Path | None, "LOG", "write the sampled examples to a separate log instead of a sidecar"
    ] = None,
    set_: Annotated[
        Texts, "KEY=VALUE", "change a setting, e.g. salt=3; repeatable", keys_of("sampling")
    ] = (),
) -> None:
    """Choose by hash which examples of a log to train on, with importance weights."""
    from ctr.config import load_model
    from ctr.data.log import check_log_folder, read_manifests, read_schema
    from ctr.data.sample_log import write_decisions, write_sampled_log
    from ctr.data.sampling import SamplingConfig

    if out is not None:
        check_log_folder(out)
    settings = load_model(SamplingConfig, config, "config", set_)
    rule = settings.uninformative
    if rule is not None and rule.low_visibility is not None:
        read_schema(log)
        load_tensorflow()
    # A teacher's recordings are looked through before anything is written.
    passes = 1 if settings.by_teacher is None else 2
    total = passes * sum(manifest.rows for manifest in read_manifests(log))
    with closing(Bar(total, "examples")) as bar:
        if out is None:
            result = write_decisions(log, name, settings, bar.advance)
        else:
            result = write_sampled_log(log, name, settings, out, bar.advance)
    print_result(result.as_dict(), result.as_text())
