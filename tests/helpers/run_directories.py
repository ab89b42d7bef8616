"""Run directories made by hand, as a training run leaves them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.eval.windows import PASS, Sums

DAY = 86_400_000_000
CONFIG = {
    "seed": 1,
    "model": {"crosses": {"layers": 2, "rank": 16}, "deep": {"units": [64, 32]}, "widths": {}},
}
ENVIRONMENT = {"python": "3.11.7", "versions": {"numpy": "2.4.6"}, "cpu_count": 2}
COST = {
    "batches": 20,
    "skipped_steps": 0,
    "rejected_rows": 0,
    "nonfinite_predictions": 0,
    "parameters_dense": 1000,
    "parameters_embedding": 20_000,
    "examples_per_second": 5000.0,
    "step_ms_p50": 4.0,
}


def make_rows(seed: int, queries: int, click_rate: float = 0.3) -> pd.DataFrame:
    """A log, in its order: a week of queries of one to twelve rows."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 13, queries)
    rows = int(size.sum())
    return pd.DataFrame(
        {
            "example_id": rng.permutation(10 * rows)[:rows] - 5 * rows,
            "query_id": np.repeat(rng.permutation(queries) * 977, size),
            "query_time": np.repeat(1_760_000_000_000_000 + np.arange(queries) * 7 * DAY // queries, size),
            "label": (rng.random(rows) < click_rate).astype(np.int8),
            "train_weight": np.ones(rows, np.float32),
            "metric_weight": rng.choice([0.0, 1.0, 1.0, 2.5], rows).astype(np.float32),
            "position": np.concatenate([np.arange(count) for count in size]),
        }
    )


def predict(rows: pd.DataFrame, seed: int, skill: float) -> np.ndarray:
    """Logits that tell clicks from non-clicks, more or less."""
    noise = np.random.default_rng(seed).normal(size=len(rows))
    return (skill * (rows["label"].to_numpy() - 0.5) + noise - 1).astype(np.float32)


def write_run(
    folder: Path,
    rows: pd.DataFrame,
    logit: np.ndarray,
    *,
    windows: int = 3,
    parts: int = 3,
    slices: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
    log_sha256: str = "a" * 64,
    rejects: tuple[str, ...] = (),
    terms: tuple[str, ...] = ("logistic",),
    **summary: Any,
) -> Path:
    """Write a finished run.

    `parts` counts the files of predictions; `terms` are those of the loss; `summary` replaces entries of
    summary.json.
    """
    folder.mkdir(parents=True)
    total = ProgressiveMetrics(slices)
    lines = []
    timeline = Timeline()
    for part in cut_between_queries(rows, windows):
        window = ProgressiveMetrics(slices)
        ids = {name: part[name].to_numpy() for name in slices}
        columns = (part["label"], logit[part.index], part["metric_weight"], part["query_id"])
        window.update(*columns, ids)
        content = window.line()
        line = {
            "examples": int(part.index[-1]) + 1,
            "window_begin": int(part["query_time"].iloc[0]),
            "window_end": int(part["query_time"].iloc[-1]),
            "window_examples": content.pop("examples"),
            **content,
            "examples_per_second": 5000.0 + len(lines),
        }
        line |= {f"loss_{term}": 0.1 * place for place, term in enumerate(terms, 1)}
        timeline.add(window, line["examples"], (line["window_begin"], line["window_end"]))
        lines.append(line)
        total.merge(window)
    # The last window, cut short, has no rate.
    del lines[-1]["examples_per_second"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG if config is None else config))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (folder / "rejects.jsonl").write_text("".join(json.dumps({"reason": why}) + "\n" for why in rejects))
    sums = Sums()
    sums.add_metrics(PASS, total)
    sums.add_timeline(timeline)
    write_sums(folder, sums)
    hashes = {"config_sha256": "c" * 64, "log_sha256": log_sha256}
    features = {"position": {"kind": "category", "missing": 0.125, "out_of_range": None}}
    about = {"features": features, "slice_names": {"position": {"0": "id 0", "3": "third"}}}
    content = {**total.summary(), "log_rows": len(rows), **COST, **hashes, **about, **summary}
    (folder / "summary.json").write_text(json.dumps(content))
    write_predictions(
        folder, rows.drop(columns=["position", "hour"], errors="ignore").assign(logit=logit), parts
    )
    return folder


def write_sums(folder: Path, *more: Sums) -> None:
    """Write windows.parquet, or add to it."""
    path = folder / "windows.parquet"
    before = [pq.read_table(path)] if path.exists() else []
    table = pa.concat_tables([*before, *(sums.table() for sums in more)])
    pq.write_table(table, path, write_page_checksum=True)


def write_predictions(folder: Path, table: pd.DataFrame, parts: int) -> Path:
    """Write the predictions of a run, in so many files."""
    (folder / "predictions").mkdir(parents=True)
    for chunk in np.array_split(np.arange(len(table)), parts) if parts else []:
        path = folder / "predictions" / f"{chunk[-1] + 1:020d}.parquet"
        table.iloc[chunk].to_parquet(path, index=False)
    return folder


def write_plan(
    folder: Path, arms: dict[str, dict[str, Any]], *, baseline: str = "base", **plan: Any
) -> dict[str, Any]:
    """Write plan.json of an experiment: for each arm its entries that are no defaults. `plan` replaces entries."""
    content = {
        "title": "Every technique",
        "note": None,
        "log": "logs/clicks",
        "log_sha256": "a" * 64,
        "command": "ctr replay experiment.yaml --log logs/clicks --out out",
        "created": "2026-01-02T03:04:05Z",
        "ctr_version": "0.1.0",
        "baseline": baseline,
        "arms": [_planned(name, entries, baseline) for name, entries in arms.items()],
        **plan,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(content))
    return content


def run_folder(name: str, seed: int) -> str:
    """Where a planned run lies in the folder of its experiment."""
    return f"runs/{name}-seed-{seed}-0a1b2c"


def _planned(name: str, entries: dict[str, Any], baseline: str) -> dict[str, Any]:
    seeds = entries.get("seeds", [1, 2])
    return {
        "name": name,
        "title": name,
        "note": "",
        "against": None if name == baseline else baseline,
        "set": {},
        "paper": {},
        "seeds": seeds,
        "point": None,
        "of": None,
        "runs": [{"seed": seed, "folder": run_folder(name, seed)} for seed in seeds],
        "teacher": None,
        "sampling": None,
        **entries,
    }


def cut_between_queries(rows: pd.DataFrame, windows: int) -> list[pd.DataFrame]:
    starts = np.flatnonzero(rows["query_id"].diff() != 0)
    bounds = [part[0] for part in np.array_split(starts, windows)] + [len(rows)]
    return [rows.iloc[begin:end] for begin, end in pairwise(bounds)]
