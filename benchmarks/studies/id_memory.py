"""Measures the loss of accuracy when a table has fewer rows than ids: buckets against slots, by eviction policy.

    python benchmarks/study.py id_memory [--rows 3000000] [--seeds 1 2 3] [--out runs/id_memory] [--policies score ...]
        [--shares 0.5 0.25 ...] [--plot docs/images/id_memory.svg]

A simulated log has churn: users, items and terms appear, are active for a while and disappear; some are seen a thousand
times and most a few times, terms once or twice. Clicks depend on these ids alone, so that the rows of ids hold all that
a model can learn. Each run reports the logloss of the whole pass and the bytes of its ids: their rows with the
optimizer's state and, where ids grow, the map that finds them. Runs are compared in pairs, by query bucket, as in
`ctr compare`. Results are kept in OUT: repeating the command continues where it was interrupted, and the table and the
plot show all results there, so that seeds may have different policies and shares.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from reference import SLATE, category_schema, publish_log
from runner import cached_json, main

from ctr.config import parse_model
from ctr.eval.compare import compare
from ctr.eval.run_files import read_run
from ctr.io.hashing import splitmix64
from ctr.training.config import TrainConfig
from ctr.training.ids.id_map import id_arrays, make_id_maps
from ctr.training.run.directory import read_run_model
from ctr.training.session import train

DAY = 86_400_000_000
DAYS = 30
FEATURES = ("user", "item", "term")
WIDTH = 4
MODEL = {"crosses": {"layers": 0}, "deep": {"units": [32]}}
POLICIES = ("score", "least_recent", "least_frequent", "none")


def draw_ids(
    random: np.random.Generator, rows: int, ids: int, life: float, least: float = 0.05
) -> np.ndarray:
    """Draws the ids of a feature, int64 [rows], in the order of event time.

    Each id is active for about the share ``life`` of the log, from a random time on; active ids are drawn with weights
    from a heavy-tailed distribution, at least ``least``.
    """
    begin = random.uniform(-life, 1, ids)
    weight = random.pareto(1.1, ids) + least
    chosen = np.empty(rows, np.int64)
    steps = 300
    edges = np.linspace(0, rows, steps + 1).astype(np.int64)
    for step in range(steps):
        now = (step + 0.5) / steps
        active = np.flatnonzero((begin <= now) & (now < begin + life))
        odds = np.cumsum(weight[active])
        draws = random.uniform(0, odds[-1], edges[step + 1] - edges[step])
        chosen[edges[step] : edges[step + 1]] = active[np.searchsorted(odds, draws)]
    return chosen


def make_log(folder: Path, rows: int, seed: int, buckets: Sequence[int | None]) -> Path:
    """Writes a log whose raw ids depend on ``rows`` and ``seed`` alone; ids grow where ``buckets`` is None."""
    random = np.random.default_rng(seed)
    queries = rows // SLATE
    users = np.repeat(draw_ids(random, queries, rows, 0.15), SLATE)
    items = draw_ids(random, queries * SLATE, rows // 2, 0.1)
    terms = draw_ids(random, queries * SLATE, 3 * rows, 0.05, 2.0)
    together = users, items, terms
    effects = [1.2 * random.standard_normal(int(ids.max()) + 1)[ids] for ids in together]
    logit = sum(effects) - 2.2
    label = (random.random(len(users)) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    prints = [
        splitmix64(ids.astype(np.uint64) * np.uint64(len(together)) + np.uint64(n))
        for n, ids in enumerate(together)
    ]
    columns = [
        ids.view(np.int64) if size is None else (1 + ids % np.uint64(size - 1)).astype(np.int32)
        for ids, size in zip(prints, buckets, strict=True)
    ]
    schema = category_schema(dict(zip(FEATURES, buckets, strict=True)), width=WIDTH)
    publish_log(folder, schema, np.stack(columns, axis=1), label, DAYS * DAY // queries)
    np.save(folder / "distinct.npy", [len(np.unique(feature_ids)) for feature_ids in together])
    return folder


def id_memory(run: Path) -> tuple[int, int, int]:
    """Returns, for a finished run, the bytes of its tables with their optimizer state, their number of rows, and the
    bytes of the id maps in memory, 0 for buckets.
    """
    config, schema = read_run_model(run)
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as file:
        arrays = {name.removeprefix("weights|"): file[name] for name in file.files}
    kinds = {name: name.split("/")[0] for name in arrays}
    tables = sum(arrays[name].nbytes for name, kind in kinds.items() if kind.split("_")[0] == "rows")
    rows = sum(len(arrays[name]) for name, kind in kinds.items() if kind == "rows")
    maps = 0
    for layout in config.table_layouts(schema):
        if layout.growing:
            id_map = make_id_maps([layout], config.ids)[0]
            id_map.restore(id_arrays(layout, arrays))
            maps += id_map.nbytes
    return tables, rows, maps


def train_once(folder: Path, name: str, log: Path, seed: int, ids: Mapping[str, Any]) -> Path:
    """Trains over a log, without recording predictions; returns the run directory ``folder / name``."""
    content = {"seed": seed, "model": MODEL, "ids": ids, "record_predictions": False}
    train(log, parse_model(TrainConfig, content, name), folder / name)
    return folder / name


def describe(seed: int, policy: str, share: float, run: Path, against: Path) -> dict[str, Any]:
    """Returns a run's bytes, and its logloss compared with the run ``against``."""
    result, base = read_run(run), read_run(against)
    change = compare(base.metrics, result.metrics).loc["logloss"]
    tables, _, maps = id_memory(run)
    return {
        **{"seed": seed, "policy": policy, "share": share},
        "bytes": tables + maps,
        "logloss": result.number("logloss"),
        "examples_per_second": result.number("examples_per_second"),
        **{key: float(change[key]) for key in ("difference", "ci95_low", "ci95_high")},
    }


