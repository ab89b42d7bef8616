"""How far the predictions of two trainings of one model differ (FF section 5), what lowers it, and what that costs.

    python benchmarks/reproducibility.py --out runs/reproducibility [--mind LOG] [--arms "smelu*"] [--report]

Each arm is trained on the same log with several seeds; of each pair of seeds, PD is the mean of abs(p1 - p2) over
their mean, over progressive predictions. Under *varied* all fresh weights follow the seed, under *fixed* those of the
embeddings are the same in all runs, so that only the network differs. The arms: ReLU; SmeLU for several beta; swish
and GELU; ensembles of three components on shared or separate embeddings, alone, pushed apart by anti-distillation,
and with SmeLU; a logistic regression, which has no fresh weights. Of each arm also PerQueryAUC, AUC and logloss
against ReLU at the same seeds, with paired intervals, and the time of a step.

Two processes train side by side, each on one thread: more in total than one run on two threads. The same command
again goes on after the last finished run; ``--report`` computes nothing and tells of what is there. Beside the
tables that are printed, OUT/NAME.csv (arms), OUT/NAME-pairs.csv (pairs of seeds) and OUT/NAME.svg, the frontier.
With ``--steps`` nothing is trained: the steps of all arms are timed by turns on one thread, for the last column.
"""

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import tensorflow as tf
from reproducibility_plot import frontier_svg
from reproducibility_report import CONDITIONS, HALF, Group, write_half, write_report

from ctr.config import apply_settings, parse_model, read_yaml
from ctr.data.batches import whole_query_batches
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.pipelines.replay_config import merged
from ctr.pipelines.replay_plan import settings_key
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run_directory import write_json
from ctr.training.step_times import TimedModel, by_turns

