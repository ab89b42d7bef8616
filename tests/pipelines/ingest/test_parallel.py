"""An ingest in several processes: the bytes, the result and the errors of one that has none but its own."""

import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import raw_logs
from ctr.cli import main
from ctr.io.errors import InputError
from ctr.pipelines.ingest.parallel import processes
from ctr.pipelines.ingest.run import ingest
from ctr.workers.cluster import WorkerLostError

MAPPING = {
    "query": raw_logs.QUERIES["session"],
    "features": raw_logs.GROWING_FEATURES,
    "keep_values": ["visitor", "labels"],
}


def write_files(folder: Path, count: int = 5) -> list[Path]:
    """Files with rejects, the same row twice, one that is blank, and rows of all of them in the same hours."""
    rows = raw_logs.make_rows(300, seed=7)
    rows[20]["rating"] = rows[170]["weight"] = "-1"
    # In the last file again: the first to arrive stays.
    rows[-1] = dict(rows[3])
    files = []
    for number in range(count):
        part = rows[len(rows) * number // count : len(rows) * (number + 1) // count]
        files.append(raw_logs.write_rows(folder, part, "csv", f"rows{number}"))
    blank = folder / "rows2b.csv"
    blank.write_text("\n")
    return [*files[:3], blank, *files[3:]]


def everything(log: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log)): path.read_bytes() for path in log.rglob("*") if path.is_file()}


def plain(result: Any, log: Path) -> dict[str, Any]:
    found = {key: value for key, value in asdict(result).items() if key != "seconds"}
    return {**found, "rejects_file": found["rejects_file"].relative_to(log)}


def test_all_that_an_ingest_leaves_is_the_same_with_any_number_of_processes(tmp_path):
    mapping = raw_logs.make_mapping(**MAPPING)
    files = write_files(tmp_path / "in")
    for name, workers in (("one", 1), ("two", 2)):
        log = tmp_path / name
        settings = {"max_reject_share": 0.5, "workers": workers}
        results = [
            # Rows that are held back are merged with later files, and all files are read once more.
            ingest(
                mapping, files[:3], log, append=True, allowed_lateness_us=10**12, block_bytes=2000, **settings
            ),
            ingest(mapping, files, log, block_bytes=2000, **settings),
            ingest(mapping, files, log, block_bytes=9000, **settings),
        ]
        if workers == 1:
            alone = [plain(result, log) for result in results]
    assert [plain(result, log) for result in results] == alone
    assert [sum(found["reject_reasons"].values()) for found in alone] == [1, 1, 2]
    assert len(alone[1]["partitions"]) > 2 and alone[0]["held_rows"] > 100
    assert everything(tmp_path / "two") == everything(tmp_path / "one")
    assert any(name.startswith("values/") for name in everything(log))


def test_a_damaged_file_is_the_error_of_one_process_and_nothing_is_published(tmp_path):
    files = write_files(tmp_path / "in")
    files[3].with_suffix(".csv.gz").write_bytes(b"no gzip")
    files[3] = files[3].with_suffix(".csv.gz")
    said = []
    for workers in (1, 2):
        with pytest.raises(InputError) as caught:
            ingest(
                raw_logs.make_mapping(),
                files,
                tmp_path / f"log{workers}",
                max_reject_share=0.5,
                workers=workers,
            )
        said.append(str(caught.value))
        assert not (tmp_path / f"log{workers}" / "manifests").exists()
    assert said[0] == said[1] and "gz" in said[0]


def test_files_that_depend_on_those_before_them_are_not_read_side_by_side(tmp_path):
    times = {"time": {"row_order": {"start": "2024-01-01T00:00:00Z", "step_us": 1000}}}
    mapping = raw_logs.make_mapping(**times)
    for workers, said in ((2, "row_order, times count the lines"), (0, "--workers 0: not allowed")):
        with pytest.raises(InputError, match=said):
            ingest(mapping, write_files(tmp_path / "in"), tmp_path / "log", workers=workers)


def test_a_process_that_is_killed_ends_the_ingest_with_one_line():
    with processes(1) as pool, pytest.raises(WorkerLostError, match="a process was ended from outside"):
        list(pool.map(_killed, [0]))


def _killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_command_takes_the_number_of_processes(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("id,click\n")
    assert main(["ingest", "avazu", str(tmp_path), "--out", str(tmp_path / "log"), "--workers", "0"]) == 1
    assert "--workers 0" in capsys.readouterr().err
