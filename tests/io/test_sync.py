"""``ctr sync`` over a bad network and beside others: who reads the target finds it whole."""

import os
import signal
import sys
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import obstore.store
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from ctr.cli import main
from ctr.data.kept_values import values_path
from ctr.data.log import ValuesEntry, publish_manifest, read_manifests
from ctr.data.reader import join_rows, read_rows
from ctr.data.sidecar import read_sidecar_partition
from ctr.io import sync as module
from ctr.io.errors import InputError, PassingError
from ctr.io.sync import sync
from small_runs import SCHEMA, draw_examples, publish, write_teacher
from stores import Bucket, Fault

DAY = 86_400_000_000  # microseconds
ENDS = [DAY * day for day in range(5)]


@pytest.fixture
def bucket(monkeypatch) -> Bucket:
    """An empty bucket, s3://ads."""
    monkeypatch.setattr(module, "_LIMIT", 2.0)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    made = Bucket()
    monkeypatch.setattr(obstore.store, "from_url", lambda url, **options: made)
    return made


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


def puts(bucket: Bucket) -> list[str]:
    """Names, below the bucket's folder, of what was written, in this order."""
    return [path.partition("/")[2] for method, path in bucket.requests if method == "put"]


def test_another_reader_finds_a_whole_log_at_any_moment(log, bucket, tmp_path):
    assert sync(str(log), "s3://ads/log") == len(files(log))
    written = puts(bucket)
    assert {name: bucket.objects[f"log/{name}"] for name in written} == files(log)
    assert len(written) == len(files(log))
    seen = [0]
    for name in written:
        path = tmp_path / "seen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.objects[f"log/{name}"])
        seen.append(check_whole(tmp_path / "seen"))
    assert sorted(seen) == seen and seen[-1] == 4
    # The same command again writes nothing, nor does one that brings it back.
    assert sync(str(log), "s3://ads/log") == 0
    before = os.umask(0o022)
    assert sync("s3://ads/log", str(tmp_path / "back")) == len(files(log))
    assert files(tmp_path / "back") == files(log) and os.umask(before) == 0o022
    # Copies are for their owner alone.
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "back").rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert sync(str(tmp_path / "back"), "s3://ads/log") == 0
    assert puts(bucket) == written


