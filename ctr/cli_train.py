"""Command ``ctr train``: alone, as one worker of a cluster, or as the process that starts and watches workers."""

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from ctr.cli_output import (
    Bar,
    importing,
    load_tensorflow,
    log,
    note,
    print_result,
    report,
    set_verbosity,
    show_report,
    training_bar,
)
from ctr.cli_parser import command, config_model, settings
from ctr.io.errors import InputError
from ctr.io.signals import stop_signals
from ctr.workers.cluster import Cluster
from ctr.workers.reports import Report
from ctr.workers.seats import Seat, read_place

_TIMEOUT_SECONDS = 60.0
# To load TensorFlow and to look at the log takes far less.
_START_SECONDS = 600.0
_has_joined = False


@command(
    "train",
    "train in one pass over a log, or resume a run",
    {
        "LOG": "directory of the log",
        "[--config FILE]": "YAML file with settings (without it: the defaults)",
        "--out RUN": "run directory; rerun to resume",
        "[--init-from RUN]": "warm start: begin with the weights of another run, where it stopped",
        "[--record NAME]": "publish the predictions as the log's sidecar NAME, from which other runs can distill",
        "[--skip FROM:TO]...": "resume without learning from the rows FROM to TO - 1 of the log, which are scored; may "
        "be given several times",
        **settings("seed=2"),
        "many workers": {
            "": "Where the environment variable TF_CONFIG describes a cluster, this is one worker of it. The first "
            "worker prints progress and result; each worker that --workers starts has its output in RUN/workers. A "
            "command that has lost a worker ends with status 75: rerun it to resume.",
            "[--workers N]": "start N workers on this machine and look after them (1)",
            "[--worker-timeout SECONDS]": "how long workers wait for another one within a step before it counts as "
            "lost (60)",
            "[--max-restarts N]": "how often --workers restarts all workers after one is lost, without a checkpoint "
            "between (3)",
        },
        "[--device DEVICE]": "compute on the processor, cpu; the first GPU, gpu; or one chip of this host's TPU, tpu "
        "(a GPU if there is one, else the processor)",
        "logs that grow": {
            "[--follow]": "train on new partitions as they are published, until stopped",
            "[--poll SECONDS]": "seconds between scans for new partitions (0.5)",
            "[--stop-when-idle SECONDS]": "end when nothing new came for so long (never)",
        },
    },
)
def train(arguments: argparse.Namespace) -> None:
    """Trains; SystemExit where workers were ended by a signal, WorkerLostError where they were lost again and again."""
    with importing():
        from ctr.config import load_model

        model = config_model("train")

    place = read_place()
    if place is not None and place.size == 1:
        place = None
    size = _check_workers(arguments, place)
    config = load_model(model, arguments.config, "config", arguments.set)
    if arguments.skip:
        config = _with_skips(arguments, config, size, place is None or place.rank == 0)
    _check_device(arguments.device, size, config)
    if arguments.follow and arguments.record is not None:
        raise InputError(
            "--record does not go with --follow: rerun without --follow to finish the run and to record"
        )
    if not arguments.follow and (arguments.poll, arguments.stop_when_idle) != (None, None):
        raise InputError("--poll and --stop-when-idle go with --follow")
    if place is not None and place.rank and not arguments.verbosity:
        # The first worker says it for all.
        set_verbosity(-1)
    if size > 1 and place is None:
        _launch(arguments, config, size)
    elif arguments.follow:
        _follow(arguments, config, place)
    else:
        _pass(arguments, config, place)


def _with_skips(arguments: argparse.Namespace, config: Any, size: int, is_first: bool) -> Any:
    """Returns the run's configuration with the ranges of ``--skip``; one that is given too has to agree with it."""
    from ctr.training.run.directory import add_skips, parse_skip, read_run_config
    from ctr.training.validate import validate

    ranges = [parse_skip(text) for text in arguments.skip]
    before = read_run_config(arguments.out)
    is_given = arguments.config is not None or arguments.set
    validate(
        config if is_given else before,
        arguments.log,
        arguments.out,
        workers=size,
        follows=arguments.follow,
    )
    return add_skips(arguments.out, ranges, writes=is_first)


