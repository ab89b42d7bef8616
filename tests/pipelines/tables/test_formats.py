"""The shipped formats: rows made up in their syntax, and the real data sets where they are."""

import os
import runpy
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raw_logs
from ctr.data.log import read_manifests
from ctr.data.mapping import load_format, load_mapping
from ctr.pipelines.tables.ingest import ingest

DATA = os.environ.get("CTR_DATA")
US = 1_000_000


def us(*moment):
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * US


def run(name, inputs, log):
    result = ingest(load_format(name), inputs, log)
    assert result.rejected == 0
    return raw_logs.read_log(log)


def test_criteo(tmp_path):
    numbers = [["1", "", "-2", *["5"] * 10], ["0", "3", "", *[""] * 10]]
    strings = [[f"{place:08x}" for place in range(26)], ["", *[f"{place:08x}" for place in range(1, 26)]]]
    lines = ["\t".join([label, *n, *s]) for label, n, s in zip("01", numbers, strings, strict=True)]
    path = tmp_path / "train.txt"
    path.write_text("\n".join([*lines, lines[0]]) + "\n")
    examples = run("criteo", [tmp_path], tmp_path / "log")
    assert [e["label"] for e in examples] == [0, 1, 0]
    start = us(2014, 1, 1)
    assert [e["query_time"] for e in examples] == [start, start + 13194, start + 2 * 13194]
    assert len({e["query_id"] for e in examples}) == 3
    first, second, third = ([e[f"I{n}"] for n in range(1, 4)] + [e["C1"], e["C2"]] for e in examples)
    assert first == third
    assert (first[1], second[2], second[3]) == (0, 0, 0)
    assert first[2] < second[0] < first[0] < second[1]
    assert first[4] == second[4]


def test_avazu(tmp_path):
    columns = (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    )
    first = "7,1,14102113,1,0,a,b,c,d,e,f,g,h,i,1,2,3,4,5,6,7,8,-1,9"
    second = "18446744073709551000,0,14102112,1,1" + ",x" * 19
    (tmp_path / "train.csv").write_text("\n".join([columns, first, second]) + "\n")
    examples = run("avazu", [tmp_path / "train.csv"], tmp_path / "log")
    assert [e["query_time"] for e in examples] == [us(2014, 10, 21, 12), us(2014, 10, 21, 13)]
    assert [e["label"] for e in examples] == [0, 1]
    assert examples[1]["example_id"] == 7
    assert examples[0]["banner_pos"] != examples[1]["banner_pos"]
    assert load_format("avazu").feature_schema.by_name["banner_pos"].tower == "ui"


def test_movielens(tmp_path):
    ratings = ["1\t10\t4\t900000000", "2\t10\t3\t900000000", "1\t11\t3.5\t900001800", "1\t12\t5\t900003601"]
    (tmp_path / "x.inter").write_text(
        "\n".join(["user_id:token\titem_id:token\trating:float\ttimestamp:float", *ratings]) + "\n"
    )
    (tmp_path / "x.item").write_text(
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        '10\tA "Film"\t1995\tDrama Comedy\n11\tB\t1996\tDrama\n'
    )
    (tmp_path / "x.user").write_text(
        "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\tcook\t85711\n"
    )
    examples = run("movielens", [tmp_path], tmp_path / "log")
    times = {(e["timestamp"], e["label"]): e for e in examples}
    first, other = times[900000000 * US, 1], times[900000000 * US, 0]
    second, third = times[900001800 * US, 0], times[900003601 * US, 1]
    assert first["query_id"] == second["query_id"] != third["query_id"]
    assert first["query_time"] == second["query_time"] == 900001800 * US
    assert other["query_id"] not in (first["query_id"], third["query_id"])
    assert (len(first["genres"]), len(second["genres"]), len(third["genres"])) == (2, 1, 0)
    assert first["gender"] == 2
    assert other["gender"] == 0


