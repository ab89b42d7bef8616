"""JSON lines: whatever way a block takes, the rows are those of reading it line by line."""

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import parse_numbers
from ctr.pipelines.tables.input_files import SourceFile
from ctr.pipelines.tables.jsonl import JsonlReader


def read(path, lines, block_bytes=1 << 20):
    """The chunks of a file: ``n`` is only read as a number, ``t`` as text, ``l`` as a list."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    reader = JsonlReader(["n", "t", "l"], ["n"], {"l": "|"})
    return list(reader.read(SourceFile(0, path, path.name), block_bytes))


def test_lists_beside_single_values_need_one_separator(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"l": ["a"]}\n{"l": "b,c"}\n')
    with pytest.raises(InputError, match="the column l holds lists and single values"):
        list(JsonlReader(["l"], [], {"l": None}).read(SourceFile(0, path, path.name), 1 << 20))


def meaning(chunks):
    """What ingestion makes of the columns, whatever their Arrow types: [(row, number, text, list)]."""
    cells = []
    for chunk in chunks:
        numbers = parse_numbers(chunk.table.column("n").combine_chunks())[0].to_pylist()
        texts = chunk.table.column("t").combine_chunks().cast(pa.string()).to_pylist()
        lists = chunk.table.column("l").combine_chunks()
        if pa.types.is_list(lists.type):
            items = lists.cast(pa.list_(pa.string())).to_pylist()
        else:
            joined = lists.cast(pa.string()).to_pylist()
            items = [None if text is None else text.split("|") for text in joined]
        cells += zip(chunk.rows.tolist(), numbers, texts, items, strict=True)
    return cells


def dump(content):
    return json.dumps(content).encode()


WHOLE = st.integers(-(2**70), 2**70)
REAL = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.one_of(
    st.sampled_from(["", "5", "2020-01-01", "2020-01-01 10:00:00", "a|b", "true"]), st.text("aé|", max_size=3)
)
SCALAR = st.one_of(st.none(), WHOLE, REAL, st.booleans(), TEXT)
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(st.none(), st.integers(-(2**53), 2**53), REAL, st.sampled_from(["1.5", "2", ""])),
        "t": SCALAR,
        "l": st.one_of(SCALAR, st.lists(SCALAR, max_size=3)),
        "other": st.one_of(SCALAR, st.dictionaries(st.sampled_from("ab"), SCALAR, max_size=2)),
    },
)
LINE = st.one_of(
    OBJECT.map(dump),
    st.sampled_from([b"", b"  ", b"{", b"3", b'{"t": 1, "t": 2}', b'{"n": 1}{"n": 2}', b"{}"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINE, max_size=8))
# Arrow breaks a column of lists that begins with nulls.
@example([dump({"n": 1, "t": "x", "l": [None, None]}), dump({"n": 1, "l": [None, "a"]})])
@example([])
def test_blocks_mean_what_their_lines_mean(tmp_path, lines):
    # Every column is there at least once, so that the end of the file does not complain.
    lines = [*lines, dump({"n": 1, "t": "x", "l": ["y"]})]
    whole = read(tmp_path / "x", lines)
    single = read(tmp_path / "x", lines, block_bytes=1)
    assert meaning(whole) == meaning(single)
    rejects = [[(r.row, r.reason) for chunk in chunks for r in chunk.rejects] for chunks in (whole, single)]
    assert rejects[0] == rejects[1]
    expected = []
    for row, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            expected.append((row, content))
    assert [row for row, *_ in meaning(whole)] == [row for row, _ in expected]
    for (_, number, text, _), (_, content) in zip(meaning(whole), expected, strict=True):
        n = content.get("n")
        assert number == (None if n in (None, "") else float(n))
        t = content.get("t")
        spelled = json.dumps(t) if isinstance(t, bool) else str(t)
        assert text == (t if t is None or isinstance(t, str) else spelled)


def test_plain_blocks_take_the_fast_way(tmp_path, monkeypatch):
    monkeypatch.setattr(JsonlReader, "_slow", None)
    first = {"n": 1.5, "t": "2020-01-01 10:00:00", "l": ["a"]}
    found = meaning(read(tmp_path / "x", [dump(first), b"", dump({"n": 2, "t": None, "l": []})]))
    assert found == [(1, 1.5, "2020-01-01 10:00:00", ["a"]), (3, 2.0, None, [])]


def test_lines_may_be_longer_than_a_block_and_lack_the_last_end(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(dump({"n": 1, "t": "x" * 100, "l": []}) + b"\n" + dump({"n": 2, "t": "y", "l": []}))
    chunks = list(JsonlReader(["n", "t", "l"], ["n"], {"l": "|"}).read(SourceFile(0, path, "x"), 16))
    assert [row[:3] for row in meaning(chunks)] == [(1, 1.0, "x" * 100), (2, 2.0, "y")]


def test_a_column_may_be_absent_from_many_lines_but_not_from_all(tmp_path):
    lines = [dump({"n": 1, "l": []})] * 50
    with pytest.raises(InputError, match="no column t in any line; the columns found are n, l"):
        read(tmp_path / "x", lines, block_bytes=64)
    assert len(meaning(read(tmp_path / "x", [*lines, dump({"t": "x"})], block_bytes=64))) == 51


def test_lines_that_arrows_parser_does_not_survive_are_read_by_themselves(tmp_path):
    deep = b'{"t":1,"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n"
    keys = b"".join(b'{"t":2,"key %d":1}\n' % number for number in range(3_000))
    path = tmp_path / "lines.jsonl"
    path.write_bytes(deep + keys)
    chunks = list(JsonlReader(("t",), ("t",), {}).read(SourceFile(0, path, "lines"), 16 << 20))
    assert [reject.row for chunk in chunks for reject in chunk.rejects] == [1]
    assert [value for chunk in chunks for value in chunk.table.column("t").to_pylist()] == [2] * 3_000
