"""Exports that only hold what differs from the one before: what is written, kept, applied and refused."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ctr.cli import main
from ctr.io.arrays import hash_arrays
from ctr.io.errors import InputError
from ctr.io.files import file_sha256
from ctr.io.versions import versions
from ctr.serving import export
from ctr.serving.export import export_model, publish
from ctr.serving.metadata import find_model, read_chain, read_metadata
from ctr.serving.scorer import Scorer
from ctr.serving.weights import read_weights
from ctr.training.config import ExportConfig
from ctr.training.run.directory import drop_models_after
from fault_points import Counting, watching
from model_cases import MODELS, contents, draw_raw, flip, make_case, make_growing_run, make_snapshot

EXPORT = {"every_examples": 100, "keep": 9, "full_every": 3}
NAMES = ["100", "200.delta", "300.delta", "400"]


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    """Of a linear model that meets new ids, forgets some and changes some rows."""
    run = make_growing_run(tmp_path_factory.mktemp("deltas") / "run", "logistic", EXPORT)
    made = []
    for number in range(len(NAMES)):
        run.learn(draw_raw(30, seed=number, unknown=True))
        run.move(seed=number, share=0.3 if number else 1)
        fingerprints = run.state.tables.id_maps[0].ids_by_row()[2]
        run.left_out |= set(fingerprints[number : number + 3].tolist())
        made.append(run.snapshot(100 * (number + 1)))
    return made


@pytest.fixture(scope="module")
def published(snapshots, tmp_path_factory):
    """Two deltas between two whole models."""
    out = tmp_path_factory.mktemp("deltas") / "models"
    for snapshot in snapshots:
        assert publish(snapshot, out, 9, full_every=3).made
    return out


@pytest.fixture(scope="module")
def whole(snapshots, tmp_path_factory):
    """The third as a whole model."""
    return publish(snapshots[2], tmp_path_factory.mktemp("deltas") / "models").path


@pytest.fixture
def models(published, tmp_path):
    """A copy of them, without the last one."""
    shutil.copytree(published, tmp_path / "models", ignore=shutil.ignore_patterns("400"))
    return tmp_path / "models"


def names(folder: Path) -> list[str]:
    return [path.name for path in versions(folder)]


@pytest.mark.slow
def test_the_second_delta_leads_to_the_whole_model_bit_by_bit(snapshots, published, whole, tmp_path):
    """By predictions, and made whole by its bytes: rows that changed before and after it are in it once."""
    assert names(published) == NAMES
    assert set(contents(published / "200.delta")) == {"assets.extra/ctr.json", "delta.npz"}
    made = export_model(published / "300.delta", tmp_path)
    assert made.path == tmp_path / "300" and contents(made.path) == contents(whole)
    assert not export_model(published / "300.delta", tmp_path).made
    raw = draw_raw(60, seed=9, unknown=True)
    delta, full = Scorer(published / "300.delta"), Scorer(whole)
    np.testing.assert_array_equal(delta.score(raw)["logit"], full.score(raw)["logit"])
    for key in ("weights", "position", "model"):
        assert delta.metadata[key] == full.metadata[key]
    assert not np.array_equal(delta.predict(raw), Scorer(published / "100").predict(raw))
    # Without TensorFlow, too; of words beyond ASCII it makes the ids.
    raw["title"] = [text.encode("ascii", "ignore").decode() for text in raw["title"]]
    few = Scorer(published / "300.delta", lazy=True)
    np.testing.assert_allclose(few.score(raw)["logit"], full.score(raw)["logit"], rtol=0, atol=1e-5)
    assert few._loaded is None
    # A delta counts what it holds.
    first, second = (snapshot.keys[0].numpy()[:-1].tolist() for snapshot in snapshots[:2])
    changed = read_metadata(published / "200.delta")["changes"][snapshots[0].layouts[0].name]
    assert changed["removed"] == len(set(first) - set(second)) > 0
    assert 0 < len(set(second) - set(first)) < changed["ids"] < len(second)


@pytest.mark.slow
def test_the_command_line_makes_it_whole(models, whole, tmp_path, capsys):
    assert main(["export", str(models), "--out", str(tmp_path / "out")]) == 0
    assert contents(tmp_path / "out" / "300") == contents(whole)
    assert main(["export", str(models), "--out", str(tmp_path / "other"), "--checkpoint", "5"]) == 1
    assert "is an exported model, not a run" in capsys.readouterr().err
    # A model that is whole already is copied.
    assert contents(export_model(tmp_path / "out" / "300", tmp_path / "copy").path) == contents(whole)


@pytest.mark.slow
def test_what_a_kept_delta_needs_is_kept(snapshots, tmp_path, monkeypatch):
    """Also where the directory is given by a relative path."""
    monkeypatch.chdir(tmp_path)
    found = []
    for snapshot in snapshots:
        publish(snapshot, Path("models"), keep=1, full_every=3)
        found.append(names(Path("models")))
    assert found == [["100"], ["100", "200.delta"], ["100", "200.delta", "300.delta"], ["400"]]


@pytest.mark.slow
def test_a_version_that_was_lost_or_is_there_twice(snapshots, published, models):
    for name, snapshot in (("200.delta", snapshots[1]), ("300.delta", snapshots[2])):
        shutil.rmtree(models / name)
        assert publish(snapshot, models, 9, full_every=3).path == models / name
        assert contents(models / name) == contents(published / name)
        assert not publish(snapshot, models, 9, full_every=3).made
    # The whole one is taken, and is what the next delta changes.
    assert publish(snapshots[2], models).path == models / "300"
    assert Scorer(models).path == models / "300"
    assert publish(snapshots[3], models, 9, full_every=3).path == models / "400.delta"
    # A run that goes back deletes deltas, too.
    drop_models_after(models, 350)
    assert names(models) == ["100", "200.delta", "300.delta", "300"]


def change(model: Path, **keys) -> None:
    path = model / "assets.extra" / "ctr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def of_another_model(delta: Path) -> None:
    np.savez(delta / "delta.npz", **{"rows/quality-2/numbers": np.array([10**6])})
    change(delta, files={"delta.npz": file_sha256(delta / "delta.npz")})


MISSING = "delta: builds on version {}, which is not in .*models: restore it there"
OTHER = {"weights": "0" * 64}
REFUSED = {
    "no full model": (lambda path: shutil.rmtree(path / "100"), MISSING.format(100)),
    "no delta": (lambda path: shutil.rmtree(path / "200.delta"), MISSING.format(200)),
    "a base of another run": (
        lambda path: change(path / "100", **OTHER),
        r"200\.delta: builds on a version 100 with other weights than .*100 has",
    ),
    "a damaged base": (lambda path: flip(path / "100/saved_model.pb"), "100/saved_model.pb: damaged"),
    "a damaged delta before": (
        lambda path: flip(path / "200.delta/delta.npz"),
        "200.delta/delta.npz: damaged",
    ),
    "a damaged delta": (lambda path: flip(path / "300.delta/delta.npz"), "300.delta/delta.npz: damaged"),
    "another result": (lambda path: change(path / "300.delta", **OTHER), "do not have the recorded SHA-256"),
    "another model": (
        lambda path: of_another_model(path / "300.delta"),
        r"300\.delta: cannot be applied to .*100",
    ),
    "no base": (lambda path: change(path / "300.delta", base=None), "does not name the version"),
    "itself": (
        lambda path: change(path / "300.delta", base={"examples": 300, **OTHER}),
        "on version 300, which is",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", REFUSED)
def test_a_delta_without_what_it_builds_on_is_refused(models, fault):
    spoil, words = REFUSED[fault]
    spoil(models)
    for use in (Scorer, lambda path: export_model(path, path.parent / "out")):
        with pytest.raises(InputError, match=words) as refusal:
            use(models / "300.delta")
        assert "\n" not in str(refusal.value)
    assert names(models / "out") == []


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("damage", ["flipped", "missing", "other version"])
def test_where_no_delta_can_be_the_model_is_whole(snapshots, models, caplog, damage):
    shutil.rmtree(models / "300.delta")
    if damage == "missing":
        shutil.rmtree(models / "100")
    elif damage == "flipped":
        flip(models / "200.delta" / "delta.npz")
    else:
        path = models / "200.delta" / "assets.extra" / "ctr.json"
        path.write_text(path.read_text().replace('"tensorflow": "2', '"tensorflow": "1'))
    with caplog.at_level(logging.WARNING):
        assert publish(snapshots[2], models, 9, full_every=3).path == models / "300"
    assert ("is a full model" in caplog.text) == (damage != "other version")
    assert read_weights(read_chain(find_model(models)))


class Killed(BaseException):
    pass


def kill() -> None:
    raise Killed


POINTS = ("rename.before", "write.half", "fsync.before", "rename.after", "mkdir.after", "unlink.before")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_while_a_delta_is_written_the_next_attempt_writes_the_same(
    snapshots, published, models, tmp_path, point
):
    shutil.rmtree(models / "300.delta")
    count, done = 0, False
    while not done:
        count += 1
        folder = tmp_path / f"try-{count}"
        shutil.copytree(models, folder)
        try:
            with watching(Counting(point, count, kill), training=False):
                publish(snapshots[2], folder, 9, full_every=3)
            done = True
        except Killed:
            # Whatever is there can be used: the version of before, or this one.
            newest = find_model(folder)
            assert newest.name in ("200.delta", "300.delta")
            assert hash_arrays(read_weights(read_chain(newest))) == read_metadata(newest)["weights"]
            publish(snapshots[2], folder, 9, full_every=3)
        assert contents(folder) == {
            name: content for name, content in contents(published).items() if not name.startswith("400/")
        }
    assert count > 1 or point == "unlink.before"


@pytest.mark.soak
def test_killed_while_old_versions_are_deleted_all_that_are_left_can_be_used(
    snapshots, published, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        export, "write_model", lambda snapshot, folder, _: shutil.copytree(published / "400", folder)
    )
    count, done = 0, False
    while not done:
        count += 1
        folder = tmp_path / f"try-{count}"
        shutil.copytree(published, folder, ignore=shutil.ignore_patterns("400"))
        try:
            with watching(Counting("rename.after", count, kill), training=False):
                publish(snapshots[3], folder, keep=1, full_every=3)
            done = True
        except Killed:
            for path in versions(folder):
                assert hash_arrays(read_weights(read_chain(path))) == read_metadata(path)["weights"]
            publish(snapshots[3], folder, keep=1, full_every=3)
            # What a killed attempt did not delete goes with the next version at the latest.
            assert names(folder)[-1] == "400"
    assert names(folder) == ["400"]
    assert count > 3


@pytest.mark.slow
def test_models_without_ids_that_grow_have_deltas_too(tmp_path):
    """In bfloat16: of tables the rows that differ, by number."""
    model = {**MODELS["plain"], "crosses": {"layers": 0}}
    case = make_case(model, "bfloat16", tmp_path / "run")
    config = case.snapshot.config.model_copy(update={"export": ExportConfig(every_examples=1, full_every=2)})
    snapshot = replace(case.snapshot, config=config)
    assert publish(snapshot, tmp_path / "models", full_every=2).path.name == "123"
    table = case.state.tables.weights[0]
    table.scatter_nd_update([[3], [5]], tf.ones([2, table.shape[1]]))
    case.state.dense[0].assign_add(tf.ones_like(case.state.dense[0]))
    later = make_snapshot(case.state, config, snapshot.schema, tmp_path / "run", 200)
    made = publish(later, tmp_path / "models", full_every=2)
    assert made.path.name == "200.delta"
    assert [change["fixed"] for change in made.metadata["changes"].values()][:2] == [2, 0]
    full = publish(later, tmp_path / "full").path
    assert contents(export_model(made.path, tmp_path / "out").path) == contents(full)
    np.testing.assert_array_equal(Scorer(made.path).predict(case.raw), Scorer(full).predict(case.raw))
