"""The documented calls from Python take paths as they are typed: strings as well as ``Path``."""

import os
from pathlib import Path

import pytest

from ctr.config import parse_model
from ctr.data.kept_values import read_all_values, read_values
from ctr.io.errors import InputError
from ctr.serving.export import export_model, export_run
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.follow import follow
from ctr.training.loop import open_session, train
from ctr.training.warm_start.start import InitFrom
from small_runs import LOGISTIC, draw_examples, publish


def opened(log, run):
    with open_session(log, TrainConfig(), run) as session:
        session.finish()


CALLS = {
    "train": lambda log, run: train(log, TrainConfig(), run),
    "train from another run": lambda log, run: train(log, TrainConfig(), run, init_from=InitFrom(log)),
    "open_session": opened,
    "export_run": export_run,
    "export_model": export_model,
    "Scorer": lambda log, run: Scorer(log),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_there_is_refused_in_the_same_words(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = []
    for kind in (Path, str):
        with pytest.raises(InputError) as refused:
            CALLS[call](kind("nowhere"), kind("run"))
        messages.append(str(refused.value))
    assert messages[0] == messages[1] and "nowhere" in messages[0]
    assert os.listdir() == []


def test_values_are_read_and_logs_followed_by_strings(tmp_path):
    log, run = str(tmp_path / "log"), str(tmp_path / "run")
    assert read_values(log, "user", []) == {}
    assert read_all_values(log, {"user": [7]}) == read_all_values(Path(log), {"user": [7]}) == {"user": {}}
    assert follow(log, TrainConfig(), run, stop=lambda: True) == follow(
        Path(log), TrainConfig(), Path(run), stop=lambda: True
    )


@pytest.mark.slow
def test_a_model_is_trained_and_exported_by_strings(tmp_path):
    log = str(publish(tmp_path / "log", draw_examples().table()))
    run, out = str(tmp_path / "run"), str(tmp_path / "models")
    config = parse_model(TrainConfig, LOGISTIC, "test")
    assert train(log, config, run) == train(log, config, Path(run))
    version = export_run(run, out).path
    assert export_model(str(version), str(tmp_path / "copies")).path.parent == tmp_path / "copies"
    assert Scorer(out).path == Scorer(Path(out)).path == version
