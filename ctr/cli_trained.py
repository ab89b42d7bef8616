"""Commands on existing runs, models, logs and configurations. Each imports its modules when it runs."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from ctr.cli_output import Bar, command_words, note, print_result
from ctr.cli_parser import BeamOptions, Log, Text, Texts, keys_of
from ctr.io.errors import InputError, joined
from ctr.loading import load_tensorflow

if TYPE_CHECKING:
    from ctr.experiments.jobs import Outcome
    from ctr.experiments.run import Options

_Paths: TypeAlias = tuple[Path, ...]
_Kind: TypeAlias = Literal["train", "mapping", "events", "sampling", "simulator", "experiment", "search"]
_SETTING = "change a setting, e.g. 'seeds=[1, 2, 3]'; repeatable"
_SINCE = "score the query times from this one on: an ISO date, or date and time, in UTC"
_UNTIL = "score the query times before this one: an ISO date, or date and time, in UTC"


def export(
    run: Annotated[Path, "RUN", "run directory"],
    *,
    out: Annotated[Path, "DIR", "output directory of the model's versions"],
    checkpoint: Annotated[int | None, "P", "export the checkpoint at position P (the newest one)"] = None,
) -> None:
    """Write a run's model as a SavedModel in TensorFlow Serving's layout."""
    from ctr.training.run.directory import check_models_folder, read_run_model

    check_models_folder(out)
    read_run_model(run)
    load_tensorflow()
    from ctr.serving.export import export_run

    exported = export_run(run, out, checkpoint)
    result = {"model": str(exported.path), "made": exported.is_new, "position": exported.metadata["position"]}
    print_result(result, f"{exported.path}" + ("" if exported.is_new else ": exists already"))


def score(
    model: Annotated[Path, "MODEL", "directory of a model, or of its versions: the newest is used"],
    log: Log,
    *,
    out: Annotated[Path, "FILE", "Parquet file to write the predictions to"],
    start: Annotated[Text, "TIME", _SINCE] = None,
    end: Annotated[Text, "TIME", _UNTIL] = None,
) -> None:
    """Predict the clicks of a log with an exported model."""
    from ctr.data.log import read_manifests, read_schema
    from ctr.data.time_range import read_time_range
    from ctr.serving.metadata import find_model, read_metadata
    from ctr.serving.score import check_scores_file, score_log, score_text

    times = read_time_range(start, end)
    check_scores_file(out, log)
    read_metadata(find_model(model))
    read_schema(log)
    load_tensorflow()
    from ctr.serving.scorer import Scorer

    scorer = Scorer(model)
    manifests = read_manifests(log, needs_labels=False)
    rows = sum(manifest.rows for manifest in manifests if times.selects(manifest))
    with closing(Bar(rows, "rows")) as bar:
        result = score_log(scorer, log, out, bar.advance, times)
    counts = {**dataclasses.asdict(result), "rejects_file": str(result.rejects_file or "")}
    print_result({**counts, "model": str(scorer.path)}, score_text(out, result))


@dataclass(frozen=True)
class TriesOptions:
    """Parameters of ``ctr replay``, and of ``ctr search`` except the name of the file."""

    file: Annotated[Path | None, "EXPERIMENT", "YAML file with the arms"] = None
    _: KW_ONLY
    log: Annotated[Path | None, "LOG", "directory of the log"] = None
    out: Annotated[Path, "DIR", "output directory; rerun to resume"]
    set_: Annotated[Texts, "KEY=VALUE", _SETTING, keys_of("experiment")] = ()
    workers: Annotated[int | None, "N", "runs to train side by side (one per processor)"] = None
    beam_options: BeamOptions = ""
    no_timing: Annotated[bool, "count operations, but do not time steps"] = False
    report: Annotated[bool, "train nothing; write the report of what is in --out"] = False


@dataclass(frozen=True)
class SearchOptions(TriesOptions):
    """Parameters of ``ctr search``."""

    file: Annotated[Path | None, "SEARCH", "YAML file with the space and the target"] = None
    _: KW_ONLY
    set_: Annotated[Texts, "KEY=VALUE", _SETTING, keys_of("search")] = ()
    no_replay: Annotated[bool, "do not train the result alone beside the baseline"] = False


def replay(options: TriesOptions) -> None:
    """Train the arms of an experiment on one log, and report what each gains and costs.

    Workers started with --beam-options must see the log and the output directory under the same paths.
    """
    from ctr.experiments.config import check_experiment_folder, read_experiment
    from ctr.experiments.report.write import write_experiment

    failures: Mapping[str, Outcome] = {}
    if not options.report:
        experiment, log = _checked(options, check_experiment_folder, read_experiment)
        from ctr.experiments.run import run_experiment

        failures = run_experiment(experiment, log, options.out, _plan(options), options.set_)
    _print_runs(options.out, write_experiment(options.out), "result.json", failures)


def search(options: SearchOptions) -> None:
    """Search for the most accurate architecture at a target cost; unless --no-replay, evaluate it on held-out rows.

    Workers started with --beam-options must see the log and the output directory under the same paths.
    """
    from ctr.search.config import check_search_folder, read_search
    from ctr.search.report import write_search

    failures: Mapping[str, Outcome] = {}
    if not options.report:
        space, log = _checked(options, check_search_folder, read_search)
        from ctr.search.run import run_search

        is_judged, plan = not options.no_replay, _plan(options)
        _, failures = run_search(space, log, options.out, plan, options.set_, is_judged=is_judged)
    _print_runs(options.out, write_search(options.out), "search.json", failures)


def _checked(
    options: TriesOptions, check_folder: Callable[[Path], None], read: Callable[[Path, Texts], object]
) -> tuple[Path, Path]:
    """Returns the file and the log once both are checked and TensorFlow is loaded."""
    from ctr.data.log import read_schema

    if options.file is None or options.log is None:
        name = "SEARCH" if isinstance(options, SearchOptions) else "EXPERIMENT"
        raise InputError(f"{name} and --log are required, unless with --report")
    check_folder(options.out)
    read(options.file, options.set_)
    read_schema(options.log)
    load_tensorflow()
    return options.file, options.log


def _plan(options: TriesOptions) -> "Options":
    from ctr.experiments.run import Options

    command = shlex.join(["ctr", *command_words()])
    timed = not options.no_timing
    return Options(command, options.workers, options.beam_options, timed, progress=note)


def _print_runs(out: Path, text: str, file: str, failures: "Mapping[str, Outcome]") -> None:
    print_result(json.loads((out / file).read_bytes()), f"{text}\n{out / 'report.html'}")
    if failures:
        causes = joined([f"{name}: {failure.error}" for name, failure in failures.items()])
        text, hint = f"{len(failures)} failed: {causes}", "rerun the same command to try again"
        # If any of the faults may pass, a retry makes sense.
        raise InputError(text, hint).ending_with(max(failure.status for failure in failures.values()))


def compare(
    run_a: Annotated[Path, "RUN_A", "run directory"],
    run_b: Annotated[Path, "RUN_B", "second run directory; differences are RUN_B - RUN_A"],
) -> None:
    """Compare two runs metric by metric, with paired 95% intervals."""
    from ctr.eval.run_comparison import compare_runs

    comparison = compare_runs(run_a, run_b)
    print_result(comparison.as_dict(), comparison.as_text())


def evaluate(
    predictions: Annotated[
        _Paths, "PREDICTIONS", "run directories, or directories of or files as ctr score's"
    ],
    *,
    label: Annotated[
        Text, "COLUMN", "measure one CSV, TSV or Parquet file of any model by this label"
    ] = None,
    prediction: Annotated[Text, "COLUMN", "with --label: the probabilities"] = None,
    logit: Annotated[Text, "COLUMN", "with --label: the logits, instead of the probabilities"] = None,
    query: Annotated[
        Text, "COLUMN", "with --label: the queries, of any type (none: each row is a query)"
    ] = None,
    weight: Annotated[Text, "COLUMN", "with --label: the weights (none: each row counts once)"] = None,
    slice_: Annotated[
        Texts, "COLUMN", "with --label: measure each value of this column, too; repeatable"
    ] = (),
    against: Annotated[_Paths, "PREDICTIONS", "compare these with the first, which are a, the baseline"] = (),
    by_day: Annotated[bool, "measure each day of query times, in UTC, by itself, too"] = False,
    beam_options: BeamOptions = "",
) -> None:
    """Measure recorded predictions of any size, or another model's, or compare two sets of predictions.

    With --label, --against has the same rows in the same order; without it, rows are joined by their ids.
    """
    from ctr.pipelines.evaluate.command import evaluate_text, run_evaluate

    columns = {"prediction": prediction, "logit": logit, "query": query, "weight": weight, "slice": slice_}
    if label is not None:
        from ctr.api import evaluate

        if len(predictions) != 1 or len(against) > 1 or by_day or beam_options:
            raise InputError(
                "--label is of one file: other files, --by-day and --beam-options do not go with it"
            )
        more: dict[str, Any] = {**columns, "against": against[0] if against else None}
        result = evaluate(predictions[0], label=label, **more)
    else:
        if used := [f"--{name}" for name, value in columns.items() if value]:
            raise InputError(f"{', '.join(used)}: --label is required, too")
        result = run_evaluate(predictions, against or None, beam_options, by_day)
    print_result(result, evaluate_text(result))


def report(
    runs: Annotated[_Paths, "RUN", "run directories"],
    *,
    out: Annotated[Path | None, "FILE", "HTML file to write (report.html in the first run directory)"] = None,
) -> None:
    """Write one HTML file with the plots of one or more runs."""
    from ctr.eval.report import write_report

    path = write_report(runs, out)
    print_result({"report": str(path)}, str(path))


def inspect(log: Log) -> None:
    """Describe a log: rows, clicks, times, gaps, partitions, features and their ids."""
    from ctr.data.inspection import inspect_log
    from ctr.data.inspection_text import inspection_text, log_warnings
    from ctr.data.log import read_manifests

    with closing(Bar(sum(manifest.rows for manifest in read_manifests(log)), "rows")) as bar:
        summary = inspect_log(log, bar.advance)
    print_result({**summary.as_dict(), "warnings": log_warnings(summary)}, inspection_text(summary))


def history(
    log: Log,
    *,
    out: Annotated[Path, "FILE", "Parquet file: key, values (the latest one last) and their times"],
    feature: Annotated[Text, "NAME", "the feature with the history, where there are several"] = None,
) -> None:
    """Write a history at the end of a log, for a feature store."""
    from ctr.data.history_state import write_history

    keys = write_history(log, feature, out)
    print_result({"out": str(out), "keys": keys}, f"{out}: {keys} keys")


def config(
    key: Annotated[Text, "KEY", "print this key and those below it alone", keys_of("train", "")] = None,
    *,
    kind: Annotated[_Kind, "which file the keys are of (train)"] = "train",
    schema: Annotated[
        bool, "print the JSON Schema of the file, by which editors check and complete it"
    ] = False,
    out: Annotated[Path | None, "DIR", "with --schema: write the schemas of all kinds of files"] = None,
) -> None:
    """Print every key of a configuration file with its default, bounds and meaning."""
    from ctr.config.kinds import CONFIGS, config_model
    from ctr.config.reference import key_rows, key_table
    from ctr.config.schema import file_schema, write_schemas

    if out is not None and not schema:
        raise InputError("--out goes with --schema")
    if schema and key is not None:
        raise InputError(f"--schema is of a whole file: it does not go with {key}")
    if out is not None:
        written = [str(path) for path in write_schemas(out, {kind: config_model(kind) for kind in CONFIGS})]
        print_result({"schemas": written}, "\n".join(written))
    elif schema:
        content = file_schema(kind, config_model(kind))
        print_result(content, json.dumps(content, indent=1))
    else:
        rows = key_rows(config_model(kind), key or "", f"ctr config --kind {kind}")
        print_result({"kind": kind, "keys": rows}, key_table(rows))


def sync(
    src: Annotated[str, "SRC", "a directory, or s3://BUCKET/NAME (gs://, az://)"],
    dst: Annotated[str, "DST", "another one, which gets what it lacks; nothing in it is deleted"],
    *,
    from_: Annotated[
        Text, "DAY", "of a log the partitions from this day (UTC) on alone, e.g. 2026-03-01"
    ] = None,
    follow: Annotated[bool, "go on copying what is new until stopped"] = False,
    poll: Annotated[float, "SECONDS", "with --follow, seconds between two looks (5)"] = 5.0,
) -> None:
    """Copy a log, a run, an export or any directory between this machine and an object store."""
    from ctr.config import parse_model
    from ctr.data.time_range import TimeRange
    from ctr.io.sync import sync

    begin_us = parse_model(TimeRange, {"start": from_}, "--from").start_us
    if not 0 < poll < float("inf"):
        raise InputError(f"--poll {poll:g}: allowed: a number of seconds above 0")
    with closing(Bar(None, "files")) as bar:
        files = sync(src, dst, begin_us, poll if follow else None, bar)
    print_result({"dst": dst, "files": files}, f"{dst}: {files} files copied")
