"""Results at the end of a run: summary.json, whether it learned, and where its calibration differs most."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.log import Manifest, log_sha256
from ctr.data.sample_log import applied_samplings
from ctr.data.schema import Schema
from ctr.data.shards import id_matrix, read_shard
from ctr.eval.calibration import SliceCalibration
from ctr.eval.intervals import student_t_quantile
from ctr.eval.progressive import SLICES_SHOWN
from ctr.eval.rows import scored_rows
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.io.arrays import hash_arrays
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.training.inputs import Inputs
from ctr.training.run import checkpoint
from ctr.training.run.directory import CONSTRAINT_STATES, write_archive, write_json
from ctr.training.run.features import feature_shares, id_rows, input_warnings, refusal_text, slice_names
from ctr.training.run.metrics import duals_of
from ctr.training.run.position import set_aside_summary
from ctr.training.run.run import Run
from ctr.training.run.summary import TIMING, calibration_warning, dense_optimizer_text, last_window

logger = logging.getLogger(__name__)

LARGEST_PASS = 200_000
"""Rows of a log up to which its default slices are found: it is read once more."""
_SHOWN = 3
_MOST_VALUES = 200
_PREDICTIONS = ("example_id", "query_id", "label", "logit", "metric_weight")


def unlearned_text(run: Run) -> str:
    """Tells how many rows were not trained on, as a share of all, and why."""
    position, rows = run.position, run.position.unlearned_rows
    # Rows outside a time range are passed over, not scored.
    scored = int(run.metrics.total.traffic.examples + run.metrics.window.traffic.examples)
    return (
        f"{rows} of {scored} rows ({rows / max(scored, 1):.1%}) were not trained on: "
        f"{position.left_out_rows} left out by skip, {position.skipped_rows} in {position.skipped_steps} skipped steps"
    )


def learning_failure(run: Run, fault: str | None = None) -> str | None:
    """Tells in one line why a run is to end with an error though it has finished its log; None: it learned.

    It fails where rows were lost and no row was left to learn from, or where its weights are broken at the end
    (``fault``). Where only some rows were lost it does not fail: what remains is a model, and a warning names the
    share.
    """
    position = run.position
    if position.set_aside_rows.get("") == position.read:
        return (
            f"nothing was learned: all {position.read} rows are in queries of more than "
            f"{run.config.batch.max_query_rows} rows (batch.max_query_rows)"
        )
    rates = ", ".join(
        f"optimizer.{part}.{name} is {value:g}"
        for part, options in run.config.optimizer.model_dump().items()
        for name, value in options.items()
        if name.endswith("learning_rate")
    )
    remedy = f"lower the learning rates ({rates})"
    if fault is not None:
        return f"the weights at the end of the log are of no use ({fault}); {remedy}"
    if position.trained_rows or not position.unlearned_rows:
        return None
    causes = ["skip leaves rows out"] if position.left_out_rows else []
    if position.skipped_rows:
        causes.append("the loss or a gradient was not finite")
        remedy += ", or look at the train weights of the rows"
    return f"nothing was learned: {unlearned_text(run)}; cause: {'; '.join(causes)}; {remedy}"


def write_results(
    inputs: Inputs, run: Run, failure: str | None, timing: Callable[[], Mapping[str, float]]
) -> dict[str, Any]:
    """Writes the results of a run that stands at the end of its log; returns the content of summary.json.

    ``failure``: why the run ends with an error; ``timing``, called at the end: empty where nothing was left to pass,
    and the earlier stands.
    """
    return run.workers.once(lambda: _write(inputs, run, failure, timing))


def _write(
    inputs: Inputs, run: Run, failure: str | None, timing: Callable[[], Mapping[str, float]]
) -> dict[str, Any]:
    run_dir, metrics = run.run_dir, run.metrics
    summary_path = run_dir / "summary.json"
    summary = {
        **_results(inputs, run),
        "learning_failure": failure,
        "calibration_warning": None,
    }
    if warnings := input_warnings(metrics.labels, metrics.missing, run.state):
        summary["warnings"] = warnings
    if failure is None:
        summary["calibration_warning"] = calibration_warning(summary, run.config)
    write_archive(run_dir, "metric_states", metrics.total.to_arrays())
    for name, constraint_log in metrics.constraint_logs.items():
        write_archive(run_dir, f"{CONSTRAINT_STATES}/{name}", constraint_log.to_arrays())
    write_archive(run_dir, "timeline", metrics.timeline.to_arrays())
    log = inputs.log.path
    slices = {
        name: [row["id"] for row in part["heaviest"]] for name, part in summary["calibration_slices"].items()
    }
    if not run.config.metrics.slices:
        # Those by the size of queries are there already.
        found = default_slices(run_dir, log, inputs.log.manifests, run.schema.stored)
        write_archive(run_dir, "default_slices", slice_arrays(found))
        slices |= {name: heaviest_ids(state) for name, state in found.items()}
    summary["slice_names"] = slice_names(run.schema, log, slices, metrics.family_slices())
    summary |= {**_result_hashes(run), **(timing() or timing_before(summary_path))}
    write_json(summary_path, summary)
    if refused := refusal_text(run.state.tables.id_maps.values(), run.schema):
        logger.warning("%s: %s", run_dir, refused)
    run.files.events.end(failure is None)
    return summary


def _result_hashes(run: Run) -> dict[str, str | None]:
    """Hashes the recorded logits in the order of the log, float32, and the state in the last checkpoint.

    ``weights_sha256`` is of optimizers too; None where there is none.
    """
    digest, parts, weights = hashlib.sha256(), prediction_parts(run.run_dir), None
    # A part ends where a checkpoint was written: the hash does not depend on that.
    for part in parts:
        logit = read_predictions(part, ("logit",))["logit"].to_numpy(np.float32)
        digest.update(np.ascontiguousarray(logit, "<f4").data)
    with suppress(InputError):
        arrays, _ = checkpoint.read(run.run_dir / "checkpoints", run.position.examples)
        weights = hash_arrays(checkpoint.weights_of(arrays))
    return {"predictions_sha256": digest.hexdigest() if parts else None, "weights_sha256": weights}


def _results(inputs: Inputs, run: Run) -> dict[str, Any]:
    position, metrics, sampling = run.position, run.metrics, inputs.config.sampling
    id_maps = run.state.tables.id_maps.values()
    only_kept = sampling is not None and sampling.score == "kept"
    return {
        **metrics.total.summary(),
        "last_window": last_window(metrics.timeline),
        "log_rows": position.examples,
        "batches": position.batches,
        "trained_examples": position.trained_examples,
        "trained_rows": position.trained_rows,
        # PerQueryAUC of queries as a sample left them is no estimate of full traffic's.
        "per_query_auc_of_sample": only_kept or bool(applied_samplings(inputs.log.path)),
        "skipped_steps": position.skipped_steps,
        "skipped_rows": position.skipped_rows,
        "skipped_ranges": position.skipped_ranges,
        "left_out_rows": position.left_out_rows,
        "rejected_rows": position.rejected_rows,
        **(set_aside_summary(position) if position.set_aside_rows else {}),
        "nonfinite_predictions": position.nonfinite_predictions,
        **run.state.parameter_counts(),
        **run.state.experts.report(),
        "notes": list(inputs.notes),
        **({"ids": id_rows(id_maps, run.schema)} if id_maps else {}),
        "features": feature_shares(run.state, metrics.missing, run.schema),
        "duals": duals_of(run.state),
        "constraint_logs": {name: one.summary() for name, one in metrics.constraint_logs.items()},
        **(
            {"labels": {name: one.summary() for name, one in metrics.labels.items()}}
            if metrics.labels
            else {}
        ),
        "dense_optimizer": dense_optimizer_text(run.config, run.state.optimizer_report()),
        "shampoo": run.state.optimizer_report(),
        "config_sha256": run.config.sha256(),
        "log_sha256": log_sha256(inputs.log.manifests),
        "constraint_logs_sha256": {
            name: log_sha256(log.manifests) for name, log in inputs.constraint_logs.items()
        },
        "sidecars_sha256": run.sidecar_hashes(),
    }


def timing_before(summary_path: Path) -> Mapping[str, float | None]:
    """Reads the timing of a finished run that is asked for again: it has nothing left to time."""
    try:
        before = read_json_object(summary_path, "none")
    except InputError:
        before = {}
    return {key: _number(before.get(key)) for key in TIMING}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def default_slices(
    run_dir: Path, log: Path, manifests: Sequence[Manifest], schema: Schema
) -> dict[str, SliceCalibration]:
    """Finds the three features whose slices differ most in calibration, the most different first.

    At the end of a short pass the recorded predictions meet the ids of the log's rows again. Of the features with a
    value a row and few values, those are kept whose slices are the furthest from calibrated, beyond chance:

        score = sqrt(max(0, sum_k w_k (b_k^2 - s_k^2) / sum_k w_k))        b: bias, s: its standard error, w: weight

    Empty where the pass is long, recorded no predictions, or its log cannot be read any more.
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
    ids, found = _ids_of(columns.pop("example_id"), shards, schema)
    scored = scored_rows(*(columns[name][found] for name in ("label", "logit", "metric_weight", "query_id")))
    states = {}
    for place, name in enumerate(schema.single_valued):
        if name in schema.single_ids and 2 <= len(np.unique(ids[:, place])) <= _MOST_VALUES:
            state = SliceCalibration()
            state.update(scored, ids[:, place].astype(np.int64))
            states[name] = state
    scores = {name: _score(state) for name, state in states.items()}
    best = sorted(states, key=lambda name: -scores[name])[:_SHOWN]
    return {name: states[name] for name in best}


def heaviest_ids(state: SliceCalibration) -> list[int]:
    """Returns the ids of the slices that a report shows, as in ``calibration_slices`` of summary.json."""
    table = state.result().sort_values(["weight", "id"], ascending=[False, True]).head(SLICES_SHOWN)
    return [int(one) for one in table["id"]]


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
    ids = np.concatenate([id_matrix(table, schema) for table in shards])
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
