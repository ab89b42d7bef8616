"""Whatever happens to the files of a log, its rows are what they were or are refused, each before it is given out."""

import errno
import hashlib
import os
import re
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.features import Category, Number, StepBuckets
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import create_log, read_manifests, read_schema
from ctr.data.parquet_files import parquet_bytes
from ctr.data.reader import Rows, read_rows
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.data.sidecar import write_sidecar_partition
from ctr.data.stream import Selection, check_selection, read_selection
from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from hashed_rows import QUERY_US, hashed_rows

# Ids with a bound, and ids that grow.
SCHEMA = Schema(
    features=(
        Category(name="a", source="a", buckets=10),
        Number(name="n", source="n", step=StepBuckets(low=0.5, high=8.0, size=0.5)),
        Category(name="m", source="m", multivalent=True),
    )
)
ENDS = (0, 20_000, 30_000, 50_000)
A_ROW = QUERY_US // 2


def make_log(folder: Path) -> Path:
    """100 rows in three partitions and five shards, with a teacher's logits for all of them."""
    create_log(folder, SCHEMA)
    for start, end in pairwise(ENDS):
        rows = hashed_rows(SCHEMA, (end - start) // A_ROW, start // A_ROW)
        manifest = publish_partition(folder, SCHEMA, start, end, rows, {"late": 3}, shard_rows=20)
        ids = rows["example_id"]
        logits = pa.table({"example_id": ids, "logit": ids.to_numpy() / 7})
        write_sidecar_partition(folder, "teacher", manifest, logits)
    return folder


def records(rows: Rows) -> list[tuple]:
    """One for each row, of all that a run takes of it; as text, since NaN is not equal to itself."""
    columns = [getattr(rows, name).tolist() for name in Rows._COLUMNS]
    columns += [rows.joined[name].tolist() for name in sorted(rows.joined)]
    for values, offsets in rows.multivalent.values():
        columns.append([part.tolist() for part in np.split(values, offsets)[1:-1]])
    return [tuple(map(repr, row)) for row in zip(*columns, strict=True)]


def give_out(log: Path, found: list[tuple]) -> None:
    """Does what a run does, and adds what it reads to ``found``."""
    schema, manifests = read_schema(log), read_manifests(log)
    taught = Selection(teacher=JoinedSidecar(log, "teacher", ["logit"]))
    for block in read_selection(log, schema, manifests, taught):
        if np.isnan(block.joined["teacher_logit"]).any():
            # A run looks for these before it begins.
            taught = Selection(teacher=JoinedSidecar(log, "teacher", ["logit"]))
            check_selection(log, schema, manifests, taught)
        found += records(block)


class Whole:
    """A log that is damaged again and again, and what it holds."""

    def __init__(self, folder: Path) -> None:
        self.log = make_log(folder)
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        self.contents = {path: path.read_bytes() for path in self.files}
        self.rows: list[tuple] = []
        give_out(self.log, self.rows)
        self.begins: dict[str, int] = {}
        for manifest in read_manifests(self.log):
            begin = manifest.start // A_ROW
            for entry in manifest.shards:
                self.begins[entry.file] = begin
                begin += entry.rows

    def check(self, changes: dict[Path, bytes | None]) -> str | None:
        """Returns the refusal with other contents of some files, or without them, None where the rows are the same."""
        found: list[tuple] = []
        for path, content in changes.items():
            path.unlink() if content is None else path.write_bytes(content)
        try:
            give_out(self.log, found)
        except InputError as error:
            message, names = str(error), [path.name for path in changes]
            assert "\n" not in message
            assert any(name in message for name in names) or "sidecar teacher of" in message, message
            until = min(self.begins.get(name, len(self.rows)) for name in names)
            assert len(found) <= until and found == self.rows[: len(found)]
            return message
        finally:
            for path in changes:
                path.write_bytes(self.contents[path])
        assert found == self.rows
        return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole") / "log")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_each_kind_of_file_says_what_is_wrong_with_it(whole: Whole) -> None:
    assert (len(whole.rows), len(whole.begins), len(whole.files)) == (100, 5, 1 + 3 + 5 + 2 * 3)
    assert whole.check({}) is None
    first: dict[str, Path] = {}
    for path in whole.files:
        first.setdefault(f"{path.parent.name}{path.suffix}", path)
    sum_of, cut, gone = "damaged: its .* SHA-256", "not JSON|damaged", "missing|no such|lacks"
    for kind, messages in {
        "log.json": ("not match the recorded version|not JSON|damaged", "not JSON", "it has no schema.json"),
        "manifests.json": (sum_of, cut, gone),
        "shards.parquet": (sum_of, sum_of, "the file is missing, though a manifest names it"),
        "teacher.json": (sum_of, cut, gone),
        "teacher.parquet": (sum_of, sum_of, "the file is missing, though a manifest names it"),
    }.items():
        path = first[kind]
        content = whole.contents[path]
        # The last digit that it has, or a bit in the middle of what is no text.
        digit = max(place for place, byte in enumerate(content) if 48 <= byte <= 57)
        place = digit if path.suffix == ".json" else len(content) // 2
        for damaged, message in zip((flipped(content, 8 * place), content[:-9], None), messages, strict=True):
            refusal = whole.check({path: damaged})
            assert refusal is not None and re.search(message, refusal), (kind, refusal)


@st.composite
def damages(draw: Any, whole: Whole) -> tuple[Path, bytes, bool]:
    """A file, what it holds instead, and whether that changes nothing."""
    path, other = (draw(st.sampled_from(whole.files)) for _ in range(2))
    content, kind = whole.contents[path], draw(st.sampled_from(["bit", "cut", "zeros", "page", "file"]))
    if kind == "bit":
        # Not even the white space between words of JSON can be flipped to other white space.
        return path, flipped(content, draw(st.integers(0, 8 * len(content) - 1))), False
    if kind == "cut":
        length = draw(st.integers(0, len(content) - 1))
        # The last byte of JSON is the end of its line.
        return path, content[:length], path.suffix == ".json" and length == len(content) - 1
    if kind == "file":
        return path, whole.contents[other], path == other
    begin = draw(st.integers(0, len(content) - 1))
    end = draw(st.integers(begin + 1, len(content)))
    page = bytes(end - begin) if kind == "zeros" else whole.contents[other][begin:end]
    changed = content[:begin] + page.ljust(end - begin, b"\0") + content[end:]
    return path, changed, changed == content


@settings(max_examples=60)
@given(st.data())
def test_any_damage_is_refused_or_changes_nothing(whole: Whole, data: st.DataObject) -> None:
    path, content, is_harmless = data.draw(damages(whole))
    assert (whole.check({path: content}) is None) == is_harmless


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_every_flipped_bit_is_refused(whole: Whole) -> None:
    for path in whole.files:
        for bit in range(8 * len(whole.contents[path])):
            assert whole.check({path: flipped(whole.contents[path], bit)}) is not None


# ---------------------------------------------------------------- publishers that are at fault


def forge(log: Path, parts: list[pa.Table], change: Callable[[list[dict]], Any] | None) -> None:
    """Publishes [0, 50 ms) with these shards, whatever they hold; ``change`` changes what the manifest says of them."""
    create_log(log, SCHEMA)
    stem, shards = f"{0:019d}-{50_000:019d}", []
    for number, part in enumerate(parts):
        content = parquet_bytes(part.combine_chunks())
        digest = hashlib.sha256(content).hexdigest()
        file = f"{stem}-{number:04d}-{digest[:16]}.parquet"
        write_atomic_bytes(log / "shards" / file, content)
        times = part["query_time"].to_pylist() or [0]
        entry = {"file": file, "rows": part.num_rows, "queries": len(set(part["query_id"].to_pylist()))}
        entry |= {"first_query_time": times[0], "last_query_time": times[-1]}
        shards.append({**entry, "bytes": len(content), "sha256": digest})
    if change:
        change(shards)
    sums = {name: sum(shard[name] for shard in shards) for name in ("rows", "queries")}
    content = {"format": 1, "start": 0, "end": 50_000, "schema_version": SCHEMA.version, "clicks": 0, **sums}
    manifest = sealed_bytes({**content, "shards": shards, "counters": {}})
    write_atomic_bytes(log / "manifests" / f"{stem}.json", manifest)


def set_of(number: int, **values: Any) -> Callable[[list[dict]], None]:
    return lambda shards: shards[number].update(values)


ROWS = [hashed_rows(SCHEMA, 10, first) for first in (0, 10, 20)]
SAME_TIME = [hashed_rows(SCHEMA, 10, first, query_time=[3000] * 10) for first in (0, 10, 20)]


@pytest.mark.parametrize(
    ("parts", "change", "rows", "message"),
    [
        (ROWS, lambda shards: shards.append(shards[2]), 0, "not the name of that shard of this partition"),
        (ROWS, lambda shards: shards.reverse(), 0, "shard 0 is .*: not the name of that shard"),
        (ROWS, set_of(1, sha256="0" * 64), 0, "shard 1 is .*: not the name of that shard"),
        ([ROWS[0], ROWS[0]], None, 0, "-0001-.* begins before the end of the shard before it"),
        ([ROWS[0], ROWS[1].slice(0, 0)], None, 0, r"shards\.1\.rows: 0 is not allowed"),
        (ROWS, set_of(1, queries=6), 10, "-0001-.*: holds 5 queries, the manifest says 6"),
        (ROWS, set_of(1, rows=9), 10, "-0001-.*: holds 10 rows, the manifest says 9"),
        (ROWS, set_of(1, first_query_time=4999), 10, "-0001-.* times from 5000 to 9000, .* 4999 to 9000"),
        (ROWS, set_of(1, last_query_time=9001), 10, "-0001-.* times from 5000 to 9000, .* 5000 to 9001"),
        # A shard of one time only may stand there twice, or before its time, as far as times tell.
        ([SAME_TIME[0]] * 2, None, 10, "-0001-.*: row 0 .*example_id 50. comes before the last"),
        (SAME_TIME[1::-1], None, 10, "-0001-.*: row 0 .*example_id 50. comes before the last"),
        ([ROWS[0].slice(0, 9), ROWS[0].slice(9)], None, 9, "-0001-.*id 59. belongs to the query of the last"),
    ],
)
def test_what_a_publisher_at_fault_wrote_is_refused(
    tmp_path: Path, parts: list[pa.Table], change: Any, rows: int, message: str
) -> None:
    forge(tmp_path / "log", parts, change)
    found: list[Rows] = []
    with pytest.raises(InputError, match=message):
        found.extend(read_rows(tmp_path / "log", SCHEMA, read_manifests(tmp_path / "log")))
    assert sum(map(len, found)) == rows


def test_content_that_is_no_shard_of_this_log_is_refused(tmp_path: Path) -> None:
    nulls = ROWS[0].set_column(4, "label", pa.nulls(10, pa.int8()))
    wide = ROWS[0].set_column(7, "ids", pack_ids(np.zeros((10, 3), np.int32)))
    for content, message in (
        (b"PAR1 and no more", "not a Parquet file that can be read: "),
        (parquet_bytes(nulls), "a column is of another type or has nulls: .*label.* null"),
        (parquet_bytes(wide), "a column is of another type or has nulls: .*"),
    ):
        digest = hashlib.sha256(content).hexdigest()
        log, file = tmp_path / digest, f"{0:019d}-{50_000:019d}-0000-{digest[:16]}.parquet"
        forge(log, ROWS[:1], set_of(0, file=file, sha256=digest, bytes=len(content)))
        (log / "shards" / file).write_bytes(content)
        with pytest.raises(InputError, match=f"{file}: {message}") as refusal:
            list(read_rows(log, SCHEMA, read_manifests(log)))
        assert "\n" not in str(refusal.value)


# ---------------------------------------------------------------- lost partitions


def manifest_of(log: Path, start: int, end: int) -> Path:
    return log / "manifests" / f"{start:019d}-{end:019d}.json"


@pytest.mark.parametrize("lost", [[0], [2], [0, 2], [1, 2], [0, 1, 2]])
def test_a_lost_manifest_is_told_from_one_that_is_still_to_come(tmp_path: Path, lost: list[int]) -> None:
    log = make_log(tmp_path / "log")
    manifests = read_manifests(log)
    paths = [manifest_of(log, ENDS[number], ENDS[number + 1]) for number in lost]
    for path in paths:
        path.unlink()
    kept = [manifest for number, manifest in enumerate(manifests) if number not in lost]
    if kept and lost[0] < manifests.index(kept[-1]):
        message = rf"{paths[0].name}: missing, though .* or its publisher did not finish"
        with pytest.raises(InputError, match=message):
            read_manifests(log)
    else:
        assert read_manifests(log) == kept
    # As the message says, whoever does not want the partition deletes what is left of it.
    for path in paths:
        for shard in (log / "shards").glob(f"{path.stem}-*"):
            shard.unlink()
    assert read_manifests(log) == kept


def test_what_was_never_published_beside_what_was_is_harmless(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    manifests = read_manifests(log)
    # Another publisher's of a published partition, of one that overlaps published ones, and of a later one.
    for start, end in ((0, 20_000), (25_000, 35_000), (50_000, 60_000)):
        (log / "shards" / f"{start:019d}-{end:019d}-0000-0123456789abcdef.parquet").write_bytes(b"PAR1")
    (log / "shards" / "notes.parquet").write_bytes(b"PAR1")
    # What an interrupted publisher left.
    for name in ("schema.json", "manifests/1.json", "shards/1.parquet"):
        (log / f"{name}.partial-0123456789abcdef").write_text('{"for')
    create_log(log, SCHEMA)
    assert read_manifests(log) == manifests
    (log / "manifests" / "notes.json").write_text("{}")
    with pytest.raises(InputError, match=r"notes\.json: not the name of a manifest"):
        read_manifests(log)
    (log / "manifests" / "notes.json").unlink()
    publish_partition(log, SCHEMA, 60_000, 70_000, hashed_rows(SCHEMA, 20, 120))
    with pytest.raises(InputError, match=f"{manifest_of(log, 50_000, 60_000).name}: missing"):
        read_manifests(log)


def test_two_files_that_changed_places_are_refused(whole: Whole) -> None:
    for path, other in combinations(whole.files, 2):
        if path.parent == other.parent:
            assert whole.check({path: whole.contents[other], other: whole.contents[path]}) is not None


def test_a_disk_that_does_not_give_a_file_is_named_with_it(whole: Whole, monkeypatch: Any) -> None:
    read = Path.read_bytes
    for path in whole.files:

        def fail(other: Path, path: Path = path) -> bytes:
            if other == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(other)

        monkeypatch.setattr(Path, "read_bytes", fail)
        with pytest.raises(InputError, match=f"{path}: cannot be read: Input/output error"):
            give_out(whole.log, [])