def _check_workers(arguments: argparse.Namespace, place: Seat | Cluster | None) -> int:
    size = 1 if place is None else place.size
    for option in ("workers", "worker_timeout", "max_restarts"):
        least = {"workers": 1, "worker_timeout": 1.0, "max_restarts": 0}[option]
        given = getattr(arguments, option)
        # Also of what is no number: NaN.
        if given is not None and not least <= given < float("inf"):
            raise InputError(f"--{option.replace('_', '-')} {given}: allowed: {least:g} and more")
    if arguments.max_restarts is not None and arguments.workers is None:
        raise InputError("--max-restarts goes with --workers")
    if size > 1 and arguments.workers not in (None, size):
        raise InputError(
            f"--workers {arguments.workers}: TF_CONFIG describes a cluster of {size} workers, of which this is one; "
            "allowed: the same number, none, or no TF_CONFIG"
        )
    size = max(size, arguments.workers or 1)
    if arguments.worker_timeout is not None and size == 1:
        raise InputError("--worker-timeout goes with several workers")
    return size


def _check_device(device: str | None, size: int, config: Any) -> None:
    if device not in (None, "cpu", "gpu", "tpu"):
        raise InputError(f"--device {device}: allowed: cpu, gpu, tpu")
    if device == "tpu" and size > 1:
        raise InputError(f"--device tpu does not go with {size} workers: one process has the chip")
    if device == "tpu" and config.jit is False:
        raise InputError("config: jit: false is not possible with --device tpu; allowed: auto, true")


def _load_tensorflow(device: str | None, place: Seat | Cluster | None) -> None:
    # Without others alone: a worker's steps are not compiled.
    load_tensorflow(keeps_loops=place is None)
    if device is not None:
        from ctr.training.device import use_device

        use_device(device)


def _pass(arguments: argparse.Namespace, config: Any, place: Seat | Cluster | None) -> None:
    from ctr.data.log import read_manifests

    is_first = place is None or place.rank == 0
    with _printing_failures(arguments, is_first):
        if _is_finished(arguments, config, 1 if place is None else place.size, is_first):
            return
        _load_tensorflow(arguments.device, place)
        with importing():
            from ctr.serving.export import export_from_run
            from ctr.training.loop import train as train_run
            from ctr.training.run.summary import summary_text

        total = sum(manifest.rows for manifest in read_manifests(arguments.log))
        with closing(training_bar(total, config.batch.sizes())) as bar, _joined(arguments, place) as joined:
            given = arguments.log, config, arguments.out, bar, arguments.record
            begins = _init_from(arguments)
            summary = train_run(*given, export_from_run, begins, bar.phase, **joined)
        if is_first:
            print_result(arguments, summary, summary_text(arguments.out, summary))


def _is_finished(arguments: argparse.Namespace, config: Any, size: int, is_first: bool) -> bool:
    # Whether the run has passed its log before; then prints its result. Raises InputError where it cannot go on.
    with importing():
        from ctr.training.run.summary import summary_text, train_result
        from ctr.training.validate import validate

    finished = validate(
        config,
        arguments.log,
        arguments.out,
        record=arguments.record,
        source=arguments.init_from,
        workers=size,
    )
    if finished is not None and is_first:
        summary = train_result(arguments.log, arguments.out, finished, arguments.record)
        if warning := summary.get("calibration_warning"):
            log.warning("%s: %s", arguments.out, warning)
        print_result(arguments, summary, summary_text(arguments.out, summary))
    return finished is not None


@contextmanager
def _printing_failures(arguments: argparse.Namespace, is_first: bool) -> Iterator[None]:
    # Of a run that learned nothing, the first worker prints the results before the command fails.
    from ctr.training.run.summary import LearningError, summary_text

    try:
        yield
    except LearningError as failure:
        if failure.summary is not None and is_first:
            print_result(arguments, failure.summary, summary_text(arguments.out, failure.summary))
        raise


