"""Commands of the command line. Each imports what it needs when it runs: ``--help`` loads no TensorFlow."""

import argparse
import dataclasses
import functools
import importlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from ctr.cli_output import (
    Bar,
    connect,
    is_quiet,
    load_tensorflow,
    log,
    print_error,
    print_result,
    print_stopped,
    run_notes,
    set_verbosity,
)
from ctr.cli_parser import CONFIGS, EVENTS, TABLE, completion_script, make_parser
from ctr.cli_train import end_worker, train
from ctr.io.errors import InputError, error_lines, joined, printable
from ctr.io.signals import Interrupted
from ctr.workers.cluster import LOST_STATUS, WorkerLostError


def _ingest(arguments: argparse.Namespace) -> None:
    if arguments.format == EVENTS:
        from ctr.pipelines.events.command import check_events, run_events

        events = check_events(arguments)
        load_tensorflow()
        print_result(arguments, *run_events(arguments, events))
        return
    from ctr.data.log import check_log
    from ctr.data.mapping import keeping_values, load_format, load_mapping
    from ctr.data.times import read_duration
    from ctr.pipelines.ingest.state import check_anything_to_do
    from ctr.pipelines.rows.rejects import check_reject_share
    from ctr.pipelines.rows.sources import mapped_files

    if arguments.allowed_lateness is not None and not arguments.append:
        raise InputError("--allowed-lateness goes with --append")
    lateness_us = read_duration("--allowed-lateness", arguments.allowed_lateness or "0s")
    is_table = arguments.format == TABLE
    mapping = load_mapping(arguments.mapping) if is_table else load_format(arguments.format)
    if arguments.keep_values is not None:
        mapping = keeping_values(mapping, arguments.keep_values)
    check_reject_share(arguments.max_reject_share)
    check_log(arguments.out, mapping.feature_schema)
    check_anything_to_do(arguments.out, bool(arguments.input), arguments.append)
    if arguments.input:
        mapped_files(mapping, arguments.input)
    load_tensorflow()
    from ctr.pipelines.ingest.run import ingest

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


def _simulate(arguments: argparse.Namespace) -> None:
    if arguments.events_format and not arguments.events:
        raise InputError("--events-format needs --events, the output directory of the events")
    if arguments.policy is not None or arguments.log is not None:
        _serve(arguments)
        return
    from ctr.config import load_model
    from ctr.simulator.config import SimulatorConfig, check_simulation

    given = {"examples": arguments.examples, "days": arguments.days, "events.format": arguments.events_format}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None] + arguments.set
    config = load_model(SimulatorConfig, arguments.config, "config", settings)
    check_simulation([path for path in (arguments.out, arguments.randomized) if path], arguments.events)
    load_tensorflow()
    from ctr.simulator.simulate import simulate

    with closing(Bar(config.examples, "examples")) as bar:
        result = simulate(config, arguments.out, bar, arguments.randomized, arguments.events)
    print_result(arguments, result, "  ".join(f"{key}: {value}" for key, value in result.items()))


def _serve(arguments: argparse.Namespace) -> None:
    if None in (arguments.policy, arguments.log, arguments.days):
        raise InputError("--policy RUN, --log LOG and --days N go together")
    # The world is that of the log.
    for name in ("config", "set", "randomized", "events"):
        if vars(arguments).get(name):
            raise InputError(
                f"--{name} does not go with --policy: the world and the logs are those of the run"
            )
    from ctr.simulator.config import check_days, check_loop_folders

    check_days(arguments.days)
    check_loop_folders(arguments.policy, arguments.log, arguments.out)
    load_tensorflow()
    from ctr.simulator.closed_loop import run_closed_loop

    with closing(Bar(arguments.days, "days")) as bar:
        result = run_closed_loop(arguments.policy, arguments.log, arguments.days, arguments.out, bar)
    days = ["  ".join(f"{key}: {value}" for key, value in day.items()) for day in result["days"]]
    print_result(arguments, result, "\n".join(days))


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


