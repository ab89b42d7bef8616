"""Names in files from elsewhere do not lead out of the folder that they belong to."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import small_runs
from ctr.config import parse_model
from ctr.data.event_mapping import EventSampling, EventTeacher
from ctr.data.log import read_manifests, read_schema
from ctr.data.shards import read_shard
from ctr.data.sidecar import read_sidecar_partition, sidecar_folder, write_sidecar_partition
from ctr.experiments.config import ExperimentConfig
from ctr.experiments.plan import PlannedRun
from ctr.io.documents import read_sealed, sealed_bytes
from ctr.io.errors import InputError
from ctr.objective.config import ConstraintLog, DistillationConfig
from ctr.training.config import SampleConfig

NAMES = ("../x", "../../x", "a/../../x", "/etc/passwd", "a/b", "", "a\0b", "a\nb", "\x1b[2J", "x\u202e")
OUTSIDE = (*NAMES, "..", ".")


@pytest.fixture
def log(tmp_path):
    folder = small_runs.publish(tmp_path / "log", small_runs.draw_examples(20).table(), ((0, 10**9),))
    (partition,) = read_manifests(folder)
    schema = read_schema(folder)
    ids = np.concatenate([read_shard(folder, e, schema)["example_id"].to_numpy() for e in partition.shards])
    write_sidecar_partition(folder, "teacher", partition, pa.table({"example_id": ids, "logit": ids * 0.5}))
    return folder


def edit(path: Path, change) -> None:
    """Changes a manifest as one would who can make hashes, too."""
    content = read_sealed(path, "no manifest")
    change(content)
    path.write_bytes(sealed_bytes(content))


def test_files_that_a_manifest_names_lie_in_its_folder(log):
    (partition,) = read_manifests(log)
    (path,), (sidecar,) = log.glob("manifests/*"), log.glob("sidecars/teacher/*.json")
    for name in OUTSIDE:
        edit(path, lambda content, file=f"{name}.parquet": content["shards"][0].update(file=file))
        # A name of dots is one of a file in the folder, but not that of this shard.
        dots = r"shard 0 is \.+parquet: not the name"
        message = dots if name in (".", "..") else r"\.json: shards\.0\.file: "
        with pytest.raises(InputError, match=message):
            read_manifests(log)
    for name in NAMES:
        edit(sidecar, lambda content, file=f"{name}.parquet": content.update(file=file))
        with pytest.raises(InputError, match=r"\.json: file: "):
            read_sidecar_partition(log, "teacher", partition)


def test_names_in_configurations(tmp_path):
    for name in OUTSIDE:
        with pytest.raises(InputError, match="a name consists of letters"):
            sidecar_folder(tmp_path, name)
        for model, content in (
            (SampleConfig, {"name": name}),
            (DistillationConfig, {"teacher": name}),
            (ConstraintLog, {"name": name, "path": "log"}),
            (EventSampling, {"name": name, "rule": {}}),
            (EventTeacher, {"name": name, "model": "model"}),
        ):
            with pytest.raises(InputError, match=r"name|teacher"):
                parse_model(model, content, "test")
    for name in NAMES:
        for key in ("arms", "teachers", "samplings"):
            with pytest.raises(InputError, match=key):
                parse_model(ExperimentConfig, {key: {name: {}}}, "test")


@pytest.mark.parametrize("folder", ["../x", "runs/../../x", "/etc", "", "a\0b"])
def test_folders_of_a_plan(folder):
    with pytest.raises(ValueError, match="must be a directory inside"):
        PlannedRun(seed=1, folder=folder)


def test_what_stands_in_the_place_of_a_shard_is_the_recorded_bytes_or_refused_at_once(log, tmp_path):
    """A log may keep its shards on another disk; what a link leads to is believed by its hash alone."""
    (manifest,) = read_manifests(log)
    entry, schema = manifest.shards[0], read_schema(log)
    path = log / "shards" / entry.file
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)
    assert read_shard(log, entry, schema).num_rows == entry.rows
    for make, message in (
        (lambda: path.symlink_to("/etc/passwd"), "damaged: its"),
        (lambda: os.mkfifo(path), "the file is missing"),
        (lambda: path.symlink_to("/dev/zero"), "the file is missing"),
    ):
        path.unlink()
        make()
        with pytest.raises(InputError, match=message) as raised:
            read_shard(log, entry, schema)
        assert "bin/" not in str(raised.value)


def test_a_manifest_cannot_ask_for_any_amount_of_memory(log, monkeypatch):
    monkeypatch.setattr("ctr.data.parquet_files.MOST_VALUES", 5)
    (manifest,) = read_manifests(log)
    with pytest.raises(InputError, match=r"values in the column .*; allowed: 5"):
        read_shard(log, manifest.shards[0], read_schema(log))
