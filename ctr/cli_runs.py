"""Commands on finished runs, for their records: receipts, their verification, MLflow."""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.cli_output import load_tensorflow, log, print_result
from ctr.cli_parser import command
from ctr.io.errors import InputError, joined, process_status

if TYPE_CHECKING:
    from ctr.training.config import TrainConfig
    from ctr.training.run.receipt import Environment


@command(
    "receipt",
    "write hashes of a finished run's log, configuration, predictions and weights, by which it can be repeated",
    {
        "RUN": "run directory",
        "[--out FILE]": "JSON file to write (receipt.json in the run directory)",
    },
)
def _receipt(arguments: argparse.Namespace) -> None:
    from ctr.training.run.receipt import receipt_text, write_receipt

    path, receipt = write_receipt(arguments.run, arguments.out)
    print_result(arguments, receipt.as_json(), receipt_text(path, receipt))


@command(
    "verify",
    "train the run of a receipt again, and compare predictions and weights bit by bit",
    {
        "RECEIPT": "receipt, or run directory",
        "--log LOG": "directory of the log that the run was trained on",
        "[--out DIR]": "run directory to train in, new or empty, which is kept (a temporary one)",
    },
)
def _verify(arguments: argparse.Namespace) -> None:
    from ctr.io.files import check_output_folder
    from ctr.training.run.receipt import (
        check_repeatable,
        compare_results,
        environment_differences,
        make_receipt,
        read_receipt,
    )

    given, out = arguments.receipt, arguments.out
    if out is not None:
        # A run that is there already would be compared without being trained.
        check_output_folder(out, "a new run directory", lambda folder: False)
    receipt = read_receipt(given)
    config = check_repeatable(receipt, arguments.log, str(given))
    load_tensorflow()
    here = _environment(config, receipt.environment)
    differences = environment_differences(receipt, here)
    if differences:
        log.warning("%s: bits may differ in this environment: %s", given, joined(differences))
    with tempfile.TemporaryDirectory(prefix="ctr-verify-") as folder:
        run = Path(folder) / "run" if out is None else out
        _train(config, receipt.environment, arguments, run, Path(folder) / "config.yaml")
        compared = compare_results(receipt, make_receipt(run))
    wrong = [one.name for one in compared if not one.is_equal]
    results = {one.name: {**one._asdict(), "equal": one.is_equal} for one in compared}
    result = {"equal": not wrong, "results": results, "environment": differences}
    print_result(arguments, result, "\n".join(one.as_text() for one in compared))
    if wrong:
        cause = f"the likely cause is the environment: {joined(differences)}"
        same = "the environment is the same in all that the receipt records of it: the code may differ"
        raise InputError(f"{given}: not repeated bit by bit: {joined(wrong)}", cause if differences else same)


def _environment(config: "TrainConfig", recorded: "Environment") -> dict[str, Any]:
    from ctr.training.device import describe_environment, use_device
    from ctr.workers.launch import threads_each

    if recorded.workers > 1:
        # As they will be set for each of them.
        os.environ.update(threads_each(recorded.workers, os.environ))
    if recorded.device is not None:
        use_device(recorded.device)
    return describe_environment(config, recorded.workers)


def _train(
    config: "TrainConfig", recorded: "Environment", arguments: argparse.Namespace, run: Path, file: Path
) -> None:
    """Trains in a process of its own, as the command ``ctr train`` does; the file is for the configuration."""
    from ctr.config import dump_yaml
    from ctr.pipelines.processes import safe_environment

    file.write_text(dump_yaml(config), encoding="utf-8")
    words = ["train", str(arguments.log), "--config", str(file), "--out", str(run)]
    words += ["--workers", str(recorded.workers)] if recorded.workers > 1 else []
    words += [] if recorded.device is None else ["--device", recorded.device]
    common = ["--log-format", arguments.log_format, *(["-q"] if arguments.verbosity < 0 else [])]
    done = subprocess.run(
        [sys.executable, "-m", "ctr", *common, *words],
        # No worker of the cluster that this process may belong to.
        env={**safe_environment(), "TF_CONFIG": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    # A run that learned nothing ends with an error and has its results.
    if not (run / "summary.json").is_file():
        text = f"{run}: the run was not repeated: ctr train ended with status {done.returncode}"
        raise InputError(text).ending_with(process_status(done.returncode))


@command(
    "mlflow",
    "log runs to MLflow, finished or training; repeated, it logs what came since",
    {
        "RUN ...": "run directories, also those of an experiment",
        "[--experiment NAME]": "experiment of MLflow (ctr)",
        "[--tracking-uri URI]": "address of a server, or a directory (the variable MLFLOW_TRACKING_URI)",
    },
    experiment="ctr",
)
def _mlflow(arguments: argparse.Namespace) -> None:
    from ctr.eval.mlflow_runs import log_runs

    logged = log_runs(arguments.run, arguments.experiment, arguments.tracking_uri)
    runs = [dataclasses.asdict(one) for one in logged]
    print_result(arguments, {"runs": runs}, "\n".join(one.as_text() for one in logged))


COMMANDS = (_receipt, _verify, _mlflow)
