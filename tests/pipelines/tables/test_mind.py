"""The MIND reader against a plain-Python one."""

import gzip
import json
import random

import pytest

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.tables.ingest import ingest
from ctr.pipelines.tables.input_files import SourceFile
from ctr.pipelines.tables.mind import MIND_COLUMNS, News, read_mind

TIMES = ["11/9/2019 2:04:46 PM", "11/12/2019 12:00:00 AM", "11/11/2019 9:05:01 AM"]


def make_news():
    """id -> (category, subcategory, title, abstract, title entities, abstract entities); N9x are unknown."""
    source = random.Random(1)
    news = {}
    for n in range(8):
        titles, abstracts = (
            [f"Q{source.randrange(5)}" for _ in range(source.randrange(3))] for _ in range(2)
        )
        abstract = None if n == 3 else f'an "abstract" {n}'
        news[f"N{n}"] = (f"c{n % 3}", f"s{n % 4}", f'Title "{n}', abstract, titles, abstracts)
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


def write(folder, lines, suffix=""):
    folder.mkdir(exist_ok=True)
    behaviors = "".join("\t".join([*line[:3], " ".join(line[3]), " ".join(line[4])]) + "\n" for line in lines)
    rows = ""
    for name, (*texts, titles, abstracts) in make_news().items():
        lists = [
            json.dumps([{"Label": "x", "WikidataId": one} for one in ids]) for ids in (titles, abstracts)
        ]
        # No entities may also be an empty field.
        lists = ["" if text == "[]" and name == "N1" else text for text in lists]
        rows += "\t".join([name, *(text or "" for text in texts), "http://x", *lists]) + "\n"
    for name, content in (("behaviors.tsv", behaviors), ("news.tsv", rows)):
        data = content.encode()
        (folder / (name + suffix)).write_bytes(gzip.compress(data) if suffix else data)
    return folder


def plain(lines, news):
    rows = []
    for impression, user, time, history, candidates in lines:
        known = [news[name] for name in history if name in news]
        shared = {
            "impression_id": impression,
            "user_id": user,
            "time": time,
            "history": history or [""],
            "history_length": len(history),
            "history_categories": [category for category, *_ in known],
            "history_subcategories": [subcategory for _, subcategory, *_ in known],
        }
        for candidate in candidates:
            name, _, clicked = candidate.rpartition("-")
            *texts, titles, abstracts = news.get(name) or [None] * 6
            row = {**shared, "news_id": name, "clicked": clicked, "example_id": f"{impression}-{name}"}
            row |= dict(zip(("category", "subcategory", "title", "abstract"), texts, strict=True))
            row["title_entities"] = titles and list(dict.fromkeys(titles)) if titles is not None else None
            both = None if titles is None else list(dict.fromkeys([*titles, *abstracts]))
            rows.append({**row, "entities": both})
    return rows


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_candidates_are_those_of_a_plain_reader(tmp_path, suffix):
    lines = make_lines(40)
    folder = write(tmp_path / "in", lines, suffix)
    source = SourceFile(0, folder / f"behaviors.tsv{suffix}", "behaviors.tsv")
    chunks = list(read_mind(source, News.load(folder), MIND_COLUMNS, 1 << 20))
    assert [row for chunk in chunks for row in chunk.table.to_pylist()] == plain(lines, make_news())
    numbers = [number for chunk in chunks for number in chunk.rows.tolist()]
    assert numbers == [number for number, line in enumerate(lines, 1) for _ in line[4]]
    assert not any(chunk.rejects for chunk in chunks)


CONTENT = {
    "input": {"type": "mind"},
    "time": {"column": "time", "format": "%m/%d/%Y %I:%M:%S %p"},
    "query": {"column": "impression_id"},
    "example_id": "example_id",
    "label": "clicked",
    "partition": "1d",
    "features": [
        {"name": "news", "kind": "category", "source": "news_id", "vocabulary": ["N0", "N1"]},
    ],
}


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
    result = ingest(parse_model(Mapping, CONTENT, "test"), [folder], tmp_path / "log", max_reject_share=1)
    assert (result.rows, result.examples, result.rejected) == (13, 4, 9)
    found = [(r["row"], r["key"], r["reason"], r["value"]) for r in raw_logs.read_rejects(tmp_path / "log")]
    example = next(r for r in found if r[1] == "example_id")[3]
    assert found == [
        (2, "line", "no candidates", ""),
        *[(3, "time", "unreadable or out of range", "noon")] * 2,
        (4, "example_id", "duplicate in its query", example),
        (4, "label", "not a label", "2"),
        (4, "label", "not a label", "N2"),
        (5, "example_id", "missing", ""),
        (6, "line", "wrong number of fields", f"6\tU1\t{TIMES[1]}\tmore\t\tN1-0"),
        (7, "line", "invalid UTF-8", ""),
    ]


NOT_A_LIST = "row 1: the entities are not a JSON list"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("N1\tc\ts\tt\ta\tu\t[]\t[]\n" * 2, "row 2: the news id 'N1' is missing or appears more than once"),
        ("\tc\ts\tt\ta\tu\t[]\t[]\n", "row 1: the news id None is missing"),
        ("N1\tc\ts\tt\ta\tu\t[]\n", "row 1: wrong number of fields"),
        ("N1\tc\ts\tt\ta\tu\t[{\t[]\n", NOT_A_LIST),
        ('N1\tc\ts\tt\ta\tu\t[]\t[{"Label": 1}]\n', NOT_A_LIST),
        ("N1\tc\ts\tt\ta\tu\t3\t[]\n", NOT_A_LIST),
        # Those that a fuzzer found.
        ("N1\ta\tb\tc\td\te\t" + "[" * 5000 + "\t[]\n", NOT_A_LIST),
        ('N1\ta\tb\tc\td\te\t[{"WikidataId": 5}]\t[]\n', NOT_A_LIST),
        ('N1\ta\tb\tc\td\te\t[{"WikidataId": ["a"]}]\t[]\n', NOT_A_LIST),
        ('N1\ta\tb\tc\td\te\t[{"WikidataId": "\\ud800"}]\t[]\n', NOT_A_LIST),
        (None, "no such file; it must be in the directory of behaviors.tsv"),
    ],
)
def test_bad_news_end_the_job(tmp_path, lines, message):
    if lines is not None:
        (tmp_path / "news.tsv").write_text(lines)
    with pytest.raises(InputError, match=rf"news\.tsv:? {message}"):
        News.load(tmp_path)
