"""Checkpoints that several workers write, each its part, read by any number of them."""

import threading
from pathlib import Path

import numpy as np
import pytest

from ctr.io.errors import InputError
from ctr.training.run import checkpoint
from ctr.training.run.checkpoint import Share, write_part
from ctr.workers.parts import rows_of

WHOLE = {
    "weights|rows/a": np.arange(33, dtype=np.float32).reshape(11, 3),
    "weights|dense/000": np.array([[0.5, -1.0]], np.float32),
    "weights|step": np.array(7, np.int64),
    "total|counts": np.arange(5),
}


def write(folder, position, size, ranks=None, patience=5.0) -> None:
    """What ``size`` workers write, all but the first one at the same time in threads of their own."""
    checkpoint.begin(folder, position)

    def save(rank: int) -> None:
        part = rows_of(rank, size, 11)
        arrays = {"weights|rows/a": (WHOLE["weights|rows/a"] + position)[part.rows]}
        if not rank:
            arrays |= {name: array for name, array in WHOLE.items() if name not in arrays}
        share = Share(rank, size, {"weights|rows/a": part}, 1000, patience)
        checkpoint.save(folder, position, arrays, {"position": position}, 2, share=share)

    threads = [
        threading.Thread(target=save, args=(rank,))
        for rank in range(1, size)
        if ranks is None or rank in ranks
    ]
    for one in threads:
        one.start()
    try:
        save(0)
    finally:
        for one in threads:
            one.join()


@pytest.mark.parametrize("size", [2, 3, 12])
def test_it_is_read_as_that_of_one_process(tmp_path, size):
    write(tmp_path, 5, size)
    assert checkpoint.newest_sound(tmp_path) == 5
    for arrays, state in (checkpoint.read(tmp_path), checkpoint.restore_newest(tmp_path)):
        assert state["position"] == 5
        assert arrays.keys() == WHOLE.keys()
        np.testing.assert_array_equal(arrays["weights|rows/a"], WHOLE["weights|rows/a"] + 5)
        np.testing.assert_array_equal(arrays["weights|step"], 7)
    assert sorted(path.name for path in (tmp_path / f"{5:020d}").iterdir()) == sorted(
        ["arrays.npz", "state.json", *(f"arrays-{rank}.npz" for rank in range(1, size))]
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_read_by_another_number_of_workers(tmp_path, size):
    if size == 1:
        checkpoint.save(tmp_path, 5, WHOLE, {"position": 5}, 2)
    else:
        write(tmp_path, 5, size)
    expected = checkpoint.read(tmp_path)[0]["weights|rows/a"]
    for others in (2, 4):
        for rank in range(others):

            def wanted(name, total, rank=rank, others=others):
                return rows_of(rank, others, total) if name == "weights|rows/a" else None

            arrays, state, parts = checkpoint.read_share(tmp_path, 5, wanted)
            assert state["position"] == 5
            np.testing.assert_array_equal(arrays["weights|rows/a"], expected[rank::others])
            np.testing.assert_array_equal(arrays["total|counts"], WHOLE["total|counts"])
            assert parts["weights|rows/a"].total == 11


def test_a_damaged_part_makes_the_one_before_it_the_newest(tmp_path):
    write(tmp_path, 5, 3)
    write(tmp_path, 8, 3)
    part = tmp_path / f"{8:020d}" / "arrays-2.npz"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged \(arrays-2.npz does not have the recorded SHA-256\)"):
        checkpoint.read(tmp_path, 8)
    assert checkpoint.newest_sound(tmp_path) == 5


def test_without_a_part_there_is_no_checkpoint(tmp_path):
    write(tmp_path, 5, 3)
    with pytest.raises(InputError, match=r"worker 2 has not written its part in 0\.1 s"):
        write(tmp_path, 8, 3, ranks=(1,), patience=0.1)
    assert checkpoint.newest_sound(tmp_path) == 5
    # What it left does no harm.
    write(tmp_path, 8, 2)
    assert checkpoint.newest_sound(tmp_path) == 8


def test_the_first_worker_may_take_the_folder_as_soon_as_a_part_is_noted(tmp_path, monkeypatch):
    replace = Path.replace

    def taken_at_once(path: Path, target: Path) -> Path:
        replace(path, target)
        if Path(target).name == "part-1.json":
            Path(target).parent.rename(tmp_path / "final")
        return Path(target)

    (tmp_path / "partial").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", taken_at_once)
        write_part(tmp_path / "partial", {"a": np.arange(3)}, Share(1, 2, {}, 24, 1.0))
    assert {path.name for path in (tmp_path / "final").iterdir()} == {"arrays-1.npz", "part-1.json"}
