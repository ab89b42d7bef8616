"""Checkpoints: whole, verified, durable, as many as are to be kept; of one process and of several workers."""

import json
import logging
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ctr.io.errors import InputError, PassingError
from ctr.training.run import checkpoint
from ctr.training.run.checkpoint import clean_up, newest_sound, read, read_share, save
from ctr.training.run.part_files import Writer
from ctr.workers.parts import Deal
from fault_points import flip, watching

ARRAYS = {
    "weights|rows/a": np.arange(33, dtype=np.float32).reshape(11, 3),
    "weights|step": np.array(7, np.int64),
    "total|b/c": np.array([2**60, -1]),
}


def arrays_at(position: int) -> dict[str, np.ndarray]:
    return {name: value + position for name, value in ARRAYS.items()}


def save_at(folder, *positions: int, keep: int = 2) -> None:
    for position in positions:
        save(folder, position, arrays_at(position), {"position": position, "parts": ["x"]}, keep)


def restored_position(folder) -> int:
    position = newest_sound(folder)
    arrays, state, _ = read_share(folder, position, lambda name, rows: None)
    assert state["position"] == position
    assert state["parts"] == ["x"]
    assert arrays.keys() == ARRAYS.keys()
    for name, value in arrays_at(position).items():
        assert arrays[name].dtype == value.dtype
        np.testing.assert_array_equal(arrays[name], value)
    return position


def path_of(folder, position: int) -> Path:
    return folder / f"{position:020d}"


def positions(folder) -> list[int]:
    """All that is in the folder, which is checkpoints alone."""
    return sorted(int(path.name) for path in folder.iterdir())


def test_the_newest_comes_back_older_ones_go_and_the_same_content_gives_the_same_bytes(tmp_path):
    folder = tmp_path / "checkpoints"
    assert newest_sound(folder) is None
    clean_up(folder, keep=2)
    save_at(folder, 9, 10, 200)
    assert restored_position(folder) == 200
    assert positions(folder) == [10, 200]
    save_at(folder, 300, keep=1)
    assert positions(folder) == [300]
    save_at(tmp_path / "other", 300)
    for file in ("arrays.npz", "state.json"):
        contents = {(path_of(parent, 300) / file).read_bytes() for parent in (folder, tmp_path / "other")}
        assert len(contents) == 1


def test_it_is_on_the_disk_before_it_has_its_name_and_its_name_before_others_go(tmp_path):
    save_at(tmp_path, 5, 9)
    reached: list[tuple[str, str]] = []
    with watching(lambda point, path: reached.append((point, path)), training=False):
        save_at(tmp_path, 20)

    def at(point: str, path: Path) -> int:
        (found,) = [number for number, one in enumerate(reached) if one == (point, str(path))]
        return found

    partial = tmp_path / f"{20:020d}.partial"
    named = at("rename.before", path_of(tmp_path, 20))
    for file in ("arrays.npz", "state.json"):
        synced = [
            number
            for number, (point, path) in enumerate(reached)
            if point == "fsync.after" and Path(path).parent == partial and Path(path).name.startswith(file)
        ]
        assert len(synced) == 1 and synced[0] < named
    folder_synced = [number for number, one in enumerate(reached) if one == ("fsync.after", str(tmp_path))]
    assert any(number > named for number in folder_synced)
    first_gone = min(
        number
        for number, (point, path) in enumerate(reached)
        if point in ("unlink.before", "rename.before") and str(path_of(tmp_path, 5)) in path
    )
    assert min(number for number in folder_synced if number > named) < first_gone


def change_state(path: Path) -> None:
    content = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**content, "position": 8}))


