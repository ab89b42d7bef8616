"""Run directories as runs of MLflow: configurations as params, windows and results as metrics, files as artifacts.

A run directory is read, never written: the same call logs a run that is training and, repeated, what came since. The
MLflow run of a directory is found by its tag ``ctr.run``, a hash of the directory's path and config.yaml. Of windows
those are logged that are behind the last one logged; params, tags and files replace themselves.

Metrics have the step ``examples``, rows of the log that were passed, and as time the query time of the window's last
row. ``final/`` metrics are those over the whole pass. Needs the extra ``mlflow``, whose telemetry is switched off.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ctr.eval.run_files import COMPARED, Run, config_text, read_run
from ctr.io.documents import parse_json_object, parse_yaml
from ctr.io.errors import InputError, one_line
from ctr.io.files import identity

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = "ctr.run"
_ARTIFACTS = ("config.yaml", "schema.json", "environment.json", "summary.json", "report.html", "receipt.json")
_COSTS = ("examples", "queries", "trained_rows", "wall_seconds", "wall_examples_per_second", "step_ms_p50")
# The last metric of a window that is logged: where it is, all of the window is.
_LAST = "window_examples"
_NOT_LOGGED = ("examples", "window_begin", "window_end", _LAST)
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_KEY = 1000, 100, 6000, 250


@dataclass(frozen=True)
class Logged:
    """The MLflow run that a run directory was logged to; how many windows were new."""

    folder: str
    run_id: str
    status: str  # RUNNING, FINISHED or FAILED
    windows: int

    def as_text(self) -> str:
        return f"{self.folder}: {self.status.lower()}, {self.windows} new windows, MLflow run {self.run_id}"


def log_runs(folders: Sequence[Path], experiment: str, tracking_uri: str | None) -> list[Logged]:
    """Logs run directories, finished or not, to an experiment of MLflow, each to a run of its own.

    ``tracking_uri``: of a server, or a directory; None: that of the variable MLFLOW_TRACKING_URI. Raises InputError:
    no run directory, no such extra, or what MLflow refuses.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise InputError(
            "where MLflow is to log is open: allowed: --tracking-uri or the variable MLFLOW_TRACKING_URI, the address "
            "of a server or a directory"
        )
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder}: no config.yaml, so this is not a run directory")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Without it MLflow refuses directories, which it keeps as they are.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    # The command can be repeated: a server that does not answer is named soon.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError:
        raise InputError(
            "MLflow is not installed: ctr mlflow requires clicktrain with the extra mlflow (in a checkout: pip install "
            "'.[train,mlflow]')"
        ) from None
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        known = client.create_experiment(experiment) if found is None else found.experiment_id
        return [_log_run(client, known, folder) for folder in folders]
    except MlflowException as error:
        raise InputError(f"MLflow at {uri}: {one_line(error)}") from None
    except ModuleNotFoundError as error:
        raise InputError(
            f"MLflow at {uri}: needs the package {error.name}, which the extra mlflow does not have: pip install mlflow"
        ) from None


def _log_run(client: "MlflowClient", experiment: str, folder: Path) -> Logged:
    from mlflow.entities import Metric, Param, RunTag

    text = config_text(folder)
    name = hashlib.sha256(f"{identity(folder)}\n{text}".encode()).hexdigest()
    found = client.search_runs([experiment], f"tags.`{TAG}` = '{name}'", max_results=1)
    own = (
        found[0] if found else client.create_run(experiment, tags={TAG: name}, run_name=folder.resolve().name)
    )
    run_id = own.info.run_id
    finished = read_run(folder) if (folder / "summary.json").is_file() else None
    tags = [RunTag("ctr.folder", identity(folder))]
    if finished is not None:
        tags.append(RunTag("ctr.log_sha256", finished.log_sha256))
    client.log_batch(run_id, tags=tags)
    params = [Param(key, value) for key, value in _params(text, folder).items() if key not in own.data.params]
    for begin in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run_id, params=params[begin : begin + _MOST_PARAMS])
    windows, time = _log_windows(client, run_id, folder)
    if finished is not None:
        step, final = int(finished.summary["examples"]), _final_metrics(finished)
        new = {key: value for key, value in final.items() if own.data.metrics.get(key) != value}
        client.log_batch(run_id, metrics=[Metric(key, value, time, step) for key, value in new.items()])
    for path in _artifacts(folder):
        client.log_artifact(run_id, str(path))
    status = _status(finished)
    if status == "RUNNING":
        client.update_run(run_id, status=status)
    elif own.info.status != status:
        client.set_terminated(run_id, status)
    return Logged(str(folder), run_id, status, windows)


def _status(run: Run | None) -> str:
    if run is None:
        return "RUNNING"
    return "FINISHED" if run.summary.get("learning_failure") is None else "FAILED"


def _params(text: str, folder: Path) -> dict[str, str]:
    """Configuration by dotted key, lists as JSON, as far as MLflow takes it; config.yaml has all of it."""
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"{folder / 'config.yaml'}: not YAML: {one_line(error)}") from None
    return {
        re.sub(r"[^\w./ :-]", "_", key)[:_LONGEST_KEY]: value[:_LONGEST_PARAM]
        for key, value in _flat(content, "")
    }


def _flat(content: Any, above: str) -> Iterator[tuple[str, str]]:
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from _flat(value, f"{above}.{key}" if above else str(key))
    elif above:
        yield above, content if isinstance(content, str) else json.dumps(content, default=str)


def _log_windows(client: "MlflowClient", run_id: str, folder: Path) -> tuple[int, int]:
    """Logs the windows behind those that are logged; returns how many, and the time of the last, in milliseconds."""
    from mlflow.entities import Metric

    path = folder / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    # The last line of a run that is training may not be there whole.
    lines = text.split("\n")[:-1]
    read = [parse_json_object(line, f"{path} line {number}") for number, line in enumerate(lines, 1)]
    last = max((metric.step for metric in client.get_metric_history(run_id, _LAST)), default=-1)
    batch: list[Metric] = []
    windows = time = 0
    for line in read:
        step, time = int(line["examples"]), max(0, int(line["window_end"]) // 1000)
        if step <= last:
            continue
        metrics = [Metric(key, value, time, step) for key, value in _window_metrics(line).items()]
        if len(batch) + len(metrics) > _MOST_METRICS:
            client.log_batch(run_id, metrics=batch)
            batch = []
        batch += metrics
        windows += 1
    if batch:
        client.log_batch(run_id, metrics=batch)
    return windows, time


def _window_metrics(line: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a line of metrics.jsonl by name, those of intervals as ``_low`` and ``_high``."""
    found = {key: value for key, value in line.items() if key not in _NOT_LOGGED and _is_number(value)}
    return {**found, **_intervals(line), _LAST: line[_LAST]}


def _final_metrics(run: Run) -> dict[str, float]:
    summary = run.summary
    found = {key: summary.get(key) for key in (*COMPARED, *_COSTS)}
    ends = _intervals({key: summary.get(key) for key in (f"{metric}_ci95" for metric in COMPARED)})
    return {f"final/{key}": value for key, value in {**found, **ends}.items() if _is_number(value)}


def _intervals(content: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, ends in content.items():
        if key.endswith("_ci95") and isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends)):
            name = key.removesuffix("_ci95")
            found |= {f"{name}_low": ends[0], f"{name}_high": ends[1]}
    return found


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _artifacts(folder: Path) -> list[Path]:
    return [path for path in (folder / name for name in _ARTIFACTS) if path.is_file()]
