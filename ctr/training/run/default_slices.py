"""Default slices of a report: where the calibration of a run that names none differs most.

At the end of a short pass the recorded predictions meet the ids of the log's rows again. Of the features with a value
a row and few values, those three are kept whose slices are the furthest from calibrated, beyond chance:

    score = sqrt(max(0, sum_k w_k (b_k^2 - s_k^2) / sum_k w_k))        b: bias, s: its standard error, w: weight
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.log import Manifest
from ctr.data.parquet_files import IDS_COLUMN
from ctr.data.schema import Schema
from ctr.data.shards import read_shard, unpack_ids
from ctr.eval.calibration import SliceCalibration
from ctr.eval.intervals import student_t_quantile
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.rows import scored_rows
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.io.errors import InputError

LARGEST_PASS = 200_000
"""Rows of a log up to which its default slices are found: it is read once more."""
_SHOWN = 3
_MOST_VALUES = 200
_PREDICTIONS = ("example_id", "query_id", "label", "logit", "metric_weight")


def default_slices(
    run_dir: Path, log: Path, manifests: Sequence[Manifest], schema: Schema
) -> dict[str, SliceCalibration]:
    """Finds the three features whose slices differ most in calibration, the most different first.

    Empty where the pass is long, recorded no predictions, or its log cannot be read any more.
    """
    rows = sum(manifest.rows for manifest in manifests)
    parts = prediction_parts(run_dir)
    if not parts or not schema.single_valued or rows > LARGEST_PASS:
        return {}
    try:
        tables = [read_predictions(part, _PREDICTIONS) for part in parts]
        shards = [read_shard(log, entry, schema) for manifest in manifests for entry in manifest.shards]
    except InputError:
        return {}
    columns = {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in _PREDICTIONS}
    ids, found = _ids_of(columns.pop("example_id"), shards, schema)
    scored = scored_rows(*(columns[name][found] for name in ("label", "logit", "metric_weight", "query_id")))
    states = {}
    for place, name in enumerate(schema.single_valued):
        if 2 <= len(np.unique(ids[:, place])) <= _MOST_VALUES:
            state = SliceCalibration()
            state.update(scored, ids[:, place].astype(np.int64))
            states[name] = state
    scores = {name: _score(state) for name, state in states.items()}
    best = sorted(states, key=lambda name: -scores[name])[:_SHOWN]
    return {name: states[name] for name in best}


def heaviest_ids(states: Mapping[str, SliceCalibration]) -> dict[str, dict[str, Any]]:
    """The ids of the slices that a report shows, as in ``calibration_slices`` of summary.json."""
    found: dict[str, dict[str, Any]] = {}
    for name, state in states.items():
        table = state.result().sort_values(["weight", "id"], ascending=[False, True]).head(SLICES_SHOWN)
        found[name] = {"heaviest": [{"id": one} for one in table["id"].tolist()]}
    return found


def slice_arrays(states: Mapping[str, SliceCalibration]) -> dict[str, np.ndarray]:
    """The states as arrays named like ``price/key``; ``ctr.eval.run_files.read_default_slices`` reads them."""
    return {
        f"{name}/{key}": array for name, state in states.items() for key, array in state.to_arrays().items()
    }


def _ids_of(
    examples: np.ndarray, shards: Sequence[pa.Table], schema: Schema
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [M, F] of the examples that the shards hold, and which of the examples [N] these are, bool [N]."""
    known = np.concatenate([table["example_id"].to_numpy() for table in shards])
    ids = np.concatenate([unpack_ids(table[IDS_COLUMN].combine_chunks(), schema) for table in shards])
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known[order], examples), len(known) - 1)
    found = known[order][place] == examples
    return ids[order[place[found]]], found


def _score(state: SliceCalibration) -> float:
    table = state.result()
    table = table[np.isfinite(table["ci95_high"]) & (table["weight"] > 0)]
    if table.empty:
        return 0.0
    error = (table["ci95_high"] - table["ci95_low"]) / 2 / student_t_quantile(1000)
    excess = np.average(table["bias"] ** 2 - error**2, weights=table["weight"])
    return float(np.sqrt(max(0.0, excess)))
