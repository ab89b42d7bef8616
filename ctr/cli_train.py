"""Command ``ctr train``: as a single process, as a worker of a cluster, or as the process that starts the workers."""

import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from ctr import cli_output
from ctr.cli_output import Bar, log, print_result, set_verbosity, show_report, training_bar
from ctr.cli_parser import Log, Text, Texts, keys_of
from ctr.io.errors import InputError
from ctr.io.signals import stop_signals
from ctr.loading import importing, load_tensorflow
from ctr.workers.seats import read_place

if TYPE_CHECKING:
    from ctr.training.follow import Followed

_Worker: TypeAlias = Any  # result of ``read_place``: this process's seat or cluster, or None
_TIMEOUT_SECONDS = 60.0
# To load TensorFlow and to look at the log takes far less.
_START_SECONDS = 600.0
has_joined = False


@dataclass(frozen=True)
class Options:
    """Parameters of ``ctr train``."""

    log: Log
    _: KW_ONLY
    config: Annotated[Path | None, "FILE", "YAML file with settings (without it: the defaults)"] = None
    out: Annotated[Path, "RUN", "run directory; rerun to resume"]
    init_from: Annotated[Path | None, "RUN", "warm start: begin with the weights of another run"] = None
    record: Annotated[Text, "NAME", "publish the predictions as the log's sidecar NAME"] = None
    skip: Annotated[Texts, "FROM:TO", "resume without learning from the rows FROM to TO - 1; repeatable"] = ()
    set_: Annotated[Texts, "KEY=VALUE", "change a setting, e.g. seed=2; repeatable", keys_of("train")] = ()
    device: Annotated[Text, "DEVICE", "cpu, gpu (the first) or tpu (a chip); without it: gpu or cpu"] = None
    workers: Annotated[int | None, "N", "start N workers on this machine and look after them (1)"] = None
    worker_timeout: Annotated[float | None, "SECONDS", "longest wait for a worker in a step (60)"] = None
    max_restarts: Annotated[int | None, "N", "restarts without a checkpoint between them (3)"] = None
    follow: Annotated[bool, "train on new partitions as they are published, until stopped"] = False
    poll: Annotated[float | None, "SECONDS", "seconds between scans for new partitions (0.5)"] = None
    stop_when_idle: Annotated[float | None, "SECONDS", "end when nothing new came for so long (never)"] = None


def train(options: Options) -> None:
    """Train in one pass over a log, or resume a run.

    Where the environment variable TF_CONFIG describes a cluster, this is one worker of it. The first worker prints
    progress and result; each worker that --workers starts has its output in RUN/workers. A command that has lost a
    worker ends with status 75: rerun it to resume.
    """
    begun = time.perf_counter()
    with importing():
        from ctr.config import load_model
        from ctr.training.config import TrainConfig
        from ctr.training.run.summary import LearningError, summary_text, train_result
        from ctr.training.validate import validate

    worker = read_place()
    if worker is not None and worker.size == 1:
        worker = None
    size = _check_workers(options, worker)
    is_first = worker is None or worker.rank == 0
    config = load_model(TrainConfig, options.config, "config", options.set_)
    if options.skip:
        config = _with_skips(options, config, size, is_first)
    _check_device(options.device, size, config)
    if options.follow and options.record is not None:
        raise InputError(
            "--record does not go with --follow: rerun without --follow to finish the run and to record"
        )
    if not options.follow and (options.poll, options.stop_when_idle) != (None, None):
        raise InputError("--poll and --stop-when-idle go with --follow")
    if not is_first and not log.isEnabledFor(logging.INFO):
        # The first worker reports it for all.
        set_verbosity(-1)
    run = options.out
    try:
        summary = validate(
            config,
            options.log,
            run,
            record=options.record,
            source=options.init_from,
            workers=size,
            follows=options.follow,
        )
        if summary is not None:
            # The run has passed its log before.
            if not is_first:
                return
            summary = train_result(options.log, run, summary, options.record)
            if warning := summary.get("calibration_warning"):
                log.warning("%s: %s", run, warning)
        elif size > 1 and worker is None:
            _launch(options, size)
            return
        elif options.follow:
            followed = _follow(options, config, worker, begun)
            if is_first:
                print_result(dataclasses.asdict(followed), f"{run}: {followed.as_text()}")
            return
        else:
            summary = _pass(options, config, worker, begun)
    except LearningError as failure:
        # If a run learned nothing, the first worker prints its results before the command fails.
        if failure.summary is not None and is_first:
            print_result(failure.summary, summary_text(run, failure.summary))
        raise
    if is_first:
        print_result(summary, summary_text(run, summary))


def _with_skips(options: Options, config: Any, size: int, is_first: bool) -> Any:
    """Returns the run's configuration with the ranges of ``--skip``; a configuration file must agree with it."""
    from ctr.training.run.directory import add_skips, parse_skip, read_run_config
    from ctr.training.validate import validate

    ranges = [parse_skip(text) for text in options.skip]
    before = read_run_config(options.out)
    has_config = options.config is not None or options.set_
    validate(config if has_config else before, options.log, options.out, workers=size, follows=options.follow)
    return add_skips(options.out, ranges, writes=is_first)


