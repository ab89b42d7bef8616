"""Commands that make logs, and those that do all in one. Each imports what it needs when it runs."""

import argparse
import functools
import shutil
import sys
from contextlib import closing

from ctr.cli_output import Bar, is_quiet, load_tensorflow, print_result
from ctr.cli_parser import Takes, command, settings
from ctr.io.errors import InputError, printable

# The mappings that the package ships, each with the files that it reads.
FORMATS = {
    "mind": "the Microsoft News Dataset: behaviors.tsv, with news.tsv beside it",
    "criteo": "Criteo display ads: train.txt, tab-separated, without a header",
    "avazu": "Avazu mobile ads: train.csv, compressed or not",
    "movielens": "MovieLens ratings with RecBole's column names: *.inter, *.item and *.user",
    "yambda": "Yambda, flat: listens.parquet; a track played to at least half is the label",
    "open_bandit": "Open Bandit, one campaign of one policy: its CSV file, and item_context.csv beside it",
}
LOG = {"LOG": "directory of the log"}
_OUT = {"--out LOG": "output directory of the log"}


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not is_quiet():
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)


@command(
    "quickstart",
    "find how to read a table whose label is named, write that down as a mapping file, ingest, train, write a report",
    {
        "FILE": "CSV, TSV, JSON lines or Parquet file, or a directory of them",
        "[--out DIR]": "output directory (NAME-quickstart beside the file); rerun to resume",
        "[--dry-run]": "write the mapping file and nothing else, to be read and edited",
        "what the columns are": {
            "[--label RULE]": "column of the label, or a rule such as 'rating>=4'; without it the command lists the "
            "columns that could be the label, and stops",
            "[--time COLUMN[=FORM]]": "column of the time (none: the order of the rows is the order of time), read as "
            "s, ms, us, ns, serial, iso8601 or a format: 'when=%%d.%%m.%%y %%H:%%M'",
            "[--query COLUMN]": "column whose values are queries (none: each row is its own query)",
            "[--session-gap DURATION]": "with --query: a longer pause, e.g. 30m, begins a new query",
            "[--weight COLUMN]": "column of importance weights (none: each row counts once)",
            "[--drop COLUMN]...": "column that must be no feature; may be given several times",
            "[--keep COLUMN]...": "column that is a feature although it was excluded; may be given several times",
        },
    },
)
def _quickstart(arguments: argparse.Namespace) -> None:
    from ctr import quickstart

    out = arguments.out or quickstart.default_out(arguments.file)
    given = vars(arguments)
    from ctr.pipelines.infer.roles import Options

    options = Options(
        **{name: given[name] for name in ("label", "time", "query", "session_gap", "weight")},
        drop=tuple(arguments.drop),
        keep=tuple(arguments.keep),
    )
    width = shutil.get_terminal_size((200, 24)).columns
    load = functools.partial(load_tensorflow, keeps_loops=True)
    tools = quickstart.Tools(lambda text: _say(arguments, printable(text)), width, Bar, load)
    given_to = arguments.file, out, options, tools
    if arguments.dry_run:
        result = quickstart.write_mapping(*given_to)
        text = "\n".join(["By hand:", *(f"  {line}" for line in result["commands"])])
        print_result(arguments, result, text)
        return
    result = quickstart.run_quickstart(*given_to)
    print_result(arguments, result, quickstart.result_text(out, result))


@command(
    "simulate",
    "write an example log of a simulated world with known click probabilities",
    {
        "[|]": {
            "[--examples N]": "examples to simulate; they or days must be given, here or in FILE",
            "[--days N]": "whole days to simulate",
        },
        "[--config FILE]": "YAML file with the world's settings",
        **_OUT,
        "[--randomized LOG]": "also write the randomized traffic to a log of its own",
        "[--events DIR]": "also write the same traffic as raw impressions and clicks",
        "[--events-format NAME]": "format of --events: parquet (default), jsonl or csv",
        **settings("events.format=csv"),
    },
)
def _simulate(arguments: argparse.Namespace) -> None:
    if arguments.events_format and not arguments.events:
        raise InputError("--events-format needs --events, the output directory of the events")
    from ctr.config import load_model
    from ctr.simulator.config import SimulatorConfig, check_simulation

    given = {"events.format": arguments.events_format}
    if (arguments.examples, arguments.days) != (None, None):
        given |= {"examples": arguments.examples or "null", "days": arguments.days or "null"}
    changes = [f"{name}={value}" for name, value in given.items() if value is not None] + arguments.set
    config = load_model(SimulatorConfig, arguments.config, "config", changes)
    check_simulation([path for path in (arguments.out, arguments.randomized) if path], arguments.events)
    load_tensorflow()
    from ctr.simulator.simulate import simulate

    with closing(Bar(config.examples, "examples")) as bar:
        result = simulate(config, arguments.out, bar, arguments.randomized, arguments.events)
    print_result(arguments, result, "  ".join(f"{key}: {value}" for key, value in result.items()))