DAMAGE = {
    "a bit of the arrays": lambda path: flip(path / "arrays.npz"),
    "no arrays": lambda path: (path / "arrays.npz").unlink(),
    # Those of another checkpoint, sound in themselves.
    "other arrays": lambda path: np.savez(path / "arrays.npz", **arrays_at(7)),
    "no state": lambda path: (path / "state.json").unlink(),
    "empty state": lambda path: (path / "state.json").write_bytes(b""),
    "state of another kind": lambda path: (path / "state.json").write_bytes(b"[]"),
    "a changed state": change_state,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_one_is_told_and_the_one_before_it_taken(tmp_path, damage, caplog):
    save_at(tmp_path, 5, 9)
    damage(path_of(tmp_path, 9))
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        read(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert restored_position(tmp_path) == 5
    assert f"{9:020d} is damaged" in caplog.text
    # It does not count among those that are kept, nor bar the way of the one that takes its place.
    save_at(tmp_path, 9)
    assert restored_position(tmp_path) == 9
    assert [int(path.name) for path in sorted(tmp_path.iterdir()) if path.name.isdecimal()] == [5, 9]


def test_older_ones_make_room_but_not_the_newest(tmp_path, monkeypatch):
    content, size = {"position": 0, "parts": ["x"]}, sum(array.nbytes for array in ARRAYS.values())
    for position in (5, 9, 20):
        save(tmp_path, position, ARRAYS, content, keep=3)
    taken = sum(path.stat().st_size for path in path_of(tmp_path, 20).glob("*"))

    def save_with(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
        save(tmp_path, 40, ARRAYS, content, keep=4)

    with pytest.raises(PassingError, match=rf"takes {size} bytes; "):
        save_with(size - 2 * taken - 1)
    assert positions(tmp_path) == [5, 9, 20]
    save_with(size - 1)
    assert positions(tmp_path) == [9, 20, 40]


def test_what_an_interrupted_or_failing_save_left_does_not_count_and_is_cleaned_up(tmp_path, monkeypatch):
    save_at(tmp_path, 5, 9)
    shutil.copytree(path_of(tmp_path, 5), tmp_path / f"{20:020d}.partial")
    assert restored_position(tmp_path) == 9
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path, 20, ARRAYS, {"position": object()}, 2)
    with pytest.raises(ValueError, match="pickle"):
        save(tmp_path, 20, {"a": np.array([{}])}, {}, 2)
    assert restored_position(tmp_path) == 9
    save_at(tmp_path, 20, keep=3)
    shutil.copytree(path_of(tmp_path, 5), tmp_path / f"{30:020d}.partial")
    clean_up(tmp_path, keep=2)
    assert positions(tmp_path) == [9, 20]

    # None is seen half deleted.
    def fail(path):
        raise OSError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(OSError, match="ends here"):
            clean_up(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.isdecimal()] == [f"{20:020d}"]
    clean_up(tmp_path, 1)
    assert positions(tmp_path) == [20]


@pytest.mark.parametrize("wanted", [None, 1])
def test_one_that_a_run_that_goes_on_deletes_while_it_is_read(tmp_path, monkeypatch, wanted):
    save_at(tmp_path, 1)
    unchanged = checkpoint.file_sha256

    def go_on(path):
        monkeypatch.undo()
        save_at(tmp_path, 2, 3)
        return unchanged(path)

    monkeypatch.setattr(checkpoint, "file_sha256", go_on)
    if wanted is None:
        assert read(tmp_path)[1]["position"] == 3
    else:
        with pytest.raises(InputError, match="there is no checkpoint 1; there are 2, 3"):
            read(tmp_path, wanted)


# Several workers write it, each its part; any number of them reads it.


def write_parts(folder, position, size, ranks=None, patience=5.0) -> None:
    """What ``size`` workers write, all but the first one at the same time in threads of their own."""
    checkpoint.begin(folder, position, 1000)
    whole = arrays_at(position)

    def write(rank: int) -> None:
        part = Deal(rank, size).part(11)
        arrays = {"weights|rows/a": whole["weights|rows/a"][part.rows]}
        if not rank:
            arrays |= {name: array for name, array in whole.items() if name not in arrays}
        writer = Writer(rank, size, {"weights|rows/a": part}, patience)
        checkpoint.save(folder, position, arrays, {"position": position, "parts": ["x"]}, 2, writer)

    others = [rank for rank in range(1, size) if ranks is None or rank in ranks]
    threads = [threading.Thread(target=write, args=(rank,)) for rank in others]
    for one in threads:
        one.start()
    try:
        write(0)
    finally:
        for one in threads:
            one.join()


@pytest.mark.parametrize("size", [1, 2, 12])
def test_it_is_read_by_one_process_and_by_any_number_of_workers(tmp_path, size):
    if size == 1:
        save_at(tmp_path, 5)
    else:
        write_parts(tmp_path, 5, size)
        files = ["arrays.npz", "state.json", *(f"arrays-{rank}.npz" for rank in range(1, size))]
        assert sorted(path.name for path in path_of(tmp_path, 5).iterdir()) == sorted(files)
    assert newest_sound(tmp_path) == restored_position(tmp_path) == 5
    expected = arrays_at(5)
    for others in (2, 4):
        for rank in range(others):

            def wanted(name, total, rank=rank, others=others):
                return Deal(rank, others).part(total) if name == "weights|rows/a" else None

            arrays, state, parts = read_share(tmp_path, 5, wanted)
            assert state["position"] == 5
            np.testing.assert_array_equal(arrays["weights|rows/a"], expected["weights|rows/a"][rank::others])
            np.testing.assert_array_equal(arrays["total|b/c"], expected["total|b/c"])
            assert parts["weights|rows/a"].total == 11


def test_a_damaged_or_missing_part_makes_the_one_before_it_the_newest(tmp_path):
    write_parts(tmp_path, 5, 3)
    write_parts(tmp_path, 8, 3)
    flip(path_of(tmp_path, 8) / "arrays-2.npz")
    with pytest.raises(InputError, match=r"damaged \(arrays-2.npz does not have the recorded SHA-256\)"):
        read(tmp_path, 8)
    assert newest_sound(tmp_path) == 5
    with pytest.raises(InputError, match="worker 2 has not written its part"):
        write_parts(tmp_path, 8, 3, ranks=(1,), patience=0.1)
    assert newest_sound(tmp_path) == 5
    # What it left does no harm.
    write_parts(tmp_path, 8, 2)
    assert newest_sound(tmp_path) == 8


def test_the_first_worker_may_take_the_folder_as_soon_as_a_part_is_noted(tmp_path, monkeypatch):
    replace = Path.replace

    def taken_at_once(path: Path, target: Path) -> Path:
        replace(path, target)
        if Path(target).name == "part-1.json":
            Path(target).parent.rename(tmp_path / "final")
        return Path(target)

    checkpoint.begin(tmp_path, 5, 24)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", taken_at_once)
        save(tmp_path, 5, {"a": np.arange(3)}, {}, 2, Writer(1, 2))
    assert {path.name for path in (tmp_path / "final").iterdir()} == {"arrays-1.npz", "part-1.json"}
