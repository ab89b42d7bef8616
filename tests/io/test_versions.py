"""The names of versions in a directory that models are exported to."""

from ctr.io.versions import is_partial, is_version, version_number, versions


def test_what_a_name_is():
    complete, partial = ("7", "0012", "7.delta"), ("7.partial", "7.delta.partial")
    others = ("7.partial.delta", "7.delta.delta", "-7", "7.5", ".delta", "", "model")
    names = (*complete, *partial, *others)
    assert {name for name in names if is_version(name)} == set(complete)
    assert {name for name in names if is_partial(name)} == set(partial)


def test_versions_come_in_the_order_of_their_numbers_the_delta_first(tmp_path):
    for name in ("10", "9", "10.delta", "11.partial", "100.delta", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file is no version")
    found = versions(tmp_path)
    assert [path.name for path in found] == ["9", "10.delta", "10", "100.delta"]
    assert [version_number(path) for path in found] == [9, 10, 10, 100]
    assert versions(tmp_path / "nothing") == []
