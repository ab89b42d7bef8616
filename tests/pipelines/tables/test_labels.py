"""Further labels of a table: columns of the log."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.config import parse_model
from ctr.data.log import read_schema
from ctr.data.mapping import Mapping
from ctr.data.schema import label_column
from ctr.io.errors import InputError
from raw_logs import ingest, read_log

HOUR = 3600
FIRST = 1_600_041_600
NOW = (FIRST + 10**7) * 1_000_000
COLUMNS = ("id", "time", "user", "clicked", "bought", "watched", "rated")
LABELS = {
    "purchase": {"time": {"column": "bought", "unit": "s"}, "window": "12h", "until": "watched"},
    "rating": {"value": "rated"},
}


def mapping_of(labels=LABELS, **changes):
    content = {
        "input": {"type": "csv"},
        "time": {"column": "time", "unit": "s"},
        "example_id": "id",
        "label": "clicked",
        "labels": labels,
        "partition": "6h",
        "features": [{"name": "user", "kind": "category", "source": "user", "buckets": 20}],
    }
    return parse_model(Mapping, {**content, **changes}, "test")


def write_days(folder, days=3, rows=40):
    source, paths = random.Random(1), []
    folder.mkdir()
    for day in range(days):
        times = sorted(FIRST + 24 * HOUR * day + source.randrange(24 * HOUR) for _ in range(rows))
        lines = [",".join(COLUMNS)]
        for place, time in enumerate(times):
            bought = time + source.randrange(48 * HOUR) if source.random() < 0.4 else ""
            watched = source.choice(["", time + 24 * HOUR])
            own = day * rows + place, time, place % 7, source.randrange(2), bought, watched
            lines.append(",".join(map(str, (*own, source.choice(["", 0, 1])))))
        paths.append(folder / f"day{day}.csv")
        paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def read_labels(log):
    """By example id the values of all columns of the log's labels, in the order of their names."""
    columns = [label_column(name) for name in sorted(read_schema(log).labels)]
    return {row["example_id"]: tuple(row[name] for name in columns) for row in read_log(log)}


def ingest_rows(tmp_path, rows, **changes):
    (tmp_path / "rows.csv").write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    log = tmp_path / "log"
    return ingest(mapping_of(**changes), [tmp_path / "rows.csv"], log, max_reject_share=1.0, now_us=NOW)


def test_labels_of_a_table(tmp_path):
    paths = write_days(tmp_path / "in")
    ingest(mapping_of(), paths, tmp_path / "log", now_us=NOW)
    expected, watched = {}, {}
    for path in paths:
        for line in path.read_text().splitlines()[1:]:
            id_, time, _, _, bought, until, rated = line.split(",")
            purchase = int(bool(bought) and int(bought) - int(time) <= 12 * HOUR)
            watched[int(id_)] = (purchase,)
            expected[int(id_)] = purchase if until else None, int(rated) if rated else None
    assert read_labels(tmp_path / "log") == expected
    assert len(set(expected.values())) == 8
    without = mapping_of({"purchase": {**LABELS["purchase"], "until": None}})
    ingest(without, paths, tmp_path / "watched", now_us=NOW)
    assert read_labels(tmp_path / "watched") == watched


def test_an_event_counts_to_the_end_of_its_window(tmp_path):
    end = FIRST + 12 * HOUR
    rows = [f"1,{FIRST},5,0,{end},{end},0", f"2,{FIRST},5,0,{end + 1},{end},0"]
    # Watched for less than the window: not known, whatever was seen.
    rows += [f"3,{FIRST},5,0,{FIRST},{end - 1},0", f"4,{FIRST},5,0,,{end},"]
    ingest_rows(tmp_path, rows)
    assert read_labels(tmp_path / "log") == {1: (1, 0), 2: (0, 0), 3: (None, 0), 4: (0, None)}


def test_no_number_of_a_parquet_file_is_missing_as_null_is(tmp_path):
    """As other programs write missing times and labels."""
    end, nan = FIRST + 12.0 * HOUR, float("nan")
    rows = [(nan, end, 1.0), (FIRST, nan, nan), (None, None, None), (FIRST, end, 0.0)]
    bought, watched, rated = zip(*rows, strict=True)
    columns = {"id": [1, 2, 3, 4], "time": [FIRST] * 4, "user": [5] * 4, "clicked": [0] * 4}
    numbers = {"bought": bought, "watched": watched, "rated": rated}
    columns |= {name: pa.array(values, pa.float64()) for name, values in numbers.items()}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    mapping = mapping_of(input={"type": "parquet"})
    result = ingest(mapping, [tmp_path / "rows.parquet"], tmp_path / "log", max_reject_share=1.0, now_us=NOW)
    assert result.reject_reasons == {}
    assert read_labels(tmp_path / "log") == {1: (0, 1), 2: (None, None), 3: (None, None), 4: (1, 0)}


def test_of_a_query_that_lasts_each_row_has_a_window_of_its_own(tmp_path):
    rows = [f"1,{FIRST},5,0,{FIRST + 12 * HOUR + 1},,0", f"2,{FIRST + 60},5,1,{FIRST + 12 * HOUR + 1},,1"]
    label = {"purchase": {**LABELS["purchase"], "until": None}}
    ingest_rows(tmp_path, rows, labels=label, query={"column": "user"})
    assert read_labels(tmp_path / "log") == {1: (0,), 2: (1,)}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"purchase": {}}, "exactly one of time and value is required"),
        ({"purchase": {"time": "bought"}}, "time requires window"),
        ({"purchase": {"value": "rated", "window": "1d"}}, "value allows neither"),
        ({"a-b": {"time": "bought"}}, "labels.a-b"),
    ],
)
def test_labels_that_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        mapping_of(labels)


def test_rows_are_rejected_whose_label_is_unreadable_or_before_them(tmp_path):
    rows = [
        f"1,{FIRST},5,0,{FIRST - 1},{FIRST},0",
        f"2,{FIRST},5,0,soon,{FIRST},0",
        f"3,{FIRST},5,0,,{FIRST},perhaps",
        f"4,{FIRST},5,1,,{FIRST},1",
    ]
    result = ingest_rows(tmp_path, rows)
    assert result.rejected == 3
    assert set(result.reject_reasons) == {
        "labels.purchase: before the row's own time",
        "labels.purchase: unreadable or out of range",
        "labels.rating: not a label",
    }


def test_a_log_of_other_labels_or_windows_is_refused(tmp_path):
    paths = write_days(tmp_path / "in", days=2)
    ingest(mapping_of({}), paths[:1], tmp_path / "log", append=True, now_us=NOW)
    with pytest.raises(InputError, match="written with labels: none, not purchase, rating"):
        ingest(mapping_of(), paths, tmp_path / "log", append=True, now_us=NOW)
    ingest(mapping_of(), paths[:1], tmp_path / "labeled", append=True, now_us=NOW)
    longer = mapping_of({**LABELS, "purchase": {**LABELS["purchase"], "window": "1d"}})
    with pytest.raises(InputError, match=r"within 43200 s, .*now has .* within 86400 s, watched"):
        ingest(longer, paths, tmp_path / "labeled", append=True, now_us=NOW)