def test_large_files_go_in_parts_and_are_known_again(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE", 1000)
    (tmp_path / "run").mkdir()
    contents = {name: os.urandom(size) for name, size in zip("abcde", (2500, 2000, 9, 0, 1000), strict=True)}
    for name, content in contents.items():
        (tmp_path / "run" / name).write_bytes(content)
    assert sync(str(tmp_path / "run"), "s3://ads") == 5
    # A file of exactly one part is put at once, so that its tag is known again.
    assert {name for name, tag in bucket.tags.items() if "-" in tag} == {"a", "b"}
    assert sync(str(tmp_path / "run"), "s3://ads") == 0
    assert sync("s3://ads", str(tmp_path / "back")) == 5 and files(tmp_path / "back") == contents
    assert sync("s3://ads", str(tmp_path / "back")) == 0


def test_a_store_of_obstore_takes_the_same_calls(log, tmp_path, monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(obstore.store, "from_url", lambda url, **options: store)
    monkeypatch.setattr(module, "_PIECE", 1000)
    assert sync(str(log), "s3://ads/log") == sync("s3://ads/log", str(tmp_path / "back")) == len(files(log))
    assert files(tmp_path / "back") == files(log)


TIMEOUT = GenericError("status code: 400: <Error><Code>RequestTimeout</Code></Error>")
FAULTS = {
    "lost answers": ("lose", 2),
    "throttled": ("fail", 6),
    "timeout": ("fail", 2, TIMEOUT),
    "cut": ("cut", 2),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_requests_that_fail_for_a_time_change_nothing(kind, log, bucket, tmp_path):
    action, *times = FAULTS[kind]
    if kind != "cut":
        names = ("schema", "shards/", "manifests/", "sidecars/.*json")
        bucket.faults = [Fault(action, "put", name, *times) for name in names]
    sync(str(log), "s3://ads/log")
    assert bucket.faults == []
    if kind != "lost answers":
        bucket.faults = [Fault(action, "get", name, *times) for name in ("shards/", "manifests/")]
    sync("s3://ads/log", str(tmp_path / "back"))
    assert bucket.faults == [] and files(tmp_path / "back") == files(log)


REFUSED = """Generic S3 error: Error performing PUT http://a:secret@host/ads?X-Signature=abc in 1s - status code: 403:
<Error><AWSAccessKeyId>test</AWSAccessKeyId></Error>

Debug source: secret"""


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (GenericError("status code: 503"), 75, "status code: 503"),
        (GenericError(REFUSED), 1, "performing PUT http://host/ads in 1s - status code: 403"),
        (PermissionDeniedError("no rights"), 1, "no rights"),
        (GenericError("status code: 404: <Code>NoSuchBucket</Code>"), 1, "no such bucket"),
    ],
)
def test_a_store_that_stays_away_and_one_that_refuses(error, status, said, log, bucket, monkeypatch, capsys):
    monkeypatch.setattr(module, "_LIMIT", 0.0)
    bucket.faults = [Fault("fail", "list", "", 10**6, error)]
    assert main(["sync", str(log), "s3://ads/log"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: s3://ads/log: ") and line.endswith(said)
    assert not [secret for secret in ("secret", "Signature", "AWSAccessKeyId", "<") if secret in line]


def test_wrong_addresses_are_refused(log, tmp_path, capsys):
    allowed = "allowed: a folder, or s3://BUCKET/NAME (gs, az) without //, . and .."
    for wrong in ("hdfs://a/b", "s3://b/../x", "s3://b//x", "s3://"):
        for words in ([str(log), wrong], [wrong, str(log)]):
            assert main(["sync", *words]) == 1
            assert capsys.readouterr().err == f"error: {wrong}: {allowed}\n"
    assert main(["sync", str(tmp_path / "nothing"), str(tmp_path / "copy")]) == 1
    assert "no such folder" in capsys.readouterr().err
    for more in ([], ["--follow"]):
        assert main(["sync", str(log / "schema.json"), str(tmp_path / "copy"), *more]) == 1
        assert capsys.readouterr().err == f"error: {log}/schema.json: is a file; allowed: a directory\n"


def test_a_listing_that_is_out_of_date_loses_nothing(log, bucket, tmp_path):
    sync(str(log), "s3://ads/log")
    late = [name for name in files(log) if name.endswith(".parquet") and f"/{ENDS[3]:019d}-" in name]
    hidden = {f"log/{name}": bucket.objects.pop(f"log/{name}") for name in late}
    bucket.list("log")
    bucket.objects |= hidden
    # The manifest of the last partition is listed, what it names is not.
    bucket.faults = [Fault("stale", "list", "log", 2)]
    sync("s3://ads/log", str(tmp_path / "back"))
    assert bucket.faults == [] and check_whole(tmp_path / "back") == 4
    # A target whose listing is from before all was there gets the same again.
    objects, bucket.objects = bucket.objects, {}
    bucket.list("log")
    bucket.objects = objects
    bucket.faults = [Fault("stale", "list", "log")]
    assert sync(str(log), "s3://ads/log") > 0
    assert bucket.faults == [] and sync(str(log), "s3://ads/log") == 0


def test_a_manifest_whose_shard_is_lost_is_not_copied_nor_are_later_ones(log, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LIMIT", 0.1)
    sync(str(log), "s3://ads/log")
    (lost,) = [name for name in files(log) if name.startswith(f"shards/{ENDS[1]:019d}-{ENDS[2]:019d}-0000")]
    del bucket.objects[f"log/{lost}"]
    with pytest.raises(PassingError, match=f"^s3://ads/log: Object at location log/{lost} not found: "):
        sync("s3://ads/log", str(tmp_path / "back"))
    manifests = [name for name in files(tmp_path / "back") if name.startswith("manifests/")]
    assert manifests == [f"manifests/{ENDS[0]:019d}-{ENDS[1]:019d}.json"]


def test_another_log_is_kept(log, bucket, tmp_path):
    sync(str(log), "s3://ads/log")
    # Of the same schema, with another partition of the same name.
    other, before = tmp_path / "other", len(puts(bucket))
    publish(other, draw_examples(160, seed=1).table().slice(0, 40), ((ENDS[0], ENDS[1]), (ENDS[4], 5 * DAY)))
    message = r"/manifests/.*json: is there, of another log or run, and is kept"
    with pytest.raises(InputError, match=message):
        sync(str(other), "s3://ads/log")
    # Nothing else was tried before that was seen.
    assert puts(bucket)[before:] == [f"manifests/{ENDS[0]:019d}-{ENDS[1]:019d}.json"]
    assert {path.removeprefix("log/"): content for path, content in bucket.objects.items()} == files(log)
    # The other way round, too.
    with pytest.raises(InputError, match=message):
        sync("s3://ads/log", str(other))


def test_a_part_of_a_log_is_a_log(log, bucket, tmp_path, capsys):
    sync(str(log), "s3://ads/log")
    assert main(["sync", "s3://ads/log", str(tmp_path / "part"), "--from", "1970-01-03"]) == 0
    manifests = read_manifests(tmp_path / "part")
    assert [manifest.start for manifest in manifests] == ENDS[2:4]
    whole = read_manifests(log)
    assert ids(tmp_path / "part") == join_rows(list(read_rows(log, SCHEMA, whole[2:]))).ids.tolist()
    assert main(["inspect", str(tmp_path / "part")]) == 0
    # What is left out can come later.
    sync("s3://ads/log", str(tmp_path / "part"))
    assert files(tmp_path / "part") == files(log)
    assert main(["sync", "s3://ads/log", str(tmp_path / "x"), "--from", "yesterday"]) == 1
    assert "--from" in capsys.readouterr().err


def checkpoint(run: Path, number: int, text: str = "") -> None:
    folder = run / "checkpoints" / f"{number:020d}"
    folder.mkdir(parents=True)
    for name in ("arrays.npz", "state.json"):
        (folder / name).write_text(f"{name} {number} {text}")


def test_of_a_run_what_completes_the_rest_comes_last(bucket, tmp_path):
    run = tmp_path / "run"
    checkpoint(run, 1)
    checkpoint(run, 2)
    for name in ("summary.json", "metrics.jsonl", "config.yaml", ".lock", f"x.partial-{'0' * 16}"):
        (run / name).write_text(name)
    (run / "checkpoints" / "3.partial").mkdir()
    (run / "checkpoints" / "3.partial" / "arrays.npz").touch()
    assert sync(str(run), "s3://ads/run") == 7
    last = [name.rpartition("/")[2] for name in puts(bucket)[-3:]]
    assert last == ["state.json", "state.json", "summary.json"]
    # What has changed is written again, also where its size is the same.
    bucket.requests.clear()
    (run / "metrics.jsonl").write_text("METRICS.jsonl")
    (run / "summary.json").write_text("{}")
    assert sync(str(run), "s3://ads/run") == 2
    assert puts(bucket) == ["metrics.jsonl", "summary.json"]
    # Of another run neither a checkpoint nor anything else.
    other = tmp_path / "other"
    checkpoint(other, 2, "of another run")
    (other / "metrics.jsonl").touch()
    with pytest.raises(InputError, match=r"run/checkpoints/0*2/state.json: is there, of another log or run"):
        sync(str(other), "s3://ads/run")
    assert sync("s3://ads/run", str(tmp_path / "back")) == 7
    left_out = (".lock", f"x.partial-{'0' * 16}", "checkpoints/3.partial/arrays.npz")
    assert files(tmp_path / "back") | dict.fromkeys(left_out) == files(run) | dict.fromkeys(left_out)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_is_new_follows_until_a_signal(name, log, bucket, tmp_path, capsys):
    grows = tmp_path / "grows"
    names = sorted(files(log), key=lambda one: (one.startswith("manifests/"), one != "schema.json", one))

    def grow(requests: int) -> None:
        """A file more at each request, then one that comes with the signal."""
        if names:
            path = grows / names.pop(0)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((log / path.relative_to(grows)).read_bytes())
        elif len(puts(bucket)) == len(files(log)) and not (grows / "new").exists():
            (grows / "new").write_text("new")
            os.kill(os.getpid(), signal.Signals[name])

    bucket.watch = grow
    status = main(["sync", str(grows), "s3://ads/log", "--follow", "--poll", "0.01"])
    assert status == 128 + signal.Signals[name]
    assert f"interrupted; s3://ads/log has all of {grows}" in capsys.readouterr().err
    # Nothing was written twice while nothing changed.
    assert sorted(puts(bucket)) == sorted([*files(log), "new"])


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
    empty = {"values": entry, "rows": 0, "queries": 0, "shards": ()}
    manifest = read_manifests(log)[0].model_copy(update=empty)
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


def test_what_an_ingest_goes_on_from_comes_after_all_that_it_speaks_of(log, bucket, tmp_path):
    source = tmp_path / "logs"
    for place in ("one", "two"):
        sync(str(log), str(source / place))
        write_files(source / place, dict.fromkeys((*STATES, *SPOKEN_OF, "summary.json"), "1"))
    assert sync(str(source), "s3://ads/logs") == len(files(source)) == len(puts(bucket))
    for place in ("one", "two"):
        ours = [name.partition("/")[2] for name in puts(bucket) if name.startswith(f"{place}/")]
        assert ours[-len(STATES) :] == STATES
    # They may change, and are no conflict.
    write_files(source / "one", dict.fromkeys(STATES, "2"))
    assert sync(str(source), "s3://ads/logs") == len(STATES) == 4


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
