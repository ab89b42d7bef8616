"""What TensorBoard reads of a run, through its own reader and its hyperparameter plugin."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata

from ctr.training.observers.tensorboard import TensorBoard
from ctr.training.session import train
from growing_logs import lines_of
from small_runs import make_config


def events_of(run: Path, part: str = ".") -> EventAccumulator:
    events = EventAccumulator(str(run / "tensorboard" / part), size_guidance={"tensors": 0})
    events.Reload()
    return events


def tags_of(events: EventAccumulator, plugin: str = "scalars") -> set[str]:
    of_plugin = {tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in events.Tags()["tensors"]}
    return {tag for tag, name in of_plugin.items() if name == plugin}


def values_of(events: EventAccumulator, tag: str) -> dict[int, float]:
    shown = events.Tensors(tag)
    assert len({event.step for event in shown}) == len(shown), "a step is shown twice"
    return {event.step: tf.make_ndarray(event.tensor_proto).item() for event in shown}


@pytest.fixture(scope="module")
def made(log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    train(log, make_config({"optimizer": {"dense": {"learning_rate": 0.5}}}, logistic=True), run)
    return run


@pytest.mark.slow
def test_metrics_of_the_pass_and_of_each_window_share_their_tags_and_the_configuration_is_text(made):
    lines, summary = lines_of(made), json.loads((made / "summary.json").read_text())
    so_far, windows = events_of(made), events_of(made, "window")
    names = {"auc": "metrics/auc", "logloss": "metrics/logloss", "calibration_bias": "calibration/bias"}
    for name, tag in names.items():
        found = values_of(windows, tag)
        np.testing.assert_allclose(list(found.values()), [line[name] for line in lines], rtol=1e-6)
        assert list(found) == [line["examples"] for line in lines]
        found = values_of(so_far, tag)
        assert list(found) == [line["examples"] for line in lines]
        assert found[summary["log_rows"]] == pytest.approx(summary[name], rel=1e-6)
        assert lines[-1]["cumulative"][name] == summary[name]
    assert tags_of(windows) < tags_of(so_far)
    groups = {tag.split("/")[0] for tag in tags_of(so_far)}
    assert groups == {"metrics", "calibration", "loss", "optimizer", "ramps", "throughput", "traffic"}
    # The configuration is there as text.
    (event,) = so_far.Tensors("config")
    text = tf.make_ndarray(event.tensor_proto).item().decode()
    assert yaml.safe_load(text) == yaml.safe_load((made / "config.yaml").read_text())
    assert tags_of(so_far, "text") == {"config"}
    # And as what the tab of hyperparameters compares.
    content = so_far.SummaryMetadata(hparams_metadata.SESSION_START_INFO_TAG).plugin_data.content
    started = hparams_metadata.parse_session_start_info_plugin_data(content)
    assert started.group_name == f"{made.name} ({made})"
    assert started.hparams["optimizer.dense.learning_rate"].number_value == 0.5
    assert started.hparams["record_predictions"].bool_value is True
    assert json.loads(started.hparams["metrics.slices"].string_value) == ["position"]


def run_in(folder: Path) -> Any:
    return SimpleNamespace(run_dir=folder, config=make_config())


@pytest.mark.slow
def test_no_number_is_shown_that_float32_cannot_hold(made, tmp_path):
    line = {
        **lines_of(made)[0],
        "examples": 2**40, "window_examples": 2**24 + 1, "queries": 2**24, "dual_a_0": 1e300, "loss_ranking": 0.25,
        "shampoo_spectra": {"ui/deep_0/w": {"smallest": 1e-9, "largest": 0.5, "condition": 1e39, "damped": 5e5}},
    }  # fmt: skip
    observer = TensorBoard()
    observer.begin(run_in(tmp_path), {})
    observer.window(line)
    observer.close()
    shown = events_of(tmp_path)
    assert values_of(shown, "traffic/queries") == {2**40: 2**24}
    assert values_of(shown, "loss/ranking") == {2**40: 0.25}
    hours = (line["window_end"] - line["window_begin"]) / 3.6e9
    assert values_of(shown, "traffic/hours_of_the_log")[2**40] == pytest.approx(hours, rel=1e-6)
    assert values_of(shown, "optimizer/singular_value_min/ui/deep_0/w")[2**40] == pytest.approx(1e-9)
    assert values_of(shown, "optimizer/singular_value_max/ui/deep_0/w") == {2**40: 0.5}
    assert values_of(shown, "optimizer/condition_damped/ui/deep_0/w") == {2**40: 5e5}
    assert not [tag for tag in tags_of(shown) if "condition/" in tag or "spectra" in tag]
    assert not {"traffic/examples", "duals/a_0"} & tags_of(shown)
    assert not [tag for tag in tags_of(shown) if "window_begin" in tag or "window_end" in tag]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 7])
def test_what_is_behind_a_checkpoint_is_cut_off(made, tmp_path, lost):
    lines = [{**lines_of(made)[0], "examples": step} for step in range(6)]
    states: list[dict[str, np.ndarray]] = [{}]

    def go_on(state: int, *steps: int) -> None:
        """Goes on from an earlier state, as a process does that is killed after these windows."""
        observer = TensorBoard()
        observer.begin(run_in(tmp_path), states[state])
        del states[state + 1 :]
        for step in steps:
            observer.window(lines[step])
            states.append(observer.checkpoint())
        observer.close()

    def shown() -> list[int]:
        # Files of one second come in any order.
        steps, of_windows = (
            sorted(values_of(events_of(tmp_path, part), "metrics/auc")) for part in (".", "window")
        )
        assert steps == of_windows and len(events_of(tmp_path).Tensors("config")) == 1
        return steps

    go_on(0, 0, 1, 2)
    go_on(2, 2, 3, 4)
    assert shown() == [0, 1, 2, 3, 4]
    # A power cut takes the end of the newest file, of which less counts.
    newest = max((tmp_path / "tensorboard").glob("events*"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[: -lost or None])
    go_on(3, 3)
    assert shown() == [0, 1, 2, 3]
    go_on(1, 1, 2)
    assert shown() == [0, 1, 2]
    go_on(0, 0)
    assert shown() == [0]
