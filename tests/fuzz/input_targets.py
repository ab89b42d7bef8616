# ruff: noqa: E501
"""Fuzzing of raw inputs: tables, data sets in their own formats, events."""

import gzip
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from log_targets import require_log
from target import FEATURES, Parse, Prepare, put

from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.data.mapping import Mapping, load_format
from ctr.data.reader import rows_of_table
from ctr.data.schema import Schema


def _ingested(folder: Path, mapping: Mapping, path: Path) -> None:
    from ctr.pipelines.ingest.run import ingest

    log = folder / "out"
    shutil.rmtree(log, ignore_errors=True)
    result = ingest(mapping, [path], log, max_reject_share=1)
    if log.exists() and (log / "schema.json").exists():
        assert require_log(log) == result.rows - result.rejected, result
    for file in log.glob("rejects/*"):
        assert len([json.loads(line) for line in file.read_text().split("\n")[:-1]]) == result.rejected


def _table_input(suffix: str, changes: dict[str, Any], name: str = "rows") -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        import raw_logs as rows

        own = folder / "tables"
        path = rows.write_rows(own, rows.make_rows(12), suffix)
        if name == "shops":
            path = own / "shops.csv"
        return [path.read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        import raw_logs

        mapping = raw_logs.make_mapping(**changes)
        put(folder / "tables" / (f"rows.{suffix}" if name == "rows" else f"{name}.csv"), content)
        _ingested(folder, mapping, folder / f"tables/rows.{suffix}")

    return prepare, parse


_FORMATS: dict[str, dict[str, str]] = {
    "criteo": {
        "train.txt": "".join(
            "\t".join([label, *["1", "-2", "5"], *[""] * 10, *(f"{n:08x}" for n in range(26))]) + "\n"
            for label in "010"
        )
    },
    "avazu": {
        "train.csv": "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21\n"
        "7,1,14102113,1,0,a,b,c,d,e,f,g,h,i,1,2,3,4,5,6,7,8,-1,9\n18446744073709551000,0,14102112,1,1"
        + ",x" * 19
        + "\n"
    },
    "movielens": {
        "x.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t10\t4\t900000000\n2\t10\t3\t900000000\n"
        "1\t11\t3.5\t900001800\n1\t12\t5\t900003601\n",
        "x.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        '10\tA "Film"\t1995\tDrama Comedy\n11\tB\t1996\tDrama\n',
        "x.user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\tcook\t85711\n",
    },
    "open_bandit": {
        "all.csv": ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user_feature_2,"
        "user_feature_3,user-item_affinity_0\n0,2019-11-24 00:00:17.004101+00:00,1,2,0,0.1,a,b,c,d,0.0\n"
        "1,2019-11-24 00:00:18+00:00,7,3,1,0.1,a,b,c,e,0.0\n",
        "item_context.csv": ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n0,1,-0.5,x,y,z\n",
    },
    "mind": {
        "behaviors.tsv": "2\tU1\t11/12/2019 2:14:46 PM\tN1 N9\tN1-0 N2-1\n1\tU2\t11/9/2019 6:42:51 AM\t\tN8-0\n",
        "news.tsv": 'N1\tnews\tworld\tOne "two"\t\thttp://x\t[{"WikidataId": "Q1"}]\t[]\n'
        "N2\tsports\tgolf\tTwo\tthree\thttp://x\t\t[]\n",
    },
}


def _format(name: str, changed: str) -> tuple[Prepare, Parse]:
    files = _FORMATS[name]

    def prepare(folder: Path) -> list[bytes]:
        (folder / name).mkdir(exist_ok=True)
        for file, text in files.items():
            put(folder / name / file, text.encode())
        return [files[changed].encode()]

    def parse(folder: Path, content: bytes) -> None:
        put(folder / name / changed, content)
        _ingested(folder, load_format(name), folder / name / next(iter(files)))

    return prepare, parse


def _events(form: str, kind: Any) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        import event_files as events

        rows = events.draw_events(12)[kind]
        (folder / kind).mkdir(exist_ok=True)
        if form == "jsonl":
            return ["".join(json.dumps(row) + "\n" for row in rows).encode()]
        fields = [pa.field(key, value) for key, value in events.TYPES.items() if key in rows[0]]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), sink)
        return [sink.getvalue()]

    def parse(folder: Path, content: bytes) -> None:
        import event_files as events
        from ctr.pipelines.events.read import Unit, read_unit, split_units
        from ctr.pipelines.events.tables import prepare as make

        mapping: EventMapping = events.mapping(form)
        path = put(folder / kind / f"x.{form}", content)
        for unit in split_units([Unit(kind, path.name, path)]):
            for chunk in read_unit(mapping, unit):
                table, rejects = make(mapping, kind, chunk, events.BEGIN_US + 10**9)
                assert table.num_rows + len(rejects) == chunk.count
                _require_events(mapping, kind, table)

    return prepare, parse


def _require_events(mapping: EventMapping, kind: str, table: pa.Table) -> None:
    for column in table.columns:
        assert not column.null_count
    if kind == "impressions":
        rows = rows_of_table(table, mapping.feature_schema, 0)
        assert not rows.fault.any()


def _kafka(kind: Any) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        import event_files as events

        return ["".join(json.dumps(row) + "\n" for row in events.draw_events(12)[kind]).encode()]

    def parse(folder: Path, content: bytes) -> None:
        from apache_beam.utils.timestamp import Timestamp

        import event_files as events
        from ctr.pipelines.events.kafka import _Gather
        from ctr.pipelines.events.tables import prepare as make

        mapping: EventMapping = events.mapping("jsonl", impressions={"topic": "i"}, clicks={"topic": "c"})
        gather = _Gather(mapping, kind)
        gather.start_bundle()
        values = [*content.split(b"\n"), content, None]
        for offset, value in enumerate(values):
            record = SimpleNamespace(value=value, topic="t", partition=0, offset=offset)
            assert not list(gather.process(record, Timestamp(1)))
        found = [chunk.value.chunk for chunk in gather.finish_bundle()]
        assert sum(chunk.count for chunk in found) == len(values) - 1, "a record is lost"
        for chunk in found:
            _require_events(mapping, kind, make(mapping, kind, chunk, events.BEGIN_US + 10**9)[0])

    return prepare, parse


def _scored_rows(suffix: str) -> tuple[Prepare, Parse]:
    """What ``ctr score`` reads."""
    schema = parse_model(Schema, {"features": FEATURES}, "test")
    rows = [
        {"user": 1, "price": 2.5, "tags": "a|b", "title": "Red shoe", "position": "1", "size": 3, "age": 30},
        {"user": "x", "price": None, "tags": "", "title": None, "position": "9", "size": 1e9, "age": 5},
    ]
    texts = {
        "csv": ",".join(rows[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows),
        "jsonl": "".join(json.dumps({**row, "tags": ["a"]}) + "\n" for row in rows),
    }
    texts["csv.gz"] = texts["csv"]

    def prepare(folder: Path) -> list[bytes]:
        content = texts[suffix].encode()
        return [gzip.compress(content), gzip.compress(content * 2000)] if suffix.endswith("gz") else [content]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.pipelines.rows.raw_rows import plain_mapping, read_raw_rows

        path = put(folder / f"rows.{suffix}", content)
        for keys, raw, rejects in read_raw_rows(schema, plain_mapping(schema, [path]), [path], 1 << 20):
            assert keys.num_rows == raw.num_rows
            json.dumps(rejects)

    return prepare, parse
