"""A clock that steps back: what is published late is never left out in silence, and never trained after its time."""

from pathlib import Path
from typing import Any

import pytest

import growing_logs
from ctr.data.log import read_manifests
from ctr.io.errors import InputError
from ctr.training.loop import open_session, train
from growing_logs import ENDS


def remove(log: Path, start: int, end: int) -> None:
    stem = f"{start:019d}-{end:019d}"
    for path in (log / "manifests" / f"{stem}.json", *(log / "shards").glob(f"{stem}-*")):
        path.unlink()


@pytest.mark.slow
def test_an_interval_that_comes_after_its_time_is_refused_by_name(
    growing: Any, make_config: Any, tmp_path: Path
) -> None:
    config, log, run = make_config(growing_logs.ROOTS, logistic=True), growing.folder, tmp_path / "run"

    def publish(number: int) -> None:
        growing.partitions = number
        growing.grow()

    publish(0)
    publish(2)
    late = rf"its first 2 partitions differ \(\[{ENDS[1]}, {ENDS[2]}\) came late\)"
    with open_session(log, config, run) as session:
        session.advance(partial=True)
        session.save()
        passed = session.run.position.examples
        assert passed == sum(manifest.rows for manifest in read_manifests(log))
        publish(1)
        with pytest.raises(InputError, match=late):
            session.advance()
        assert session.run.position.examples == passed
    # Nor is it taken in by whoever goes on later.
    with pytest.raises(InputError, match=r"its first 2 partitions differ;"):
        train(log, config, run)
    remove(log, ENDS[1], ENDS[2])
    assert train(log, config, run)["log_rows"] == passed


def test_an_interval_that_vanishes_or_changes_is_named(
    growing: Any, make_config: Any, tmp_path: Path
) -> None:
    config, log = make_config(growing_logs.ROOTS, logistic=True), growing.grow(3)
    with open_session(log, config, tmp_path / "run") as session:
        session.advance(stop=lambda: session.run.position.examples > 600)
        remove(log, ENDS[0], ENDS[1])
        with pytest.raises(InputError, match=rf"\(\[{ENDS[0]}, {ENDS[1]}\) is gone\)"):
            session.refresh()
        growing.table = growing.table.slice(1)
        growing.partitions = 0
        growing.grow()
        with pytest.raises(InputError, match=rf"\(\[{ENDS[0]}, {ENDS[1]}\) has other content\)"):
            session.refresh()