def test_open_bandit(tmp_path):
    users = ",".join(f"user_feature_{n}" for n in range(4))
    names = f",timestamp,item_id,position,click,propensity_score,{users}"
    (tmp_path / "all.csv").write_text(
        f"{names},user-item_affinity_0\n"
        "0,2019-11-24 00:00:17.004101+00:00,1,2,0,0.1,a,b,c,d,0.0\n"
        "1,2019-11-24 00:00:18+00:00,7,3,1,0.1,a,b,c,e,0.0\n"
    )
    (tmp_path / "item_context.csv").write_text(
        ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n0,1,-0.5,x,y,z\n"
    )
    examples = run("open_bandit", [tmp_path], tmp_path / "log")
    start = us(2019, 11, 24)
    assert [e["timestamp"] for e in examples] == [start + 17_004_101, start + 18 * US]
    assert [(e["label"], e["position"]) for e in examples] == [(0, 2), (1, 3)]
    assert examples[0]["item_feature_0"] > 0 == examples[1]["item_feature_0"]
    assert examples[0]["user_feature_0"] == examples[1]["user_feature_0"]
    assert load_format("open_bandit").feature_schema.by_name["position"].tower == "ui"


def test_yambda(tmp_path):
    columns = {
        "uid": pa.array([7, 7, 8, 7], pa.uint32()),
        "timestamp": pa.array([0, 600, 600, 86_400], pa.uint32()),
        "item_id": pa.array([1, 2, 1, 3], pa.uint32()),
        "is_organic": pa.array([0, 1, 0, 1], pa.uint8()),
        "played_ratio_pct": pa.array([50, 49, 100, 0], pa.uint16()),
        "track_length_seconds": pa.array([180, 200, 180, 90], pa.uint32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "listens.parquet")
    first, second, other, later = run("yambda", [tmp_path], tmp_path / "log")
    assert [one["label"] for one in (first, second, other, later)] == [1, 0, 1, 0]
    # A session sees what was liked before it began.
    assert first["query_id"] == second["query_id"] != other["query_id"]
    assert (first["liked"], second["liked"], other["liked"]) == ([], [], [])
    assert later["liked"] == [first["item"]]


def test_mind(tmp_path, root):
    (tmp_path / "behaviors.tsv").write_text(
        "2\tU1\t11/12/2019 2:14:46 PM\tN1 N9\tN1-0 N2-1\n1\tU2\t11/9/2019 6:42:51 AM\t\tN8-0\n"
    )
    (tmp_path / "news.tsv").write_text(
        'N1\tnews\tworld\tOne "two"\t\thttp://x\t[{"WikidataId": "Q1"}]\t[]\n'
        "N2\tsports\tgolf\tTwo\tthree\thttp://x\t\t[]\n"
    )
    example, table = root / "examples" / "mind", tmp_path / "mind.parquet"
    runpy.run_path(str(example / "rows.py"))["main"](tmp_path, table)
    assert ingest(load_mapping(example / "mapping.yaml"), [table], tmp_path / "log").rejected == 0
    examples = raw_logs.read_log(tmp_path / "log")
    early, late = us(2019, 11, 9, 6, 42, 51), us(2019, 11, 12, 14, 14, 46)
    assert [e["query_time"] for e in examples] == [early, late, late]
    assert [e["query_id"] for e in examples] == [1, 2, 2]
    assert sorted(e["label"] for e in examples[1:]) == [0, 1]
    assert len({e["news_id"] for e in examples}) == 3
    assert [len(e["history"]) for e in examples] == [0, 2, 2]


REAL = [
    ("movielens", "ml100k", 100_000, 2793, 0.55375),
    ("criteo", "criteo/train.tsv", 8000, 8000, None),
    ("criteo", "criteo/test.tsv", 2000, 2000, None),
    ("avazu", "avazu/train.csv", 8999, 8999, None),
    *[
        ("open_bandit", f"open_bandit/{policy}/{campaign}", 10_000, 10_000, None)
        for policy in ("bts", "random")
        for campaign in ("all", "men", "women")
    ],
]


@pytest.mark.skipif(DATA is None, reason="CTR_DATA does not name the folder of the real logs")
@pytest.mark.parametrize(("name", "path", "rows", "queries", "ctr"), REAL)
def test_real_logs_come_in_whole(tmp_path, name, path, rows, queries, ctr):
    assert DATA is not None
    result = ingest(load_format(name), [Path(DATA) / path], tmp_path / "log")
    assert (result.rows, result.examples, result.rejected, result.queries) == (rows, rows, 0, queries)
    if ctr is not None:
        assert result.clicks / result.examples == pytest.approx(ctr, abs=5e-5)
    assert sum(manifest.rows for manifest in read_manifests(tmp_path / "log")) == rows
