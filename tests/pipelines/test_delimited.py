"""csv and tsv: quoting, headers, row numbers."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput
from ctr.errors import InputError
from ctr.pipelines.delimited import delimited_columns, read_delimited
from ctr.pipelines.sources import SourceFile


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


def test_quotes_in_csv_and_in_tsv(tmp_path):
    path = write(tmp_path, b'a,b\n"x, ""y""",2\n"two\nlines",3\n"",4\n')
    assert read(path, ["b", "a"])[0] == [
        (2, (b"2", b'x, "y"')),
        (3, (b"3", b"two\nlines")),
        (4, (b"4", None)),
    ]
    path = write(tmp_path, b'a\tb\n"x\t2\ny"z\t3\n')
    assert read(path, ["a"], type="tsv")[0] == [(2, (b'"x',)), (3, (b'y"z',))]
    path = write(tmp_path, b'a\tb\n"x\ty"\t2\n')
    assert read(path, ["a"], type="tsv", quoting=True)[0] == [(2, (b"x\ty",))]


def test_options(tmp_path):
    path = write(tmp_path, b"1;NA\n;2\n")
    assert read(path, ["b", "a"], header=False, columns=["a", "b"], delimiter=";", nulls=["NA", "1"])[0] == [
        (1, (None, None)),
        (2, (b"2", b"")),
    ]


def test_a_byte_order_mark_line_ends_and_no_last_line_end(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4")
    assert read(path, ["a", "b"])[0] == [(2, (b"1", b"2")), (3, (b"3", b"4"))]


def test_quoted_names_in_the_header(tmp_path):
    path = write(tmp_path, b'"a, b",c\n1,2\n')
    form = DelimitedInput(type="csv")
    assert delimited_columns(path, form) == ("a, b", "c")
    assert read(path, ["a, b"])[0] == [(2, (b"1",))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the first line is empty"),
        (b"\n1,2\n", "the first line is empty"),
        (b"a,a\n1,2\n", "the column a stands twice"),
        (b"caf\xe9,a\n1,2\n", "damaged"),
        (b"b,c\n1,2\n", "no column a; the columns found are b, c"),
    ],
)
def test_bad_headers(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, content), ["a"])


def test_unused_columns_may_repeat(tmp_path):
    path = write(tmp_path, b",b,b,a\n1,2,3,4\n")
    assert read(path, ["a"])[0] == [(2, (b"4",))]


def test_an_empty_file_without_header_has_no_rows(tmp_path):
    assert read(write(tmp_path, b""), ["a"], header=False, columns=["a"]) == ([], [])


def test_a_record_longer_than_a_block_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a quote never closed"):
        read(write(tmp_path, b"a,b\n" + b"x" * 500 + b",2\n"), ["a"], block_bytes=64)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(good=st.lists(st.booleans(), max_size=60), block_bytes=st.integers(16, 80))
def test_rows_are_numbered_past_bad_ones(tmp_path, good, block_bytes):
    lines = [b"%d,x" % place if ok else b"bad" for place, ok in enumerate(good)]
    rows, rejects = read(
        write(tmp_path, b"".join(line + b"\n" for line in [b"a,b", *lines])), ["a"], block_bytes
    )
    assert rows == [(2 + place, (b"%d" % place,)) for place, ok in enumerate(good) if ok]
    assert rejects == [(2 + place, "wrong number of fields") for place, ok in enumerate(good) if not ok]
