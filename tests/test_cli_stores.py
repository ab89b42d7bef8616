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
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.io.paths import read_path, with_content
from ctr.io.stores import pulls_anew
from ctr.io.working_copies import lets_go, open_working_copy
from ctr.training.config import TrainConfig
from ctr.training.run.directory import hold_run
from ctr.workers.cluster import Cluster
from ctr.workers.collectives import ALONE
from http_proxy import Fault
from small_runs import INTERVALS, SCHEMA, draw_examples, publish
from worker_group import free_addresses

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


def start_cluster(words: list[str], caches: list[Path]) -> list["subprocess.Popen[str]"]:
    """Workers of two machines, with a cache each."""
    addresses = free_addresses(2)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "ctr", *words],
            env={
                **os.environ,
                "TF_CONFIG": Cluster(rank, addresses).config(),
                "CTR_CACHE": str(cache),
                "TF_NUM_INTRAOP_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, cache in enumerate(caches)
    ]


def ended(cluster: list["subprocess.Popen[str]"]) -> list[tuple[int, list[str]]]:
    """Of each worker its exit status, and its errors and warnings."""
    texts = [process.communicate()[1] for process in cluster]
    lines = [[line for line in text.splitlines() if line.startswith(("error", "warning"))] for text in texts]
    return [(process.returncode, own) for process, own in zip(cluster, lines, strict=True)]


@pytest.mark.slow
def test_a_cluster_without_a_shared_folder_is_killed_and_goes_on_elsewhere_to_the_same_bits(
    faulty_store, put_log, tmp_path, monkeypatch
):
    bucket, proxy = faulty_store("s3")
    log = put_log(f"{bucket}/log")
    more = ["--config", "run.yaml", "--set", "workers.divided_from_mb=0"]
    here = start_cluster(["train", str(log), *more, "--out", "pair"], [tmp_path / "h0", tmp_path / "h1"])
    assert ended(here) == [(0, []), (0, [])]
    words = ["train", f"{bucket}/log", *more, "--out", f"{bucket}/run"]
    killed = start_cluster(words, [tmp_path / "a0", tmp_path / "a1"])
    while not proxy.count("PUT", "/state.json") and killed[0].poll() is None:
        time.sleep(0.01)
    # All parts of the next checkpoint are there, and the state that completes it is not.
    proxy.faults = [Fault("drop", "PUT", "/state.json", 1000)]
    complete = proxy.count("PUT", "/arrays.npz")
    while proxy.count("PUT", "/arrays.npz") == complete and killed[0].poll() is None:
        time.sleep(0.01)
    for process in killed:
        process.kill()
    assert [status for status, _ in ended(killed)] == [-signal.SIGKILL] * 2
    proxy.faults = []
    again = start_cluster(words, [tmp_path / "b0", tmp_path / "b1"])
    assert ended(again) == [(0, []), (0, [])]
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "reader"))
    found = with_content(read_path(f"{bucket}/run"))
    names = {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()}
    expected = {path.relative_to("pair").as_posix() for path in Path("pair").rglob("*") if path.is_file()}
    # Names of events have the time.
    assert {name for name in names ^ expected if "tfevents" not in name} == {".lock"}
    assert any(name.endswith("arrays-1.npz") for name in names)
    assert files(found) == files(Path("pair"))


def test_of_two_runs_in_one_place_the_second_with_another_configuration_does_not_begin(
    object_store, tmp_path, monkeypatch
):
    address, runs = f"{object_store('s3')}/run", {}

    def begin(machine: str, seed: int) -> None:
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / machine))
        with hold_run(runs[machine], TrainConfig(seed=seed), SCHEMA, {"workers": 2}, ALONE):
            pass

    with lets_go():
        for machine in ("a", "b"):
            monkeypatch.setenv("CTR_CACHE", str(tmp_path / machine))
            with pulls_anew():
                runs[machine] = open_working_copy(address)
        begin("a", 1)
        with pytest.raises(InputError, match=f"{address}/config.yaml: another process has written it"):
            begin("b", 2)


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
