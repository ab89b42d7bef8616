"""How well models predict treatments that the log hardly has: a part of FF 6, of which no number is published.

    python benchmarks/study.py treatments --experiments runs/factorized-21,runs/factorized-22,runs/factorized-23

The experiments are of examples/replay/factorized.yaml, each on a simulated log of its own. The predictions of every arm,
each from before the row was learned from, meet the true probabilities p of the log:

    excess loss = mean of  p log(p / q) + (1 - p) log((1 - p) / (1 - q)),   q: the prediction

``served``: rows of the auction. ``randomized``: ads, their order and their number drawn at random. ``rare``: of these,
the rows in positions that together have at most 2% of the rows of the auction. Intervals are 95%, over queries.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from runner import main

from ctr.data.log import read_manifests, read_schema
from ctr.data.shards import id_matrix, read_shard
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.experiments.plan import read_plan
from ctr.io.errors import InputError
from ctr.simulator.simulate import AUCTION, TRUTH

RARE = 0.02
QUANTILE = 1.96
PARTS = ("served", "randomized", "rare")


def read_rows(log: Path) -> pd.DataFrame:
    """Reads of each row its ids, ``position`` as an id, true ``probability`` and whether it is ``randomized``."""
    schema, tables = read_schema(log), []
    for shard in (shard for manifest in read_manifests(log) for shard in manifest.shards):
        table = read_shard(log, shard, schema)
        position = id_matrix(table, schema)[:, schema.single_valued.index("position")]
        tables.append(table.select(["example_id", "query_id"]).to_pandas().assign(position=position))
    rows = pd.concat(tables).set_index("example_id")
    for name, column in ((TRUTH, "probability"), (AUCTION, "randomized")):
        sidecar = [pq.read_table(path).to_pandas() for path in (log / "sidecars" / name).glob("*.parquet")]
        rows[column] = pd.concat(sidecar).set_index("example_id")[column]
    served = rows.position[~rows.randomized].value_counts(normalize=True).reindex(rows.position.unique(), fill_value=0)
    shares = served.sort_values().cumsum()
    rows["is_rare"] = rows.randomized & rows.position.isin(shares[shares <= RARE].index)
    return rows


def excess_loss(probability: np.ndarray, logit: np.ndarray) -> np.ndarray:
    """Returns the Kullback-Leibler divergence of predictions from the truth, float64 [N]."""
    true = np.log(probability) - np.log1p(-probability)
    entropy = np.logaddexp(0.0, true) - probability * true
    return np.logaddexp(0.0, logit) - probability * logit - entropy


def ratio_of_means(own: np.ndarray, base: np.ndarray, query: np.ndarray) -> dict[str, float]:
    """Returns the ratio of two means with its interval, by the delta method: rows of a query are not independent."""
    center = own.mean() / base.mean()
    errors = pd.Series((own - center * base) / base.mean()).groupby(query).sum()
    margin = QUANTILE * float(np.sqrt((errors**2).sum())) / len(own)
    return {"ratio": float(center), "low": center - margin, "high": center + margin}


def measure(experiments: str = "runs/factorized-21,runs/factorized-22,runs/factorized-23") -> dict[str, Any]:
    """Compares each arm with the arm that it is against, over experiments, separated by commas, with the same arms."""
    found: dict[str, list[pd.DataFrame]] = {}
    against: dict[str, str] = {}
    for number, folder in enumerate(map(Path, experiments.split(","))):
        plan = read_plan(folder)
        rows = read_rows(Path(plan.log))
        for arm in plan.arms:
            against[arm.shown] = (plan.reference(arm) or arm).shown
            for run in arm.runs:
                parts = prediction_parts(folder / run.folder)
                if not parts:
                    raise InputError(f"{folder / run.folder}: no predictions; record_predictions true is required")
                logits = pd.concat([read_predictions(part, ("example_id", "logit")) for part in parts])
                both = rows.join(logits.set_index("example_id"), how="inner").sort_index()
                true, logit = both.probability.to_numpy(np.float64), both.logit.to_numpy(np.float64)
                both["loss"], both["predicted"] = excess_loss(true, logit), 1 / (1 + np.exp(-logit))
                both["query"], both["world"] = both.query_id * 1000 + number, number
                found.setdefault(arm.shown, []).append(both)
    tables = {name: pd.concat(parts) for name, parts in found.items()}
    return {
        part: {name: _row(table, tables[against[name]], part) for name, table in tables.items()} for part in PARTS
    }


def _row(table: pd.DataFrame, base: pd.DataFrame, part: str) -> dict[str, Any]:
    is_in = {"served": ~base.randomized, "randomized": base.randomized, "rare": base.is_rare}[part].to_numpy()
    table, base = table[is_in], base[is_in]
    losses = {name: one.groupby("world").loss.mean() for name, one in (("own", table), ("base", base))}
    return {
        "rows": len(table),
        "excess_loss": float(table.loss.mean()),
        "ratio": ratio_of_means(table.loss.to_numpy(), base.loss.to_numpy(), base["query"].to_numpy()),
        "by_world": (losses["own"] / losses["base"]).tolist(),
        "predicted_over_true": float(table.predicted.sum() / table.probability.sum()),
    }


if __name__ == "__main__":
    main(measure, {})
