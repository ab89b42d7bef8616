"""Receipt of a finished run: hashes of what went in and what came out, and all that is needed to repeat it.

::

    {"format": 1,
     "inputs": {"log_sha256", "constraint_logs_sha256", "sidecars_sha256", "config_sha256", "log_rows"},
     "config": the whole configuration,
     "environment": environment.json: versions, processor, threads, workers,
     "init_from": init_from.json of a run that was begun from another one, else null,
     "results": {"rows", "queries", "predictions", "metrics", "weights"}}

``predictions`` hashes the logits in the order of the log, float32 in little-endian bytes; null where the run recorded
none. ``metrics`` hashes the lines of metrics.jsonl without times. ``weights`` hashes the arrays of the last checkpoint,
those of optimizers too (``ctr.io.arrays.hash_arrays``). No time and no path of the run is in it: a run that was
interrupted and resumed has the receipt of one that was not. Loads no TensorFlow.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field

from ctr.config import StrictModel, differing_keys, load_model, parse_model
from ctr.eval.run_files import prediction_parts, read_environment, read_predictions, read_run
from ctr.io.arrays import hash_arrays
from ctr.io.documents import json_bytes, parse_json_object, read_bytes, read_json_object
from ctr.io.errors import InputError, joined
from ctr.io.files import check_output_file, write_atomic_bytes
from ctr.training.config import TrainConfig
from ctr.training.logs import open_logs
from ctr.training.run import checkpoint
from ctr.training.run.directory import read_warm_start
from ctr.training.run.summary import TIMING
from ctr.training.validate import input_hashes

FILE = "receipt.json"
_SHOWN_DIGITS = 16


class Inputs(StrictModel):
    """Hashes of what a run read, and the rows of its log; constraint logs by name, sidecars by what they are for."""

    log_sha256: str
    constraint_logs_sha256: dict[str, str]
    sidecars_sha256: dict[str, str]
    config_sha256: str
    log_rows: int


class Environment(StrictModel):
    """Content of environment.json, of which these decide how a run is repeated."""

    model_config = ConfigDict(extra="allow")

    workers: int = Field(1, ge=1)
    device: str | None = None


class Results(StrictModel):
    """Counts and hashes of what a run computed."""

    rows: int
    queries: int
    predictions: str | None
    metrics: str
    weights: str


class Receipt(StrictModel):
    """Receipt of a run; see the module."""

    format: Literal[1]
    inputs: Inputs
    config: dict[str, Any]
    environment: Environment
    init_from: dict[str, Any] | None
    results: Results

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


def make_receipt(run_dir: Path) -> Receipt:
    """Makes the receipt of a finished run. Raises InputError: it is not finished, or its files do not fit together."""
    run = read_run(run_dir)
    config = load_model(TrainConfig, run_dir / "config.yaml", "config")
    if config.sha256() != run.config_sha256:
        raise InputError(
            f"{run_dir}: config.yaml is not the configuration that summary.json was computed under"
        )
    summary = run.summary
    # Of this position alone are its results.
    arrays, _ = checkpoint.read(run_dir / "checkpoints", summary["log_rows"])
    inputs = ("log_sha256", "constraint_logs_sha256", "sidecars_sha256", "config_sha256", "log_rows")
    content = {
        "format": 1,
        "inputs": {key: summary[key] for key in inputs},
        "config": config.model_dump(mode="json", by_alias=True),
        "environment": read_environment(run_dir),
        "init_from": read_warm_start(run_dir),
        "results": {
            "rows": summary["examples"],
            "queries": summary["queries"],
            "predictions": _hash_predictions(run_dir, summary["examples"]),
            "metrics": _hash_metrics(run_dir / "metrics.jsonl"),
            "weights": hash_arrays(checkpoint.weights_of(arrays)),
        },
    }
    return parse_model(Receipt, content, str(run_dir))


def _hash_predictions(run_dir: Path, examples: int) -> str | None:
    digest, rows = hashlib.sha256(), 0
    parts = prediction_parts(run_dir)
    # A part ends where a checkpoint was written: cutting says nothing.
    for part in parts:
        logit = read_predictions(part, ("logit",))["logit"].to_numpy(np.float32)
        digest.update(np.ascontiguousarray(logit, "<f4").data)
        rows += len(logit)
    if parts and rows != examples:
        raise InputError(f"{run_dir / 'predictions'}: has {rows} rows of the {examples} that were scored")
    return digest.hexdigest() if parts else None


def _hash_metrics(path: Path) -> str:
    digest = hashlib.sha256()
    lines = read_bytes(path, f"{path}: no such file; a finished run has one").splitlines()
    for number, text in enumerate(lines, 1):
        line = parse_json_object(text, f"{path} line {number}")
        lasting = {key: value for key, value in line.items() if key not in TIMING}
        digest.update(f"{json.dumps(lasting, sort_keys=True)}\n".encode())
    return digest.hexdigest()


def write_receipt(run_dir: Path, out: Path | None = None) -> tuple[Path, Receipt]:
    """Writes the receipt of a run, by default into its directory; returns the file and its content.

    Raises InputError: see ``make_receipt``, or the file is there and is no receipt.
    """
    path = run_dir / FILE if out is None else out
    check_output_file(path, "a receipt of ctr", _is_receipt)
    receipt = make_receipt(run_dir)
    write_atomic_bytes(path, json_bytes(receipt.as_json()))
    return path, receipt


def _is_receipt(path: Path) -> bool:
    try:
        return bool(read_receipt(path))
    except InputError:
        return False


def read_receipt(path: Path) -> Receipt:
    """Reads a receipt, or that in a run directory, or makes that of a run without one; raises InputError."""
    if path.is_dir():
        if not (path / FILE).is_file():
            return make_receipt(path)
        path = path / FILE
    content = read_json_object(path, f"{path}: no such receipt or run directory")
    return parse_model(Receipt, content, str(path))


def check_repeatable(receipt: Receipt, log: Path, where: str) -> TrainConfig:
    """Returns the configuration of a receipt, by which a run over ``log`` repeats its run.

    Raises InputError: the receipt is of a run that was begun from another one, which it does not hold; or the
    configuration, the log, or another log or sidecar that the configuration names is not that of the receipt.
    """
    inputs = receipt.inputs
    config = parse_model(TrainConfig, receipt.config, where, "config.")
    if receipt.init_from is not None:
        raise InputError(f"{where}: the run {_begun(receipt)}")
    if config.sha256() != inputs.config_sha256:
        raise InputError(_differs(where, "the configuration", inputs.config_sha256, config.sha256()))
    logs = open_logs(log, config)
    found = input_hashes(logs)
    if found["log_sha256"] != inputs.log_sha256:
        rows = f"{inputs.log_rows} rows there, {logs.log.rows} in {log}"
        raise InputError(f"{_differs(where, 'the log', inputs.log_sha256, found['log_sha256'])} ({rows})")
    for key, what in (("constraint_logs_sha256", "constraint logs"), ("sidecars_sha256", "sidecars")):
        if changed := differing_keys(getattr(inputs, key), found[key]):
            raise InputError(f"{where}: the {what} are not those of the receipt: {joined(changed)}")
    return config


def _begun(receipt: Receipt) -> str:
    source = (receipt.init_from or {}).get("run")
    return f"was begun from the weights of {source}, which no receipt holds: it cannot be repeated from one"


def _differs(where: str, what: str, expected: object, found: object) -> str:
    return f"{where}: {what} differs: SHA-256 {_short(expected)} in the receipt, {_short(found)} here"


def _short(value: object) -> str:
    return value[:_SHOWN_DIGITS] if isinstance(value, str) else "none" if value is None else f"{value}"


def environment_differences(receipt: Receipt, environment: Mapping[str, Any]) -> list[str]:
    """Lists the entries of an environment that may change bits and are not those of a receipt, with both values."""
    recorded = receipt.environment.model_dump(mode="json", exclude_unset=True)
    # As it is when it was written and read; of the platform only the kernel differs, which computes nothing.
    both = recorded, json.loads(json.dumps(environment))
    then, now = ({key: value for key, value in one.items() if key != "platform"} for one in both)
    return differing_keys(then, now)


def receipt_text(path: Path, receipt: Receipt) -> str:
    """Formats a receipt for people."""
    inputs, results = receipt.inputs, receipt.results
    environment = receipt.environment.model_dump(mode="json")
    machine = [
        f"python {environment.get('python')}",
        *(f"{name} {version}" for name, version in environment.get("versions", {}).items()),
        str(environment.get("processor") or "processor unknown"),
        f"threads {environment.get('intra_op_threads')}",
        f"workers {receipt.environment.workers}",
        str(environment.get("compute_dtype")),
    ]
    lines = [
        f"{path}",
        f"  log            {inputs.log_sha256}  ({inputs.log_rows:,} rows)",
        f"  configuration  {inputs.config_sha256}  (seed {receipt.config.get('seed')})",
        f"  predictions    {results.predictions or 'not recorded; metrics and weights are compared'}",
        f"  metrics        {results.metrics}",
        f"  weights        {results.weights}",
        f"  environment    {', '.join(machine)}",
    ]
    if receipt.init_from is not None:
        lines.append(f"  the run {_begun(receipt)}")
    return "\n".join(lines)


class Compared(NamedTuple):
    """A result of a receipt, and that of the run that repeated it."""

    name: str
    receipt: int | str | None
    here: int | str | None

    @property
    def is_equal(self) -> bool:
        return self.receipt == self.here

    def as_text(self) -> str:
        value = _short(self.receipt)
        values = value if self.is_equal else f"{value} in the receipt, {_short(self.here)} here"
        return f"{self.name:<12} {'equal  ' if self.is_equal else 'differs'}  {values}"


def compare_results(receipt: Receipt, again: Receipt) -> list[Compared]:
    """Compares the results of two receipts, one by one."""
    return [Compared(name, value, getattr(again.results, name)) for name, value in receipt.results]