def _check_workers(options: Options, worker: _Worker) -> int:
    size = 1 if worker is None else worker.size
    for option in ("workers", "worker_timeout", "max_restarts"):
        least = {"workers": 1, "worker_timeout": 1.0, "max_restarts": 0}[option]
        value = getattr(options, option)
        # Also rejects NaN.
        if value is not None and not least <= value < float("inf"):
            raise InputError(f"--{option.replace('_', '-')} {value}: allowed: {least:g} and more")
    if options.max_restarts is not None and options.workers is None:
        raise InputError("--max-restarts goes with --workers")
    if size > 1 and options.workers not in (None, size):
        raise InputError(
            f"--workers {options.workers}: TF_CONFIG describes a cluster of {size} workers, of which this is one; "
            "allowed: the same number, none, or no TF_CONFIG"
        )
    size = max(size, options.workers or 1)
    if options.worker_timeout is not None and size == 1:
        raise InputError("--worker-timeout goes with several workers")
    return size


def _check_device(device: str | None, size: int, config: Any) -> None:
    if device not in (None, "cpu", "gpu", "tpu"):
        raise InputError(f"--device {device}: allowed: cpu, gpu, tpu")
    if device == "tpu" and size > 1:
        raise InputError(f"--device tpu does not go with {size} workers: one process has the chip")
    if device == "tpu" and config.jit is False:
        raise InputError("config: jit: false is not possible with --device tpu; allowed: auto, true")


def _load_tensorflow(device: str | None, worker: _Worker) -> None:
    # Only for a process alone: a worker's steps are not compiled.
    load_tensorflow(keeps_loops=worker is None)
    if device is not None:
        from ctr.training.device import use_device

        use_device(device)


def _pass(options: Options, config: Any, worker: _Worker, begun: float) -> dict[str, Any]:
    from ctr.data.log import read_manifests

    _load_tensorflow(options.device, worker)
    with importing():
        from ctr.serving.export import export_from_run
        from ctr.training.session import Process, train
        from ctr.training.warm_start.start import InitFrom

    total = sum(manifest.rows for manifest in read_manifests(options.log))
    with closing(training_bar(total)) as bar, _joined(options, worker) as joined:
        return train(
            options.log,
            config,
            options.out,
            bar,
            options.record,
            export_from_run,
            InitFrom(options.init_from, cli_output.note) if options.init_from else None,
            Process(**joined, phase=bar.phase, begun=begun),
        )


def _follow(options: Options, config: Any, worker: _Worker, begun: float) -> "Followed":
    with ExitStack() as held:
        # Alone, a signal is noticed while TensorFlow loads.
        alone = held.enter_context(_joined(options, None)) if worker is None else {}
        _load_tensorflow(options.device, worker)
        from ctr.serving.export import export_from_run
        from ctr.training.follow import POLL_SECONDS, Polling, follow
        from ctr.training.session import Process
        from ctr.training.warm_start.start import InitFrom

        poll = POLL_SECONDS if options.poll is None else options.poll
        bar = held.enter_context(closing(training_bar(None)))
        joined = alone or held.enter_context(_joined(options, worker))
        return follow(
            options.log,
            config,
            options.out,
            polling=Polling(poll, options.stop_when_idle),
            progress=bar.lag,
            exporter=export_from_run,
            init_from=InitFrom(options.init_from, cli_output.note) if options.init_from else None,
            process=Process(**joined, phase=bar.phase, begun=begun),
        )


@contextmanager
def _joined(options: Options, worker: _Worker) -> Iterator[dict[str, Any]]:
    """Joins the other workers; yields keywords of ``Process``: the workers, and the stop signal."""
    if worker is None:
        with stop_signals() as stop:
            yield {"stop": stop}
        return
    global has_joined
    from ctr.workers.local import join

    has_joined = True
    cli_output.report("joining")
    workers = join(worker, options.worker_timeout or _TIMEOUT_SECONDS)
    # After that: TensorFlow takes SIGTERM for itself, and would only note it.
    with stop_signals() as stop:
        yield {"group": workers, "stop": stop}


def _launch(options: Options, size: int) -> None:
    from ctr.data.log import read_manifests
    from ctr.pipelines.processes import safe_environment
    from ctr.training.run.directory import WORKERS
    from ctr.workers.launch import MAX_RESTARTS, Launch, launch, threads_each

    total = None if options.follow else sum(manifest.rows for manifest in read_manifests(options.log))
    # TensorFlow's messages go to the workers' logs, unless these are in JSON.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3" if cli_output.says_json() else "0", **safe_environment()}
    kinds = set[str]()

    def newest_checkpoint() -> int:
        names = (path.name for path in options.out.glob("checkpoints/*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    with closing(Bar(total, "examples")) as bar:
        status = launch(
            Launch(
                command=[sys.executable, "-m", "ctr", *cli_output.command_words()],
                size=size,
                folder=options.out / WORKERS,
                environment={**environment, **threads_each(size, environment)},
                show=lambda reported: kinds.add(show_report(reported, bar)),
                say=log.warning,
                mark=newest_checkpoint,
                start_seconds=_START_SECONDS,
                max_restarts=MAX_RESTARTS if options.max_restarts is None else options.max_restarts,
            )
        )
    if status == 128 + signal.SIGINT and "stopped" not in kinds:
        raise KeyboardInterrupt
    if status:
        raise SystemExit(status)
