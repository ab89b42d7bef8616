"""Side tables: left joins, also of what held at a row's time; found beside each input file, refused when ambiguous."""

import csv
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Join
from ctr.io.errors import InputError
from ctr.pipelines.tables.ingest import ingest
from ctr.pipelines.tables.reader import find_side_file, make_side_table


def join(**content):
    return parse_model(Join, {"file": "side.csv", "key": "k", **content}, "join")


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_every_row_gets_the_side_columns_of_its_key_in_any_form_of_numbers(tmp_path, kind):
    columns = {"k": ["1", "2.0", "03"], "x": ["a", None, "c"], "y": [10, 20, 30]}
    side = make_side_table(join(prefix="p_"), tmp_path, pa.table(columns), [2, 3, 4])
    joined = side.look_up(pa.array([2, 7, 1, None, 1, 3]).cast(kind), np.zeros(6, np.int64))
    assert joined["p_x"].to_pylist() == [None, None, "a", None, "a", None]
    assert joined["p_y"].to_pylist() == [20, None, 10, None, 10, None]


def test_exactly_one_file_is_needed(tmp_path):
    with pytest.raises(InputError, match=r"join \*.item in .*: no such file"):
        find_side_file(join(file="*.item"), tmp_path)
    (tmp_path / "a.item").touch()
    assert find_side_file(join(file="*.item"), tmp_path) == tmp_path / "a.item"
    (tmp_path / "b.item").touch()
    with pytest.raises(InputError, match=r"matches a\.item, b\.item; exactly one"):
        find_side_file(join(file="*.item"), tmp_path)


PLAIN = {"file": "shops.csv", "key": "shop"}


@pytest.mark.parametrize(
    ("shops", "changes", "message"),
    [
        (b"shop,kind\n1,a\n2\n", {}, "shops.csv row 3: wrong number of fields"),
        (b"shop,kind\n1,food\n2,caf\xe9\n", {}, "shops.csv row 3: kind: invalid UTF-8"),
        (b"shop,kind\na,1\nb,1\na,1\n", {}, "the key shop 'a' appears more than once .first in row 2"),
        (b"shop,kind\na,1\n,1\n", {}, "row 3: the key shop is missing"),
        (b"name,kind\n1,a\n", {}, "shops.csv: no column shop; the columns found are name, kind"),
        (b"shop,color,shop_kind\n1,a,b\n", {"joins": [PLAIN]}, "column color is there and in a side table"),
        (b"shop,shop_kind\n1,a\n", {"joins": [PLAIN] * 2}, "two side tables give the column shop_kind"),
    ],
)
def test_a_side_table_that_cannot_be_used_ends_the_job(tmp_path, shops, changes, message):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    (tmp_path / "in" / "shops.csv").write_bytes(shops)
    with pytest.raises(InputError, match=message):
        ingest(raw_logs.make_mapping(**changes), [path], tmp_path / "log")


def test_each_folder_has_its_own_side_table(tmp_path):
    rows = raw_logs.make_rows(40)
    for name, part, kind in (("a", rows[:20], "food"), ("b", rows[20:], "tools")):
        raw_logs.write_rows(tmp_path / "in" / name, part)
        lines = ["shop,kind", *(f"{shop},{kind}" for shop in range(5))]
        (tmp_path / "in" / name / "shops.csv").write_text("\n".join(lines))
    mapping = raw_logs.make_mapping(input={"type": "csv", "pattern": "*/rows.csv"})
    ingest(mapping, [tmp_path / "in"], tmp_path / "log")
    joined = {example["example_id"]: example["kind"] for example in raw_logs.read_log(tmp_path / "log")}
    assert joined == {int(row["id"]): 1 if place < 20 else 2 for place, row in enumerate(rows)}


def test_a_side_table_of_parquet(tmp_path):
    rows = raw_logs.make_rows(30)
    path = raw_logs.write_rows(tmp_path / "in", rows, "parquet")
    kinds = {"shop": [int(shop) for shop in raw_logs.SHOPS], "kind": list(raw_logs.SHOPS.values())}
    pq.write_table(pa.table(kinds), tmp_path / "in" / "shops.pq")
    joins = [{"file": "*.pq", "key": "shop", "prefix": "shop_"}]
    mapping = raw_logs.make_mapping(input={"type": "parquet"}, joins=joins)
    ingest(mapping, [tmp_path / "in"], tmp_path / "log")
    expected = raw_logs.reference([(path.name, 0, row) for row in rows], mapping)
    assert raw_logs.read_log(tmp_path / "log") == expected


