"""Commands on what there is: runs, models, logs, configurations. Each imports what it needs when it runs."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from ctr.cli_logs import LOG, beam_options
from ctr.cli_output import Bar, load_tensorflow, print_result, run_notes
from ctr.cli_parser import CONFIGS, command, config_model, settings
from ctr.io.errors import InputError, joined

if TYPE_CHECKING:
    from ctr.experiments.jobs import Failure
    from ctr.experiments.run import Options


@command(
    "export",
    "write a run's model as a SavedModel in TensorFlow Serving's layout",
    {
        "RUN": "run directory",
        "--out DIR": "output directory of the model's versions",
        "[--checkpoint P]": "export the checkpoint at position P (the newest one)",
    },
)
def _export(arguments: argparse.Namespace) -> None:
    from ctr.training.run.directory import check_models_folder, read_run_model

    check_models_folder(arguments.out)
    read_run_model(arguments.run)
    load_tensorflow()
    from ctr.serving.export import export_run

    exported = export_run(arguments.run, arguments.out, arguments.checkpoint)
    result = {"model": str(exported.path), "made": exported.made, "position": exported.metadata["position"]}
    print_result(arguments, result, f"{exported.path}" + ("" if exported.made else ": exists already"))


@command(
    "score",
    "predict the clicks of a log with an exported model",
    {
        "MODEL": "directory of a model, or of its versions: the newest is used",
        **LOG,
        "--out FILE": "Parquet file to write the predictions to",
        "[--start TIME]": "score the query times from this one on: an ISO date, or date and time, in UTC",
        "[--end TIME]": "score the query times before this one: an ISO date, or date and time, in UTC",
    },
)
def _score(arguments: argparse.Namespace) -> None:
    from ctr.data.log import read_manifests, read_schema
    from ctr.data.time_range import read_time_range
    from ctr.serving.metadata import find_model, read_metadata
    from ctr.serving.score import check_scores_file, score_log, score_text

    log, out = arguments.log, arguments.out
    times = read_time_range(arguments.start, arguments.end)
    check_scores_file(out, log)
    read_metadata(find_model(arguments.model))
    read_schema(log)
    load_tensorflow()
    from ctr.serving.scorer import Scorer

    scorer = Scorer(arguments.model)
    manifests = read_manifests(log, needs_labels=False)
    rows = sum(manifest.rows for manifest in manifests if times.selects(manifest))
    with closing(Bar(rows, "rows")) as bar:
        result = score_log(scorer, log, out, bar.advance, times)
    counts = {**dataclasses.asdict(result), "rejects_file": str(result.rejects_file or "")}
    print_result(arguments, {**counts, "model": str(scorer.path)}, score_text(out, result))


_TRIES = {
    "[--log LOG]": "directory of the log",
    "--out DIR": "output directory; rerun to resume",
    **settings("'seeds=[1, 2, 3]'"),
    "[--workers N]": "runs to train side by side (one per processor)",
    **beam_options(" whose workers see the log and the output directory under the same paths"),
    "[--no-timing]": "count operations, but do not time steps",
    "[--report]": "train nothing; write the report of what is in --out",
}


@command(
    "replay",
    "train the arms of an experiment on one log, and report what each gains and costs",
    {"[EXPERIMENT]": "YAML file with the arms", **_TRIES},
    beam_options="",
)
def _replay(arguments: argparse.Namespace) -> None:
    from ctr.data.log import read_schema
    from ctr.experiments.config import check_experiment_folder, read_experiment
    from ctr.experiments.report.write import write_experiment

    failures: dict[str, Failure] = {}
    if not arguments.report:
        if arguments.experiment is None or arguments.log is None:
            raise InputError("EXPERIMENT and --log are required, unless with --report")
        check_experiment_folder(arguments.out)
        read_experiment(arguments.experiment, arguments.set)
        read_schema(arguments.log)
        load_tensorflow()
        from ctr.experiments.run import run_experiment

        given = arguments.experiment, arguments.log, arguments.out, _options(arguments), arguments.set
        failures = run_experiment(*given)
    _print_runs(arguments, write_experiment(arguments.out), "result.json", failures)


@command(
    "search",
    "search for the configuration that is most accurate at a cost, and evaluate it on the held-out half",
    {
        "[SEARCH]": "YAML file with the space and the method",
        **_TRIES,
        "[--no-replay]": "do not train the result alone beside the baseline",
    },
    beam_options="",
)
def _search(arguments: argparse.Namespace) -> None:
    from ctr.data.log import read_schema
    from ctr.search.config import check_search_folder, read_search
    from ctr.search.report import write_search

    failures: dict[str, Failure] = {}
    if not arguments.report:
        if arguments.search is None or arguments.log is None:
            raise InputError("SEARCH and --log are required, unless with --report")
        check_search_folder(arguments.out)
        read_search(arguments.search, arguments.set)
        read_schema(arguments.log)
        load_tensorflow()
        from ctr.search.run import run_search

        given = arguments.search, arguments.log, arguments.out, _options(arguments), arguments.set
        _, failures = run_search(*given, is_judged=not arguments.no_replay)
    _print_runs(arguments, write_search(arguments.out), "search.json", failures)


def _options(arguments: argparse.Namespace) -> "Options":
    from ctr.experiments.run import Options

    given = arguments.given, arguments.workers, arguments.beam_options, not arguments.no_timing
    return Options(*given, progress=run_notes())


def _print_runs(
    arguments: argparse.Namespace, text: str, file: str, failures: "Mapping[str, Failure]"
) -> None:
    out = arguments.out
    result = json.loads((out / file).read_bytes()) if arguments.json else {}
    print_result(arguments, result, f"{text}\n{out / 'report.html'}")
    if failures:
        causes = joined([f"{name}: {error}" for name, error in failures.items()])
        text, hint = f"{len(failures)} failed: {causes}", "rerun the same command to try again"
        # What may pass in one of them is worth another try.
        raise InputError(text, hint).ending_with(max(failure.status for failure in failures.values()))


@command(
    "compare",
    "compare two runs metric by metric, with paired 95% intervals",
    {
        "RUN_A": "run directory",
        "RUN_B": "second run directory; differences are RUN_B - RUN_A",
    },
)
def _compare(arguments: argparse.Namespace) -> None:
    from ctr.eval.run_comparison import compare_runs

    comparison = compare_runs(arguments.run_a, arguments.run_b)
    print_result(arguments, comparison.as_dict(), comparison.as_text())


@command(
    "evaluate",
    "measure recorded predictions of any size, or compare two sets of them",
    {
        "PREDICTIONS ...": "run directories, directories of Parquet files, or Parquet files",
        "[--against PREDICTIONS ...]": "predictions to compare with them; the first ones are a, the baseline, as in "
        "ctr compare",
        "[--by-day]": "measure each day of query times, in UTC, by itself, too",
        **beam_options(),
    },
    beam_options="",
)
def _evaluate(arguments: argparse.Namespace) -> None:
    from ctr.pipelines.evaluate.command import evaluate_text, run_evaluate

    result = run_evaluate(arguments.predictions, arguments.against, arguments.beam_options, arguments.by_day)
    print_result(arguments, result, evaluate_text(result))


@command(
    "report",
    "write one HTML file with the plots of one or more runs",
    {
        "RUN ...": "run directories",
        "[--out FILE]": "HTML file to write (report.html in the first run directory)",
    },
)
def _report(arguments: argparse.Namespace) -> None:
    from ctr.eval.report import write_report

    path = write_report(arguments.run, arguments.out)
    print_result(arguments, {"report": str(path)}, str(path))


@command("inspect", "describe a log: rows, clicks, times, gaps, partitions, features and their ids", LOG)
def _inspect(arguments: argparse.Namespace) -> None:
    from ctr.data.inspection import inspect_log
    from ctr.data.inspection_text import inspection_text, log_warnings
    from ctr.data.log import read_manifests

    with closing(Bar(sum(manifest.rows for manifest in read_manifests(arguments.log)), "rows")) as bar:
        summary = inspect_log(arguments.log, bar.advance)
    result = {**summary.as_dict(), "warnings": log_warnings(summary)}
    print_result(arguments, result, inspection_text(summary))


@command(
    "history",
    "write what the histories of a log know at its end, for a feature store",
    {
        "LOG": "directory of the log",
        "--out FILE": "Parquet file: key, values (the latest one last) and their times",
        "[--feature NAME]": "the feature with the history, where there are several",
    },
)
def _history(arguments: argparse.Namespace) -> None:
    from ctr.data.history_state import write_known

    keys = write_known(arguments.log, arguments.feature, arguments.out)
    print_result(arguments, {"out": str(arguments.out), "keys": keys}, f"{arguments.out}: {keys} keys")


@command(
    "config",
    "print every key of a configuration file with its default, bounds and meaning",
    {
        "[KEY]": "print this key and those below it only, e.g. model.crosses",
        f"[--kind {{{','.join(CONFIGS)}}}]": "which file the keys are of (train)",
        "[--schema]": "print the JSON Schema of the file, by which editors check and complete it",
        "[--out DIR]": "with --schema: write the schemas of all kinds of files, train.schema.json and others",
    },
    kind="train",
)
def _config(arguments: argparse.Namespace) -> None:
    from ctr.config.reference import as_yaml, key_rows, select
    from ctr.config.schema import file_schema, key_tree, write_schemas

    model = config_model(arguments.kind)
    if arguments.schema:
        if arguments.key is not None:
            raise InputError(f"--schema is of a whole file: it does not go with {arguments.key}")
        if arguments.out is not None:
            written = write_schemas(arguments.out, {kind: config_model(kind) for kind in CONFIGS})
            print_result(arguments, {"schemas": [*map(str, written)]}, "\n".join(map(str, written)))
            return
        schema = file_schema(arguments.kind, model)
        print_result(arguments, schema, json.dumps(schema, indent=1))
        return
    if arguments.out is not None:
        raise InputError("--out goes with --schema")
    group = key_tree(model)
    if arguments.key is not None:
        group = select(group, arguments.key, f"ctr config --kind {arguments.kind}")
    print_result(arguments, {"kind": arguments.kind, "keys": key_rows(group)}, as_yaml(group).rstrip("\n"))


COMMANDS = (
    *(_export, _score, _replay, _search, _compare, _evaluate, _report),
    *(_inspect, _history, _config),
)
