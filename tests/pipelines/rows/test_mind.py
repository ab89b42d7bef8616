"""The MIND reader against a plain-Python one."""

import gzip
import json
import random

import pytest

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.rows.mind import MIND_COLUMNS, News, read_mind
from ctr.pipelines.rows.sources import SourceFile

TIMES = ["11/9/2019 2:04:46 PM", "11/12/2019 12:00:00 AM", "11/11/2019 9:05:01 AM"]


def entity(name):
    return {"Label": "x", "WikidataId": name, "OccurrenceOffsets": [0]}


def make_news(count=8):
    """id -> (category, subcategory, title, abstract, title entities, abstract entities); N9x are unknown."""
    source = random.Random(1)
    news = {}
    for place in range(count):
        titles = [f"Q{source.randrange(5)}" for _ in range(source.randrange(3))]
        abstracts = [f"Q{source.randrange(5)}" for _ in range(source.randrange(3))]
        abstract = None if place == 3 else f'an "abstract" {place}'
        news[f"N{place}"] = (f"c{place % 3}", f"s{place % 4}", f'Title "{place}', abstract, titles, abstracts)
    return news


def make_lines(count, seed=0):
    source = random.Random(seed)
    lines = []
    for place in range(count):
        history = [f"N{source.choice([*range(8), 90, 91])}" for _ in range(source.randrange(4))]
        shown = source.sample([f"N{n}" for n in [*range(8), 92]], source.randrange(1, 5))
        candidates = [f"{name}-{int(source.random() < 0.3)}" for name in shown]
        lines.append((str(500 + place), f"U{place % 3}", source.choice(TIMES), history, candidates))
    return lines


def write(folder, lines, news=None, suffix=""):
    folder.mkdir(exist_ok=True)
    behaviors = "".join("\t".join([*line[:3], " ".join(line[3]), " ".join(line[4])]) + "\n" for line in lines)
    rows = []
    for name, (category, subcategory, title, abstract, titles, abstracts) in (news or make_news()).items():
        lists = [
            "" if not names and name == "N1" else json.dumps([entity(n) for n in names])
            for names in (titles, abstracts)
        ]
        rows.append(
            "\t".join([name, category, subcategory, title, abstract or "", "http://x", *lists]) + "\n"
        )
    for name, content in (("behaviors.tsv", behaviors), ("news.tsv", "".join(rows))):
        data = content.encode()
        (folder / (name + suffix)).write_bytes(gzip.compress(data) if suffix else data)
    return folder


def unique(names):
    return list(dict.fromkeys(names))


def plain(lines, news):
    rows = []
    for impression, user, time, history, candidates in lines:
        for candidate in candidates:
            name, _, clicked = candidate.rpartition("-")
            known = news.get(name)
            rows.append(
                {
                    "impression_id": impression,
                    "user_id": user,
                    "time": time,
                    "history": history or [""],
                    "history_length": len(history),
                    "history_categories": [news[n][0] for n in history if n in news],
                    "history_subcategories": [news[n][1] for n in history if n in news],
                    "news_id": name,
                    "clicked": clicked,
                    "example_id": f"{impression}-{name}",
                    "category": known and known[0],
                    "subcategory": known and known[1],
                    "title": known and known[2],
                    "abstract": known and known[3],
                    "title_entities": known and unique(known[4]),
                    "entities": known and unique([*known[4], *known[5]]),
                }
            )
    return rows


def test_candidates_are_those_of_a_plain_reader(tmp_path):
    lines = make_lines(40)
    folder = write(tmp_path / "in", lines)
    source = SourceFile(0, folder / "behaviors.tsv", "behaviors.tsv")
    rows, numbers = [], []
    for chunk in read_mind(source, News.load(folder), MIND_COLUMNS, 1 << 20):
        rows += chunk.table.to_pylist()
        numbers += chunk.rows.tolist()
        assert chunk.rejects == []
    assert rows == plain(lines, make_news())
    assert numbers == [number for number, line in enumerate(lines, 1) for _ in line[4]]


FEATURES = [
    {"name": "news", "kind": "category", "source": "news_id", "vocabulary": ["N0", "N1"]},
    {"name": "hour", "kind": "category", "source": "hour", "vocabulary": ["0", "9", "14"]},
    {
        **{"name": "history", "kind": "category", "source": "history", "multivalent": True},
        **{"vocabulary": [f"N{n}" for n in range(8)], "max_values": 2, "keep": "last"},
    },
]


def mapping():
    content = {
        "input": {"type": "mind"},
        "time": {"column": "time", "format": "%m/%d/%Y %I:%M:%S %p"},
        "query": {"column": "impression_id"},
        "example_id": "example_id",
        "label": "clicked",
        "derive": {"hour": {"from": "time", "part": "hour"}},
        "partition": "1d",
        "features": FEATURES,
    }
    return parse_model(Mapping, content, "test")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_query_is_an_impression(tmp_path, suffix):
    lines = make_lines(60, seed=2)
    folder = write(tmp_path / "in", lines, suffix=suffix)
    result = ingest(mapping(), [folder], tmp_path / "log")
    examples = raw_logs.read_log(tmp_path / "log")
    assert (result.queries, result.examples) == (60, sum(len(line[4]) for line in lines))
    by_impression = {}
    for example in examples:
        by_impression.setdefault(example["query_id"], []).append(example)
    hours = dict(zip(TIMES, (3, 1, 2), strict=True))
    for impression, _, time, history, candidates in lines:
        shown = by_impression[int(impression)]
        assert sorted(example["label"] for example in shown) == sorted(int(c[-1]) for c in candidates)
        assert sorted(e["news"] for e in shown) == sorted(
            {"N0": 1, "N1": 2}.get(c[:-2], 3) for c in candidates
        )
        known = [1 + int(n[1:]) if int(n[1:]) < 8 else 9 for n in history][-2:]
        assert all(e["history"] == known and e["hour"] == hours[time] for e in shown)
    keys = [(e["query_time"], e["query_id"]) for e in examples]
    assert keys == sorted(keys)


