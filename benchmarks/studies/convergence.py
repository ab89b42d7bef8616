"""Compares how many steps dense-weight optimizers need to converge, in a single pass over a log.

    python benchmarks/study.py convergence [--out runs/convergence] [--optimizers NAME ...] [--batches 2048 8192]
    python benchmarks/study.py convergence --mind LOG     # LOG of examples/mind: the four main optimizers, equal steps

For each batch size, 2048 first:

1. *Sweep*: tunes dense rate, embedding rate and initial accumulator of every optimizer by one rule with equal numbers
   of tries (convergence_search.py), on a short simulated log, by the excess of its last half.
2. *Confirmation*: runs the winner, also with its dense rate doubled and halved, on a long log of another world; the
   best of these with further seeds. These runs give the steps to a baseline's final excess (convergence_curves.py).
3. *Ablations* of Shampoo + Nesterov at batch 2048, on the short log with another seed.

On MIND everything but the optimizer is as in examples/replay/mind.yaml; tuning, by the same rule, is by the logloss of
the first half of the log. Repeating the command continues after the last finished run. The excess is KL(truth ||
prediction), in nats x 1000; intervals are over queries (jackknife, 95%).
"""

import gc
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
from convergence_curves import (
    BINS,
    expected_excess,
    mean_ratio,
    relative_excess,
    smooth_levels,
    steps_ratio,
    sum_by_cell,
)
from convergence_search import EXTRA_TRIES, Point, best_point, is_settled, next_point
from convergence_settings import (
    BASELINES,
    HALF,
    MAIN,
    OPTIMIZERS,
    PARENT,
    QUICK,
    RETUNED,
    Plan,
    dense_settings,
    train_config,
)
from runner import cached_json, check_names, main

from ctr.config import load_model, parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.data.reader import read_rows
from ctr.data.sidecar import read_sidecar_partition
from ctr.eval.intervals import Estimate, difference, mean
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import prediction_parts, read_run
from ctr.eval.states import BUCKETS, query_bucket
from ctr.io.files import write_atomic
from ctr.simulator.simulate import TRUTH, simulate
from ctr.training.config import TrainConfig
from ctr.training.session import train

SWEEP_WORLD, CONFIRM_WORLD = 1, 2
SWEEP_SEED, ABLATION_SEED = 1, 2
START = Point(embedding=2, accumulator=-2)
"""Start of the search at the first batch size, with the optimizer's own dense rate: embedding rate 0.2, accumulator
1e-8."""
MIND = Path(__file__).resolve().parent.parent / "examples" / "replay" / "mind.yaml"
MIND_BATCHES, MIND_TRIES, MIND_LIMIT, MIND_SEEDS = (64, 512), 11, 19, (2, 3, 4)
MIND_START = Point(rate=0, embedding=2, accumulator=4)
"""Start of the search on MIND, near examples/replay/mind.yaml: rates 0.01 and 0.2, accumulator 0.01."""
METRICS = ("logloss", "per_query_auc")
Record = dict[str, Any]
Attempt = Callable[[str, Point], float]