def _export(arguments: argparse.Namespace) -> None:
    from ctr.serving.metadata import find_exported
    from ctr.training.run.directory import check_models_folder, read_run_model

    check_models_folder(arguments.out)
    model = find_exported(arguments.run)
    if model is None:
        read_run_model(arguments.run)
    elif arguments.checkpoint is not None:
        raise InputError(
            f"--checkpoint {arguments.checkpoint}: {arguments.run} is an exported model, not a run"
        )
    load_tensorflow()
    from ctr.serving.export import example_calls, export_model, export_run

    if model is None:
        exported = export_run(arguments.run, arguments.out, arguments.checkpoint)
    else:
        exported = export_model(model, arguments.out)
    result = {"model": str(exported.path), "made": exported.made, "position": exported.metadata["position"]}
    made = f"{exported.path}" + ("" if exported.made else ": exists already")
    print_result(arguments, result, f"{made}\n\n{example_calls(exported)}")


def _score(arguments: argparse.Namespace) -> None:
    from ctr.data.mapping import load_format, load_mapping
    from ctr.data.time_range import read_time_range
    from ctr.serving.metadata import find_model, read_metadata
    from ctr.serving.score import check_scores_file, is_log_alone, score_log, score_tables, score_text

    given = arguments.input
    times = read_time_range(arguments.start, arguments.end)
    check_scores_file(arguments.out, given)
    named = load_mapping(arguments.mapping) if arguments.mapping else None
    named = load_format(arguments.format) if arguments.format else named
    is_log = named is None and is_log_alone(given)
    if not is_log and (arguments.start, arguments.end) != (None, None):
        raise InputError("--start and --end go with an example log: raw rows are scored whole")
    metadata = read_metadata(find_model(arguments.model))
    for path in given:
        if not path.exists():
            raise InputError(f"input {path}: no such file or folder")
    from ctr.data.log import read_manifests
    from ctr.pipelines.rows.raw_rows import check_labeled, find_mapping, key_schema, read_raw_rows

    mapping = named if named or is_log else find_mapping(metadata, given)
    if arguments.labels and mapping is None:
        raise InputError(
            "--labels goes with --format or --mapping, which name the column of the label; scores of an example log "
            "have its labels"
        )
    from ctr.serving.scorer import Scorer

    scorer = Scorer(arguments.model, lazy=True, on_load=load_tensorflow)
    selected = [one for one in read_manifests(given[0]) if times.selects(one)] if is_log else []
    with closing(Bar(sum(manifest.rows for manifest in selected) if is_log else None, "rows")) as bar:
        if is_log:
            result = score_log(scorer, given[0], arguments.out, bar.advance, times)
        else:
            if mapping and arguments.labels:
                check_labeled(mapping)
            rows = read_raw_rows(scorer.raw_schema, mapping, given, labeled=arguments.labels)
            keys = key_schema(mapping, arguments.labels)
            result = score_tables(scorer, rows, keys, arguments.out, bar.advance)
    counts = {**dataclasses.asdict(result), "rejects_file": str(result.rejects_file or "")}
    print_result(arguments, {**counts, "model": str(scorer.path)}, score_text(arguments.out, result))


def _replay(arguments: argparse.Namespace) -> None:
    from ctr.data.log import read_schema
    from ctr.experiments.config import check_experiment_folder, read_experiment
    from ctr.experiments.report.write import write_experiment

    failures: dict[str, str] = {}
    if not arguments.report:
        if arguments.experiment is None or arguments.log is None:
            raise InputError("EXPERIMENT and --log are required, unless with --report")
        check_experiment_folder(arguments.out)
        read_experiment(arguments.experiment, arguments.set)
        read_schema(arguments.log)
        load_tensorflow()
        from ctr.experiments.run import run_experiment

        failures = run_experiment(
            arguments.experiment,
            arguments.log,
            arguments.out,
            arguments.given,
            arguments.workers,
            arguments.beam_options,
            not arguments.no_timing,
            run_notes(),
            settings=arguments.set,
        )
    _print_runs(arguments, write_experiment(arguments.out), "result.json", failures)


