"""The MIND reader against a plain-Python one."""

import gzip
import random

import pytest

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.tables.ingest import IngestSettings, ingest
from ctr.pipelines.tables.input_files import SourceFile
from ctr.pipelines.tables.reader import MIND_COLUMNS, load_news, read_mind

TIMES = ["11/9/2019 2:04:46 PM", "11/12/2019 12:00:00 AM", "11/11/2019 9:05:01 AM"]


def make_news():
    """id -> (category, subcategory, title, abstract); N9x are unknown."""
    return {
        f"N{n}": (f"c{n % 3}", f"s{n % 4}", f'Title "{n}', None if n == 3 else f'an "abstract" {n}')
        for n in range(8)
    }


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
    for name, texts in make_news().items():
        rows += "\t".join([name, *(text or "" for text in texts), "http://x", "[]", ""]) + "\n"
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
            texts = news.get(name) or [None] * 4
            row = {**shared, "news_id": name, "clicked": clicked, "example_id": f"{impression}-{name}"}
            row |= dict(zip(("category", "subcategory", "title", "abstract"), texts, strict=True))
            rows.append(row)
    return rows


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_candidates_are_those_of_a_plain_reader(tmp_path, suffix):
    lines = make_lines(40)
    folder = write(tmp_path / "in", lines, suffix)
    source = SourceFile(0, folder / f"behaviors.tsv{suffix}", "behaviors.tsv")
    news = load_news(folder)
    chunks = list(read_mind(source, news, MIND_COLUMNS, 1 << 20))
    rows = [row for chunk in chunks for row in news.attach(chunk.table).to_pylist()]
    assert rows == plain(lines, make_news())
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
    result = ingest(
        parse_model(Mapping, CONTENT, "test"), [folder], tmp_path / "log", IngestSettings(max_reject_share=1)
    )
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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("N1\tc\ts\tt\ta\tu\t[]\t[]\n" * 2, r"/news\.tsv: the key news_id 'N1' appears more than once"),
        ("\tc\ts\tt\ta\tu\t[]\t[]\n", r"/news\.tsv row 1: the key news_id is missing"),
        ("N1\tc\ts\tt\ta\tu\t[]\n", r"/news\.tsv row 1: wrong number of fields"),
        (None, r"join news\.tsv\* in .*: no such file; exactly one file is required"),
    ],
)
def test_bad_news_end_the_job(tmp_path, lines, message):
    if lines is not None:
        (tmp_path / "news.tsv").write_text(lines)
    with pytest.raises(InputError, match=message):
        load_news(tmp_path)