@dataclass(frozen=True)
class SimulatedLog:
    """A simulated log and its truth."""

    folder: Path

    @cached_property
    def sha256(self) -> str:
        return log_sha256(read_manifests(self.folder))

    @cached_property
    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the example ids, int64 [N], and the true click probabilities, float64 [N]."""
        manifests = read_manifests(self.folder)
        parts = [read_sidecar_partition(self.folder, TRUTH, manifest) for manifest in manifests]
        ids, probability = (
            np.concatenate([part.column(name).to_numpy() for part in parts])
            for name in ("example_id", "probability")
        )
        return ids, probability.astype(np.float64)


def obtain_log(out: Path, plan: Plan, world: int, examples: int) -> SimulatedLog:
    """Returns the log of a world, which is simulated if absent."""
    folder, settings = out / "logs" / f"world-{world}-{examples}", plan.simulator(examples, world)
    done = folder.with_suffix(".json")
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        simulate(settings, folder)
    if cached_json(done, lambda: settings.model_dump(mode="json")) != settings.model_dump(mode="json"):
        raise SystemExit(f"{folder}: a log of other settings; use another --out")
    return SimulatedLog(folder)


def run_once(
    out: Path,
    log: Path,
    sha256: str,
    config: TrainConfig,
    title: str,
    measure_run: Callable[[Path, Path], Record],
) -> Record:
    """Returns the record of a configuration on a log; trains a run if there is no record.

    ``sha256`` is the log's; ``measure_run`` takes the run's folder and the path of a file for arrays.
    """
    content = json.dumps([sha256, config.model_dump(mode="json")], sort_keys=True)
    path = out / "runs" / f"{hashlib.sha256(content.encode()).hexdigest()[:20]}.json"

    def compute() -> Record:
        begun, ends = time.perf_counter(), []
        with tempfile.TemporaryDirectory(dir=out) as name:
            try:
                summary = train(log, config, Path(name) / "run", lambda *_: ends.append(time.perf_counter()))
            finally:
                # Keras and its graphs live in cycles; without this the memory of hundreds of runs adds up.
                tf.keras.backend.clear_session()
                gc.collect()
            measured = measure_run(Path(name) / "run", path.with_suffix(".npz"))
        # Without the first tenth of the steps, which includes compilation.
        late = ends[len(ends) // 10 :]
        step = 1000 * (late[-1] - late[0]) / (len(late) - 1) if len(late) > 1 else None
        record = {"title": title, "steps": summary["batches"], "ms_per_step": step, **measured}
        print(f"{title}: {measured}, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        return record

    return cached_json(path, compute) | {"arrays": str(path.with_suffix(".npz"))}


def measure_excess(log: SimulatedLog, run: Path, arrays: Path) -> Record:
    """Returns the excess of a run; writes its sums and the log's, by position and query bucket, to ``arrays``."""
    names = ["example_id", "query_id", "logit"]
    parts = [pq.read_table(path, columns=names) for path in prediction_parts(run)]
    example, query, logit = (
        np.concatenate([part.column(name).to_numpy() for part in parts]) for name in names
    )
    truth_of, probability = log.truth
    if not np.array_equal(example, truth_of):
        raise SystemExit(f"{run}: the predictions are not of the examples of {log.folder}")
    excess = 1000 * expected_excess(probability, logit.astype(np.float64))
    cell = np.arange(len(excess), dtype=np.int64) * BINS // len(excess) * BUCKETS + query_bucket(query)
    sums = {
        "excess": sum_by_cell(cell, excess),
        "examples": sum_by_cell(cell, np.ones(len(excess))),
        "control": sum_by_cell(cell, probability * (1 - probability)),
    }
    write_atomic(arrays, lambda file: np.savez_compressed(file, **sums))
    return {"excess": float(excess.mean()), "excess_half": float(excess[len(excess) // 2 :].mean())}


def measure_states(run: Path, arrays: Path) -> Record:
    """Returns the headline metrics of a run; writes the states of its metrics to ``arrays``."""
    metrics = read_run(run).metrics
    states = metrics.to_arrays()
    write_atomic(arrays, lambda file: np.savez_compressed(file, **states))
    headline = metrics.headline()
    return {name: headline[name] for name in METRICS}


def read_arrays(record: Record) -> dict[str, np.ndarray]:
    with np.load(record["arrays"]) as file:
        return dict(file)


def search_alike(starts: Mapping[str, Point], tries: int, limit: int, attempt: Attempt) -> dict[str, Point]:
    """Tunes all optimizers by one rule with the same number of tries; returns the best point of each.

    Args:
        starts: start of each optimizer's search.
        tries: number of tries for each optimizer.
        limit: maximum number of tries, if an optimizer is not settled before.
        attempt: makes a run of an optimizer at a point; returns a loss, infinite if it is not finite.
    """
    done: dict[str, dict[Point, float]] = {name: {} for name in starts}
    while True:
        for name, losses in done.items():
            while len(losses) < tries:
                point = next_point(losses, starts[name], OPTIMIZERS[name].accumulator)
                if point is None:
                    break
                value = attempt(name, point)
                losses[point] = value if np.isfinite(value) else float("inf")
        settled = (
            is_settled(losses, starts[name], OPTIMIZERS[name].accumulator) for name, losses in done.items()
        )
        if tries >= limit or all(settled):
            return {name: best_point(losses) for name, losses in done.items()}
        tries = min(tries + EXTRA_TRIES, limit)


class Simulated:
    """Runs on simulated logs, stored in a folder."""

    def __init__(self, out: Path, plan: Plan) -> None:
        self.out, self.plan = out, plan
        self._logs: dict[tuple[int, int], SimulatedLog] = {}

    def run(
        self,
        stage: str,
        name: str,
        batch: int,
        values: Mapping[str, float],
        seed: int,
        changes: Mapping[str, Any] | None = None,
    ) -> Record:
        """Returns the record of an optimizer's run; ``stage`` is ``sweep``, ``confirm`` or ``ablation``."""
        config = train_config(self.plan, OPTIMIZERS[name], batch, values, seed, changes or {})
        title = f"{stage} {OPTIMIZERS[name].title} batch {batch} seed {seed} {dict(values)} {changes or ''}"
        return self.run_config(stage, batch, config, title)

    def run_config(self, stage: str, batch: int, config: TrainConfig, title: str) -> Record:
        plan, is_long = self.plan, stage == "confirm"
        key = (CONFIRM_WORLD, plan.confirm_examples) if is_long else (SWEEP_WORLD, plan.sweep_examples[batch])
        log = self._logs[key] = self._logs.get(key) or obtain_log(self.out, plan, *key)
        return run_once(
            self.out,
            log.folder,
            log.sha256,
            config,
            title,
            lambda run, arrays: measure_excess(log, run, arrays),
        )

    def logistic_regression(self, batch: int) -> Record:
        """Returns the record of a logistic regression on the long log: its excess is what main effects alone leave."""
        linear = {"experts": ["linear"], "prior": self.plan.model["prior"]}
        values = START._replace(rate=OPTIMIZERS["adagrad"].start).values
        plan = replace(self.plan, model=linear)
        config = train_config(plan, OPTIMIZERS["adagrad"], batch, values, self.plan.seeds[0], {})
        return self.run_config("confirm", batch, config, "logistic regression")

    def confirm(self, name: str, batch: int, best: Point) -> list[Record]:
        """Chooses the best of several dense rates on the long log; returns its records, one for each seed."""
        first, *others = self.plan.seeds
        tried = {
            factor: self.run("confirm", name, batch, scaled(best, factor), first)
            for factor in self.plan.rates
        }
        factor = min(tried, key=lambda candidate: tried[candidate]["excess_half"])
        return [
            tried[factor],
            *(self.run("confirm", name, batch, scaled(best, factor), seed) for seed in others),
        ]

    def ablate(self, batch: int, best: Point) -> dict[str, Any]:
        """Returns the effects of changes to the tuned Shampoo + Nesterov on the excess of the last half."""
        results = {}
        base = self.run("ablation", "shampoo_nesterov", batch, best.values, ABLATION_SEED)
        theirs = read_arrays(base)["excess"][BINS // 2 :]
        for title, change in self.plan.ablations.items():
            for factor in (1.0, 2.0, 0.5) if title in RETUNED else (1.0,):
                record = self.run(
                    "ablation", "shampoo_nesterov", batch, scaled(best, factor), ABLATION_SEED, change
                )
                relative = relative_excess([theirs], [read_arrays(record)["excess"][BINS // 2 :]])
                row = title if factor == 1 else f"{title}, rate x {factor:g}"
                results[row] = {"excess_half": record["excess_half"], "relative": cell(relative)}
        return results


def scaled(point: Point, factor: float) -> dict[str, float]:
    return point.values | {"rate": float(f"{point.values['rate'] * factor:.3g}")}


def cell(estimate: Estimate) -> dict[str, float]:
    low, high = estimate.interval()
    return {"ratio": float(estimate.point), "low": float(low), "high": float(high)}


def steps_table(runs: Mapping[str, list[Record]]) -> dict[str, dict[str, Any]]:
    """Returns the steps of optimizers relative to each baseline, as geometric means over seeds and by seed."""
    arrays = {name: [read_arrays(record) for record in records] for name, records in runs.items()}
    first = next(iter(arrays.values()))[0]
    curves = np.stack([sums["excess"] for run_arrays in arrays.values() for sums in run_arrays])
    smooth = iter(smooth_levels(curves, first["examples"], first["control"]))
    levels = {name: [next(smooth) for _ in run_arrays] for name, run_arrays in arrays.items()}
    results: dict[str, dict[str, Any]] = {}
    for name, records in runs.items():
        row = results[name] = {"excess": float(np.mean([record["excess"] for record in records]))}
        for baseline in BASELINES:
            if baseline in runs and name != baseline and not (name in BASELINES and baseline != BASELINES[0]):
                ratios = [steps_ratio(a, b) for a, b in zip(levels[baseline], levels[name], strict=True)]
                row[f"steps_over_{baseline}"] = cell(mean_ratio(ratios))
                row[f"by_seed_over_{baseline}"] = [float(ratio[0]) for ratio in ratios]
        row["ms_per_step"] = float(np.mean([record["ms_per_step"] or np.nan for record in records]))
    return results


def simulated(out: Path, plan: Plan, optimizers: tuple[str, ...]) -> dict[str, Any]:
    """Runs the sweep, the confirmation and the ablations on simulated logs at each batch size."""
    campaign, results = Simulated(out, plan), {}
    best: dict[int, dict[str, Point]] = {}
    for batch in plan.batches:
        before = best.get(PARENT.get(batch, -1), {})
        starts = {name: before.get(name, START._replace(rate=OPTIMIZERS[name].start)) for name in optimizers}

        def attempt(name: str, point: Point, batch: int = batch) -> float:
            return campaign.run("sweep", name, batch, point.values, SWEEP_SEED)["excess_half"]

        best[batch] = search_alike(starts, plan.tries, plan.limit, attempt)
        runs = {name: campaign.confirm(name, batch, point) for name, point in best[batch].items()}
        results[f"batch {batch}"] = steps_table(runs)
        if batch in plan.ablation_batches and "shampoo_nesterov" in optimizers:
            ablations = campaign.ablate(batch, best[batch]["shampoo_nesterov"])
            results[f"ablations of Shampoo + Nesterov, batch {batch}"] = ablations
    linear = campaign.logistic_regression(plan.batches[0])
    return {"logistic regression's excess": linear["excess"], **results}


def mind_config(name: str, batch: int, point: Point, seed: int, end: str | None) -> TrainConfig:
    """Returns the configuration of a run on MIND, whose log is read up to the time ``end``; None: to its end."""
    base = load_model(TrainConfig, MIND, "config").model_dump(mode="json")
    rows = {"rows": batch, "max_query_rows": max(batch, base["batch"]["max_query_rows"])}
    embeddings = {**base["optimizer"]["embeddings"], "learning_rate": point.values["embedding"]}
    content = {
        **base,
        "seed": seed,
        "batch": {**base["batch"], **rows},
        "optimizer": {
            "embeddings": embeddings,
            "dense": dense_settings(OPTIMIZERS[name], point.values, {}),
        },
        "metrics": {"window_examples": 2**40},
        "checkpoint": {"every_examples": 2**40, "keep": 1},
        **({} if end is None else {"time_range": {"end": end}}),
    }
    return parse_model(TrainConfig, content, "benchmark")


def on_mind(out: Path, log: Path, batches: tuple[int, ...], quick: bool) -> dict[str, Any]:
    """Tunes the main optimizers on the first half of a real log; returns metrics of whole passes with other seeds."""
    manifests = read_manifests(log)
    sha256 = log_sha256(manifests)
    times = np.concatenate([rows.query_time for rows in read_rows(log, read_schema(log), manifests)])
    half = f"{np.datetime64(int(times[len(times) // 2]), 'us')}+00:00"
    tries, limit, seeds = (1, 1, (2,)) if quick else (MIND_TRIES, MIND_LIMIT, MIND_SEEDS)

    def run(name: str, batch: int, point: Point, seed: int, end: str | None) -> Record:
        title = f"mind {OPTIMIZERS[name].title} batch {batch} seed {seed} {point.values}"
        return run_once(out, log, sha256, mind_config(name, batch, point, seed, end), title, measure_states)

    results = {}
    for batch in batches or MIND_BATCHES:

        def attempt(name: str, point: Point, batch: int = batch) -> float:
            return run(name, batch, point, SWEEP_SEED, half)["logloss"]

        best = search_alike(dict.fromkeys(MAIN, MIND_START), tries, limit, attempt)
        estimates = {}
        for name, point in best.items():
            records = [read_arrays(run(name, batch, point, seed, None)) for seed in seeds]
            of_seeds = [ProgressiveMetrics.from_arrays(arrays).estimates() for arrays in records]
            estimates[name] = {metric: mean([of_seed[metric] for of_seed in of_seeds]) for metric in METRICS}
        rows: dict[str, dict[str, Any]] = {}
        for name, by_metric in estimates.items():
            rows[name] = {metric: f"{float(by_metric[metric].point):.5f}" for metric in METRICS}
            for metric in METRICS if name != BASELINES[0] else ():
                change = difference(estimates[BASELINES[0]][metric], by_metric[metric])
                low, high = change.interval()
                rows[name][f"{metric}_change"] = f"{float(change.point):+.5f} [{low:+.5f}, {high:+.5f}]"
        results[f"MIND, batch {batch}"] = rows
    return results


def measure(
    out: Path = Path("runs/convergence"),
    mind: Path | None = None,
    optimizers: tuple[str, ...] = MAIN,
    batches: tuple[int, ...] = (),
    small: bool = False,
) -> dict[str, Any]:
    """Runs the study on simulated logs, or on MIND; ``small`` only shows that it works."""
    check_names("optimizer", optimizers, tuple(OPTIMIZERS))
    out.mkdir(parents=True, exist_ok=True)
    if mind is not None:
        return on_mind(out, mind, batches, small)
    plan = QUICK if small else HALF
    return simulated(out, replace(plan, batches=batches or plan.batches), optimizers)


if __name__ == "__main__":
    main(measure, {"small": True})
