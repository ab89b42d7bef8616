"""A disk that is full, read-only or failing ends a run with one clear line, and costs nothing that was saved."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import fault_points
import growing_logs
from ctr.cli import main
from ctr.config import dump_yaml
from ctr.io.errors import one_line
from ctr.training.run.disk_errors import written_by_tensorflow
from ctr.training.run.run import Run
from ctr.training.session import train
from small_runs import make_config

CHANGES = {**growing_logs.ROOTS, "checkpoint": {"every_examples": 150, "keep": 2}}


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(log, make_config(CHANGES, logistic=True), run)
    return run


# At the beginning, or after some successes, so that it comes amid the pass or at its end.
BREAKS = [
    ("ENOSPC", "write.half", 20),
    ("EIO", "fsync.before", 0),
    ("EROFS", "rename.before", 20),
    ("ENOSPC", "write.before", 0),
    ("EDQUOT", "write.half", 0),
    ("EROFS", "mkdir.before", 0),
    ("EIO", "link.before", 20),
    ("EROFS", "unlink.before", 0),
    *((kind, point, 20) for kind, point in (("EIO", "fsync.before"), ("EROFS", "mkdir.before"))),
]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(("kind", "point", "after"), BREAKS)
def test_a_disk_that_fails_from_some_moment_on(kind, point, after, log, whole, tmp_path, capsys):
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(dump_yaml(make_config(CHANGES, logistic=True)))
    command = ["train", str(log), "--config", str(config), "--out", str(run)]
    number = getattr(errno, kind)
    broken = fault_points.Broken((point,), number, after, str(run))
    with fault_points.watching(broken):
        status = main(command)
    complaint = capsys.readouterr().err.strip().splitlines()
    if status == 0:
        # Nothing of it could fail, or nothing was left that could.
        assert after == 20 or point in ("mkdir.before", "link.before", "unlink.before")
        growing_logs.assert_same(run, whole)
    else:
        # A full or failing disk may pass.
        assert (status, len(complaint)) == (1 if kind == "EROFS" else 75, 1)
        assert complaint[0].startswith(f"error: {run}")
        assert complaint[0].endswith(os.strerror(number))
    assert main(command) == 0
    growing_logs.assert_same(run, whole)
    assert not [path for path in run.rglob("*") if ".partial" in path.name]


def test_a_checkpoint_that_fails_ends_the_run_at_the_next_batch(log, tmp_path, monkeypatch):
    run, batches = tmp_path / "run", []
    begin, failing = Run.save, fault_points.Broken(("write.before",), errno.ENOSPC, 0, "arrays.npz")

    def heard(position: int, _: Any) -> None:
        batches.append(position)

    def save(run: Run) -> None:
        begin(run)
        run.background._jobs[-1].exception()

    monkeypatch.setattr(Run, "save", save)
    with fault_points.watching(failing), pytest.raises(OSError, match="No space left") as caught:
        train(log, make_config(CHANGES, logistic=True), run, heard)
    assert str(caught.value.filename).endswith("arrays.npz")
    # The next one is scored before the failure is noticed, not one more.
    assert 150 <= batches[-1] < 150 + 2 * 64
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.isdigit()]


@pytest.mark.slow
def test_a_last_write_that_fails_is_not_lost(log, tmp_path):
    changes = {**CHANGES, "checkpoint": {"every_examples": 10**6}}
    config, run = make_config(changes, logistic=True), tmp_path / "run"
    for name in ("arrays.npz", "predictions"):
        failing = fault_points.Broken(("write.before",), errno.ENOSPC, 0, name)
        with fault_points.watching(failing), pytest.raises(OSError, match="No space left"):
            train(log, config, run, record="teacher")
        assert not (run / "summary.json").exists()
        assert not (log / "sidecars" / "teacher").exists()
    train(log, config, run)
    assert (run / "summary.json").exists()


def test_what_tensorflow_says_of_a_disk_is_told_as_the_system_tells_it(tmp_path):
    reported = "{{function_node __wrapped__SaveV2_device_/CPU:0}} variables.data; Structure needs cleaning [Op:SaveV2]"
    for kind, number, words in (
        (tf.errors.ResourceExhaustedError, errno.ENOSPC, "No space left on device"),
        (tf.errors.PermissionDeniedError, errno.EACCES, "Permission denied"),
        (tf.errors.UnknownError, errno.EIO, "variables.data; Structure needs cleaning"),
    ):
        with pytest.raises(OSError, match=words) as caught, written_by_tensorflow(tmp_path):
            raise kind(None, None, f"{reported}\nin two lines")
        assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path))
        assert one_line(caught.value) == f"{tmp_path}: {words}"
