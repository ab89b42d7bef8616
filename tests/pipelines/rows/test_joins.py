"""Side tables: left joins, found beside each input file, refused when a key stands twice."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Join
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.rows.reader import find_side_file, make_side_table


def join(**content):
    return parse_model(Join, {"file": "side.csv", "key": "k", **content}, "join")


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_every_row_gets_the_side_columns_of_its_key_in_any_form_of_numbers(tmp_path, kind):
    columns = {"k": ["1", "2.0", "03"], "x": ["a", None, "c"], "y": [10, 20, 30]}
    side = make_side_table(join(prefix="p_"), tmp_path, pa.table(columns), [2, 3, 4])
    table = side.attach(pa.table({"k": pa.array([2, 7, 1, None, 1, 3]).cast(kind), "z": range(6)}))
    assert table.column_names == ["k", "z", "p_x", "p_y"]
    assert table.column("p_x").to_pylist() == [None, None, "a", None, "a", None]
    assert table.column("p_y").to_pylist() == [20, None, 10, None, 10, None]


def test_exactly_one_file_is_needed(tmp_path):
    with pytest.raises(InputError, match=r"join \*.item in .*: no such file"):
        find_side_file(join(file="*.item"), tmp_path)
    (tmp_path / "a.item").touch()
    assert find_side_file(join(file="*.item"), tmp_path) == tmp_path / "a.item"
    (tmp_path / "b.item").touch()
    with pytest.raises(InputError, match=r"matches a\.item, b\.item; exactly one"):
        find_side_file(join(file="*.item"), tmp_path)


@pytest.mark.parametrize(
    ("shops", "changes", "message"),
    [
        (b"shop,kind\n1,a\n2\n", {}, "shops.csv row 3: wrong number of fields"),
        (b"shop,kind\n1,food\n2,caf\xe9\n", {}, "shops.csv row 3: kind: invalid UTF-8"),
        (b"shop,kind\na,1\nb,1\na,1\n", {}, "the key shop 'a' appears more than once .first in row 2"),
        (b"shop,kind\n2,1\n2.0,1\n", {}, "the key shop '2' appears more than once"),
        (b"shop,kind\na,1\n,1\n", {}, "row 3: the key shop is missing"),
        (b"name,kind\n1,a\n", {}, "shops.csv: no column shop; the columns found are name, kind"),
        (b"shop,kid\n1,a\n", {}, "rows.csv: no column shop_kind; the columns found are id, "),
        (
            b"shop,color,shop_kind\n1,red,food\n",
            {"joins": [{"file": "shops.csv", "key": "shop"}]},
            "the column color is there and in a side table too",
        ),
        (
            b"shop,kind\n1,a\n",
            {"joins": [{"file": "shops.csv", "key": "shop", "prefix": "shop_"}] * 2},
            "two side tables give the column shop_kind",
        ),
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
    found = {example["example_id"]: example["kind"] for example in raw_logs.read_log(tmp_path / "log")}
    assert found == {int(row["id"]): 1 if place < 20 else 2 for place, row in enumerate(rows)}


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