def brute_force(table, keys, times):
    """The value of each row, of the rows of ``table`` (key, time, value) with its key the latest not after its time."""
    joined = []
    for key, time in zip(keys, times, strict=True):
        rows = [(since, value) for side_key, since, value in table if side_key == key and since <= time]
        joined.append(max(rows)[1] if rows else None)
    return joined


def text_time(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


START = 1_600_000_000


def versions_by(valid_from):
    join_by_time = {"file": "shops.csv", "key": "shop", "prefix": "shop_", "valid_from": valid_from}
    return {"joins": [join_by_time]}


VERSIONS = versions_by({"column": "at", "unit": "s"})


def write_versions(folder, rows):
    with (folder / "shops.csv").open("w") as file:
        csv.writer(file).writerows([("shop", "at", "kind"), *rows])


def kinds_by_example(mapping, path, out):
    result = ingest(mapping, [path], out)
    return {example["example_id"]: example["kind"] for example in raw_logs.read_log(out)}, result


@pytest.mark.parametrize(("query", "is_text"), [("none", False), ("session", True)])
def test_a_row_gets_what_held_at_its_own_time_and_nothing_written_later(tmp_path, query, is_text):
    rows = raw_logs.make_rows(200)
    for row in rows:
        # Some at the very times from which values hold.
        row["time"] = str(int(row["time"]) // 600 * 600)
    path = raw_logs.write_rows(tmp_path / "in", rows)
    versioned = versions_by("at") if is_text else VERSIONS
    mapping = raw_logs.make_mapping(**versioned, query=raw_logs.QUERIES[query])
    times = {int(row["id"]): int(row["time"]) for row in rows}
    versions = [
        (shop, START + 3600 * hour, ("food", "tools")[(shop + hour) % 2])
        for hour in (4, 1, 2)
        for shop in range(4)
    ]

    def write(versions):
        texts = [(shop, text_time(at) if is_text else at, kind) for shop, at, kind in versions]
        write_versions(path.parent, texts)

    write(versions)
    before, result = kinds_by_example(mapping, path, tmp_path / "log")
    table = [(str(shop), at, kind) for shop, at, kind in versions]
    kinds = brute_force(table, [row["shop"] for row in rows], [int(row["time"]) for row in rows])
    words = [raw_logs.plain_word(kind, raw_logs.KINDS[:2]) for kind in kinds]
    assert before == {int(row["id"]): word for row, word in zip(rows, words, strict=True)}
    assert not [warning for warning in result.warnings if "side table" in warning]
    late = START + 2 * 3600
    changed = [(shop, at, "toys" if at >= late else kind) for shop, at, kind in versions]
    write([*changed, *((shop, late + 1800, "toys") for shop in range(5))])
    after, _ = kinds_by_example(mapping, path, tmp_path / "changed")
    assert {place for place in before if before[place] != after[place]}
    assert all(times[place] >= late for place in before if before[place] != after[place])


def test_values_that_have_no_time_are_warned_of(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(20))
    _, result = kinds_by_example(raw_logs.make_mapping(), path, tmp_path / "log")
    assert [one for one in result.warnings if "shops.csv has no times: rows of the past get" in one]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 5, "a"), (2, 5, "b"), (1, 5, "c")], "once with at 1970-01-01T00:00:05Z .first in row 2"),
        ([(1, 5, "a"), (1, "", "b")], "row 3: valid_from at: missing; allowed: unit s, 1970-01-01 to 9999"),
        ([(1, "noon", "a")], "row 2: valid_from at: unreadable or out of range .'noon'.; allowed: unit s"),
    ],
)
def test_a_time_that_is_no_beginning_ends_the_job(tmp_path, rows, message):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    write_versions(path.parent, rows)
    with pytest.raises(InputError, match=message):
        ingest(raw_logs.make_mapping(**VERSIONS), [path], tmp_path / "log")


def test_the_rows_own_time_is_in_no_table_that_is_looked_up_by_it(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    (path.parent / "shops.csv").write_text("shop,at,kind,shown\n1,5,a,7\n")
    mapping = raw_logs.make_mapping(**VERSIONS, time={"column": "shop_shown", "unit": "s"})
    with pytest.raises(InputError, match="the time of the rows, is in a side table with valid_from"):
        ingest(mapping, [path], tmp_path / "log")


@pytest.mark.parametrize(
    "column", [{"row_order": {"start": "2020-01-01", "step_us": 1}}, "k", {"column": "since"}]
)
def test_valid_from_is_a_column_and_how_it_is_read(column):
    with pytest.raises(InputError, match=r"valid_from"):
        join(valid_from=column)
