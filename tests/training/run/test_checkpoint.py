"""Checkpoints: whole, verified, and as many as are to be kept."""

import json
import logging
import shutil

import numpy as np
import pytest

from ctr.io.errors import InputError
from ctr.training.run import checkpoint
from ctr.training.run.checkpoint import clean_up, drop_after, read, restore_newest, save

ARRAYS = {"weights|a": np.arange(6, dtype=np.float32).reshape(2, 3), "total|b/c": np.array([2**60, -1])}


def arrays_at(position: int) -> dict[str, np.ndarray]:
    return {name: value + position for name, value in ARRAYS.items()}


def save_at(folder, *positions: int, keep: int = 2) -> None:
    for position in positions:
        save(folder, position, arrays_at(position), {"position": position, "parts": ["x"]}, keep)


def restored_position(folder) -> int:
    arrays, state = restore_newest(folder)
    position = state["position"]
    assert state["parts"] == ["x"]
    assert arrays.keys() == ARRAYS.keys()
    for name, value in arrays_at(position).items():
        assert arrays[name].dtype == value.dtype
        np.testing.assert_array_equal(arrays[name], value)
    return position


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_there_may_be_none(tmp_path):
    assert restore_newest(tmp_path / "nothing") is None


def test_the_newest_comes_back_and_older_ones_go(tmp_path):
    folder = tmp_path / "checkpoints"
    save_at(folder, 9, 10, 200)
    assert restored_position(folder) == 200
    assert names(folder) == [f"{position:020d}" for position in (10, 200)]
    save_at(folder, 300, keep=1)
    assert names(folder) == [f"{300:020d}"]


