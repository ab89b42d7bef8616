"""What can teach nothing, and values that stand for none, are named at the end of a run."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from ctr.cli import main
from growing_logs import ADAGRAD

MAPPING = {
    "input": {"type": "parquet"},
    "time": {"column": "t", "unit": "s"},
    "example_id": "id",
    "label": "click",
    "partition": "1h",
    "features": [
        {"name": "user", "kind": "category", "source": "user"},
        {"name": "gone", "kind": "category", "source": "gone"},
        {"name": "dwell", "kind": "number", "source": "dwell", "as": "value"},
        {"name": "blank", "kind": "number", "source": "blank", "as": "value"},
        {"name": "image", "kind": "vector", "source": "image", "size": 2},
    ],
}
CONFIG = {
    **ADAGRAD,
    "batch": {"rows": 8},
    "model": {"experts": ["linear", "network"], "crosses": {"layers": 0}, "deep": {"units": [8]}},
    "jit": False,
}


def make_log(folder: Path, base: float, sentinel: float | None = None, rows: int = 1500) -> Path:
    """Makes a log whose clicks depend on ``dwell``, of which three values may be a sentinel."""
    rng = np.random.default_rng(6)
    dwell = rng.normal(50, 10, rows)
    click = rng.random(rows) < 1 / (1 + np.exp(-(dwell - 50) / 5 - base))
    if sentinel is not None:
        dwell[[30, 70, 900]] = sentinel
    columns = {
        "id": range(rows),
        "t": 1_767_600_000 + 10 * np.arange(rows),
        "user": rng.integers(0, 20, rows).astype(str),
        "gone": pd.array([None] * rows, "string"),
        "dwell": dwell,
        "blank": np.nan,
        "image": [[]] * rows,
        "click": click.astype(int),
    }
    folder.mkdir()
    pd.DataFrame(columns).astype({"image": pd.ArrowDtype(pa.list_(pa.float32()))}).to_parquet(
        folder / "rows.parquet"
    )
    (folder / "mapping.yaml").write_text(yaml.safe_dump(MAPPING))
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    command = ["ingest", "table", str(folder / "rows.parquet"), "--mapping", str(folder / "mapping.yaml")]
    assert main([*command, "--out", str(folder / "log")]) == 0
    return folder


def train(folder: Path, capfd: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Trains a run; returns its warnings."""
    capfd.readouterr()
    command = f"train {folder / 'log'} --config {folder / 'run.yaml'} --out {folder / 'run'}".split()
    assert main([*command, *options]) == 0
    lines = capfd.readouterr().out.splitlines()
    return [line.removeprefix("  warning: ") for line in lines if line.startswith("  warning: ")]


NAMED = [
    f"feature {name}: nothing was learned: it is missing in all 1500 rows"
    for name in ("gone", "blank", "image")
]


@pytest.mark.slow
def test_features_that_are_missing_in_all_rows_and_values_that_stand_for_none_are_named(tmp_path, capfd):
    folder = make_log(tmp_path / "marred", 0, -999_999_999)
    assert train(folder, capfd) == [
        "feature dwell: 3 values (mean -1e+09) are more than 1,000 deviations from the others, and no part of its mean "
        "and deviation",
        *NAMED,
    ]
    # And the others teach.
    assert json.loads((folder / "run" / "summary.json").read_text())["logloss"] < 0.67


@pytest.mark.soak
def test_a_run_that_goes_on_with_another_label_is_warned_of(tmp_path, capfd):
    old = make_log(tmp_path / "old", 0)
    assert train(old, capfd) == NAMED
    other, same = make_log(tmp_path / "other", 5, rows=3000), make_log(tmp_path / "same", 0, rows=3000)
    assert train(other, capfd, "--init-from", str(old / "run"))[-1] == (
        "of the rows to come 96.5% are positive, of those that the run of --init-from has learned 51.3%: is the label "
        "the same?"
    )
    assert "the label" not in " ".join(train(same, capfd, "--init-from", str(old / "run")))
