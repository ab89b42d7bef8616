"""Logs finished runs to MLflow: configuration as params, windows and results as metrics, files as artifacts.

pip install mlflow-skinny
python log_to_mlflow.py runs/first runs/second --tracking-uri http://localhost:5000
"""

import argparse
import json
from pathlib import Path

import mlflow
import pandas as pd
import yaml


def log_run(folder: Path) -> None:
    """Logs one run directory as a new MLflow run with the directory's name."""
    config = pd.json_normalize(yaml.safe_load((folder / "config.yaml").read_text())).iloc[0]
    summary = json.loads((folder / "summary.json").read_text())
    with mlflow.start_run(run_name=folder.name):
        mlflow.log_params({key: str(value)[:500] for key, value in config.items()})
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            window = json.loads(line)
            mlflow.log_metrics(numbers_of(window), step=window["examples"])
        mlflow.log_metrics({f"final/{name}": value for name, value in numbers_of(summary).items()})
        for name in ("config.yaml", "environment.json", "summary.json", "report.html"):
            if (folder / name).is_file():
                mlflow.log_artifact(str(folder / name))


def numbers_of(content: dict) -> dict[str, float]:
    return {name: value for name, value in content.items() if type(value) in (int, float)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tracking-uri", required=True)
    parser.add_argument("--experiment", default="ctr")
    arguments = parser.parse_args()
    mlflow.set_tracking_uri(arguments.tracking_uri)
    mlflow.set_experiment(arguments.experiment)
    for run in arguments.runs:
        log_run(run)
