"""csv and tsv: quoting, headers, row numbers."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput
from ctr.io.errors import InputError
from ctr.pipelines.tables.delimited import TEXT_AFTER, UNCLOSED, read_delimited
from ctr.pipelines.tables.input_files import SourceFile


def read(path, wanted, block_bytes=1 << 20, **form):
    """[(row number, values)] and [(row number, reason)] of a file."""
    form = parse_model(DelimitedInput, {"type": "csv", **form}, "test")
    rows, rejects = [], []
    for chunk in read_delimited(SourceFile(0, path, path.name), form, wanted, block_bytes):
        values = [tuple(row[name] for name in wanted) for row in chunk.table.to_pylist()]
        rows += zip(chunk.rows.tolist(), values, strict=True)
        rejects += [(reject.row, reject.reason) for reject in chunk.rejects]
        assert chunk.count == chunk.table.num_rows + len(chunk.rejects)
    return rows, rejects


def write(folder, content):
    path = folder / "x.csv"
    path.write_bytes(content)
    return path


TWO = [(2, (b"1", b"2")), (3, (b"3", b"4"))]


@pytest.mark.parametrize(
    ("content", "form", "rows"),
    [
        # Delimiters and line ends within quotes, doubled quotes, an empty value; in tsv a quote is a character.
        (b'a,b\n"x, ""y""",2\n"two\nlines",3\n"",4\n', {},
         [(2, (b'x, "y"', b"2")), (3, (b"two\nlines", b"3")), (4, (None, b"4"))]),
        (b'a\tb\n"x\t2\ny"z\t3\n', {"type": "tsv"}, [(2, (b'"x', b"2")), (3, (b'y"z', b"3"))]),
        (b'a\tb\n"x\ty"\t2\n', {"type": "tsv", "quoting": True}, [(2, (b"x\ty", b"2"))]),
        # Quotes within a field are plain.
        (b'a,b\n5" disk,x"y"\n"5"" disk",""\n', {}, [(2, (b'5" disk', b'x"y"')), (3, (b'5" disk', None))]),
        (b"1;NA\n;2\n", {"header": False, "columns": ["a", "b"], "delimiter": ";", "nulls": ["NA", "1"]},
         [(1, (None, None)), (2, (b"", b"2"))]),
        # A byte order mark, Windows' line ends, and no last line end.
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4", {}, TWO),
        (b"b,x,x,a\n2,0,0,1\n4,0,0,3\n", {}, TWO),
        (b"", {"header": False, "columns": ["a", "b"]}, []),
        # A delimiter at the end of all lines, of those below the header, and of the header.
        (b"a,b,\n1,2,\n3,4,\n", {}, TWO),
        (b"a,b\n1,2,\n3,4,\n", {}, TWO),
        (b"a,b,\n1,2\n3,4\n", {}, TWO),
        # The number of the row, which R writes without a name.
        (b'"a","b"\n"1",1,2\n"2",3,4\n', {}, TWO),
        (b"a\tb\r1\t2\r3\t4\r", {"type": "tsv"}, TWO),
        (b"\xef\xbb\xbfsep=;\r\na;b\r\n1;2\r\n", {"delimiter": ";", "skip_lines": 1}, [(3, (b"1", b"2"))]),
        (b'# by "me\n\n#\na,b\n1,2\n', {"skip_lines": 3}, [(5, (b"1", b"2"))]),
        (b"# c\n1,2\n", {"skip_lines": 1, "header": False, "columns": ["a", "b"]}, [(2, (b"1", b"2"))]),
    ],
)  # fmt: skip
def test_what_is_read(tmp_path, content, form, rows):
    assert read(write(tmp_path, content), ["a", "b"], **form) == (rows, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the first line is empty"),
        (b"\n1,2\n", "the first line is empty"),
        (b"a,a\n1,2\n", "the column a appears twice"),
        (b"caf\xe9,a\n1,2\n", "is not text in UTF-8"),
        (b"b,c\n1,2\n", "no column a; the columns found are b, c"),
        (b"a,b\n" + b"x" * 500 + b",2\n", "a quote that is never closed"),
    ],
)
def test_files_without_a_header_or_with_a_record_longer_than_a_block_are_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, content), ["a"], block_bytes=64)


