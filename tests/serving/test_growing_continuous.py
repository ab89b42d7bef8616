"""Exports with deltas in the middle of a run whose ids grow, and after a run that was stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests
from ctr.data.reader import join_rows, read_rows
from ctr.io.versions import versions
from ctr.serving.export import export_from_run, export_model, export_run, publish
from ctr.serving.metadata import read_metadata
from ctr.serving.score import score_log
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from growing_cases import SCHEMA, contents, draw_rows
from model_cases import packed_table

CONFIG: dict[str, Any] = {
    "batch": {"rows": 48},
    "model": {
        "crosses": {"layers": 1, "rank": 2, "ramp": 300},
        "deep": {"units": [6]},
        "init_scale": 0.05,
        "network_loss": "joint",
    },
    "checkpoint": {"every_examples": 130, "keep": 9},
    "compute_dtype": "float32",
    "max_rejected_share": 0,
    "ids": {"shared_rows": 3},
    "export": {"every_examples": 100, "keep": 9, "full_every": 3},
}


class StoppedError(Exception):
    pass


def configured() -> TrainConfig:
    return parse_model(TrainConfig, CONFIG, "test")


@pytest.fixture(scope="module")
def log(publish_rows, tmp_path_factory) -> Path:
    table = packed_table(draw_rows(450, seed=0, unknown=True), SCHEMA)
    return publish_rows(tmp_path_factory.mktemp("growing") / "log", table, SCHEMA)


@pytest.fixture(scope="module")
def finished(log, tmp_path_factory) -> tuple[Path, Path]:
    """A run with deltas, and the full models of the same positions."""
    folder = tmp_path_factory.mktemp("growing")

    def export(snapshot) -> None:
        export_from_run(snapshot)
        publish(snapshot, folder / "full")

    train(log, configured(), folder / "run", exporter=export)
    return folder / "run", folder / "full"


@pytest.mark.slow
def test_deltas_lead_to_the_full_models(finished, tmp_path):
    run, full = finished
    assert [path.name for path in versions(run / "exports")] == [
        "144",
        "240.delta",
        "336.delta",
        "432",
        "450.delta",
    ]
    for path in versions(run / "exports"):
        made = export_model(path, tmp_path).path
        assert contents(made) == contents(full / made.name)


@pytest.mark.soak
def test_the_checkpoint_gives_the_same_model_as_the_run(finished, tmp_path):
    run, full = finished
    made = export_run(run, tmp_path).path
    assert contents(made) == contents(full / "450")


@pytest.mark.soak
def test_a_log_has_the_progressive_predictions_of_the_batch_after_the_export(log, finished, tmp_path):
    """In rows without new ids: in training these have a row of their own at once, in the model they share one."""
    run, _ = finished
    score_log(Scorer(run / "exports" / "240.delta"), log, tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet").to_pandas().set_index("example_id")["logit"]
    recorded = [pq.read_table(path).to_pandas() for path in sorted((run / "predictions").glob("*.parquet"))]
    progressive = np.concatenate([part["logit"] for part in recorded])
    ids = np.concatenate([part["example_id"] for part in recorded])
    known = [row for row in range(240, 288) if not ids_of(log, ids[[row]]) - ids_of(log, ids[:240])]
    assert len(known) > 10
    np.testing.assert_allclose(scores.loc[ids[known]], progressive[known], rtol=0, atol=1e-5)
    assert not np.allclose(scores.loc[ids[240:288]], progressive[240:288], rtol=0, atol=1e-5)


def ids_of(log: Path, example_ids: np.ndarray) -> set[tuple[str, int]]:
    """The features and ids of some rows."""
    rows = join_rows(list(read_rows(log, SCHEMA, read_manifests(log))))
    kept = rows.keep(np.isin(rows.example_id, example_ids))
    found = {
        (name, int(one))
        for name, column in zip(SCHEMA.single_valued, kept.ids.T, strict=True)
        for one in column
    }
    return found | {(name, int(one)) for name, (values, _) in kept.multivalent.items() for one in values}


@pytest.mark.slow
def test_a_resumed_run_writes_the_same_deltas(log, finished, tmp_path):
    run = tmp_path / "run"

    def stop(position, _):
        if position >= 288:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(log, configured(), run, stop, exporter=export_from_run)
    train(log, configured(), run, exporter=export_from_run)
    assert contents(run / "exports") == contents(finished[0] / "exports")
    assert read_metadata(run / "exports" / "450.delta")["base"]["examples"] == 432