def test_several_files_share_the_news_of_their_folder(tmp_path):
    lines = make_lines(30, seed=3)
    whole, parts = write(tmp_path / "whole", lines), write(tmp_path / "parts", lines)
    text = (parts / "behaviors.tsv").read_text().splitlines(keepends=True)
    (parts / "behaviors.tsv").write_text("".join(text[:10]))
    (parts / "behaviors_2.tsv").write_text("".join(text[10:]))
    ingest(mapping(), [whole], tmp_path / "log")
    ingest(mapping(), [parts / "behaviors.tsv", parts / "behaviors_2.tsv"], tmp_path / "log2")
    assert raw_logs.read_log(tmp_path / "log2") == raw_logs.read_log(tmp_path / "log")


def test_bad_lines_and_candidates_are_set_aside(tmp_path):
    lines = [
        ("1", "U1", TIMES[0], [], ["N1-1", "N2-0"]),
        ("2", "U1", TIMES[0], [], []),
        ("3", "U1", "noon", [], ["N1-0", "N2-0"]),
        ("4", "U1", TIMES[1], ["N1"], ["N1-0", "N2", "N3-2", "N4-0", "N1-1"]),
        ("", "U1", TIMES[1], ["N1"], ["N1-0"]),
        ("6", "U1", TIMES[1] + "\tmore", [], ["N1-0"]),
    ]
    folder = write(tmp_path / "in", lines)
    with (folder / "behaviors.tsv").open("ab") as file:
        file.write(b"7\tU\xff\t" + TIMES[1].encode() + b"\t\tN1-0\n")
    result = ingest(mapping(), [folder], tmp_path / "log", max_reject_share=1)
    assert (result.rows, result.examples, result.rejected) == (13, 4, 9)
    found = [(r["row"], r["key"], r["reason"], r["value"]) for r in raw_logs.read_rejects(tmp_path / "log")]
    example = next(r for r in found if r[1] == "example_id")[3]
    assert found == [
        (2, "line", "no candidates", ""),
        (3, "time", "unreadable or out of range", "noon"),
        (3, "time", "unreadable or out of range", "noon"),
        (4, "example_id", "duplicate in its query", example),
        (4, "label", "not a label", "2"),
        (4, "label", "not a label", "N2"),
        (5, "example_id", "missing", ""),
        (6, "line", "wrong number of fields", f"6\tU1\t{TIMES[1]}\tmore\t\tN1-0"),
        (7, "line", "invalid UTF-8", ""),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "N1\tc\ts\tt\ta\tu\t[]\t[]\n" * 2,
            "news.tsv row 2: the news id 'N1' is missing or appears more than once",
        ),
        ("\tc\ts\tt\ta\tu\t[]\t[]\n", "news.tsv row 1: the news id None is missing"),
        ("N1\tc\ts\tt\ta\tu\t[]\n", "news.tsv row 1: wrong number of fields"),
        ("N1\tc\ts\tt\ta\tu\t[{\t[]\n", "news.tsv row 1: the entities are not a JSON list"),
        ('N1\tc\ts\tt\ta\tu\t[]\t[{"Label": 1}]\n', "news.tsv row 1: the entities are not a JSON list"),
        ("N1\tc\ts\tt\ta\tu\t3\t[]\n", "news.tsv row 1: the entities are not a JSON list"),
    ],
)
def test_bad_news_end_the_job(tmp_path, line, message):
    folder = write(tmp_path / "in", make_lines(3))
    (folder / "news.tsv").write_text(line)
    with pytest.raises(InputError, match=message):
        ingest(mapping(), [folder], tmp_path / "log")


def test_the_news_must_be_there(tmp_path):
    folder = write(tmp_path / "in", make_lines(3))
    (folder / "news.tsv").unlink()
    with pytest.raises(
        InputError, match=r"news.tsv: no such file; it must be in the directory of behaviors.tsv"
    ):
        ingest(mapping(), [folder / "behaviors.tsv"], tmp_path / "log")


def test_unknown_columns_are_named(tmp_path):
    folder = write(tmp_path / "in", make_lines(3))
    features = [{"name": "position", "kind": "category", "source": "position"}]
    changed = mapping().model_copy(update={"features": parse_model(
        Mapping, {**mapping().model_dump(by_alias=True), "features": features}, "test").features})  # fmt: skip
    with pytest.raises(
        InputError, match="no column position; the columns found are impression_id, user_id, "
    ):
        ingest(changed, [folder], tmp_path / "log")