def test_the_same_content_gives_the_same_bytes(tmp_path):
    for name in "ab":
        save_at(tmp_path / name, 5)
    for file in ("arrays.npz", "state.json"):
        contents = {(tmp_path / name / f"{5:020d}" / file).read_bytes() for name in "ab"}
        assert len(contents) == 1


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGE = {
    "a bit of the arrays": lambda path: flip(path / "arrays.npz"),
    "a bit of the state": lambda path: flip(path / "state.json"),
    "arrays cut off": lambda path: (path / "arrays.npz").write_bytes(
        (path / "arrays.npz").read_bytes()[:-100]
    ),
    "no arrays": lambda path: (path / "arrays.npz").unlink(),
    "no state": lambda path: (path / "state.json").unlink(),
    "empty state": lambda path: (path / "state.json").write_bytes(b""),
    "state of another kind": lambda path: (path / "state.json").write_bytes(b"[]"),
    "other arrays": lambda path: np.savez(path / "arrays.npz", **arrays_at(7)),
    "nothing in the folder": lambda path: [file.unlink() for file in path.iterdir()],
    "a changed state": lambda path: (path / "state.json").write_text(
        json.dumps({**json.loads((path / "state.json").read_text()), "position": 8})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_one_is_told_and_the_one_before_it_taken(tmp_path, damage, caplog):
    save_at(tmp_path, 5, 9)
    damage(tmp_path / f"{9:020d}")
    with caplog.at_level(logging.WARNING):
        assert restored_position(tmp_path) == 5
    assert f"{9:020d} is damaged" in caplog.text
    # It does not count among those that are kept, nor bar the way of the one that takes its place.
    save_at(tmp_path, 9)
    assert restored_position(tmp_path) == 9
    assert [name for name in names(tmp_path) if name.isdigit()] == [f"{position:020d}" for position in (5, 9)]


def test_when_all_are_damaged_it_is_told_and_nothing_is_touched(tmp_path):
    save_at(tmp_path, 5, 9)
    for position in (5, 9):
        flip(tmp_path / f"{position:020d}" / "arrays.npz")
    before = names(tmp_path)
    with pytest.raises(
        InputError, match="every checkpoint is damaged; delete the run directory to start again"
    ):
        restore_newest(tmp_path)
    assert names(tmp_path) == before


def test_a_sound_one_stays_however_many_are_kept_and_whatever_room_there_is(tmp_path):
    content, size = {"position": 0, "parts": ["x"]}, sum(array.nbytes for array in ARRAYS.values())
    save(tmp_path, 5, ARRAYS, content, keep=1, sound=(-1, 5))
    for position in (9, 20, 30):
        save(tmp_path, position, ARRAYS, content, keep=1, sound=(5, 5))
        assert [int(name) for name in names(tmp_path)] == [5, position]
    taken = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
    with pytest.raises(InputError, match=r"takes 40 bytes, beside the \d+ of what has to stay"):
        save(tmp_path, 40, ARRAYS, content, keep=1, limit=taken, sound=(5, 5))
    assert [int(name) for name in names(tmp_path)] == [5, 30]
    save(tmp_path, 40, ARRAYS, content, keep=1, limit=taken + size, sound=(5, 40))
    assert [int(name) for name in names(tmp_path)] == [40]


def test_going_back_needs_the_one_to_go_back_to(tmp_path):
    save_at(tmp_path, 5, 9)
    with pytest.raises(InputError, match="the checkpoint 7 is missing, but the run has to roll back to it"):
        drop_after(tmp_path, 7)
    assert len(names(tmp_path)) == 2
    drop_after(tmp_path, 5)
    assert restored_position(tmp_path) == 5
    drop_after(tmp_path, 0)
    assert names(tmp_path) == []


def test_one_that_was_not_finished_does_not_count(tmp_path):
    save_at(tmp_path, 5)
    shutil.copytree(tmp_path / f"{5:020d}", tmp_path / f"{9:020d}.partial")
    assert restored_position(tmp_path) == 5
    save_at(tmp_path, 9)
    assert names(tmp_path) == [f"{position:020d}" for position in (5, 9)]


def test_what_an_interrupted_save_left_is_cleaned_up(tmp_path):
    save_at(tmp_path, 5, 9, 20, keep=3)
    shutil.copytree(tmp_path / f"{5:020d}", tmp_path / f"{30:020d}.partial")
    clean_up(tmp_path, keep=2)
    assert names(tmp_path) == [f"{position:020d}" for position in (9, 20)]
    clean_up(tmp_path / "nothing", keep=2)


def test_a_failing_write_leaves_those_before(tmp_path):
    save_at(tmp_path, 5)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path, 9, ARRAYS, {"position": object()}, 2)
    assert restored_position(tmp_path) == 5
    save_at(tmp_path, 9)
    assert restored_position(tmp_path) == 9


@pytest.fixture
def deleted_while_read(tmp_path, monkeypatch):
    """A folder whose checkpoint 1 is deleted, since the run goes on, once its state was read."""
    save_at(tmp_path, 1)
    unchanged = checkpoint.file_sha256

    def go_on(path):
        monkeypatch.undo()
        save_at(tmp_path, 2, 3)
        return unchanged(path)

    monkeypatch.setattr(checkpoint, "file_sha256", go_on)
    return tmp_path


def test_the_newest_of_a_run_that_goes_on(deleted_while_read):
    assert read(deleted_while_read)[1]["position"] == 3


def test_one_that_is_deleted_while_it_is_read(deleted_while_read):
    with pytest.raises(InputError, match="there is no checkpoint 1; there are 2, 3"):
        read(deleted_while_read, 1)


def test_none_is_seen_half_deleted(tmp_path, monkeypatch):
    save_at(tmp_path, 1, 2)

    def fail(path):
        raise OSError("the process ends here")

    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(OSError, match="ends here"):
        clean_up(tmp_path, 1)
    assert [name for name in names(tmp_path) if name.isdigit()] == [f"{2:020d}"]
    monkeypatch.undo()
    clean_up(tmp_path, 1)
    assert names(tmp_path) == [f"{2:020d}"]


def test_pickled_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        save(tmp_path, 5, {"a": np.array([{}])}, {}, 2)
    assert restore_newest(tmp_path) is None
