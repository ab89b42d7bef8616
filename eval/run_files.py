"""Reads run directories. Every fault of a file becomes an `InputError` that names the file."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.eval.calibration import SliceCalibration
from ctr.eval.importance import Importance, importance_of
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.eval.windows import COLUMNS, Sums
from ctr.io.documents import parse_json_object, parse_yaml
from ctr.io.errors import InputError, one_line
from ctr.io.files import check_local

WINDOWS = "windows.parquet"

COMPARED = ("per_query_auc", "auc", "logloss", "normalized_entropy", "calibration_bias", "calibration_ratio")
"""Metrics with an interval, the most informative first."""

_WINDOW_COLUMNS = {
    "examples": np.int64,
    "window_examples": np.int64,
    "weight_sum": np.float64,
    "auc": np.float64,
}

StateT = TypeVar("StateT")


@dataclass(frozen=True)
class Run:
    """Results of a finished run: config.yaml, summary.json, and windows.parquet with the metrics of the pass."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    sums: Sums
    metrics: ProgressiveMetrics

    @property
    def log_sha256(self) -> str:
        return str(self.summary["log_sha256"])

    @property
    def config_sha256(self) -> str:
        return str(self.summary["config_sha256"])

    def number(self, key: str) -> float | None:
        """Returns a number of summary.json, None if it is absent or null. Raises InputError for anything else."""
        value = self.summary.get(key)
        if value is not None and not _is_number(value):
            raise InputError(f"{self.folder / 'summary.json'}: {key} must be a number, got {value!r:.80}")
        return value


def read_run(folder: Path) -> Run:
    """Reads a finished run. Raises InputError where there is none in `folder`, or a file is damaged."""
    if not folder.is_dir():
        check_local(folder)
        raise InputError(f"{folder}: no such run directory")
    summary_path = folder / "summary.json"
    config_path = folder / "config.yaml"
    if not summary_path.exists():
        hint = "the run is not finished" if config_path.exists() else "this is not a run directory"
        raise InputError(f"{folder}: no summary.json, so {hint}; allowed: the directory of a finished run")
    summary = parse_json_object(_text(summary_path), str(summary_path))
    for key in ("log_sha256", "config_sha256"):
        if not isinstance(summary.get(key), str):
            raise InputError(f"{summary_path}: {key} must be a string, got {summary.get(key)!r:.80}")
    sums = _parsed(folder, lambda: Sums.of(read_columns(folder / WINDOWS, COLUMNS, "sums")))
    metrics = _parsed(folder, sums.metrics) or ProgressiveMetrics()
    examples = int(metrics.traffic.examples)
    if summary.get("examples") != examples:
        raise InputError(
            f"{folder}: summary.json counts {summary.get('examples')} examples, {WINDOWS} "
            f"{examples}, so the run did not finish; `ctr train` with the same arguments finishes it"
        )
    return Run(folder, _read_config(config_path), summary, sums, metrics)


def read_constraint_metrics(run: Run, log: str) -> ProgressiveMetrics | None:
    """Returns the metrics of a run over a constraint log; None if the run stored none."""
    return _parsed(run.folder, lambda: run.sums.metrics(f"log {log}"))


def read_environment(folder: Path) -> dict[str, Any]:
    """Returns the content of environment.json."""
    path = folder / "environment.json"
    return parse_json_object(_text(path), str(path))


def config_text(folder: Path) -> str:
    """Returns the text of config.yaml unchanged."""
    return _text(folder / "config.yaml")


def read_windows(folder: Path) -> pd.DataFrame:
    """Reads the window metrics of metrics.jsonl, which windows.parquet lacks, in the order of the pass.

    Int64 columns examples (read by the window's end) and window_examples; float64 columns weight_sum, auc, auc_low,
    auc_high, NaN where null or absent. Raises InputError for a damaged file.
    """
    path = folder / "metrics.jsonl"
    lines = pd.DataFrame([line for _, line in _json_lines(path)], columns=[*_WINDOW_COLUMNS, "auc_ci95"])
    try:
        ends = [(None, None) if ci is None or ci != ci else ci for ci in lines.pop("auc_ci95").tolist()]
        lines[["auc_low", "auc_high"]] = np.array(ends, np.float64).reshape(len(lines), 2)
        return lines.astype(_WINDOW_COLUMNS)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not readable as windows: {one_line(error)}") from None