def _search(arguments: argparse.Namespace) -> None:
    from ctr.data.log import read_schema
    from ctr.search.config import check_search_folder, read_search
    from ctr.search.report.write import write_search

    failures: dict[str, str] = {}
    if not arguments.report:
        if arguments.search is None or arguments.log is None:
            raise InputError("SEARCH and --log are required, unless with --report")
        check_search_folder(arguments.out)
        read_search(arguments.search, arguments.set)
        read_schema(arguments.log)
        load_tensorflow()
        from ctr.search.run import Options, run_search

        options = Options(
            arguments.given,
            arguments.workers,
            arguments.beam_options,
            not arguments.no_timing,
            not arguments.no_replay,
            run_notes(),
            arguments.set,
        )
        _, failures = run_search(arguments.search, arguments.log, arguments.out, options)
    _print_runs(arguments, write_search(arguments.out), "search.json", failures)


def _print_runs(arguments: argparse.Namespace, text: str, file: str, failures: Mapping[str, str]) -> None:
    out = arguments.out
    result = json.loads((out / file).read_bytes()) if arguments.json else {}
    print_result(arguments, result, f"{text}\n{out / 'report.html'}")
    if failures:
        causes = joined([f"{name}: {error}" for name, error in failures.items()])
        raise InputError(f"{len(failures)} failed: {causes}", "rerun the same command to try again")


def _compare(arguments: argparse.Namespace) -> None:
    from ctr.eval.ads_churn import SHOWN_FILE, LoopComparison, compare_loops
    from ctr.eval.run_comparison import RunComparison, compare_runs

    given = arguments.run_a, arguments.run_b
    comparison: LoopComparison | RunComparison
    is_loop = any((folder / SHOWN_FILE).is_file() for folder in given)
    comparison = compare_loops(*given) if is_loop else compare_runs(*given)
    print_result(arguments, comparison.as_dict(), comparison.as_text())


def _evaluate(arguments: argparse.Namespace) -> None:
    from ctr.pipelines.evaluate.command import evaluate_text, run_evaluate

    result = run_evaluate(arguments.predictions, arguments.against, arguments.beam_options)
    print_result(arguments, result, evaluate_text(result))


def _report(arguments: argparse.Namespace) -> None:
    from ctr.eval.report import write_report

    path = write_report(arguments.run, arguments.out)
    print_result(arguments, {"report": str(path)}, str(path))


def _inspect(arguments: argparse.Namespace) -> None:
    from ctr.data.inspection import inspect_log
    from ctr.data.inspection_text import inspection_text, log_warnings
    from ctr.data.log import read_manifests

    with closing(Bar(sum(manifest.rows for manifest in read_manifests(arguments.log)), "rows")) as bar:
        summary = inspect_log(arguments.log, bar.advance)
    result = {**summary.as_dict(), "warnings": log_warnings(summary)}
    print_result(arguments, result, inspection_text(summary))


def _vocabulary(arguments: argparse.Namespace) -> None:
    from ctr.training.run.directory import read_run_model

    read_run_model(arguments.run)
    if arguments.limit is not None and arguments.limit < 1:
        raise InputError(f"--limit {arguments.limit}: allowed: 1 and more")
    load_tensorflow()
    from ctr.training.analysis.vocabulary import list_vocabulary, vocabulary_content

    found = list_vocabulary(arguments.run, arguments.feature, arguments.sort, arguments.limit, arguments.log)
    print_result(arguments, vocabulary_content(found), found.as_text())


def _config(arguments: argparse.Namespace) -> None:
    from ctr.config.reference import as_yaml, describe, key_rows, select

    module, name = CONFIGS[arguments.kind]
    group = describe(getattr(importlib.import_module(module), name))
    if arguments.key is not None:
        group = select(group, arguments.key, f"ctr config --kind {arguments.kind}")
    print_result(arguments, {"kind": arguments.kind, "keys": key_rows(group)}, as_yaml(group).rstrip("\n"))


def _completion(arguments: argparse.Namespace) -> None:
    script = completion_script(arguments.shell)
    print_result(arguments, {"shell": arguments.shell, "script": script}, script.rstrip("\n"))


