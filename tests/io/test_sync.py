"""``ctr sync`` over a bad network, between machines and beside others: who reads the target finds it whole."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from urllib.parse import unquote

import boto3
import obstore
import pytest
import yaml
from obstore.store import from_url

from ctr.cli import main
from ctr.data.kept_values import values_path
from ctr.data.log import ValuesEntry, publish_manifest, read_manifests
from ctr.data.reader import join_rows, read_rows
from ctr.data.sidecar import read_sidecar_partition
from ctr.io import sync as module
from ctr.io.errors import InputError, PassingError
from ctr.io.sync import sync
from http_proxy import Fault, Proxy
from small_runs import SCHEMA, draw_examples, publish, write_teacher

DAY = 86_400_000_000  # microseconds
ENDS = [DAY * day for day in range(5)]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch):
    monkeypatch.setattr(module, "_LIMIT", 5.0)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """A log of four days, with a sidecar."""
    table = draw_examples(160).table()
    times = table.column("query_time").to_numpy() // 1000 * (DAY // 40)
    for name in ("query_time", "timestamp"):
        table = table.set_column(table.column_names.index(name), name, [times])
    folder = publish(tmp_path_factory.mktemp("log") / "log", table, tuple(pairwise(ENDS)))
    write_teacher(folder, "teacher", lambda ids: ids % 7)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def ids(folder: Path) -> list[list[int]]:
    return join_rows(list(read_rows(folder, SCHEMA, read_manifests(folder)))).ids.tolist()


def check_whole(folder: Path) -> int:
    """Reads all that a log has; returns how many partitions that is."""
    if not (folder / "schema.json").exists():
        assert not list(folder.rglob("*.json"))
        return 0
    manifests = read_manifests(folder)
    assert [manifest.start for manifest in manifests] == ENDS[: len(manifests)]
    if manifests:
        ids(folder)
    for manifest in manifests:
        read_sidecar_partition(folder, "teacher", manifest)
    return len(manifests)


def puts(proxy: Proxy) -> Iterator[tuple[str, bytes]]:
    """The names, below the bucket's folder, and contents of what was written, in this order."""
    for one in proxy.requests:
        path, _, query = one.target.partition("?")
        if one.method == "PUT" and not query:
            yield unquote(path).split("/", 3)[3], one.body


def test_another_reader_finds_a_whole_log_at_any_moment(log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    assert sync(str(log), f"{bucket}/log") == len(files(log))
    written = list(puts(proxy))
    assert dict(written) == files(log) and len(written) == len(files(log))
    seen = [0]
    for name, content in written:
        path = tmp_path / "seen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        seen.append(check_whole(tmp_path / "seen"))
    assert sorted(seen) == seen and seen[-1] == 4
    # The same command again writes nothing, nor does one that brings it back.
    assert sync(str(log), f"{bucket}/log") == 0
    assert sync(f"{bucket}/log", str(tmp_path / "back")) == len(files(log))
    assert files(tmp_path / "back") == files(log)
    assert sync(str(tmp_path / "back"), f"{bucket}/log") == 0
    assert len(list(puts(proxy))) == len(written)


def test_copies_are_for_their_owner_alone(log, faulty_store, tmp_path):
    bucket, _ = faulty_store
    sync(str(log), f"{bucket}/log")
    before = os.umask(0o022)
    os.umask(before)
    sync(f"{bucket}/log", str(tmp_path / "back"))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "back").rglob("*") if path.is_file()} == {
        0o600
    }
    assert os.umask(before) == before


