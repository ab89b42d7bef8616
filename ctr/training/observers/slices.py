"""Slices of a run: default slices if none are configured, and the names of all slices."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.kept_values import has_raw_values, read_values, value_of_id
from ctr.data.log import Manifest
from ctr.data.schema import Schema
from ctr.data.shards import id_matrix, read_shard
from ctr.eval import display
from ctr.eval.calibration import SliceCalibration
from ctr.eval.intervals import student_t_quantile
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.rows import scored_rows
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.eval.windows import SLICES, Sums
from ctr.io.errors import InputError
from ctr.objective import bias_constraints
from ctr.training.observers.observer import Observer, WatchedRun

logger = logging.getLogger(__name__)

LARGEST_PASS = 200_000
"""Maximum rows of a log with default slices, which require reading it once more."""
_SHOWN = 3
_MOST_VALUES = 200
_PREDICTIONS = ("example_id", "query_id", "label", "logit", "metric_weight")
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


class Slices(Observer):
    """Chooses default slices at the end of the log, and names all slices of the summary."""

    name = "slices"

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run = run

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        run, log, sums = self._run, self._run.inputs.log, Sums()
        measured = summary.get("calibration_slices", {})
        slices = {name: [row["id"] for row in part["heaviest"]] for name, part in measured.items()}
        calibrations: dict[str, SliceCalibration] = {}
        if not run.config.metrics.slices:
            # Slices by the size of queries exist already.
            calibrations = default_slices(run.run_dir, log.path, log.manifests, run.schema.stored)
            sums.add_slices(SLICES, calibrations)
            slices |= {name: heaviest_ids(state) for name, state in calibrations.items()}
        constraints, families = run.config.objective.bias_constraints, run.state.families
        configs = () if constraints is None else constraints.families
        words = {
            name: bias_constraints.slice_names(configs[index], families[index])
            for name, index in bias_constraints.measured_families(families, 0).items()
        }
        summary["slice_names"] = slice_names(run.schema, log.path, slices, words)
        return [sums.table()] if calibrations else []


def default_slices(
    run_dir: Path, log: Path, manifests: Sequence[Manifest], schema: Schema
) -> dict[str, SliceCalibration]:
    """Returns the calibration by slice of up to three features, by name, the least calibrated feature first.

    At the end of a short pass the recorded predictions are joined with the ids of the rows. Among single-valued
    features with few values, the features whose slices are furthest from calibrated, beyond chance, are chosen:

        score = sqrt(max(0, sum_k w_k (b_k^2 - s_k^2) / sum_k w_k))        b: bias, s: its standard error, w: weight

    Returns no features if the pass is long, recorded no predictions, or its log is no longer readable.
    """
    rows = sum(manifest.rows for manifest in manifests)
    parts = prediction_parts(run_dir)
    if not parts or not schema.single_ids or rows > LARGEST_PASS:
        return {}
    try:
        tables = [read_predictions(part, _PREDICTIONS) for part in parts]
        shards = [read_shard(log, entry, schema) for manifest in manifests for entry in manifest.shards]
    except InputError:
        return {}
    columns = {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in _PREDICTIONS}
    ids, hits = _ids_of(columns.pop("example_id"), shards, schema)
    scored = scored_rows(*(columns[name][hits] for name in ("label", "logit", "metric_weight", "query_id")))
    states = {}
    for column, name in enumerate(schema.single_valued):
        if name in schema.single_ids and 2 <= len(np.unique(ids[:, column])) <= _MOST_VALUES:
            state = SliceCalibration()
            state.update(scored, ids[:, column].astype(np.int64))
            states[name] = state
    scores = {name: _score(state) for name, state in states.items()}
    best = sorted(states, key=lambda name: -scores[name])[:_SHOWN]
    return {name: states[name] for name in best}


def heaviest_ids(state: SliceCalibration) -> list[int]:
    """Returns the ids of the slices that a report shows, as in ``calibration_slices`` of summary.json."""
    table = state.result().sort_values(["weight", "id"], ascending=[False, True]).head(SLICES_SHOWN)
    return [int(number) for number in table["id"]]


def _ids_of(
    examples: np.ndarray, shards: Sequence[pa.Table], schema: Schema
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids [M, F] of the M examples that the shards hold, and which of N examples these are, bool [N]."""
    logged = np.concatenate([table["example_id"].to_numpy() for table in shards])
    ids = np.concatenate([id_matrix(table, schema) for table in shards])
    order = np.argsort(logged, kind="stable")
    position = np.minimum(np.searchsorted(logged[order], examples), len(logged) - 1)
    matched = logged[order][position] == examples
    return ids[order[position[matched]]], matched


def _score(state: SliceCalibration) -> float:
    table = state.result()
    table = table[np.isfinite(table["ci95_high"]) & (table["weight"] > 0)]
    if table.empty:
        return 0.0
    error = (table["ci95_high"] - table["ci95_low"]) / 2 / student_t_quantile(1000)
    excess = np.average(table["bias"] ** 2 - error**2, weights=table["weight"])
    return float(np.sqrt(max(0.0, excess)))


def slice_names(
    schema: Schema,
    log: Path,
    slices: Mapping[str, Sequence[int]],
    families: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, str]]:
    """Returns the names of slices by feature or family and id, in the order that a report shows.

    ``slices``: the ids of each feature or family of bias constraints, by descending weight; ``families``: for each
    family, the descriptions of its slices; ``log`` may have raw values. Buckets and vocabularies are in the order of
    ids, values that are all numbers in numerical order; other values stay in the order of weight.
    """
    features = {name: ids for name, ids in slices.items() if name in schema.by_name}
    hashed = {name: ids for name, ids in features.items() if has_raw_values(schema.by_name[name])}
    values: dict[str, dict[int, str]] = {}
    try:
        values = read_values(log, hashed)
    except InputError as error:
        # The run is complete without slices.
        logger.warning("slices are named by their ids: %s", error)
    names: dict[str, dict[str, str]] = {}
    for name, ids in features.items():
        feature, texts = schema.by_name[name], {}
        for index in ids:
            number = display.fingerprint(index) if feature.buckets is None else f"id {index}"
            texts[index] = value_of_id(feature, index) or values.get(name, {}).get(index, number)
        if name not in hashed:
            texts = dict(sorted(texts.items()))
        elif all(map(_NUMBER.fullmatch, texts.values())):
            texts = dict(sorted(texts.items(), key=lambda entry: float(entry[1])))
        names[name] = {str(index): text for index, text in texts.items()}
    for name, words in families.items():
        names[name] = {str(index): words[index] if index >= 0 else "no slice" for index in slices[name]}
    return names
