"""The names of versions in a directory that models are exported to."""

import pytest

from ctr.io.versions import is_partial, is_version, version_number, versions


@pytest.mark.parametrize(
    ("name", "version", "partial"),
    [
        ("7", True, False),
        ("0012", True, False),
        ("7.delta", True, False),
        ("7.partial", False, True),
        ("7.delta.partial", False, True),
        ("7.partial.delta", False, False),
        ("7.delta.delta", False, False),
        ("-7", False, False),
        ("7.5", False, False),
        (".delta", False, False),
        ("", False, False),
        ("model", False, False),
    ],
)
def test_what_a_name_is(name, version, partial):
    assert (is_version(name), is_partial(name)) == (version, partial)


def test_versions_come_in_the_order_of_their_numbers_the_delta_first(tmp_path):
    for name in ("10", "9", "10.delta", "11.partial", "100.delta", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file is no version")
    found = versions(tmp_path)
    assert [path.name for path in found] == ["9", "10.delta", "10", "100.delta"]
    assert [version_number(path) for path in found] == [9, 10, 10, 100]
    assert versions(tmp_path / "nothing") == []