_ROWS = {
    # Events may come from Kafka instead, and rows that are held back may be published without others.
    "[INPUT ...]": "files or directories",
    **_OUT,
    "[--max-reject-share SHARE]": "stop when more than this share of the rows is malformed (0.01)",
}
_TABLE = {
    **_ROWS,
    "[--without-labels]": "make a log of rows without labels, which only ctr score takes",
    "logs that grow": {
        "[--append]": "more files will follow: keep the rows of the last partition unpublished until later rows come",
        "[--allowed-lateness DURATION]": "with --append: keep a partition unpublished until a row is this much later "
        "than its end, e.g. 2h (0s)",
    },
}
_MAPPING = {"--mapping FILE": "YAML file that names columns and features"}
_DEFAULTS = {"max_reject_share": 0.01}


def beam_options(more: str = "") -> Takes:
    """``--beam-options``; ``more`` says which runners."""
    text = f"options of a Beam runner{more}, in one word: --beam-options='--runner=FlinkRunner ...'"
    return {"[--beam-options OPTIONS]": text}


def _ingest(arguments: argparse.Namespace) -> None:
    from ctr.data.mapping import load_format, load_mapping, without_labels
    from ctr.data.times import read_duration
    from ctr.pipelines.tables.rejects import check_reject_share
    from ctr.pipelines.tables.state import input_files

    if arguments.allowed_lateness is not None and not arguments.append:
        raise InputError("--allowed-lateness goes with --append")
    lateness_us = read_duration("--allowed-lateness", arguments.allowed_lateness or "0s")
    mapping = (
        load_mapping(arguments.mapping) if arguments.format == "table" else load_format(arguments.format)
    )
    if arguments.without_labels:
        mapping = without_labels(mapping)
    check_reject_share(arguments.max_reject_share)
    input_files(arguments.out, mapping, arguments.input, arguments.append)
    # Only n-grams are made by it.
    if any(feature.kind == "text" for feature in mapping.features):
        load_tensorflow()
    from ctr.pipelines.tables.ingest import ingest

    with closing(Bar(None, "rows")) as bar:
        result = ingest(
            mapping,
            arguments.input,
            arguments.out,
            append=arguments.append,
            allowed_lateness_us=lateness_us,
            max_reject_share=arguments.max_reject_share,
            progress=bar.advance,
        )
    print_result(arguments, result.as_dict(), f"{arguments.out}: {result.as_text()}")


@command(
    "ingest events",
    "join impressions and clicks that come as separate events",
    {
        **_ROWS,
        **_MAPPING,
        "logs that grow": {
            "[--follow]": "keep reading files as they come, and publish as time goes on",
            "[--stream]": "join as a streaming pipeline of a Beam runner such as Flink",
            "[--drain]": "publish everything and end as soon as no file is new",
            "[--poll SECONDS]": "seconds between scans for files (0.5)",
            "[--idle-timeout SECONDS]": "stop waiting for impressions or clicks that had no new file for so long "
            "(never)",
        },
        "Beam runners and Kafka": {
            **beam_options(),
            "[--kafka HOST:PORT]": "with --stream: read topics instead of files",
            "[--kafka-option KEY=VALUE]...": "setting of Kafka's consumer",
            "[--expansion-service HOST:PORT]": "with --kafka: a running expansion service of Beam",
        },
    },
    beam_options="",
    expansion_service="",
    **_DEFAULTS,
)
def _ingest_events(arguments: argparse.Namespace) -> None:
    from ctr.pipelines.events.command import check_events, run_events

    events = check_events(arguments)
    load_tensorflow()
    print_result(arguments, *run_events(arguments, events))


_tables: dict[str, tuple[str, Takes]] = {
    **{name: (f"ingest {files}", _TABLE) for name, files in FORMATS.items()},
    "table": ("ingest CSV, TSV, JSON lines or Parquet files with your own mapping", {**_TABLE, **_MAPPING}),
}
_INGESTS = (
    *(
        command(f"ingest {name}", does, takes, **_DEFAULTS)(_ingest)
        for name, (does, takes) in _tables.items()
    ),
    _ingest_events,
)


@command(
    "sample",
    "choose by hash which examples of a log to train on, with importance weights",
    {
        **LOG,
        "--name NAME": "name of the sampling and of the sidecar that it writes",
        "[--config FILE]": "YAML file with rates and conditions",
        "[--out LOG]": "write the kept examples to a log of their own instead of a sidecar",
        **settings("non_click_rate=0.25"),
    },
)
def _sample(arguments: argparse.Namespace) -> None:
    from ctr.config import load_model
    from ctr.data.log import check_log_folder, read_manifests, read_schema
    from ctr.data.sample_log import write_decisions, write_sampled_log
    from ctr.data.sampling import SamplingConfig

    if arguments.out is not None:
        check_log_folder(arguments.out)
    config = load_model(SamplingConfig, arguments.config, "config", arguments.set)
    rule = config.uninformative
    if rule is not None and rule.low_visibility is not None:
        read_schema(arguments.log)
        load_tensorflow()
    # A teacher's recordings are looked through before anything is written.
    passes = 1 if config.by_teacher is None else 2
    total = passes * sum(manifest.rows for manifest in read_manifests(arguments.log))
    with closing(Bar(total, "examples")) as bar:
        if arguments.out is None:
            result = write_decisions(arguments.log, arguments.name, config, bar.advance)
        else:
            result = write_sampled_log(arguments.log, arguments.name, config, arguments.out, bar.advance)
    print_result(arguments, result.as_dict(), result.as_text())


COMMANDS = (_quickstart, _simulate, *_INGESTS, _sample)