@pytest.mark.parametrize("line", [b"a,b,c", b'"a","b","c"', b"a,b,c,"])
@pytest.mark.parametrize("block_bytes", [32, 1 << 20])
def test_a_header_that_comes_again_is_rejected_as_what_it_is(tmp_path, line, block_bytes):
    content = b"a,b,c\n1,2,3\na,5,6\n" + line + b"\n7,b,9\n" + line + b"\n"
    records = read(write(tmp_path, content), ["a", "c"], block_bytes)
    assert records[0] == [(2, (b"1", b"3")), (3, (b"a", b"6")), (5, (b"7", b"9"))]
    assert records[1] == [(4, "repeats the header"), (6, "repeats the header")]
    # Of one column it may be a value.
    assert read(write(tmp_path, b"a,b\na,b\n"), ["a"])[0] == [(2, (b"a",))]


def test_the_line_and_what_is_allowed_are_shown(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbf"a","b"\n1,"caf\xe9"x\n')
    form = DelimitedInput(type="csv")
    (chunk,) = [c for c in read_delimited(SourceFile(0, path, "x.csv"), form, ["a"], 1 << 20) if c.rejects]
    (reject,) = chunk.rejects
    assert (reject.row, reject.key, reject.value) == (2, "line", '1,"caf\\xe9"x')
    assert reject.allowed.startswith("a quoted value ends with a quote")
    # One column has its faults, too.
    records = read(write(tmp_path, b'a\n"1"\n"2"x\n3\n'), ["a"])
    assert records == ([(2, (b"1",)), (4, (b"3",))], [(3, TEXT_AFTER)])


def plain_records(text):
    """The rules in plain Python: each record's first line at fault, or its fields; none of empty lines."""
    records = []
    position = 0
    while position < len(text):
        fields, at, fault = [], position, False
        while True:
            if text[at : at + 1] == '"':
                value, at = "", at + 1
                while text[at : at + 2] == '""' or text[at : at + 1] not in ("", '"'):
                    pair = text[at : at + 2] == '""'
                    value, at = value + text[at], at + (2 if pair else 1)
                fault = at >= len(text) or text[at + 1 : at + 2] not in ("", ",", "\n")
                at += 1
            else:
                end = min(spot for spot in (text.find(",", at), text.find("\n", at), len(text)) if spot >= 0)
                value, at = text[at:end], end
            fields.append(value)
            if fault or text[at : at + 1] != ",":
                break
            at += 1
        end = text.find("\n", position) + 1 or len(text)
        if fault:
            records.append(None)
            position = end
            continue
        if text[position:at]:
            records.append(fields)
        position = at + 1
    return records


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(['"', '"', ",", "\n", "x", "x", '"x"', '""', "x,y\n"]), max_size=40),
    block_bytes=st.integers(80, 110),
    end=st.sampled_from(["\n", "\r\n"]),
)
@example(pieces=["1", ",", '"two\nlines"', "\n\n2,y\n3,", '"y"', '"', "\n4,y"], block_bytes=80, end="\r\n")
@example(pieces=['"3"x,y\n3,"y" \n3,"'], block_bytes=80, end="\r\n")
def test_any_text_with_quotes_is_read_by_the_rules(tmp_path, pieces, block_bytes, end):
    text = "".join(pieces)
    names, path = ["a", "b"], write(tmp_path, text.replace("\n", end).encode())
    rows, rejects = read(path, names, block_bytes, header=False, columns=names)
    numbered = list(enumerate(plain_records(text), 1))
    good = [(number, fields) for number, fields in numbered if fields is not None and len(fields) == 2]
    written = [(number, [value.replace("\n", end).encode() for value in fields]) for number, fields in good]
    assert rows == [(number, tuple(value or None for value in fields)) for number, fields in written]
    faults = [row for row, reason in rejects if reason in (UNCLOSED, TEXT_AFTER)]
    assert faults == [number for number, fields in numbered if fields is None]
    # A record over several lines is as many rejects.
    lengths = {n: 1 + sum(f.count("\n") for f in some) for n, some in numbered if some and len(some) != 2}
    others = [row for row, reason in rejects if reason not in (UNCLOSED, TEXT_AFTER)]
    assert others == [number for number, count in lengths.items() for _ in range(count)]
