"""Commands on addresses of object stores: the same results as with files, also where another machine goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ctr.cli import main
from ctr.io.files import write_atomic_bytes
from ctr.io.paths import read_path, with_content
from http_proxy import Fault
from small_runs import INTERVALS, draw_examples, publish

CONFIG = {
    "batch": {"rows": 16},
    "checkpoint": {"every_examples": 100},
    "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}},
}


@pytest.fixture
def put_log(tmp_path, monkeypatch):
    """Makes a log on this machine, and writes the same to an address; the working directory is ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIG))

    def put(address: str) -> Path:
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / "publisher"))
        table = draw_examples(150).table()
        publish(read_path(address), table, INTERVALS)
        return publish(tmp_path / "log", table, INTERVALS)

    return put


def files(run: Path) -> dict[str, bytes]:
    """What the same run writes to the same bits: all but what has times."""
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.suffix in (".npz", ".parquet")}
    return {path.relative_to(run).as_posix(): content for path, content in kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize("saved", [1, 3])
def test_a_run_that_is_killed_goes_on_elsewhere_to_the_same_bits(
    saved, faulty_store, put_log, tmp_path, monkeypatch, capsys
):
    bucket, proxy = faulty_store("s3")
    log = put_log(f"{bucket}/log")
    assert main(["train", str(log), "--config", "run.yaml", "--out", "alone"]) == 0
    words = ["train", f"{bucket}/log", "--config", "run.yaml", "--out", f"{bucket}/runs/one"]
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "first"))
    process = subprocess.Popen([sys.executable, "-m", "ctr", *words], stdout=subprocess.DEVNULL)
    while proxy.count("PUT", "runs/one/checkpoints/.*/state.json") < saved and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    proxy.requests.clear()
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "second"))
    assert main(words) == 0
    assert proxy.count("GET", "runs/one/checkpoints/.*/arrays.npz") >= 1
    # A third machine has it all.
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "third"))
    assert main(["report", f"{bucket}/runs/one"]) == 0
    (found,) = (tmp_path / "third").glob("objects/s3/*/runs/one")
    assert files(found) == files(Path("alone"))
    assert capsys.readouterr().out.endswith(f"{bucket}/runs/one/report.html\n")
    assert proxy.count("PUT", "report.html") == 1
    assert os.fspath(tmp_path) not in (found / "config.yaml").read_text()


@pytest.mark.slow
def test_a_run_that_begins_with_another_one_is_the_same_on_any_machine(
    object_store, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "first"))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    bucket, table = object_store("s3"), draw_examples(150).table()
    publish(read_path(f"{bucket}/log"), table, INTERVALS[:1])
    words = ["train", f"{bucket}/log", "--config", "run.yaml", "--out"]
    assert main([*words, f"{bucket}/runs/one"]) == 0
    publish(read_path(f"{bucket}/log"), table, INTERVALS[1:])
    words += [f"{bucket}/runs/two", "--init-from", f"{bucket}/runs/one"]
    for machine in ("a", "b"):
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / machine))
        assert main(words) == 0
    assert "error" not in capsys.readouterr().err
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "c"))
    runs = with_content(read_path(f"{bucket}/runs"))
    assert {path.name for path in runs.iterdir()} == {"one", "two"}
    assert json.loads((runs / "two" / "init_from.json").read_text())["run"] == f"{bucket}/runs/one"


def test_a_store_that_does_not_answer_is_a_reason_to_try_again(faulty_store, tmp_path, monkeypatch, capsys):
    bucket, proxy = faulty_store("s3")
    monkeypatch.setenv("CTR_CACHE", str(tmp_path))
    proxy.faults = [Fault("truncate", "", "", 100)]
    assert main(["inspect", f"{bucket}/log"]) == 75
    proxy.faults = [Fault("status", "", "", 100, 403)]
    assert main(["inspect", f"{bucket}/log"]) == 1
    for line in capsys.readouterr().err.splitlines():
        assert line.startswith(f"error: LOG {bucket}/log: ")


def test_workers_of_a_cluster_need_a_folder_that_they_share(object_store, tmp_path, monkeypatch, capsys):
    bucket = object_store("s3")
    monkeypatch.setenv("CTR_CACHE", str(tmp_path))
    workers = ["127.0.0.1:1", "127.0.0.1:2"]
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": workers}, "task": task}))
    assert main(["train", "log", "--out", f"{bucket}/run"]) == 1
    assert (
        f"error: --out {bucket}/run: the workers that TF_CONFIG describes write to one folder"
        in capsys.readouterr().err
    )


def test_a_table_in_a_bucket_becomes_a_log_there(object_store, tmp_path, monkeypatch, capsys):
    bucket = object_store("s3")
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "a"))
    mapping = {
        "input": {"type": "csv"},
        "partition": "1d",
        "label": {"column": "click"},
        "time": {"column": "day", "unit": "s"},
        "features": [{"kind": "category", "name": "ad", "source": "ad"}],
    }
    rows = [f"{day * 86400},{row % 5},{row % 3 == 0:d}" for day in (1, 2) for row in range(40)]
    write_atomic_bytes(read_path(f"{bucket}/raw/day.csv"), "\n".join(["day,ad,click", *rows]).encode())
    write_atomic_bytes(read_path(f"{bucket}/table.yaml"), yaml.safe_dump(mapping).encode())
    words = [
        "ingest",
        "table",
        f"{bucket}/raw",
        "--mapping",
        f"{bucket}/table.yaml",
        "--out",
        f"{bucket}/log",
    ]
    assert main(words) == 0
    assert f"{bucket}/log: 80 examples" in capsys.readouterr().out
    # On another machine the same is a repetition, and the log is whole.
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "b"))
    assert main(words) == 0
    assert "1 file is in the log already, not added again: day.csv" in capsys.readouterr().out
    assert main(["inspect", f"{bucket}/log"]) == 0
    assert capsys.readouterr().out.startswith(f"{bucket}/log: 80 rows")
    left = {path.name for path in (tmp_path / "b").glob("objects/s3/*/log/*")}
    assert left == {".ingest", "manifests", "schema.json", "shards"}