_MIND = Path(__file__).resolve().parent.parent / "examples" / "mind.yaml"
_NEVER = 2**40
_TIMED_BATCHES, _ROUNDS = 10, 15
_RUNS_OF_A_PROCESS = 16
"""Then new processes go on: TensorFlow keeps some memory of every model."""
BASE = "relu"

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A log and what is compared on it.

    Attributes:
        title: of its section of the report.
        model: the configuration of the base arm but for seeds.
        betas: of SmeLU.
        weights: of anti-distillation.
        beta: of the SmeLU that is in an ensemble.
        usual: patterns of the arms that are trained unless others are asked for.
    """

    title: str
    model: Changes
    betas: tuple[float, ...]
    weights: tuple[float, ...]
    beta: float
    usual: tuple[str, ...]

    def arms(self) -> dict[str, Changes]:
        """What each arm changes of the base, as nested keys."""
        ramp = self.model["model"]["crosses"]["ramp"]
        separate = {"ensemble": {"components": 3, "embeddings": "separate"}}
        shared = {"ensemble": {"components": 3, "embeddings": "shared"}}
        arms: dict[str, Changes] = {BASE: {}}
        arms |= {f"smelu {beta:g}": {"model": {"deep": _smelu(beta)}} for beta in self.betas}
        arms |= {name: {"model": {"deep": {"activation": name}}} for name in ("swish", "gelu")}
        arms |= {"ensemble shared": {"model": shared}, "ensemble separate": {"model": separate}}
        for weight in self.weights:
            pushed = {"anti_distillation": {"weight": weight, "ramp": ramp}}
            arms[f"anti-distillation {weight:g}"] = {"model": separate, "objective": pushed}
        arms[f"ensemble + smelu {self.beta:g}"] = {"model": {**separate, "deep": _smelu(self.beta)}}
        arms["logistic regression"] = {"model": {"crosses": {"layers": 0}, "deep": {"units": []}}}
        return arms


def _smelu(beta: float) -> dict[str, Any]:
    return {"activation": "smelu", "smelu_beta": beta}


SIMULATED = Study(
    title="Simulated log",
    model={
        "batch": {"rows": 512},
        # Faster here than bfloat16, and the same on every processor.
        "compute_dtype": "float32",
        "model": {
            "prior": 0.08,
            "crosses": {"layers": 2, "rank": 32, "ramp": {"length": 50_000}},
            "deep": {"units": [256, 128, 64]},
        },
    },
    betas=(0.1, 0.25, 0.5, 1, 2, 4),
    weights=(0.001, 0.01, 0.1),
    beta=1,
    usual=("*",),
)
"""A DCNv2 whose network is large enough that ReLU's PD is of FF's size."""

MIND = Study(
    title="MIND",
    model=read_yaml(_MIND, "config"),
    betas=(0.1, 0.5, 2),
    weights=(0.0001, 0.001),
    beta=0.5,
    usual=("smelu *", "ensemble separate", "anti-distillation *"),
)
"""The model of examples/mind.yaml."""


def config_of(study: Study, changes: Changes, seed: int, embedding_seed: int) -> TrainConfig:
    """The configuration of a run. Where the two seeds are equal, the second one is not named."""
    content = merged({**study.model, "seed": seed}, changes)
    if embedding_seed != seed:
        content = merged(content, {"model": {"embedding_seed": embedding_seed}})
    content = merged(content, {"checkpoint": {"every_examples": _NEVER, "keep": 1}})
    return parse_model(TrainConfig, content, "benchmark")


@dataclass(frozen=True)
class Job:
    """A run that is to be made.

    Attributes:
        name: what is told of it.
        log: to train on.
        config: to train.
        folder: the run directory.
    """

    name: str
    log: Path
    config: TrainConfig
    folder: Path

    @property
    def done(self) -> bool:
        """Whether it is there."""
        return (self.folder / HALF).exists()


def wanted_arms(study: Study, wanted: Sequence[str]) -> dict[str, Changes]:
    """The base and the arms whose names fit a pattern.

    Raises:
        SystemExit: a pattern fits no arm.
    """
    arms = study.arms()
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in arms):
            raise SystemExit(f"--arms {pattern}: no such arm; allowed: {', '.join(arms)}, and patterns")
    return {
        name: changes
        for name, changes in arms.items()
        if name == BASE or any(fnmatchcase(name, pattern) for pattern in wanted)
    }


def plan(
    study: Study,
    log: Path,
    folder: Path,
    wanted: Sequence[str],
    seeds: Sequence[int],
    conditions: Sequence[str],
) -> tuple[list[Job], list[Group]]:
    """The runs, the first seeds of all arms before the next ones, and how they belong together.

    Args:
        study: what is compared.
        log: to train on.
        folder: where the run directories are.
        wanted: patterns of names of arms; the base is always among them.
        seeds: of the runs; under *fixed* the first one is that of all embeddings.
        conditions: of ``CONDITIONS``.

    Raises:
        SystemExit: a pattern fits no arm.
    """
    arms = wanted_arms(study, wanted)
    jobs: dict[Path, Job] = {}
    runs: dict[tuple[str, str], dict[int, Path]] = {}
    for seed in seeds:
        for name, changes in arms.items():
            for condition in conditions:
                embedding_seed = seed if condition == "varied" else seeds[0]
                config = config_of(study, changes, seed, embedding_seed)
                if not config.model.has_network and condition == "fixed":
                    continue  # It has no embeddings.
                run = folder / f"{name.replace(' ', '-')}-seed-{seed}-{settings_key(config)}"
                text = f"{study.title}: {name}, seed {seed}, embeddings {embedding_seed}"
                jobs[run] = Job(text, log, config, run)
                runs.setdefault((name, condition), {})[seed] = run
    groups = [Group(name, condition, made) for (name, condition), made in runs.items()]
    return list(jobs.values()), groups


def train_job(job: Job) -> tuple[float | None, float]:
    """Trains, in a process of its own; returns PerQueryAUC, and the seconds it took."""
    begun = time.perf_counter()
    try:
        summary = train(job.log, job.config, job.folder)
    finally:
        # Keras and its graphs live in cycles; without this the memory of many runs adds up.
        tf.keras.backend.clear_session()
        gc.collect()
    write_half(job.folder)
    # Nothing goes on from here, and most of a run's bytes are its tables.
    shutil.rmtree(job.folder / "checkpoints")
    return summary["per_query_auc"], time.perf_counter() - begun


def train_all(jobs: Sequence[Job], processes: int, threads: int) -> None:
    """Makes the runs that are not there yet.

    Raises:
        SystemExit: some failed; the others were made.
    """
    left = [job for job in jobs if not job.done]
    begun = time.perf_counter()
    count = failed = 0
    share = processes * _RUNS_OF_A_PROCESS
    for start in range(0, len(left), share):
        for job, error, told in _train_side_by_side(left[start : start + share], processes, threads):
            count, failed = count + 1, failed + error
            minutes = (time.perf_counter() - begun) / count * (len(left) - count) / 60
            head = f"[{count}/{len(left)}, {minutes:.0f} min left]"
            print(f"{head} {job.name}: {told}", file=sys.stderr, flush=True)
    if failed:
        raise SystemExit(f"{failed} of {len(left)} runs failed; the same command tries them again")


def _processes(count: int, threads: int) -> ProcessPoolExecutor:
    """New processes, in each of which TensorFlow's operations have so many threads."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def _train_side_by_side(jobs: Sequence[Job], processes: int, threads: int) -> Iterator[tuple[Job, bool, str]]:
    """Each job as it ends, whether it failed, and what is told of it."""
    with _processes(processes, threads) as pool:
        running = {pool.submit(train_job, job): job for job in jobs}
        try:
            for future in as_completed(running):
                error = future.exception()
                if error is None:
                    accuracy, seconds = future.result()
                    shown = "none" if accuracy is None else f"{accuracy:.5f}"
                    yield running[future], False, f"PerQueryAUC {shown}, {seconds:.0f} s"
                else:
                    yield running[future], True, " ".join(f"{type(error).__name__}: {error}".split())
        finally:
            pool.shutdown(cancel_futures=True)


