"""The four optimizers on a real log at equal steps: MIND, made by ``ctr ingest mind``.

Everything but the optimizer is examples/replay/mind.yaml. Tuned by the rule of the simulated logs, with seed 1, by the
logloss of the first half of the log: such a run ends there and never sees the rest. The winners then make the
whole pass with other seeds. Differences are paired by query bucket and averaged over the seeds.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from convergence_campaign import Clock, Sweep, search_alike
from convergence_search import Point
from convergence_settings import BASELINES, MAIN, OPTIMIZERS, dense_settings, run_key
from convergence_store import Record, Store, train_fresh

from ctr.config import load_model, parse_model
from ctr.data.log import log_sha256, read_manifests
from ctr.eval.intervals import Estimate
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import prediction_parts
from ctr.io.files import write_atomic
from ctr.training.config import TrainConfig

MIND_BATCHES = (64, 512)
TRIES, LIMIT = 11, 19
TUNING_SEED, SEEDS = 1, (2, 3, 4)
START = Point(rate=0, embedding=2, accumulator=4)
"""Near examples/replay/mind.yaml: 0.01, 0.2, 0.01."""

_BASE = Path(__file__).resolve().parent.parent / "examples" / "replay" / "mind.yaml"
_SHOWN = ("logloss", "per_query_auc")


class _HalfDoneError(Exception):
    """Ends a pass after the first half of the log."""


@dataclass
class MindResults:
    """What is there: by batch and optimizer the tries, and the whole passes by seed."""

    sweeps: dict[int, dict[str, Sweep]] = field(default_factory=dict)
    runs: dict[int, dict[str, dict[int, Record]]] = field(default_factory=dict)


class MindCampaign:
    """The runs on the real log.

    Args:
        log: made by ``ctr ingest mind``.
        store: keeps the records.
        compute: whether runs that are missing are made.
        changes: of the options of all Shampoo runs.
        say: shows a line.
        quick: one try and one seed each, at a large batch.
    """

    def __init__(
        self,
        log: Path,
        store: Store,
        compute: bool,
        changes: Mapping[str, Any],
        say: Callable[[str], None],
        quick: bool = False,
    ) -> None:
        self._log = log
        self._store = store
        self._compute = compute
        self._changes = changes
        self._clock = Clock(store.records, say)
        self._batches = (8192,) if quick else MIND_BATCHES
        self._tries, self._limit = (1, 1) if quick else (TRIES, LIMIT)
        self._seeds: tuple[int, ...] = (2,) if quick else SEEDS
        self._base = load_model(TrainConfig, _BASE, "config").model_dump(mode="json")
        manifests = read_manifests(log)
        self._sha256 = log_sha256(manifests)
        self._rows = sum(manifest.rows for manifest in manifests)

    def run(self) -> MindResults:
        """Tunes and runs everything, or collects what is there."""
        results = MindResults()
        half = self._rows // 2
        for batch in self._batches:
            for name in MAIN:
                self._clock.plan(name, batch, half, self._tries)
                self._clock.plan(name, batch, self._rows, len(self._seeds))
        for batch in self._batches:
            run = partial(self._try, batch)
            starts = dict.fromkeys(MAIN, START)
            results.sweeps[batch] = search_alike(starts, self._tries, self._limit, run)
            results.runs[batch] = {}
            for name, sweep in results.sweeps[batch].items():
                records = {
                    seed: self._obtain(name, batch, sweep.best, seed, half=False) for seed in self._seeds
                }
                kept = {seed: record for seed, record in records.items() if record is not None}
                if kept:
                    results.runs[batch][name] = kept
        return results

    def _try(self, batch: int, name: str, point: Point) -> Record | None:
        return self._obtain(name, batch, point, TUNING_SEED, half=True)

    def _config(self, name: str, batch: int, point: Point, seed: int, half: bool) -> TrainConfig:
        content = {**self._base, "seed": seed, "batch": {**self._base["batch"], "rows": batch}}
        content["batch"]["max_query_rows"] = max(batch, content["batch"]["max_query_rows"])
        optimizer = OPTIMIZERS[name]
        changes = self._changes if optimizer.precondition else {}
        content["optimizer"] = {
            "embeddings": {
                **self._base["optimizer"]["embeddings"],
                "learning_rate": point.values["embedding"],
            },
            "dense": dense_settings(optimizer, batch, point.values, changes),
        }
        content["metrics"] = {"window_examples": 2**40}
        # The predictions up to a checkpoint are on disk: those of the first half are all that is needed.
        content["checkpoint"] = {"every_examples": self._rows // 2 if half else 2**40, "keep": 1}
        return parse_model(TrainConfig, content, "benchmark")

    def _obtain(self, name: str, batch: int, point: Point, seed: int, half: bool) -> Record | None:
        config = self._config(name, batch, point, seed, half)
        key = run_key(config, self._sha256)
        examples = self._rows // 2 if half else self._rows
        record = self._store.records.get(key)
        if record is None and not self._compute:
            return None
        text = None
        if record is None:
            record = self._run(key, config, half)
            facts = {"key": key, "stage": "mind", "optimizer": name, "batch": batch, **point.values}
            changes = self._changes if OPTIMIZERS[name].precondition else {}
            facts |= {"changes": dict(changes), "title": "first half" if half else "whole"}
            record = {**facts, "seed": seed, "log": self._sha256, **record}
            self._store.add(record)
            text = f"mind {facts['title']} {OPTIMIZERS[name].title} batch {batch} seed {seed}: {point.values}"
            text += f" -> first half logloss {record['half_logloss']:.5f}, {record['seconds']} s"
        self._clock.done(name, batch, examples, text)
        return {**record, "objective": record["half_logloss"]}

    def _run(self, key: str, config: TrainConfig, half: bool) -> Record:
        folder = self._store.folder / "present"
        facts: Record = {}
        past_half = False

        def stop(position: int) -> None:
            # The first batch that ends past the middle is followed by a checkpoint; the next one ends it all.
            nonlocal past_half
            if half and past_half:
                raise _HalfDoneError
            past_half = position >= self._rows // 2

        begun = time.perf_counter()
        # A log of a single batch ends before it can be stopped.
        with suppress(_HalfDoneError):
            facts = train_fresh(self._log, config, folder, self._rows, stop)[0]
        seconds = time.perf_counter() - begun
        metrics = _metrics_of(folder, self._rows // 2)
        headline = metrics["half"].headline()
        facts |= {f"half_{name}": headline[name] for name in _SHOWN}
        facts |= {"examples": self._rows // 2 if half else self._rows, "seconds": round(seconds, 2)}
        if not half:
            arrays = {
                f"{part}|{name}": array
                for part, states in metrics.items()
                for name, array in states.to_arrays().items()
            }
            path = self._store.folder / "mind" / f"{key}.npz"
            write_atomic(path, lambda file: np.savez_compressed(file, **arrays))
        shutil.rmtree(folder)
        return facts


def _metrics_of(folder: Path, half: int) -> dict[str, ProgressiveMetrics]:
    """The metrics of the queries that begin in the first half, and of all that were recorded."""
    names = ["query_id", "label", "metric_weight", "logit"]
    parts = [pq.read_table(path, columns=names) for path in prediction_parts(folder)]
    query, label, weight, logit = (
        np.concatenate([part.column(name).to_numpy() for part in parts]) for name in names
    )
    begins = np.flatnonzero(np.diff(query, prepend=query[0] - 1))
    after = begins[begins >= half]
    end = int(after[0]) if len(after) else len(query)
    found = {}
    for name, stop in (("half", end), ("whole", len(query))):
        found[name] = ProgressiveMetrics()
        found[name].update(label[:stop], logit[:stop], weight[:stop], query[:stop])
    return found


def _estimates(store: Store, record: Record, part: str) -> dict[str, Estimate]:
    with np.load(store.folder / "mind" / f"{record['key']}.npz") as file:
        arrays = {name.partition("|")[2]: file[name] for name in file.files if name.partition("|")[0] == part}
    return ProgressiveMetrics.from_arrays(arrays).estimates()


def _mean_difference(ours: list[Estimate], theirs: list[Estimate]) -> Estimate:
    point = np.mean([a.point - b.point for a, b in zip(ours, theirs, strict=True)], axis=0)
    replicates = np.mean([a.replicates - b.replicates for a, b in zip(ours, theirs, strict=True)], axis=0)
    return Estimate(point, replicates, ours[0].occupied)


def mind_report(results: MindResults, store: Store) -> str:
    """The tables, as Markdown."""
    lines = ["## MIND at equal steps"]
    for batch, runs in results.runs.items():
        lines += ["", f"### Batch {batch}", ""]
        head = ["optimizer", "rate", "embedding", "accumulator", "seeds", "ms/step"]
        head += [f"{part} {name}" for part in ("half", "whole") for name in _SHOWN]
        lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        estimates = {
            (name, part): [_estimates(store, record, part) for record in records.values()]
            for name, records in runs.items()
            for part in ("half", "whole")
        }
        for name, records in runs.items():
            one = next(iter(records.values()))
            cells = [OPTIMIZERS[name].title, *(f"{one[key]:g}" for key in ("rate", "embedding"))]
            cells += [f"{one['accumulator']:g}", str(len(records))]
            cells.append(f"{np.mean([record['ms_per_step'] for record in records.values()]):.2f}")
            for part in ("half", "whole"):
                for metric in _SHOWN:
                    values = [float(found[metric].point) for found in estimates[name, part]]
                    cells.append(f"{np.mean(values):.5f} ± {np.ptp(values) / 2:.5f}")
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", "Differences, mean over seeds, paired 95% intervals:", ""]
        head = ["", *(f"{part} {name}" for part in ("half", "whole") for name in _SHOWN)]
        lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for baseline in BASELINES:
            for name in runs:
                if name in BASELINES[: BASELINES.index(baseline) + 1] or baseline not in runs:
                    continue
                cells = [f"{OPTIMIZERS[name].title} − {OPTIMIZERS[baseline].title}"]
                pairs = min(len(runs[name]), len(runs[baseline]))
                for part in ("half", "whole"):
                    for metric in _SHOWN:
                        paired = _mean_difference(
                            [found[metric] for found in estimates[name, part][:pairs]],
                            [found[metric] for found in estimates[baseline, part][:pairs]],
                        )
                        low, high = paired.interval()
                        cells.append(f"{paired.point:+.5f} [{low:+.5f}, {high:+.5f}]")
                lines.append("| " + " | ".join(cells) + " |")
    for batch, sweeps in results.sweeps.items():
        for name, sweep in sweeps.items():
            lines += ["", f"Tries, batch {batch}, {OPTIMIZERS[name].title} (logloss of the first half):", ""]
            lines += ["| rate | embedding | accumulator | logloss |", "|---|---|---|---|"]
            for point, record in sorted(sweep.tries.items(), key=lambda item: item[1]["objective"]):
                tried = point.values
                lines.append(
                    f"| {tried['rate']:g} | {tried['embedding']:g} | {tried['accumulator']:g} "
                    f"| {record['objective']:.5f} |"
                )
    return "\n".join(lines)