def read_timeline(run: Run) -> Timeline:
    """Reads the sums of the pass over time."""
    return _parsed(run.folder, run.sums.timeline)


def read_default_slices(run: Run) -> dict[str, SliceCalibration]:
    """Returns a run's default slices by feature, the largest differences in calibration first; may be empty."""
    return _parsed(run.folder, run.sums.slices)


def read_importance(run: Run) -> Importance | None:
    """Returns the importance of the features; None if the run did not measure it."""
    arrays = _parsed(run.folder, run.sums.importance)
    return _parsed(run.folder, lambda: importance_of(arrays)) if arrays else None


def count_rejects(folder: Path) -> dict[str, int]:
    """Counts rejected rows by reason, the most frequent first; empty without a rejects.jsonl."""
    path = folder / "rejects.jsonl"
    if not path.exists():
        return {}
    counts = Counter(str(line.get("reason")) for _, line in _json_lines(path))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def prediction_parts(folder: Path) -> list[Path]:
    """Lists the files of recorded predictions, in the log's order; empty if the run did not record any."""
    return sorted((folder / "predictions").glob("*.parquet"))


def read_predictions(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Reads columns of one file of predictions. Raises InputError for null ids or times and for columns of text."""
    table = read_columns(path, columns, "predictions")
    for name in columns:
        kind = table[name].dtype.kind
        if kind not in ("iu" if name.endswith(("_id", "_time")) else "iuf"):
            raise InputError(f"{path}: {name} must hold numbers without nulls, got {table[name].dtype}")
    return table


def metrics_between(folder: Path, start_us: int, end_us: int) -> ProgressiveMetrics:
    """Computes the metrics of a run's predictions with query times from `start_us` up to, but not including, `end_us`.

    Raises InputError if a file is invalid, or no prediction was recorded in these times.
    """
    metrics = ProgressiveMetrics()
    for path in prediction_parts(folder):
        # A file holds whole batches, and those whole queries.
        table = read_predictions(path, ("query_time", "label", "logit", "metric_weight", "query_id"))
        table = table[(table["query_time"] >= start_us) & (table["query_time"] < end_us)]
        if len(table):
            label, logit, weight, query = (
                table[name].to_numpy() for name in ("label", "logit", "metric_weight", "query_id")
            )
            try:
                metrics.update(label, logit, weight, query)
            except ValueError as error:
                raise InputError(f"{path}: {error}") from None
    if not metrics.traffic.examples:
        raise InputError(f"{folder}: no prediction was recorded in the query times that count")
    return metrics


def read_columns(path: Path, columns: Sequence[str], what: str) -> pd.DataFrame:
    """Reads columns of a Parquet file, not pandas' metadata. Raises InputError if damaged or a column is not unique."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            wrong = next((name for name in columns if names.count(name) != 1), None)
            if wrong is not None:
                raise ValueError(f"the column {wrong} appears {names.count(wrong)} times; required: once")
            return file.read(list(columns)).replace_schema_metadata(None).to_pandas()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as {what}: {one_line(error)}") from None


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Returns a short name for each folder: the fewest last parts of its path that distinguish the folders.

    Raises InputError where a folder is listed twice.
    """
    parts = [folder.resolve().parts for folder in folders]
    for index, path_parts in enumerate(parts):
        if path_parts in parts[:index]:
            raise InputError(f"{folders[index]}: given twice; allowed: each run once")
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(path_parts[-length:]) for path_parts in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = parse_yaml(_text(path))
    except ValueError as error:
        raise InputError(f"{path}: not YAML: {one_line(error)}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: must be a mapping of keys to values, got {type(config).__name__}")
    # Dates, keys that are not strings and numbers that are not finite become strings, as JSON has none of them.
    plain: dict[str, Any] = json.loads(json.dumps(config, default=str), parse_constant=str)
    return plain


def _parsed(folder: Path, parse: Callable[[], StateT]) -> StateT:
    try:
        return parse()
    except InputError:
        raise
    except (KeyError, ValueError) as error:
        raise InputError(f"{folder / WINDOWS}: damaged, or of another version: {one_line(error)}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; a finished run has one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable: {one_line(error)}") from None


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    # Not splitlines: it cuts at characters that may stand in a line of JSON.
    for number, line in enumerate(_text(path).removesuffix("\n").split("\n"), start=1):
        if number == 1 and not line:
            continue
        where = f"{path} line {number}"
        yield where, parse_json_object(line, where)


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    return isinstance(value, float)