def _demo(arguments: argparse.Namespace) -> None:
    from ctr.demo import check_demo_folder, run_demo

    check_demo_folder(arguments.out)
    load_tensorflow()

    report = run_demo(arguments.out, arguments.examples, functools.partial(_say, arguments), Bar)
    print_result(arguments, {"report": str(report)}, f"The report: {report}")


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not is_quiet():
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def _quickstart(arguments: argparse.Namespace) -> None:
    from ctr import quickstart

    out = arguments.out or quickstart.default_out(arguments.input)
    quickstart.check_quickstart_folder(out)
    from ctr.pipelines.inference.roles import Options

    given = vars(arguments)
    options = Options(
        **{name: given[name] for name in ("label", "query", "session_gap", "time", "weight")},
        drop=tuple(arguments.drop),
        keep=tuple(arguments.keep),
    )

    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    width = shutil.get_terminal_size((200, 24)).columns
    tools = quickstart.Tools(lambda text: _say(arguments, printable(text)), width, ask, Bar, load_tensorflow)
    given_to = arguments.input, out, options, tools
    if arguments.dry_run:
        result = quickstart.infer_mapping(*given_to)
        text = "\n".join(["By hand:", *(f"  {line}" for line in result["commands"])])
        print_result(arguments, result, text)
        return
    result = quickstart.run_quickstart(*given_to)
    print_result(arguments, result, quickstart.result_text(out, result))


def _ask(doubt: Any, refused: str = "") -> str:
    """Asks a person on the terminal for a choice; ``refused`` says why the answer before cannot be."""
    if refused:
        print(printable(f"\n{refused}"), file=sys.stderr)
    print(printable(f"\nIt is not certain {doubt.question}."), file=sys.stderr)
    for number, choice in enumerate(doubt.choices, 1):
        print(printable(f"  {number}  {choice.value}: {choice.because}"), file=sys.stderr)
    numbers = f"a number from 1 to {len(doubt.choices)}, or " if doubt.choices else ""
    while True:
        print(f"{numbers}what {doubt.option} takes: ".capitalize(), end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise InputError(f"no answer; {doubt.option} decides without a question")
        answer = line.strip()
        if answer.isdecimal() and 1 <= int(answer) <= len(doubt.choices):
            return str(doubt.choices[int(answer) - 1].value)
        if answer and not answer.isdecimal():
            return answer
        if answer:
            print(f"There is no choice {answer}.", file=sys.stderr)


def _commands() -> dict[str, Callable[[argparse.Namespace], None]]:
    return {
        "demo": _demo,
        "quickstart": _quickstart,
        "simulate": _simulate,
        "ingest": _ingest,
        "sample": _sample,
        "train": train,
        "export": _export,
        "score": _score,
        "replay": _replay,
        "search": _search,
        "compare": _compare,
        "evaluate": _evaluate,
        "report": _report,
        "inspect": _inspect,
        "vocabulary": _vocabulary,
        "config": _config,
        "completion": _completion,
    }


_RESUMED = ("demo", "quickstart", "replay", "search", "train")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns 0, or after one line 1 on bad input, 75 where a worker of a training run is lost, or, where it was
    interrupted, 130 (SIGINT) or 143 (SIGTERM); usage errors exit with 2.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] in ([], ["help"]):
        given = [*given[1:], "--help"]
    try:
        arguments = make_parser().parse_args(given)
    except InputError as error:
        print_error(*error_lines(error))
        return 1
    arguments.words = given
    arguments.given = shlex.join(["ctr", *given])
    connect()
    set_verbosity(arguments.verbosity)
    status = _run(arguments)
    end_worker(status)
    return status


def _run(arguments: argparse.Namespace) -> int:
    try:
        _commands()[arguments.command](arguments)
        sys.stdout.flush()
        log.info("done")
    except BrokenPipeError:
        # Whoever read the output is gone; Python would complain about what is left of it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except WorkerLostError as error:
        print_error(*error_lines(error))
        return LOST_STATUS
    except (InputError, OSError, MemoryError) as error:
        print_error(*error_lines(error))
        return 1
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == __package__:
            raise
        print_error(
            f"the package {error.name} is not installed: the command line requires clicktrain with the extra "
            "train (in a checkout: pip install '.[train]')"
        )
        return 1
    except Interrupted as stopped:
        print_stopped(str(stopped))
        return stopped.status
    except KeyboardInterrupt:
        resumes = arguments.command in _RESUMED
        print(f"interrupted{'; the same command resumes' if resumes else ''}", file=sys.stderr)
        return 130
    return 0