TIMEOUT = b"<?xml version='1.0'?><Error><Code>RequestTimeout</Code><Message>Your socket connection.</Message></Error>"
FAULTS = {
    "lost answers": lambda method, pattern: Fault("lose", method, pattern, 2),
    "dropped": lambda method, pattern: Fault("drop", method, pattern, 5),
    "500": lambda method, pattern: Fault("status", method, pattern, 6, 500),
    "throttled": lambda method, pattern: Fault("status", method, pattern, 6, 503),
    "throttled too": lambda method, pattern: Fault("status", method, pattern, 6, 429),
    "400 RequestTimeout": lambda method, pattern: Fault("status", method, pattern, 2, 400, TIMEOUT),
    "409": lambda method, pattern: Fault("status", method, pattern, 2, 409),
    "truncated": lambda method, pattern: Fault("truncate", method, pattern, 2),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_requests_that_fail_for_a_time_change_nothing(kind, log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    if kind != "truncated":
        proxy.faults = [
            FAULTS[kind]("PUT", name) for name in ("schema", "shards/", "manifests/", "sidecars/.*json")
        ]
        sync(str(log), f"{bucket}/log")
        assert proxy.faults == []
    proxy.faults = []
    sync(str(log), f"{bucket}/log")
    if kind != "409":
        proxy.faults = [FAULTS[kind]("GET", name) for name in ("list-type", "shards/", "manifests/")]
    sync(f"{bucket}/log", str(tmp_path / "back"))
    assert proxy.faults == [] and files(tmp_path / "back") == files(log)


def test_large_files_go_in_parts_and_are_known_again(faulty_store, tmp_path, monkeypatch):
    bucket, proxy = faulty_store
    (tmp_path / "run").mkdir()
    contents = {"a": os.urandom(17 << 20), "b": os.urandom(16 << 20), "c": os.urandom(1000), "d": b""}
    contents["e"] = os.urandom(8 << 20)
    for name, content in contents.items():
        (tmp_path / "run" / name).write_bytes(content)
    proxy.faults = [
        Fault("lose", "PUT", "partNumber", 2),
        Fault("status", "PUT", "partNumber", 2, 400, TIMEOUT),
    ]
    assert sync(str(tmp_path / "run"), bucket) == 5
    # A file of exactly one part is put at once, so that its tag is known again.
    assert proxy.faults == [] and proxy.count("POST", "/e\\?") == 0 < proxy.count("POST", "/b\\?")
    assert sync(str(tmp_path / "run"), bucket) == 0
    assert sync(bucket, str(tmp_path / "back")) == 5
    assert files(tmp_path / "back") == contents
    assert sync(bucket, str(tmp_path / "back")) == 0


def test_a_store_that_stays_away_and_one_that_refuses(log, faulty_store, tmp_path, monkeypatch, capsys):
    bucket, proxy = faulty_store
    monkeypatch.setattr(module, "_LIMIT", 1.0)
    proxy.faults = [Fault("status", "", "", 10**6)]
    begun = time.monotonic()
    assert main(["sync", str(log), f"{bucket}/log"]) == 75
    assert time.monotonic() - begun < 30
    proxy.faults = [
        Fault(
            "status",
            "",
            "",
            10**6,
            403,
            b"<Error><Code>X</Code><AWSAccessKeyId>test</AWSAccessKeyId></Error>",
        )
    ]
    assert main(["sync", str(log), f"{bucket}/log"]) == 1
    proxy.faults = []
    assert main(["sync", str(log), "s3://no-such-bucket/log"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: s3://") for line in lines] == [True] * 3
    assert lines[2] == "error: s3://no-such-bucket/log: no such bucket"
    for secret in ("test-secret", "Signature", "Credential", "AWSAccessKeyId", "<"):
        assert secret not in "\n".join(lines)
    allowed = "allowed: a folder, or s3://BUCKET/NAME (gs, az) without //, . and .."
    for wrong in ("hdfs://a/b", "s3://b/../x", "s3://b//x", "s3://"):
        for words in ([str(log), wrong], [wrong, str(log)]):
            assert main(["sync", *words]) == 1
            assert capsys.readouterr().err == f"error: {wrong}: {allowed}\n"
    assert main(["sync", str(tmp_path / "nothing"), f"{bucket}/log"]) == 1
    assert "no such folder" in capsys.readouterr().err


def test_a_listing_that_is_out_of_date_loses_nothing(log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    names = sorted(files(log))
    late = [name for name in names if name.endswith(".parquet") and f"/{ENDS[3]:019d}-" in name]
    store = from_url(bucket)
    for name in names:
        if name not in late:
            obstore.put(store, f"log/{name}", (log / name).read_bytes())
    obstore.list(store, "log").collect()
    for name in late:
        obstore.put(store, f"log/{name}", (log / name).read_bytes())
    # The manifest of the last partition is listed, what it names is not.
    proxy.faults = [Fault("stale", "GET", "list-type", 2)]
    sync(f"{bucket}/log", str(tmp_path / "back"))
    assert proxy.faults == [] and check_whole(tmp_path / "back") == 4
    # A target whose listing is from before all was there gets the same again.
    assert sync(str(log), f"{bucket}/two") == len(files(log))
    proxy.faults = [Fault("stale", "GET", "list-type.*two")]
    assert sync(str(log), f"{bucket}/two") > 0
    assert proxy.faults == [] and sync(str(log), f"{bucket}/two") == 0
    assert sync(f"{bucket}/two", str(tmp_path / "back")) == 0


def test_a_manifest_whose_shard_is_lost_is_not_copied_nor_are_later_ones(log, faulty_store, tmp_path):
    bucket, _ = faulty_store
    sync(str(log), f"{bucket}/log")
    (lost,) = [name for name in files(log) if name.startswith(f"shards/{ENDS[1]:019d}-{ENDS[2]:019d}-0000")]
    obstore.delete(from_url(bucket), f"log/{lost}")
    with pytest.raises(PassingError, match=f"^{bucket}/log: Object at location log/{lost} not found: "):
        sync(f"{bucket}/log", str(tmp_path / "back"))
    manifests = [name for name in files(tmp_path / "back") if name.startswith("manifests/")]
    assert manifests == [f"manifests/{ENDS[0]:019d}-{ENDS[1]:019d}.json"]


BESIDE = ["a//x", "../x", "//x", "./x"]
ABOVE = ["a/log//x", "a/log/./x", "a/log/../../x"]
BELOW = ["a/log/shards//x", "a/log/deep/er/../x"]


@pytest.fixture
def put_keys(log, faulty_store):
    """Copies the log, and writes objects with keys that obstore would not write, in the same bucket."""
    bucket, _ = faulty_store
    sync(str(log), f"{bucket}/a/log")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])

    def put(keys: list[str]) -> str:
        for key in keys:
            client.put_object(Bucket=bucket.removeprefix("s3://"), Key=key, Body=b"bad")
        return f"{bucket}/a/log"

    return put


@pytest.mark.parametrize("bad", [ABOVE, BELOW], ids=["above", "below"])
def test_keys_that_can_be_no_files_are_named_and_skipped(bad, put_keys, log, tmp_path, capsys):
    # Beside them an object for a folder, as some tools make it.
    address = put_keys([*bad, *BESIDE, "a/log/shards/"])
    assert main(["sync", address, str(tmp_path / "x" / "back")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(bad)
    for key in bad:
        assert any(line.startswith(f"warning: {address}: skipped {key}, ") for line in lines)
    # Nothing anywhere else.
    assert files(tmp_path) == {f"x/back/{name}": content for name, content in files(log).items()}


def test_keys_that_hide_others_are_refused(put_keys, tmp_path, capsys):
    address = put_keys(["a/log//x", "a/log/shards//x", "a/log/deep/../x"])
    assert main(["sync", address, str(tmp_path / "back")]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {address}: Encountered object with invalid path") and "a/log/" in line
    assert not (tmp_path / "back").exists()


def test_names_that_can_be_no_keys_are_refused(faulty_store, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a\nb").touch()
    assert main(["sync", str(tmp_path / "run"), f"{faulty_store[0]}/run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {faulty_store[0]}/run: ") and "a b" in line


def test_two_at_once_and_a_third_one_with_another_log(log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    proxy.latency = 0.01
    with ThreadPoolExecutor(2) as threads:
        counts = list(threads.map(lambda _: sync(str(log), f"{bucket}/log"), range(2)))
    assert sum(counts) >= len(files(log))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: sync(f"{bucket}/log", str(tmp_path / "back")), range(2)))
    assert files(tmp_path / "back") == files(log)
    # Of the same schema, with another partition of the same name.
    other = tmp_path / "other"
    publish(other, draw_examples(160, seed=1).table().slice(0, 40), ((ENDS[0], ENDS[1]), (ENDS[4], 5 * DAY)))
    before = len(list(puts(proxy)))
    with pytest.raises(
        InputError, match=r"log/manifests/.*json: is there, of another log or run, and is kept"
    ):
        sync(str(other), f"{bucket}/log")
    # Nothing else was tried before that was seen.
    assert {name for name, _ in list(puts(proxy))[before:]} <= {
        f"manifests/{ENDS[0]:019d}-{ENDS[1]:019d}.json"
    }
    sync(f"{bucket}/log", str(tmp_path / "again"))
    assert files(tmp_path / "again") == files(log)
    # The other way round, too.
    with pytest.raises(InputError, match="is there, of another log or run"):
        sync(f"{bucket}/log", str(other))


def test_a_part_of_a_log_is_a_log(log, faulty_store, tmp_path, capsys):
    bucket, _ = faulty_store
    sync(str(log), f"{bucket}/log")
    assert main(["sync", f"{bucket}/log", str(tmp_path / "part"), "--from", "1970-01-03"]) == 0
    manifests = read_manifests(tmp_path / "part")
    assert [manifest.start for manifest in manifests] == ENDS[2:4]
    whole = read_manifests(log)
    assert ids(tmp_path / "part") == join_rows(list(read_rows(log, SCHEMA, whole[2:]))).ids.tolist()
    assert main(["inspect", str(tmp_path / "part")]) == 0
    # What is left out can come later.
    sync(f"{bucket}/log", str(tmp_path / "part"))
    assert files(tmp_path / "part") == files(log)
    assert main(["sync", f"{bucket}/log", str(tmp_path / "x"), "--from", "yesterday"]) == 1
    assert "--from" in capsys.readouterr().err


def checkpoint(run: Path, number: int, text: str = "") -> None:
    folder = run / "checkpoints" / f"{number:020d}"
    folder.mkdir(parents=True)
    for name in ("arrays.npz", "state.json"):
        (folder / name).write_text(f"{name} {number} {text}")


def test_of_a_run_what_completes_the_rest_comes_last(faulty_store, tmp_path):
    bucket, proxy = faulty_store
    run = tmp_path / "run"
    checkpoint(run, 1)
    checkpoint(run, 2)
    for name in ("summary.json", "metrics.jsonl", "config.yaml", ".lock", f"x.partial-{'0' * 16}"):
        (run / name).write_text(name)
    (run / "checkpoints" / "3.partial").mkdir()
    (run / "checkpoints" / "3.partial" / "arrays.npz").touch()
    assert sync(str(run), f"{bucket}/run") == 7
    assert [name.rpartition("/")[2] for name, _ in puts(proxy)][-3:] == [
        "state.json",
        "state.json",
        "summary.json",
    ]
    # What has changed is written again, also where its size is the same.
    proxy.requests.clear()
    (run / "metrics.jsonl").write_text("METRICS.jsonl")
    (run / "summary.json").write_text("{}")
    assert sync(str(run), f"{bucket}/run") == 2
    assert [name for name, _ in puts(proxy)] == ["metrics.jsonl", "summary.json"]
    # Of another run neither a checkpoint nor anything else.
    other = tmp_path / "other"
    checkpoint(other, 2, "of another run")
    (other / "metrics.jsonl").touch()
    with pytest.raises(InputError, match=r"run/checkpoints/0*2/state.json: is there, of another log or run"):
        sync(str(other), f"{bucket}/run")
    assert sync(f"{bucket}/run", str(tmp_path / "back")) == 7
    left_out = (".lock", f"x.partial-{'0' * 16}", "checkpoints/3.partial/arrays.npz")
    assert files(tmp_path / "back") | dict.fromkeys(left_out) == files(run) | dict.fromkeys(left_out)


def started(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ctr", "sync", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_sync_that_is_killed_goes_on_by_the_same_command(way, log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    words = (str(log), f"{bucket}/log") if way == "up" else (f"{bucket}/log", str(tmp_path / "back"))
    if way == "down":
        sync(str(log), f"{bucket}/log")
    proxy.latency = 0.05
    seen = []
    for requests in (4, 12, 40, 10**6):
        proxy.requests.clear()
        process = started(*words)
        while len(proxy.requests) < requests and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        status = process.wait()
        proxy.latency, before = 0, proxy.latency
        reader = tmp_path / "back"
        if way == "up":
            reader = tmp_path / f"reader {requests}"
            sync(f"{bucket}/log", str(reader))
        seen.append(check_whole(reader))
        proxy.latency = before
    assert status == 0 and seen[-1] == 4 and sorted(seen) == seen
    found = {name: content for name, content in files(reader).items() if ".partial-" not in name}
    assert found == files(log)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_is_new_follows_until_a_signal(name, log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    process = started(str(tmp_path / "grows"), f"{bucket}/log", "--follow", "--poll", "0.05")
    for place in sorted(
        files(log), key=lambda one: (one.startswith("manifests/"), one != "schema.json", one)
    ):
        (tmp_path / "grows" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "grows" / place).write_bytes((log / place).read_bytes())
    while proxy.count("PUT", "manifests/") < 4:
        assert process.poll() is None
        time.sleep(0.01)
    # Nothing is written again while nothing changes, and what came with the signal is copied.
    before = len(proxy.requests)
    while len(proxy.requests) < before + 5:
        time.sleep(0.01)
    assert proxy.count("PUT") == len(files(log))
    process.send_signal(signal.SIGSTOP)
    (tmp_path / "grows" / "new").write_text("new")
    process.send_signal(signal.Signals[name])
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.Signals[name]
    assert f"interrupted; {bucket}/log has all of {tmp_path / 'grows'}" in said
    assert proxy.count("PUT", "log/new") == 1


def test_a_source_that_is_a_file_is_refused_also_with_follow(log, tmp_path, capsys):
    for more in ([], ["--follow"]):
        assert main(["sync", str(log / "schema.json"), str(tmp_path / "copy"), *more]) == 1
        assert capsys.readouterr().err == f"error: {log}/schema.json: is a file; allowed: a directory\n"


WRONG_SETTINGS = [
    ("az://ads/log", {}, "Account must be specified"),
    ("gs://ads/log", {"GOOGLE_SERVICE_ACCOUNT": "/nope.json"}, "/nope.json"),
    ("s3://ads/log", {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "maybe"}, "maybe"),
]


@pytest.mark.parametrize(("address", "variables", "said"), WRONG_SETTINGS, ids=["az", "gs", "s3"])
def test_wrong_settings_of_a_store_are_one_line(address, variables, said, log, monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["sync", str(log), address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {address}: Generic ") and said in line


def test_between_two_folders_of_this_machine_without_obstore(log, tmp_path, monkeypatch, capsys):
    for name in ["obstore", *(name for name in sys.modules if name.startswith("obstore."))]:
        monkeypatch.setitem(sys.modules, name, None)
    assert sync(str(log), str(tmp_path / "copy")) == len(files(log))
    assert files(tmp_path / "copy") == files(log)
    assert main(["sync", str(log), "s3://ads/log"]) == 1
    assert "pip install 'clicktrain[cloud]'" in capsys.readouterr().err


def test_linked_folders_are_copied_and_loops_and_faults_refused(log, tmp_path, monkeypatch, capsys):
    source = tmp_path / "source"
    source.mkdir()
    (source / "linked").symlink_to(log)
    (source / "file").symlink_to(log / "schema.json")
    copied = {f"linked/{name}": content for name, content in files(log).items()}
    assert sync(str(source), str(tmp_path / "copy")) == len(copied) + 1
    assert files(tmp_path / "copy") == copied | {"file": (log / "schema.json").read_bytes()}
    (source / "below").mkdir()
    (source / "below" / "loop").symlink_to(source)
    assert main(["sync", str(source), str(tmp_path / "other")]) == 1
    where = source / "below" / "loop"
    assert capsys.readouterr().err == f"error: {where}: links to a folder that holds it; remove the link\n"
    where.unlink()
    iterdir = Path.iterdir

    def refuse(folder: Path) -> Iterator[Path]:
        if folder.name == "below":
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert main(["sync", str(source), str(tmp_path / "other")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Permission denied" in line and str(source / "below") in line


def write_files(folder: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def test_only_what_is_written_here_has_a_meaning(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    others = (
        *("poetry.lock", "x.damaged", "old.partial", "5.partial", "a.launching/b", "raw.partial/5"),
        *("shards/notes.txt", f"shards/{ENDS[0]:019d}-{ENDS[1]:019d}.txt", "manifests/x.json", "schema.json"),
        *("checkpoints/mine/state.json", "sidecars/a/0.json"),
    )
    left_out = (
        *(".lock", "run/.lock", ".run.launching/config.yaml", f".spill-{'0' * 16}/1"),
        *("run/checkpoints/00000000000000000003.partial/arrays.npz", "exports/3.partial/saved_model.pb"),
        *("run/checkpoints/00000000000000000003.former.partial/state.json",),
        *("run/checkpoints/00000000000000000002.damaged/state.json", "exports/2.damaged.partial/x"),
        *(f"metrics.jsonl.partial-{'0' * 16}",),
    )
    write_files(source, dict.fromkeys((*others, *left_out), "a"))
    assert sync(str(source), str(target)) == len(others)
    assert set(files(target)) == set(others)
    # All of it may change, also to what has the same size.
    write_files(source, dict.fromkeys(others, "b"))
    assert sync(str(source), str(target)) == len(others)
    assert set(files(target).values()) == {b"b"}


def test_a_dictionary_of_values_that_a_listing_leaves_out_comes_with_its_manifest(log, tmp_path, monkeypatch):
    grows, target = tmp_path / "grows", tmp_path / "copy"
    (grows / "manifests").mkdir(parents=True)
    (grows / "schema.json").write_bytes((log / "schema.json").read_bytes())
    entry = ValuesEntry(bytes=6, sha256="5" * 64)
    manifest = read_manifests(log)[0].model_copy(
        update={"values": entry, "rows": 0, "queries": 0, "shards": ()}
    )
    publish_manifest(grows, manifest)
    path = values_path(grows, manifest.name, entry)
    write_files(grows, {str(path.relative_to(grows)): "values"})
    entries = module._Folder.entries
    monkeypatch.setattr(
        module._Folder,
        "entries",
        lambda place: {name: one for name, one in entries(place).items() if not name.startswith("values/")},
    )
    assert sync(str(grows), str(target)) == 3
    assert files(target) == files(grows)


STATES = [".events/units/1.json", ".events/units/2.json", ".ingest/state.json", ".events/clock.json"]
SPOKEN_OF = [".events/segments/1/click-1-000000.arrow", ".ingest/held-1.arrow"]


def test_what_an_ingest_goes_on_from_comes_after_all_that_it_speaks_of(log, faulty_store, tmp_path):
    bucket, proxy = faulty_store
    source = tmp_path / "logs"
    for place in ("one", "two"):
        sync(str(log), str(source / place))
        write_files(source / place, dict.fromkeys((*STATES, *SPOKEN_OF, "summary.json"), "1"))
    assert sync(str(source), bucket) == len(files(source))
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    assert client.list_objects_v2(Bucket=bucket.removeprefix("s3://"))["KeyCount"] == len(files(source))
    written = [one.target.partition("?")[0] for one in proxy.requests if one.method == "PUT"]
    assert len(written) == len(files(source))
    for place in ("one", "two"):
        ours = [name.partition(f"/{place}/")[2] for name in written if f"/{place}/" in name]
        assert ours[-len(STATES) :] == STATES
    # They may change, and are no conflict.
    write_files(source / "one", dict.fromkeys(STATES, "2"))
    assert sync(str(source), bucket) == len(STATES) == 4


def test_what_an_ingest_goes_on_from_is_of_one_moment_with_the_rest(log, tmp_path, monkeypatch, capsys):
    source, target = tmp_path / "log", tmp_path / "copy"
    sync(str(log), str(source))
    write_files(source, dict.fromkeys((*STATES, *SPOKEN_OF), "1"))
    entries, copy, number = module._Folder.entries, module._Sync._copy, count()

    def ingest(place: module._Folder) -> object:
        if place.address == str(source):
            write_files(source, {f".events/units/new {next(number)}.json": "new", ".ingest/state.json": "2"})
        return entries(place)

    # While something changes all the time, it waits.
    monkeypatch.setattr(module._Folder, "entries", ingest)
    assert main(["sync", str(source), str(target)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {source}: changes; ")
    assert not [name for name in files(target) if "units" in name or name in STATES]
    assert set(SPOKEN_OF) < set(files(target))
    monkeypatch.setattr(module._Folder, "entries", entries)

    # What comes after the shards were listed is not mentioned.
    def copy_beside(one: module._Sync, name: str, *content: bytes) -> None:
        write_files(source, {".ingest/state.json": "3", "shards/late": "late"})
        copy(one, name, *content)

    write_files(source, {"new": "1"})
    monkeypatch.setattr(module._Sync, "_copy", copy_beside)
    sync(str(source), str(target))
    assert (target / ".ingest/state.json").read_text() == "2"
    assert set(STATES) < set(files(target)) and "shards/late" not in files(target)
    monkeypatch.setattr(module._Sync, "_copy", copy)
    assert sync(str(source), str(target)) == 2
    assert files(target) == files(source) and sync(str(source), str(target)) == 0


def test_between_two_folders_of_this_machine(log, tmp_path):
    assert sync(str(log), str(tmp_path / "copy")) == len(files(log))
    assert files(tmp_path / "copy") == files(log)
    assert sync(str(log), str(tmp_path / "copy")) == 0


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_on_another_machine_to_the_same_bits(
    faulty_store, tmp_path, monkeypatch
):
    bucket, proxy = faulty_store
    monkeypatch.chdir(tmp_path)
    config = {
        "batch": {"rows": 16},
        "checkpoint": {"every_examples": 200, "keep": 2},
        "record_predictions": True,
        "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    publish(tmp_path / "log", draw_examples(500).table(), ((0, 250_000), (250_000, 500_000)))
    words = ["train", "log", "--config", "run.yaml", "--out"]
    assert main([*words, "alone"]) == 0
    follows = started("run", f"{bucket}/run", "--follow", "--poll", "0.02")
    train = subprocess.Popen([sys.executable, "-m", "ctr", *words, "run"], stdout=subprocess.DEVNULL)
    while proxy.count("PUT", "checkpoints/.*/state.json") < 2:
        assert train.poll() is None and follows.poll() is None
        time.sleep(0.005)
    for process in (follows, train):
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "run" / "summary.json").exists()
    (tmp_path / "run").rename(tmp_path / "lost")
    sync(f"{bucket}/run", "elsewhere")
    assert list((tmp_path / "elsewhere" / "checkpoints").glob("*/state.json"))
    assert main([*words, "elsewhere"]) == 0
    sync("elsewhere", f"{bucket}/run")
    sync(f"{bucket}/run", "third")

    def bits(run: str) -> dict[str, bytes]:
        # The store keeps older checkpoints.
        newest = {path.name for path in sorted((tmp_path / "alone" / "checkpoints").iterdir())}
        found = {
            name: content
            for name, content in files(tmp_path / run).items()
            if name.endswith((".npz", ".parquet"))
        }
        return {
            name: one
            for name, one in found.items()
            if not name.startswith("ch") or name.split("/")[1] in newest
        }

    assert bits("third") == bits("elsewhere") == bits("alone") and len(bits("alone")) > 3
