"""The documented calls from Python take paths as they are typed: strings as well as ``Path``."""

from pathlib import Path

import pytest

from ctr.config import parse_model
from ctr.serving.export import export_run
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.session import train
from small_runs import LOGISTIC, draw_examples, publish


@pytest.mark.slow
def test_a_model_is_trained_and_exported_by_strings(tmp_path):
    log = str(publish(tmp_path / "log", draw_examples().table()))
    run, out = str(tmp_path / "run"), str(tmp_path / "models")
    config = parse_model(TrainConfig, LOGISTIC, "test")
    assert train(log, config, run) == train(log, config, Path(run))
    version = export_run(run, out).path
    assert Scorer(out).path == Scorer(Path(out)).path == version
