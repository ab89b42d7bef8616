"""The files of a run, one by one."""

import pyarrow.parquet as pq
import pytest

from ctr.io.errors import InputError
from ctr.training.observers.predictions import Predictions
from ctr.training.run.directory import adopt_config, adopt_environment, only_process
from ctr.training.session import train
from small_runs import make_config


def test_a_run_belongs_to_its_configuration(tmp_path):
    run = tmp_path / "run"
    adopt_config(run, make_config())
    before = (run / "config.yaml").read_bytes()
    # What a process that is killed while it writes config.yaml leaves behind.
    (run / "config.yaml.partial-0123456789abcdef").write_bytes(b"seed: ")
    adopt_config(run, make_config())
    with pytest.raises(InputError) as caught:
        adopt_config(run, make_config({"seed": 5, "model": {"crosses": {"ramp": 7}}}))
    message = str(caught.value)
    assert "started with another configuration" in message
    assert "seed was 1, is 5" in message
    assert "model.crosses.ramp was [100, 600], is [0, 7]" in message
    assert "batch" not in message
    assert "rerun with 'model.crosses.ramp=[100, 600]' seed=1 to resume, or use another" in message
    with pytest.raises(InputError, match=rf"rerun with --config {run}/config.yaml to resume"):
        adopt_config(run, make_config({"model": {"widths": {"a.b": 2}}}))
    assert (run / "config.yaml").read_bytes() == before


def test_what_is_no_run_directory_is_refused_untouched(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="neither empty nor a run directory"):
        adopt_config(tmp_path, make_config())
    with pytest.raises(InputError, match="neither empty nor a run directory"):
        adopt_config(tmp_path / "thesis.txt", make_config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_run_belongs_to_its_environment_but_not_to_its_kernel_nor_to_a_number_of_workers(tmp_path):
    alone = {"platform": "Linux-6.1", "versions": {"numpy": "2.4"}, "intra_op_threads": 2, "device": "cpu"}
    two = {**alone, "workers": 2, "intra_op_threads": 1}
    four = {**two, "workers": 4, "intra_op_threads": 3}

    def refused(environment: dict, *words: str) -> None:
        with pytest.raises(InputError) as caught:
            adopt_environment(tmp_path, environment)
        assert all(one in str(caught.value) for one in words)

    adopt_environment(tmp_path, alone)
    adopt_environment(tmp_path, {**alone, "platform": "Linux-6.2"})
    both = "versions.numpy was '2.4', is '2.5'", "intra_op_threads was 2, is 4"
    refused({**alone, "versions": {"numpy": "2.5"}, "intra_op_threads": 4}, *both)
    refused({**two, "versions": {"numpy": "2.5"}}, both[0])
    # Where the number of workers changes, that of threads may, too. From then on it is compared again.
    adopt_environment(tmp_path, two)
    refused({**two, "intra_op_threads": 4}, "intra_op_threads was 1, is 4")
    adopt_environment(tmp_path, four)
    refused({**four, "intra_op_threads": 1}, "intra_op_threads was 3, is 1")
    refused({**four, "device": "tpu"}, "device was 'cpu', is 'tpu'")
    adopt_environment(tmp_path, {**alone, "workers": 1})
    (tmp_path / "environment.json").write_text("{")
    refused(alone, "environment.json: not JSON")


def test_a_run_directory_has_one_process(tmp_path):
    with only_process(tmp_path):
        # A refusal does not free it.
        for _ in range(2):
            with (
                pytest.raises(InputError, match="another process is training in this run directory"),
                only_process(tmp_path),
            ):
                pass
    with only_process(tmp_path):
        pass


def test_predictions_do_not_wait_for_a_checkpoint_without_end(log, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictions.__init__, "__defaults__", (120,))
    train(log, make_config({"checkpoint": {"every_examples": 10**6}}, logistic=True), tmp_path / "run")
    rows = [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "run/predictions").iterdir())]
    assert len(rows) > 5 and all(120 <= count < 120 + 64 for count in rows[:-1])
