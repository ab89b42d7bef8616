"""What the raw columns of a row become besides its keys."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

import raw_logs
from ctr.pipelines.ingest.examples import make_examples
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.rows.sources import Chunk


@given(st.lists(st.integers(0, 253_402_300_799), min_size=1, max_size=5))
def test_parts_of_the_time(seconds):
    periods = sorted({str(second // 21_600) for second in seconds})
    features = [
        {"name": "hour", "kind": "category", "source": "h", "vocabulary": [str(n) for n in range(24)]},
        {"name": "weekday", "kind": "category", "source": "w", "vocabulary": [str(n) for n in range(7)]},
        {"name": "period", "kind": "category", "source": "p", "vocabulary": periods},
    ]
    derive = {
        "h": {"from": "time", "part": "hour"},
        "w": {"from": "time", "part": "weekday"},
        "p": {"from": "time", "every": "6h"},
    }
    mapping = raw_logs.make_mapping(
        joins=None, query=None, example_id=None, weight=None, label="click", derive=derive, features=features
    )
    table = pa.table({"time": seconds, "click": [1] * len(seconds)})
    chunk = Chunk(0, table, np.arange(len(seconds)), [])
    table, _ = make_examples(mapping, 0, chunk, (), 0)
    ids = np.frombuffer(b"".join(table.column("ids").to_pylist()), np.int32).reshape(-1, 3)
    moments = [datetime.fromtimestamp(second, UTC) for second in seconds]
    assert ids[:, :2].tolist() == [[1 + moment.hour, 1 + moment.weekday()] for moment in moments]
    assert ids[:, 2].tolist() == [1 + periods.index(str(second // 21_600)) for second in seconds]


def test_copies_and_prefixes_of_numbers(tmp_path):
    rows = raw_logs.make_rows(30)
    path = raw_logs.write_rows(tmp_path / "in", rows, "parquet")
    assert str(pq.read_schema(path).field("user").type) == "int64"
    derive = {"user_number": {"from": "user"}, "decade": {"from": "id", "prefix": 4}}
    features = [
        {"name": "user", "kind": "category", "source": "user", "vocabulary": ["0", "1", "2", "3"]},
        {"name": "user_number", "kind": "number", "source": "user_number", "boundaries": [1, 2, 3]},
        {"name": "decade", "kind": "category", "source": "decade", "vocabulary": ["1000", "1001", "1002"]},
    ]
    mapping = raw_logs.make_mapping(input={"type": "parquet"}, joins=None, derive=derive, features=features)
    ingest(mapping, [path], tmp_path / "log")
    found = {
        e["example_id"]: (e["user"], e["user_number"], e["decade"])
        for e in raw_logs.read_log(tmp_path / "log")
    }
    assert found == {
        int(r["id"]): (1 + int(r["user"]), 1 + int(r["user"]), int(r["id"][3]) + 1) for r in rows
    }