def measure_seed(
    folder: Path, rows: int, seed: int, policies: Sequence[str], shares: Sequence[float]
) -> None:
    """Makes the missing runs of a seed; each result is stored as RUN.json in ``folder``."""

    def log(name: str, buckets: Sequence[int | None]) -> Path:
        path = folder / f"log-{name}"
        if not (path / "distinct.npy").exists():
            shutil.rmtree(path, ignore_errors=True)
            make_log(path, rows, seed, buckets)
        return path

    def keep(policy: str, share: float, run: Path, against: Path) -> None:
        cached_json(folder / f"{run.name}.json", lambda: describe(seed, policy, share, run, against))

    growing = log("growing", (None,) * len(FEATURES))
    distinct = [int(number) for number in np.load(growing / "distinct.npy")]
    unbounded = train_once(folder, "unbounded", growing, seed, {"capacity": 2**24})
    keep("unbounded", 1.0, unbounded, unbounded)
    for share in shares:
        sizes = [max(2, round(share * number)) for number in distinct]
        capacities = {"capacities": dict(zip(FEATURES, sizes, strict=True))}
        for policy in policies:
            ids = {**capacities, "eviction": {"policy": policy}}
            keep(policy, share, train_once(folder, f"{policy}-{share}", growing, seed, ids), unbounded)
        if (folder / f"buckets-{share}.json").exists():
            continue
        best = folder / f"{policies[0]}-{share}"
        tables, count, maps = id_memory(best)
        # As many buckets as fit into the memory of slots with their map.
        more = (tables + maps) / tables * count / sum(sizes)
        buckets = log(f"buckets-{share}", [round(size * more) for size in sizes])
        keep("buckets", share, train_once(folder, f"buckets-{share}", buckets, seed, {}), best)
        shutil.rmtree(buckets)


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws logloss over memory for the first seed, a curve for each policy; the second plot is without ``none``."""
    first = [line for line in lines if line["seed"] == lines[0]["seed"]]
    (whole,) = (line for line in first if line["policy"] == "unbounded")
    with mpl.rc_context({"svg.hashsalt": "ids", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.subplots(1, 2)
        for number, policy in enumerate((*POLICIES, "buckets")):
            points = sorted(
                (line["bytes"] / 1e6, line["logloss"]) for line in first if line["policy"] == policy
            )
            if policy != "buckets":
                points.append((whole["bytes"] / 1e6, whole["logloss"]))
            for panel in axes if policy != "none" else axes[:1]:
                panel.plot(*zip(*points, strict=True), f"C{number}o-", markersize=4, label=policy)
        sizes = sorted({round(line["bytes"] / 1e6, 1) for line in first if line["policy"] != "none"})
        for panel in axes:
            panel.axhline(whole["logloss"], color="gray", linestyle=":", label="every id has a slot")
            panel.set(xscale="log", xlabel="memory of ids, MB", ylabel="progressive logloss")
            panel.set_xticks(sizes, [str(size) for size in sizes])
            panel.minorticks_off()
        axes[1].set_title("without none")
        axes[0].legend()
        figure.savefig(path, format="svg", metadata={"Date": None})


def report(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a row of means over seeds for each policy and share of the ids.

    Paired intervals of the logloss, one for each seed, are against the run without eviction; for buckets, against the
    slots of the first policy with the same memory.
    """
    base = {line["seed"]: line["logloss"] for line in lines if line["policy"] == "unbounded"}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault(f"{line['policy']}, slots / ids {line['share']:.4g}", []).append(line)
    results = {}
    for name, runs in groups.items():
        change = [100 * (line["logloss"] / base[line["seed"]] - 1) for line in runs]
        results[name] = {
            "megabytes": float(np.mean([line["bytes"] for line in runs])) / 1e6,
            "logloss": f"{np.mean([line['logloss'] for line in runs]):.5f}",
            "against_unbounded": f"{np.mean(change):+.3f}% ({min(change):+.3f}% to {max(change):+.3f}%)",
            "paired_intervals": [f"{line['ci95_low']:+.5f} to {line['ci95_high']:+.5f}" for line in runs],
        }
    return {"ids": results}


def measure(
    rows: int = 3_000_000,
    seeds: tuple[int, ...] = (1, 2, 3),
    out: Path = Path("runs/id_memory"),
    policies: tuple[str, ...] = POLICIES,
    shares: tuple[float, ...] = (0.5, 0.25, 0.125, 0.0625),
    plot: Path | None = None,
) -> dict[str, Any]:
    """Makes missing runs; the table and the plot, by default in ``out``, show all results in ``out``."""
    for seed in seeds:
        measure_seed(out / f"seed-{seed}", rows, seed, policies, shares)
    lines = [json.loads(path.read_text()) for path in out.glob("seed-*/*.json")]
    order = ["unbounded", *POLICIES, "buckets"]
    lines.sort(key=lambda line: (line["seed"], -line["share"], order.index(line["policy"])))
    draw(lines, plot or out / "id_memory.svg")
    return report(lines)


if __name__ == "__main__":
    main(measure, {"rows": 2000, "seeds": (1,), "policies": ("score",), "shares": (0.5,)})