def _follow(arguments: argparse.Namespace, config: Any, place: Seat | Cluster | None) -> None:
    from ctr.training.validate import validate

    is_first = place is None or place.rank == 0
    validate(config, arguments.log, arguments.out, workers=1 if place is None else place.size, follows=True)
    with ExitStack() as held:
        # Alone, a signal is noticed while TensorFlow loads.
        alone = held.enter_context(_joined(arguments, None)) if place is None else {}
        _load_tensorflow(arguments.device, place)
        from ctr.serving.export import export_from_run
        from ctr.training.follow import POLL_SECONDS, Polling, follow

        poll = POLL_SECONDS if arguments.poll is None else arguments.poll
        polling = Polling(poll, arguments.stop_when_idle)
        bar = held.enter_context(closing(training_bar(None)))
        joined = alone or held.enter_context(_joined(arguments, place))
        more = {"polling": polling, **joined}
        begins = _init_from(arguments)
        followed = follow(
            arguments.log,
            config,
            arguments.out,
            progress=bar.lag,
            exporter=export_from_run,
            init_from=begins,
            phase=bar.phase,
            **more,
        )
    if is_first:
        print_result(arguments, dataclasses.asdict(followed), f"{arguments.out}: {followed.as_text()}")


def _init_from(arguments: argparse.Namespace) -> Any:
    from ctr.training.warm_start.start import InitFrom

    return arguments.init_from and InitFrom(arguments.init_from, note)


@contextmanager
def _joined(arguments: argparse.Namespace, place: Seat | Cluster | None) -> Iterator[dict[str, Any]]:
    """Joins the other workers; yields what a run is to be given: these, and why to stop."""
    if place is None:
        with stop_signals() as stop:
            yield {"stop": stop}
        return
    global _has_joined
    from ctr.workers.local import join

    _has_joined = True
    report("joining")
    workers = join(place, arguments.worker_timeout or _TIMEOUT_SECONDS)
    # After that: TensorFlow takes SIGTERM for itself, and would only note it.
    with stop_signals() as stop:
        yield {"workers": workers, "stop": stop}


def end_worker(status: int) -> None:
    """Ends this process if it has joined others: at its usual end TensorFlow may wait for those that are gone."""
    if _has_joined:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _launch(arguments: argparse.Namespace, config: Any, size: int) -> None:
    from ctr.data.log import read_manifests
    from ctr.pipelines.processes import safe_environment
    from ctr.training.run.directory import WORKERS
    from ctr.training.validate import validate
    from ctr.workers.launch import MAX_RESTARTS, Launch, launch, threads_each

    total = None
    if arguments.follow:
        validate(config, arguments.log, arguments.out, workers=size, follows=True)
    else:
        with _printing_failures(arguments, True):
            if _is_finished(arguments, config, size, True):
                return
        total = sum(manifest.rows for manifest in read_manifests(arguments.log))
    # What TensorFlow says goes to the workers' logs, unless these have no place for its lines.
    level = "3" if arguments.log_format == "json" else "0"
    environment = {"TF_CPP_MIN_LOG_LEVEL": level, **safe_environment()}
    kinds = set[str]()

    def show(reported: Report) -> None:
        kinds.add(reported.kind)
        show_report(reported, bar)

    batches = None if arguments.follow else config.batch.sizes()
    with closing(Bar(total, "examples", batches)) as bar:
        status = launch(
            Launch(
                command=[sys.executable, "-m", "ctr", *arguments.words],
                size=size,
                folder=arguments.out / WORKERS,
                environment={**environment, **threads_each(size, environment)},
                show=show,
                say=log.warning,
                mark=lambda: _newest_checkpoint(arguments.out),
                start_seconds=_START_SECONDS,
                max_restarts=MAX_RESTARTS if arguments.max_restarts is None else arguments.max_restarts,
            )
        )
    if status == 128 + signal.SIGINT and "stopped" not in kinds:
        raise KeyboardInterrupt
    if status:
        raise SystemExit(status)


def _newest_checkpoint(run_dir: Path) -> int:
    return max(
        (int(path.name) for path in run_dir.glob("checkpoints/*") if path.name.isdecimal()), default=-1
    )
