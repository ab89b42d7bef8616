"""Side tables: left joins, found beside each input file, refused when a key stands twice."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Join
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.rows.reader import SideTable, find_side_file, make_side_table


def join(**content):
    return parse_model(Join, {"file": "side.csv", "key": "k", **content}, "join")


def test_every_row_gets_the_side_columns_of_its_key(tmp_path):
    side = SideTable("k", pa.array(["1", "2"]), pa.table({"p_x": ["one", None], "p_y": [10, 20]}))
    table = side.attach(pa.table({"k": [2, 7, 1, None, 1], "z": range(5)}))
    assert table.to_pydict() == {
        "k": [2, 7, 1, None, 1],
        "z": list(range(5)),
        "p_x": [None, None, "one", None, "one"],
        "p_y": [20, None, 10, None, 10],
    }


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_numbers_of_any_form_find_their_key(tmp_path, kind):
    side = make_side_table(
        join(), tmp_path, pa.table({"k": ["1", "2.0", "03"], "x": ["a", "b", "c"]}), [2, 3, 4]
    )
    table = side.attach(pa.table({"k": pa.array([2, 1, None, 3]).cast(kind)}))
    assert table.column("x").to_pylist() == ["b", "a", None, None]
    with pytest.raises(InputError, match="the key k '2' appears more than once"):
        make_side_table(join(), tmp_path, pa.table({"k": ["2", "2.0"], "x": ["a", "b"]}), [2, 3])


def test_the_prefix_names_the_columns(tmp_path):
    side = make_side_table(join(prefix="p_"), tmp_path, pa.table({"k": ["a"], "x": ["b"]}), [2])
    assert side.columns.column_names == ["p_x"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a", "b", "a"], "the key k 'a' appears more than once .first in row 2"),
        (["a", None], "row 3: the key k is missing"),
    ],
)
def test_bad_keys_are_refused(tmp_path, keys, message):
    with pytest.raises(InputError, match=message):
        make_side_table(join(), tmp_path, pa.table({"k": keys}), range(2, 2 + len(keys)))


def test_exactly_one_file_is_needed(tmp_path):
    with pytest.raises(InputError, match=r"join \*.item in .*: no such file"):
        find_side_file(join(file="*.item"), tmp_path)
    (tmp_path / "a.item").touch()
    assert find_side_file(join(file="*.item"), tmp_path) == tmp_path / "a.item"
    (tmp_path / "b.item").touch()
    with pytest.raises(InputError, match=r"matches a\.item, b\.item; exactly one"):
        find_side_file(join(file="*.item"), tmp_path)


def write(folder, shops):
    folder.mkdir(exist_ok=True)
    (folder / "shops.csv").write_text(shops)


@pytest.mark.parametrize(
    ("shops", "message"),
    [
        ("shop,kind\n1,a\n2\n", "shops.csv row 3: wrong number of fields"),
        ("shop,kind\n1,a\n1,b\n", "the key shop '1' appears more than once"),
        ("name,kind\n1,a\n", "shops.csv: no column shop; the columns found are name, kind"),
        ("shop,kid\n1,a\n", "rows.csv: no column shop_kind; the columns found are id, "),
    ],
)
def test_a_broken_side_table_ends_the_job(tmp_path, shops, message):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    write(tmp_path / "in", shops)
    with pytest.raises(InputError, match=message):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log")


def test_bytes_in_a_side_table_must_be_utf8(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    (tmp_path / "in" / "shops.csv").write_bytes(b"shop,kind\n1,food\n2,caf\xe9\n")
    with pytest.raises(InputError, match=r"shops.csv row 3: kind: invalid UTF-8"):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log")


def test_each_folder_has_its_own_side_table(tmp_path):
    rows = raw_logs.make_rows(40)
    for name, part, kind in (("a", rows[:20], "food"), ("b", rows[20:], "tools")):
        raw_logs.write_rows(tmp_path / "in" / name, part)
        write(tmp_path / "in" / name, "shop,kind\n" + "".join(f"{shop},{kind}\n" for shop in range(5)))
    mapping = raw_logs.make_mapping(input={"type": "csv", "pattern": "*/rows.csv"})
    ingest(mapping, [tmp_path / "in"], tmp_path / "log")
    found = {example["example_id"]: example["kind"] for example in raw_logs.read_log(tmp_path / "log")}
    assert found == {int(row["id"]): 1 if place < 20 else 2 for place, row in enumerate(rows)}


def test_a_column_in_both_places_needs_a_prefix(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    write(tmp_path / "in", "shop,color,kind\n1,red,food\n")
    ingest(raw_logs.make_mapping(), [path], tmp_path / "log")
    joins = [{"file": "shops.csv", "key": "shop"}]
    features = [feature for feature in raw_logs.FEATURES if feature["name"] != "kind"]
    with pytest.raises(InputError, match="the column color is there and in a side table too"):
        ingest(raw_logs.make_mapping(joins=joins, features=features), [path], tmp_path / "log2")


def test_two_side_tables_may_not_give_the_same_column(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    joins = [{"file": "shops.csv", "key": "shop", "prefix": "shop_"}] * 2
    with pytest.raises(InputError, match="two side tables give the column shop_kind"):
        ingest(raw_logs.make_mapping(joins=joins), [path], tmp_path / "log")


def test_side_tables_of_parquet_and_keys_of_numbers(tmp_path):
    rows = raw_logs.make_rows(30)
    path = raw_logs.write_rows(tmp_path / "in", rows, "parquet")
    kinds = [(int(shop), kind) for shop, kind in raw_logs.SHOPS.items()]
    table = pa.table({"shop": [shop for shop, _ in kinds], "kind": [kind for _, kind in kinds]})
    pq.write_table(table, tmp_path / "in" / "shops.pq")
    joins = [{"file": "*.pq", "key": "shop", "prefix": "shop_"}]
    mapping = raw_logs.make_mapping(input={"type": "parquet"}, joins=joins)
    ingest(mapping, [tmp_path / "in"], tmp_path / "log")
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.reference(
        [(path.name, 0, row) for row in rows], mapping
    )
