"""What a run reports in summary.json, and whether it learned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.data.log import log_sha256
from ctr.data.sample_log import applied_samplings
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.training.duals import duals_of
from ctr.training.inputs import Inputs
from ctr.training.run.position import Position
from ctr.training.run.rollback import as_json
from ctr.training.run.run import Run

# What is left out of the promise that runs of the same configuration give the same results.
TIMING = ("examples_per_second", "step_ms_p50", "shampoo_seconds_waited", "shampoo_seconds_computing")


def lost_rows(position: Position) -> int:
    """The rows that were scored but not learned from, because a step was skipped or they were quarantined."""
    return position.skipped_rows + position.set_aside_rows


def losses_text(current: Run) -> str:
    """How many rows were not learned from, as a share of all, and how they were lost."""
    position, lost = current.position, lost_rows(current.position)
    # Rows outside a time range are passed over, not scored.
    scored = int(current.total.traffic.examples + current.window.traffic.examples)
    return (
        f"{lost} of {scored} rows ({lost / max(scored, 1):.1%}) were not learned from: "
        f"{position.set_aside_rows} quarantined, {position.skipped_rows} in {position.skipped_steps} skipped steps"
    )


def learning_failure(current: Run, broken: str | None = None) -> str | None:
    """Why a run is to end with an error though it has passed its log; None: it learned.

    It fails where rows were lost and no row was left to learn from, or where its weights are broken at the end. Where
    only some rows were lost it does not fail: what remains is a model, and a warning names the share.

    Args:
        current: the run, at the end of its log.
        broken: what is wrong with its weights, if anything; see ``Run.broken_weights``.

    Returns:
        One line: the share of the rows, the cause, and the likely remedy.
    """
    position = current.position
    rates = ", ".join(
        f"optimizer.{part}.{name} is {value:g}"
        for part, options in current.config.optimizer.model_dump().items()
        for name, value in options.items()
        if name.endswith("learning_rate")
    )
    remedy = f"lower the learning rates ({rates})"
    if broken is not None:
        return f"the weights at the end of the log are of no use ({broken}); {remedy}"
    if position.trained_rows or not lost_rows(position):
        return None
    causes = [one.reason for one in current.rollbacks[-1:]]
    if position.skipped_rows:
        causes.append("the loss or a gradient was not finite")
        remedy += ", or look at the train weights of the rows"
    return f"nothing was learned: {losses_text(current)}; cause: {'; '.join(causes)}; {remedy}"


def results(inputs: Inputs, current: Run) -> dict[str, Any]:
    """What summary.json reports of a run that stands at the end of its log, but for its timing."""
    position = current.position
    return {
        **current.total.summary(),
        "log_rows": position.examples,
        "batches": position.batches,
        "trained_examples": position.trained_examples,
        "trained_rows": position.trained_rows,
        "per_query_auc_of_sample": _sampled_queries(inputs),
        "skipped_steps": position.skipped_steps,
        "skipped_rows": position.skipped_rows,
        "skipped_ranges": position.skipped_ranges,
        "rollbacks": len(current.rollbacks),
        "quarantined": as_json(current.rollbacks),
        "quarantined_rows": position.set_aside_rows,
        "rejected_rows": position.rejected_rows,
        "nonfinite_predictions": position.nonfinite_predictions,
        **current.state.parameter_counts(),
        "duals": duals_of(current.state),
        "constraint_logs": {name: metrics.summary() for name, metrics in current.others.items()},
        "shampoo": current.state.optimizer_report(),
        "config_sha256": current.config.sha256(),
        "log_sha256": log_sha256(inputs.log.manifests),
        "constraint_logs_sha256": {name: log_sha256(log.manifests) for name, log in inputs.others.items()},
        "sidecars_sha256": current.sidecar_hashes(),
    }


def _sampled_queries(inputs: Inputs) -> bool:
    """Whether PerQueryAUC is that of queries as a sample left them, which is not an estimate of full traffic's."""
    sampling = inputs.config.sampling
    only_kept = sampling is not None and sampling.score == "kept"
    return only_kept or bool(applied_samplings(inputs.log.path))


def timing_before(summary_path: Path) -> Mapping[str, float | None]:
    """A finished run that is asked for again has nothing left to time: its first timing stands, if any."""
    try:
        before = read_json_object(summary_path, "none")
    except InputError:
        before = {}
    return {key: _number(before.get(key)) for key in TIMING}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
