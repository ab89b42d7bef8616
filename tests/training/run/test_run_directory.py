"""The files of a run, one by one."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr.data.batches import Batch, whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.io.errors import InputError
from ctr.training.observers.observer import Scored, Turn
from ctr.training.observers.predictions import Predictions
from ctr.training.run.directory import adopt_config, adopt_environment, only_process
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


def batches_of(log: Path, schema, rows: int = 50) -> list[Batch]:
    return list(whole_query_batches(read_rows(log, schema, read_manifests(log)), rows, 64))


def logits(batch: Batch) -> np.ndarray:
    return (batch.rows.example_id / 7).astype(np.float32)


@pytest.fixture
def run(tmp_path):
    """A run as an observer of predictions sees it, whose files are written at once."""
    background = SimpleNamespace(submit=lambda job: job())
    return SimpleNamespace(
        run_dir=tmp_path, config=make_config(), background=background, position=SimpleNamespace(examples=0)
    )


def begun(run: Any, rows: int = 0, part_rows: int = 1_000_000) -> Predictions:
    predictions = Predictions(part_rows)
    predictions.begin(run, {"rows": np.array(rows)})
    return predictions


def add(run: Any, predictions: Predictions, batches: Sequence[Batch]) -> int:
    """Adds batches and returns how many rows a checkpoint behind them counts."""
    for batch in batches:
        run.position.examples = batch.end
        predictions.batch(Turn(True, [Scored(0, batch, logits(batch), ())]))
    return int(predictions.checkpoint()["rows"])


def test_predictions_do_not_wait_for_a_checkpoint_without_end(run, log, schema):
    add(run, begun(run, part_rows=120), batches_of(log, schema))
    written = [pq.read_metadata(path).num_rows for path in sorted((run.run_dir / "predictions").iterdir())]
    assert len(written) > 5 and all(120 <= rows < 120 + 50 for rows in written[:-1])


def test_a_resume_keeps_the_files_of_the_checkpoint_only(run, log, schema):
    predictions, batches = begun(run), batches_of(log, schema)
    rows = [add(run, predictions, [batch]) for batch in batches[:3]]
    folder = run.run_dir / "predictions"
    names = [f"{batch.end:020d}.parquet" for batch in batches[:3]]
    (folder / f"{names[0]}.partial-0123456789abcdef").touch()
    run.position.examples = batches[1].end
    again = begun(run, rows[1])
    assert sorted(path.name for path in folder.iterdir()) == names[:2]
    assert add(run, again, []) == rows[1]
    (folder / names[0]).unlink()
    with pytest.raises(InputError, match=rf"has {rows[1] - rows[0]} rows, {rows[1]} at the checkpoint"):
        begun(run, rows[1])
