"""Folders of rows on disk: nothing is left behind. That they come back as they were is tested by an ingest."""

from ctr.pipelines.spill import spill_folder


def test_a_folder_in_use_stays_and_what_a_dead_process_left_does_not(tmp_path):
    dead = tmp_path / ".spill-dead"
    dead.mkdir()
    (dead / "0").write_bytes(b"rows")
    with spill_folder(tmp_path) as first:
        assert [*tmp_path.iterdir()] == [first]
        with spill_folder(tmp_path) as second:
            assert {*tmp_path.iterdir()} == {first, second}
        assert [*tmp_path.iterdir()] == [first]
    assert [*tmp_path.iterdir()] == []
