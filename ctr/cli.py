"""The command line. Each command imports what it needs when it runs: ``--help`` loads no TensorFlow."""

import argparse
import dataclasses
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from ctr.cli_parser import EVENTS, make_parser
from ctr.errors import InputError, one_line, printable


def _load_tensorflow() -> None:
    """Imports TensorFlow with Keras 2 and without the notices that it prints whatever the log level is."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryFile() as notices:
        sys.stderr.flush()
        standard_error = os.dup(2)
        os.dup2(notices.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        except BaseException:
            notices.seek(0)
            os.write(standard_error, notices.read())
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


_RUNNING_METRICS = ("per_query_auc", "auc", "logloss", "calibration_bias")


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int | None, unit: str) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=total, unit=unit, unit_scale=True, dynamic_ncols=True, disable=not sys.stderr.isatty()
        )

    def __call__(self, position: int, metrics: dict[str, Any] | None = None) -> None:
        self._bar.update(position - self._bar.n)
        if metrics:
            shown = {key: f"{metrics[key]:.4f}" for key in _RUNNING_METRICS if metrics.get(key) is not None}
            self._bar.set_postfix(shown, refresh=False)

    def lag(self, position: int, lag: tuple[int, float], metrics: dict[str, Any]) -> None:
        is_new = position != self._bar.n
        self._bar.set_description_str(f"behind {lag[0]} rows, {lag[1]:.1f} s", refresh=not is_new)
        self(position, metrics)

    def advance(self, count: int) -> None:
        self._bar.update(count)

    def close(self) -> None:
        self._bar.close()


def _print_result(arguments: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(json.dumps(result, indent=1) if arguments.json else printable(text))


def _ingest(arguments: argparse.Namespace) -> None:
    if arguments.format == EVENTS:
        if arguments.mapping is None:
            raise InputError("--mapping FILE is needed for events")
        _load_tensorflow()
        from ctr.pipelines.events.command import run_events

        _print_result(arguments, *run_events(arguments))
        return
    from ctr.data.mapping import load_format, load_mapping, read_duration
    from ctr.pipelines.ingest_state import read_state

    if arguments.allowed_lateness is not None and not arguments.append:
        raise InputError("--allowed-lateness goes with --append")
    lateness_us = read_duration("--allowed-lateness", arguments.allowed_lateness or "0s")
    if not arguments.input and (arguments.append or read_state(arguments.out).held is None):
        raise InputError(
            f"no input is given, files or folders are required: {arguments.out} holds no rows back that could be "
            "published without"
        )
    _load_tensorflow()
    from ctr.pipelines.ingest import ingest

    if (arguments.format == "table") != (arguments.mapping is not None):
        raise InputError("--mapping FILE goes with the format table, and is needed for it")
    mapping = (
        load_mapping(arguments.mapping) if arguments.format == "table" else load_format(arguments.format)
    )
    bar = _Bar(None, "rows")
    try:
        result = ingest(
            mapping,
            arguments.input,
            arguments.out,
            append=arguments.append,
            allowed_lateness_us=lateness_us,
            max_reject_share=arguments.max_reject_share,
            progress=bar.advance,
        )
    finally:
        bar.close()
    counts = dataclasses.asdict(result)
    text = f"{arguments.out}: {result.as_text()}"
    _print_result(arguments, {**counts, "rejects_file": str(result.rejects_file or "")}, text)


def _simulate(arguments: argparse.Namespace) -> None:
    if arguments.events_format and not arguments.events:
        raise InputError("--events-format needs --events, the folder for the events")
    if arguments.policy is not None or arguments.log is not None:
        _serve(arguments)
        return
    _load_tensorflow()
    from ctr.config import apply_settings, parse_model, read_yaml
    from ctr.simulator.config import SimulatorConfig
    from ctr.simulator.simulate import simulate

    content = read_yaml(arguments.config, "config") if arguments.config else {}
    given = {
        "examples": arguments.examples,
        "days": arguments.days,
        "events.format": arguments.events_format,
    }
    settings = [f"{name}={value}" for name, value in given.items() if value is not None] + arguments.set
    config = parse_model(
        SimulatorConfig, apply_settings(content, settings), str(arguments.config or "settings")
    )
    bar = _Bar(config.examples, "examples")
    try:
        result = simulate(config, arguments.out, bar, arguments.randomised, arguments.events)
    finally:
        bar.close()
    _print_result(arguments, result, "  ".join(f"{key}: {value}" for key, value in result.items()))


def _serve(arguments: argparse.Namespace) -> None:
    if None in (arguments.policy, arguments.log, arguments.days):
        raise InputError("--policy RUN, --log LOG and --days N go together")
    # The world is that of the log.
    for name in ("config", "set", "randomised", "events"):
        if vars(arguments).get(name):
            raise InputError(
                f"--{name} does not go with --policy: the world and the logs are those of the run"
            )
    _load_tensorflow()
    from ctr.simulator.closed_loop import run_closed_loop

    bar = _Bar(arguments.days, "days")
    try:
        result = run_closed_loop(arguments.policy, arguments.log, arguments.days, arguments.out, bar)
    finally:
        bar.close()
    days = ["  ".join(f"{key}: {value}" for key, value in day.items()) for day in result["days"]]
    _print_result(arguments, result, "\n".join(days))


def _sample(arguments: argparse.Namespace) -> None:
    from ctr.config import apply_settings, parse_model, read_yaml
    from ctr.data.log import read_manifests
    from ctr.data.sample_log import write_decisions, write_sampled_log
    from ctr.data.sampling import SamplingConfig

    content = read_yaml(arguments.config, "config") if arguments.config else {}
    where = f"config {arguments.config}" if arguments.config else "settings"
    config = parse_model(SamplingConfig, apply_settings(content, arguments.set), where)
    rule = config.uninformative
    if rule is not None and rule.low_visibility is not None:
        _load_tensorflow()
    # A teacher's recordings are looked through before anything is written.
    passes = 1 if rule is None or rule.low_loss is None else 2
    bar = _Bar(passes * sum(manifest.rows for manifest in read_manifests(arguments.log)), "examples")
    try:
        if arguments.out is None:
            result = write_decisions(arguments.log, arguments.name, config, bar.advance)
        else:
            result = write_sampled_log(arguments.log, arguments.name, config, arguments.out, bar.advance)
    finally:
        bar.close()
    _print_result(arguments, result.as_dict(), result.as_text())


def _train(arguments: argparse.Namespace) -> None:
    from ctr.config import load_model
    from ctr.data.log import read_manifests
    from ctr.training.config import TrainConfig

    config = load_model(TrainConfig, arguments.config, "config", arguments.set)
    if arguments.follow:
        _follow(arguments, config)
        return
    if (arguments.poll, arguments.stop_when_idle) != (None, None):
        raise InputError("--poll and --stop-when-idle go with --follow")
    _load_tensorflow()
    from ctr.serving.export import export_from_run
    from ctr.training.loop import train
    from ctr.training.summary_text import summary_text

    bar = _Bar(sum(manifest.rows for manifest in read_manifests(arguments.log)), "examples")
    try:
        summary = train(
            arguments.log,
            config,
            arguments.out,
            bar,
            arguments.record,
            export_from_run,
            _init_from(arguments),
        )
    finally:
        bar.close()
    _print_result(arguments, summary, summary_text(arguments.out, summary))


def _follow(arguments: argparse.Namespace, config: Any) -> None:
    from ctr.training.stop_signals import stop_signals

    if arguments.record is not None:
        raise InputError(
            "--record does not go with --follow: ctr train without it finishes the run, and records"
        )
    with stop_signals() as stop:
        _load_tensorflow()
        from ctr.serving.export import export_from_run
        from ctr.training.follow import POLL_SECONDS, Polling, follow

        polling = Polling(
            POLL_SECONDS if arguments.poll is None else arguments.poll, arguments.stop_when_idle
        )
        bar = _Bar(None, "examples")
        try:
            begin = _init_from(arguments)
            followed = follow(
                arguments.log, config, arguments.out, stop, polling, bar.lag, export_from_run, begin
            )
        finally:
            bar.close()
    _print_result(arguments, dataclasses.asdict(followed), f"{arguments.out}: {followed.as_text()}")


def _init_from(arguments: argparse.Namespace) -> Any:
    from ctr.training.launch import InitFrom

    return arguments.init_from and InitFrom(arguments.init_from, lambda text: print(text, file=sys.stderr))


def _export(arguments: argparse.Namespace) -> None:
    _load_tensorflow()
    from ctr.serving.export import export_run

    exported = export_run(arguments.run, arguments.out, arguments.checkpoint)
    result = {"model": str(exported.path), "made": exported.made, "position": exported.metadata["position"]}
    _print_result(arguments, result, f"{exported.path}" + ("" if exported.made else ": was there already"))


def _score(arguments: argparse.Namespace) -> None:
    from ctr.data.mapping import load_format, load_mapping
    from ctr.serving.score_command import is_log_alone, refuse_scores_at, score_text

    given = arguments.input
    refuse_scores_at(arguments.out, given)
    mapping = load_mapping(arguments.mapping) if arguments.mapping else None
    mapping = load_format(arguments.format) if arguments.format else mapping
    is_log = mapping is None and is_log_alone(given)
    _load_tensorflow()
    from ctr.data.log import read_manifests
    from ctr.pipelines.raw_rows import key_schema, plain_mapping, read_raw_rows
    from ctr.serving.score import score_log, score_tables
    from ctr.serving.scorer import Scorer

    scorer = Scorer(arguments.model)
    bar = _Bar(sum(manifest.rows for manifest in read_manifests(given[0])) if is_log else None, "rows")
    try:
        if is_log:
            result = score_log(scorer, given[0], arguments.out, bar.advance)
        else:
            mapping = mapping or plain_mapping(scorer.schema, given)
            rows = read_raw_rows(scorer.schema, mapping, given)
            result = score_tables(scorer, rows, key_schema(mapping), arguments.out, bar.advance)
    finally:
        bar.close()
    counts = {**dataclasses.asdict(result), "rejects_file": str(result.rejects_file or "")}
    _print_result(arguments, {**counts, "model": str(scorer.path)}, score_text(arguments.out, result))


def _replay(arguments: argparse.Namespace) -> None:
    from ctr.eval.experiment import write_experiment
    from ctr.eval.run_files import RunError

    failures: dict[str, str] = {}
    if not arguments.report:
        if arguments.experiment is None or arguments.log is None:
            raise InputError("an experiment's file and --log are needed, unless with --report")
        _load_tensorflow()
        from ctr.pipelines.replay import replay

        def tell(text: str) -> None:
            if sys.stderr.isatty():
                print(text, file=sys.stderr, flush=True)

        failures = replay(
            arguments.experiment,
            arguments.log,
            arguments.out,
            arguments.given,
            arguments.workers,
            arguments.beam_options,
            not arguments.no_timing,
            tell,
        )
    try:
        text = write_experiment(arguments.out)
    except RunError as error:
        raise InputError(str(error)) from None
    result = json.loads((arguments.out / "result.json").read_bytes()) if arguments.json else {}
    _print_result(arguments, result, f"{text}\n{arguments.out / 'report.html'}")
    if failures:
        told = "; ".join(f"{name}: {error}" for name, error in failures.items())
        raise InputError(f"{len(failures)} failed, the same command tries them again: {told}")


def _compare(arguments: argparse.Namespace) -> None:
    from ctr.eval.ads_churn import SHOWN_FILE, LoopComparison, compare_loops
    from ctr.eval.run_comparison import RunComparison, compare_runs
    from ctr.eval.run_files import RunError

    given = arguments.run_a, arguments.run_b
    comparison: LoopComparison | RunComparison
    try:
        is_loop = any((folder / SHOWN_FILE).is_file() for folder in given)
        comparison = compare_loops(*given) if is_loop else compare_runs(*given)
    except RunError as error:
        raise InputError(str(error)) from None
    _print_result(arguments, comparison.as_dict(), comparison.as_text())


def _evaluate(arguments: argparse.Namespace) -> None:
    from ctr.pipelines.evaluate_command import evaluate_text, run_evaluate

    result = run_evaluate(arguments.predictions, arguments.against, arguments.beam_options)
    _print_result(arguments, result, evaluate_text(result))


def _report(arguments: argparse.Namespace) -> None:
    from ctr.eval.report import write_report
    from ctr.eval.run_files import RunError

    try:
        path = write_report(arguments.run, arguments.out)
    except RunError as error:
        raise InputError(str(error)) from None
    _print_result(arguments, {"report": str(path)}, str(path))


def _demo(arguments: argparse.Namespace) -> None:
    _load_tensorflow()
    from ctr.demo import run_demo

    def say(text: str) -> None:
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    report = run_demo(arguments.out, arguments.examples, say, _Bar)
    _print_result(arguments, {"report": str(report)}, f"The report: {report}")


def _commands() -> dict[str, Callable[[argparse.Namespace], None]]:
    return {
        "demo": _demo,
        "simulate": _simulate,
        "ingest": _ingest,
        "sample": _sample,
        "train": _train,
        "export": _export,
        "score": _score,
        "replay": _replay,
        "compare": _compare,
        "evaluate": _evaluate,
        "report": _report,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0, or 1 after one line on bad input; usage errors exit with 2."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = make_parser().parse_args(given)
    arguments.given = shlex.join(["ctr", *given])
    try:
        _commands()[arguments.command](arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output is gone; Python would complain about what is left of it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (InputError, OSError, MemoryError) as error:
        print("error:", one_line(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