def time_steps(study: Study, log: Path, wanted: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Times the steps of the arms by turns (``step_times.by_turns``) on the first batches of a log."""
    # As it is after the first few hundred steps, in which training waits for more frequent roots.
    late = {"optimizer": {"dense": {"shampoo": {"early_growth": 0}}}}
    configs = {
        name: config_of(study, merged(changes, late), seed=1, embedding_seed=1)
        for name, changes in wanted_arms(study, wanted).items()
    }
    batch, schema = configs[BASE].batch, read_schema(log)
    blocks = read_selection(log, schema, read_manifests(log), Selection())
    batches = list(islice(whole_query_batches(blocks, batch.rows, batch.largest_query), _TIMED_BATCHES))
    models = {name: TimedModel(config, schema, batches) for name, config in configs.items()}
    return by_turns({name: model.seconds for name, model in models.items()}, BASE, rounds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/reproducibility"), help="where logs, runs and results are kept"
    )
    parser.add_argument("--mind", type=Path, help="a log made by `ctr ingest mind`")
    parser.add_argument("--examples", type=int, default=500_000, help="of the simulated log")
    parser.add_argument("--only", choices=("simulated", "mind"), help="one of the two")
    parser.add_argument("--arms", nargs="+", metavar="PATTERN", help="these beside relu: 'smelu*' ensemble*")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the runs of each arm")
    parser.add_argument(
        "--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), help="how embeddings start"
    )
    parser.add_argument("--betas", nargs="+", type=float, help="of SmeLU, instead of the usual ones")
    parser.add_argument("--weights", nargs="+", type=float, help="of anti-distillation, likewise")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of all arms' configuration"
    )
    parser.add_argument("--processes", type=int, default=2, help="that train side by side")
    parser.add_argument("--threads", type=int, default=1, help="of TensorFlow's operations, for each of them")
    parser.add_argument("--steps", action="store_true", help="train nothing, time the steps of the arms")
    parser.add_argument("--report", action="store_true", help="compute nothing, tell of what is there")
    arguments = parser.parse_args(argv)
    if len(set(arguments.seeds)) < 2:
        parser.error("--seeds: at least two different ones make a pair")
    studies = []
    if arguments.only != "mind":
        log = arguments.out / f"log-{arguments.examples}"
        if not arguments.report:
            simulate(SimulatorConfig(examples=arguments.examples, seed=7, drift=0.03), log)
        studies.append((SIMULATED, log, f"simulated-{arguments.examples}"))
    if arguments.mind is not None and arguments.only != "simulated":
        studies.append((MIND, arguments.mind, f"mind-{log_sha256(read_manifests(arguments.mind))[:12]}"))
    for study, log, name in studies:
        study = replace(study, model=apply_settings(study.model, arguments.set))
        if arguments.betas:
            study = replace(study, betas=tuple(arguments.betas), beta=arguments.betas[0])
        if arguments.weights:
            study = replace(study, weights=tuple(arguments.weights))
        folder, wanted = arguments.out / name, arguments.arms or study.usual
        jobs, groups = plan(study, log, folder, wanted, arguments.seeds, arguments.conditions)
        times = folder.with_name(f"{name}-steps.json")
        steps = json.loads(times.read_text()) if times.exists() else {}
        if arguments.steps:
            with _processes(1, arguments.threads) as pool:
                steps |= pool.submit(time_steps, study, log, wanted, _ROUNDS).result()
            write_json(times, steps)
        elif not arguments.report:
            train_all(jobs, arguments.processes, arguments.threads)
        done = {job.folder for job in jobs if job.done}
        text, measured = write_report(groups, done, BASE, steps, folder)
        print(f"## {study.title}\n\n{text}\n", flush=True)
        frontier_svg(measured, BASE, folder.with_suffix(".svg"))


if __name__ == "__main__":
    main()
