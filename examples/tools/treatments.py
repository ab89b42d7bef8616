"""Compares the arms of experiments on simulated logs by true click probabilities, also on treatments that are rare.

python treatments.py runs/factorized-21 runs/factorized-22 runs/factorized-23

The predictions q of each arm, made before it learned from the row, are compared with the logs' true probabilities p:

    excess loss = mean of  p log(p / q) + (1 - p) log((1 - p) / (1 - q))

served: rows of the auction. randomized: ads, their order and number drawn at random. rare: the randomized rows at
positions that together have at most 2% of the served rows. Ratios are to the arm's reference, for all rows and for the
second half of each log, with 95% intervals over queries, and for each experiment. predicted: the sum of q over the sum
of p.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from ctr.data.log import read_manifests, read_schema
from ctr.data.shards import id_matrix, read_shard
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.experiments.plan import read_plan


def read_rows(log: Path) -> pd.DataFrame:
    """Reads the query, true probability and part of each row, by example_id."""
    schema, tables = read_schema(log), []
    for shard in (shard for manifest in read_manifests(log) for shard in manifest.shards):
        table = read_shard(log, shard, schema)
        position = id_matrix(table, schema)[:, schema.single_valued.index("position")]
        tables.append(table.select(["example_id", "query_id"]).to_pandas().assign(position=position))
    rows = pd.concat(tables).set_index("example_id")
    for name, column in (("truth", "probability"), ("auction", "randomized")):
        sidecar = [pq.read_table(path).to_pandas() for path in (log / "sidecars" / name).glob("*.parquet")]
        rows[column] = pd.concat(sidecar).set_index("example_id")[column]
    share = rows.position[~rows.randomized].value_counts(normalize=True)
    share = share.reindex(rows.position.unique(), fill_value=0).sort_values().cumsum()
    rows["rare"] = rows.randomized & rows.position.isin(share[share <= 0.02].index)
    return rows.assign(served=~rows.randomized)


def with_losses(rows: pd.DataFrame, run: Path) -> pd.DataFrame:
    """Adds the predictions of a run and their excess losses."""
    parts = [read_predictions(part, ("example_id", "logit")) for part in prediction_parts(run)]
    rows = rows.join(pd.concat(parts).set_index("example_id"), how="inner").sort_index()
    p, logit = rows.probability.to_numpy(np.float64), rows.logit.to_numpy(np.float64)
    true = np.log(p) - np.log1p(-p)
    losses = np.logaddexp(0.0, logit) - np.logaddexp(0.0, true) - p * (logit - true)
    late = np.arange(len(rows)) >= len(rows) / 2
    return rows.assign(loss=losses, predicted=1 / (1 + np.exp(-logit)), late=late)


def ratio(own: pd.DataFrame, base: pd.DataFrame) -> str:
    """Divides the losses of two arms; the interval is by the delta method, as rows of a query are not independent."""
    center = own.loss.mean() / base.loss.mean()
    errors = ((own.loss - center * base.loss) / base.loss.mean()).groupby(own.query_key).sum()
    margin = 1.96 * np.sqrt((errors**2).sum()) / len(own)
    return f"{center:.3f} [{center - margin:.3f}, {center + margin:.3f}]"


def show(folders: list[Path]) -> None:
    runs: dict[str, list[pd.DataFrame]] = {}
    against = {}
    for number, folder in enumerate(folders):
        plan = read_plan(folder)
        rows = read_rows(Path(plan.log)).assign(experiment=number)
        rows = rows.assign(query_key=rows.query_id * len(folders) + number)
        for arm in plan.arms:
            against[arm.label] = (plan.reference(arm) or arm).label
            runs.setdefault(arm.label, []).extend(with_losses(rows, folder / run.folder) for run in arm.runs)
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in runs.items()}
    for part in ("served", "randomized", "rare"):
        print(f"\n| {part} | rows | excess loss | ratio | second half | by experiment | predicted |")
        print("|---" * 7 + "|")
        for name, table in tables.items():
            base = tables[against[name]]
            own, base = table[table[part]], base[base[part]]
            means = [one.groupby("experiment").loss.mean() for one in (own, base)]
            cells = [
                name,
                len(own),
                f"{own.loss.mean():.5f}",
                ratio(own, base),
                ratio(own[own.late], base[base.late]),
            ]
            cells += [", ".join((means[0] / means[1]).map("{:.3f}".format))]
            cells += [f"{own.predicted.sum() / own.probability.sum():.3f}"]
            print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="+", type=Path)
    show(parser.parse_args().experiments)
