"""Results at the end of a run: windows.parquet, summary.json, and whether the run learned anything."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.sample_log import applied_samplings
from ctr.eval.run_files import WINDOWS, prediction_parts, read_predictions
from ctr.io.arrays import hash_arrays
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.io.files import write_atomic
from ctr.training.run import checkpoint
from ctr.training.run.directory import write_json
from ctr.training.run.position import set_aside_summary
from ctr.training.run.run import Run, duals_of
from ctr.training.run.summary import TIMING, dense_optimizer_text
from ctr.training.validate import input_hashes


def unlearned_text(run: Run) -> str:
    """Describes the share of rows that were not trained on, with the reasons."""
    position, rows = run.position, run.position.unlearned_rows
    # Rows outside the time range are not scored.
    scored = position.scored_rows
    return (
        f"{rows} of {scored} rows ({rows / max(scored, 1):.1%}) were not trained on: "
        f"{position.left_out_rows} left out by skip, {position.skipped_rows} in {position.skipped_steps} skipped steps"
    )


def learning_failure(run: Run, fault: str | None = None) -> str | None:
    """Returns, in one line, why a run that has finished its log ends with an error, or None if it does not.

    A run fails if rows were lost and none was left to learn from, or if its weights are broken at the end (``fault``).
    It does not fail if only some rows were lost: the model remains usable, and a warning states their share.
    """
    position = run.position
    if (log := position.of()).read and log.set_aside_rows == log.read:
        return (
            f"nothing was learned: all {log.read} rows are in queries of more than "
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


def write_results(run: Run, failure: str | None, timing: Callable[[], Mapping[str, float]]) -> dict[str, Any]:
    """Writes the results of a run at the end of its log; returns the content of summary.json.

    Only the first worker calls it. ``failure``: why the run ends with an error; ``timing``: called last, returns the
    timing of this process; if it is empty because no row was left, the earlier timing is kept.
    """
    path = run.run_dir / "summary.json"
    summary: dict[str, Any] = {"learning_failure": failure}
    sums = pa.concat_tables(table for observer in run.observers for table in observer.end(summary))
    if warnings := warnings_of(run):
        summary["warnings"] = warnings
    summary |= {**_results(run), **_result_hashes(run), **(timing() or timing_before(path))}
    write_atomic(
        run.run_dir / WINDOWS,
        lambda file: pq.write_table(sums, file, compression="zstd", write_page_checksum=True),
    )
    write_json(path, summary)
    return summary


def warnings_of(run: Run) -> list[str]:
    """Returns the observers' warnings, one line each, on the first worker, which alone has these observers."""
    return [line for observer in run.observers for line in observer.warnings()]


def _result_hashes(run: Run) -> dict[str, str | None]:
    """Returns the hashes of the recorded logits, float32 in the order of the log, and of the checkpoint's state.

    ``predictions_sha256`` is None without recorded predictions; ``weights_sha256``, which includes the optimizers'
    state, is None without a checkpoint at this position.
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


def _results(run: Run) -> dict[str, Any]:
    inputs, position, sampling = run.inputs, run.position, run.config.sampling
    only_kept = sampling is not None and sampling.score == "kept"
    return {
        "log_rows": position.examples,
        "batches": position.batches,
        "trained_examples": position.trained_examples,
        "trained_rows": position.trained_rows,
        # PerQueryAUC of sampled queries is not an estimate of full traffic's.
        "per_query_auc_of_sample": only_kept or bool(applied_samplings(inputs.log.path)),
        "skipped_steps": position.skipped_steps,
        "skipped_rows": position.skipped_rows,
        "skipped_ranges": position.skipped_ranges,
        "left_out_rows": position.left_out_rows,
        "rejected_rows": position.of().rejected,
        **set_aside_summary(position),
        "nonfinite_predictions": position.nonfinite_predictions,
        **run.state.parameter_counts(),
        **run.state.experts.report(),
        "notes": list(inputs.notes),
        "duals": duals_of(run.state),
        "dense_optimizer": dense_optimizer_text(run.config, run.state.optimizer_report()),
        "shampoo": run.state.optimizer_report(),
        "config_sha256": run.config.sha256(),
        **input_hashes(inputs),
    }


def timing_before(summary_path: Path) -> Mapping[str, float | None]:
    """Returns the timing that an earlier summary.json of the run records, by key; None for missing values."""
    before: Mapping[str, Any] = {}
    with suppress(InputError):
        before = read_json_object(summary_path, "none")
    numbers = {key: value for key, value in before.items() if type(value) in (int, float)}
    return {key: numbers.get(key) for key in TIMING}
