"""What a table of ids loses when it has less memory than ids: buckets against slots, by policy of eviction.

    python benchmarks/id_memory.py [--rows 3000000] [--seeds 1 2 3] [--out runs/id_memory] [--policies score ...]
        [--shares 0.5 0.25 ...] [--plot docs/id_memory.svg]

A simulated log with churn: users, items and terms come, are active for a while and go; some are seen a thousand times
and most a few times, terms once or twice. What is clicked depends on these ids alone, so that all that a model can know
is in their rows. Each run reports the logloss of the whole pass and the bytes that its ids take: their rows with the
optimizer's state, and where ids grow the map that finds them. Runs are compared pair by pair, by query bucket, as
`ctr compare` does. Results are kept in OUT: the same command goes on where it was interrupted, and the table and the
plot are of all results there, so that seeds may have other policies and shares.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from reference import table

from ctr.config import parse_model
from ctr.data.log import create_log
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.eval.compare import compare
from ctr.eval.run_files import read_run
from ctr.io.hashing import splitmix64
from ctr.training.config import TrainConfig
from ctr.training.ids.id_map import id_arrays, make_id_map
from ctr.training.loop import train
from ctr.training.run.directory import read_run_model

QUERY_ROWS = 4
DAY = 86_400_000_000
DAYS = 30
PARTITION_ROWS = 200_000
FEATURES = ("user", "item", "term")
WIDTH = 4
MODEL = {"crosses": {"layers": 0}, "deep": {"units": [32]}}
SHARES = (0.5, 0.25, 0.125, 0.0625)
POLICIES = ("score", "least_recent", "least_frequent", "none")


def draw_ids(
    random: np.random.Generator, rows: int, ids: int, life: float, least: float = 0.05
) -> np.ndarray:
    """Ids of a feature row by row, int64 [rows], in event time.

    Each id is active for about ``life`` of the log, from a begin of its own; among those that are active it is chosen
    by a weight of its own, at least ``least`` and of a heavy tail.
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
    """Writes a log whose rows depend on ``rows`` and ``seed`` alone; without buckets ids grow."""
    random = np.random.default_rng(seed)
    queries = rows // QUERY_ROWS
    users = np.repeat(draw_ids(random, queries, rows, 0.15), QUERY_ROWS)
    items = draw_ids(random, queries * QUERY_ROWS, rows // 2, 0.1)
    terms = draw_ids(random, queries * QUERY_ROWS, 3 * rows, 0.05, 2.0)
    together = users, items, terms
    effects = [1.2 * random.standard_normal(int(ids.max()) + 1)[ids] for ids in together]
    logit = sum(effects) - 2.2
    label = (random.random(len(users)) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    prints = [
        splitmix64(ids.astype(np.uint64) * np.uint64(len(together)) + np.uint64(n))
        for n, ids in enumerate(together)
    ]
    columns = [
        one.view(np.int64) if size is None else (1 + one % np.uint64(size - 1)).astype(np.int32)
        for one, size in zip(prints, buckets, strict=True)
    ]
    schema = Schema(
        features=tuple(
            Category(name=name, source=name, buckets=size, width=WIDTH)
            for name, size in zip(FEATURES, buckets, strict=True)
        )
    )
    create_log(folder, schema)
    row = np.arange(len(users))
    query = row // QUERY_ROWS
    time = query * (DAYS * DAY // queries)
    ids, ones = np.stack(columns, axis=1), np.ones(len(row), np.float32)
    for first in range(0, len(row), PARTITION_ROWS):
        part = slice(first, first + PARTITION_ROWS)
        content = pa.table(
            {
                "query_time": time[part],
                "timestamp": time[part],
                "query_id": query[part],
                "example_id": row[part],
                "label": label[part],
                "train_weight": ones[part],
                "metric_weight": ones[part],
                "ids": pack_ids(ids[part]),
            }
        )
        publish_partition(folder, schema, int(time[part][0]), int(time[part][-1]) + 1, content)
    np.save(folder / "distinct.npy", [len(np.unique(one)) for one in together])
    return folder


def table_size(run: Path) -> tuple[int, int]:
    """Bytes of a finished run's tables with what the optimizer keeps of them, and their number of rows."""
    total = rows = 0
    with np.load(_newest_arrays(run)) as arrays:
        for name in arrays.files:
            kind = name.removeprefix("weights|").split("/")[0]
            if kind == "rows" or kind.startswith("rows_"):
                total += arrays[name].nbytes
                rows += len(arrays[name]) if kind == "rows" else 0
    return total, rows


def map_bytes(run: Path) -> int:
    """Bytes of the maps that find a finished run's rows, as they are in memory; 0 for buckets."""
    config, schema = read_run_model(run)
    with np.load(_newest_arrays(run)) as arrays:
        weights = {
            name.removeprefix("weights|"): arrays[name]
            for name in arrays.files
            if name.startswith("weights|ids/")
        }
    total = 0
    for layout in config.table_layouts(schema):
        if layout.growing:
            id_map = make_id_map(layout, config.ids)
            id_map.restore(id_arrays(layout, weights))
            total += id_map.nbytes
    return total


def _newest_arrays(run: Path) -> Path:
    return max((run / "checkpoints").iterdir()) / "arrays.npz"


class Campaign:
    """The runs of a seed, made where they are missing."""

    def __init__(self, out: Path, rows: int, seed: int) -> None:
        self.folder, self.rows, self.seed = out / f"seed-{seed}", rows, seed

    def log(self, name: str, buckets: Sequence[int | None]) -> Path:
        folder = self.folder / f"log-{name}"
        if not (folder / "distinct.npy").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make_log(folder, self.rows, self.seed, buckets)
        return folder

    def run(self, name: str, log: Path, ids: Mapping[str, Any]) -> Path:
        """Trains once over a log; without predictions, whose metrics are in the run's states."""
        run = self.folder / name
        content = {"seed": self.seed, "model": MODEL, "ids": ids, "record_predictions": False}
        train(log, parse_model(TrainConfig, content, name), run)
        return run

    def measure(self, policies: Sequence[str], shares: Sequence[float]) -> list[dict[str, Any]]:
        """All runs, each with its bytes, and its logloss against the one without eviction."""
        growing = self.log("growing", (None,) * len(FEATURES))
        distinct = [int(one) for one in np.load(growing / "distinct.npy")]
        unbounded = self.run("unbounded", growing, {"capacity": 2**24})
        lines = [self._line("unbounded", 1.0, unbounded, unbounded)]
        for share in shares:
            sizes = [max(2, round(share * one)) for one in distinct]
            capacities = {"capacities": dict(zip(FEATURES, sizes, strict=True))}
            for policy in policies:
                ids = {**capacities, "eviction": {"policy": policy}}
                run = self.run(f"{policy}-{share}", growing, ids)
                lines.append(self._line(policy, share, run, unbounded))
            best = self.folder / f"{policies[0]}-{share}"
            tables, rows = table_size(best)
            # As many buckets as fit into the memory that slots with their map take.
            more = (tables + map_bytes(best)) / tables * rows / sum(sizes)
            log = self.log(f"buckets-{share}", [round(one * more) for one in sizes])
            lines.append(self._line("buckets", share, self.run(f"buckets-{share}", log, {}), best))
            shutil.rmtree(log)
        return lines

    def _line(self, policy: str, share: float, run: Path, against: Path) -> dict[str, Any]:
        own, base = read_run(run), read_run(against)
        change = compare(base.metrics, own.metrics).loc["logloss"]
        return {
            "seed": self.seed,
            "policy": policy,
            "share": share,
            "bytes": table_size(run)[0] + map_bytes(run),
            "logloss": own.number("logloss"),
            "examples_per_second": own.number("examples_per_second"),
            "against": against.name,
            **{key: float(change[key]) for key in ("difference", "ci95_low", "ci95_high")},
        }


def plot(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Memory against logloss, a curve for each policy: of the first seed; the second time without ``none``."""
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
            for one in axes if policy != "none" else axes[:1]:
                one.plot(*zip(*points, strict=True), f"C{number}o-", markersize=4, label=policy)
        sizes = sorted({round(line["bytes"] / 1e6, 1) for line in first if line["policy"] != "none"})
        for one in axes:
            one.axhline(whole["logloss"], color="gray", linestyle=":", label="every id has a slot")
            one.set(xscale="log", xlabel="memory of ids, MB", ylabel="progressive logloss")
            one.set_xticks(sizes, [str(size) for size in sizes])
            one.minorticks_off()
        axes[1].set_title("without none")
        axes[0].legend()
        figure.savefig(path, format="svg", metadata={"Date": None})


def report(lines: Sequence[Mapping[str, Any]]) -> str:
    """The table: a line for each policy and share of the ids, the mean over seeds.

    Paired intervals of the logloss, one a seed, are against the run without eviction; of buckets against the slots of
    the first policy that take as much memory.
    """
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["policy"], line["share"]), []).append(line)
    base = {line["seed"]: line["logloss"] for line in lines if line["policy"] == "unbounded"}
    rows = []
    for (policy, share), own in groups.items():
        change = [line["logloss"] / base[line["seed"]] - 1 for line in own]
        rows.append(
            [
                policy,
                f"{share:.4g}",
                f"{np.mean([line['bytes'] for line in own]) / 1e6:,.1f}",
                f"{np.mean([line['logloss'] for line in own]):.5f}",
                f"{100 * np.mean(change):+.3f}%",
                f"{100 * min(change):+.3f}% to {100 * max(change):+.3f}%",
                ", ".join(f"{line['ci95_low']:+.5f} to {line['ci95_high']:+.5f}" for line in own),
            ]
        )
    head = ["ids", "slots / ids", "MB", "logloss", "against unbounded", "over seeds", "paired interval"]
    return table(head, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000, help="rows of the log")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/id_memory"))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES), help="slots over ids")
    parser.add_argument("--plot", type=Path, help="an SVG file to write; by default in OUT")
    arguments = parser.parse_args(argv)
    path = arguments.out / "results.json"
    lines = json.loads(path.read_text()) if path.exists() else []
    for seed in arguments.seeds:
        found = Campaign(arguments.out, arguments.rows, seed).measure(arguments.policies, arguments.shares)
        lines = sorted(merged(lines, found), key=lambda line: line["seed"])
        path.write_text(json.dumps(lines, indent=1) + "\n")
    plot(lines, arguments.plot or arguments.out / "id_memory.svg")
    print(report(lines))


def merged(lines: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results with new ones, which take the place of those of the same runs."""

    def run(line: Mapping[str, Any]) -> tuple[Any, ...]:
        return line["seed"], line["policy"], line["share"]

    new = {run(line) for line in found}
    return [*(line for line in lines if run(line) not in new), *found]


if __name__ == "__main__":
    main()
