"""A run that goes on as its logs grow ends in the bits of one pass over them, whatever it scores in between."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.data.log import read_manifests
from ctr.data.reader import FAULTS, join_rows, read_rows
from ctr.data.shards import read_shard
from ctr.io.errors import InputError
from ctr.models.rows import padded_size
from ctr.training import trainer as module
from ctr.training.loop import open_session, train
from growing_logs import (
    ENDS,
    ROOTS,
    assert_same,
    constrained,
    last_weights,
    without_timings,
)
from small_runs import write_teacher

TEACHER = {"objective": {"distillation": {"teacher": "teacher"}}}


def good_rows(log: Path, schema, partitions: slice = slice(None)):
    manifests = read_manifests(log)[partitions]
    rows = join_rows(list(read_rows(log, schema, manifests)))
    return rows.keep(rows.fault == 0)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("delay", [0.02, 0])
def test_growing_logs_give_the_bits_of_one_pass(
    growing, exposure, schema, make_config, make_examples, make_log, tmp_path, delay
):
    """Two runs at once, one of them with a constraint log that is published later than the log; scoring between."""
    changes = {**ROOTS, "model": {"query_size": "auto"}}
    plain = make_config(changes)
    other = make_config({**changes, **constrained(exposure.folder), "label_delay": delay})
    unseen = make_log(make_examples(30, seed=4).table(), "unseen")
    unseen = join_rows(list(read_rows(unseen, schema, read_manifests(unseen))))
    growing.grow()
    exposure.grow()
    rows = [0, 0]
    heard = []
    with ExitStack() as stack:
        folders = [tmp_path / "plain", tmp_path / "constrained"]
        sessions = [
            stack.enter_context(open_session(growing.folder, config, folder))
            for config, folder in zip((plain, other), folders, strict=True)
        ]
        for log in (None, growing, exposure, growing, None, exposure):
            if log is not None:
                log.grow()
            for number, session in enumerate(sessions):
                done = session.advance()
                rows[number] += done.rows
                heard += [line["examples"] for line in done.windows] if number == 0 else []
                published = sum(manifest.rows for manifest in read_manifests(growing.folder))
                assert done.waiting == published - rows[number]
                first, again = session.score(unseen), session.score(unseen)
                np.testing.assert_array_equal(first, again)
            # What the constraint log is not published for waits, and nothing else than an incomplete batch does.
            assert sessions[0].advance().rows == 0
            times = growing.table.column("query_time").to_numpy()
            assert times[rows[1] - 1] <= ENDS[exposure.partitions]
            assert published - rows[0] < 50
            if exposure.partitions == growing.partitions:
                assert rows[1] == rows[0]
        summaries = [session.finish() for session in sessions]
    for config, folder, summary in zip((plain, other), folders, summaries, strict=True):
        whole = train(growing.folder, config, tmp_path / f"{folder.name}-whole")
        assert without_timings(summary) == without_timings(whole)
        assert summary["constraint_logs"] or folder.name == "plain"
        assert summary["calibration_slices"]["query_size"]["slices"] == 7
        assert_same(folder, tmp_path / f"{folder.name}-whole")
    lines = [json.loads(line) for line in (folders[0] / "metrics.jsonl").read_text().splitlines()]
    assert heard == [line["examples"] for line in lines[:-1]]


@pytest.mark.slow
def test_nothing_waits_where_the_next_interval_needs_it(
    growing, make_config, tmp_path, read_predictions, schema
):
    """As separate runs over the log so far do it, which resume from one another's checkpoints."""
    config = make_config(ROOTS)
    with open_session(growing.grow(), config, tmp_path / "run") as session:
        for partition in range(3):
            done = session.advance(partial=True)
            assert (done.rows, done.waiting) == (read_manifests(growing.folder)[partition].rows, 0)
            session.save()
            session.save()  # nothing is new
            train(growing.folder, config, tmp_path / "steps" / "run")
            assert last_weights(tmp_path / "run") == last_weights(tmp_path / "steps" / "run")
            if partition < 2:
                growing.grow()
                coming = good_rows(growing.folder, schema, slice(partition + 1, None))
                score = session.score(coming)
            if partition == 0:
                first = coming, score
        session.finish()
    found, expected = read_predictions(tmp_path / "run"), read_predictions(tmp_path / "steps" / "run")
    np.testing.assert_array_equal(found["logit"], expected["logit"])
    # The first batch of a partition is scored by the weights that score() used before.
    rows, logit = first
    before = int(np.searchsorted(found["query_time"], 80_000))
    of_record = found["logit"].to_numpy()[before : before + 40]
    assert found["example_id"].tolist()[before : before + 40] == rows.example_id[:40].tolist()
    np.testing.assert_allclose(logit[:40], of_record, rtol=0, atol=1e-6)
    later = found["logit"].to_numpy()[before : before + len(rows)]
    assert np.abs(logit[100:] - later[100:]).max() > 0.01


def test_scoring_takes_few_sizes_and_any_number_of_rows(growing, schema, make_config, tmp_path, monkeypatch):
    config = make_config(ROOTS, logistic=True)
    with open_session(growing.grow(3), config, tmp_path / "run") as session:
        session.advance()
        rows = good_rows(growing.folder, schema)
        sizes = set()
        make: Callable[..., Any] = module.make_feed

        def watched(*arguments, **options):
            feed = make(*arguments, **options)
            sizes.add(len(feed.targets["label"]))
            return feed

        monkeypatch.setattr(module, "make_feed", watched)
        logit = session.score(rows)
        assert logit.dtype == np.float32 and len(logit) == len(rows) > 1000
        assert np.std(logit) > 0.1
        mask = np.zeros(len(rows), bool)
        mask[[7, 300, 801]] = True
        entry = read_manifests(growing.folder)[1].shards[0]
        table = read_shard(growing.folder, entry, schema)
        good = table.filter(pa.array(table.column("label").to_numpy() < 2))
        begin = int(np.searchsorted(rows.query_time, entry.first_query_time))
        # Some of the rows; and a shard's columns.
        for own, expected in (
            *((rows.slice(0, count), logit[:count]) for count in (0, 1, 49, 50, 51)),
            (rows.keep(mask), logit[mask]),
            (good, logit[begin : begin + len(good)]),
        ):
            np.testing.assert_allclose(session.score(own), expected, rtol=0, atol=1e-6)
        # Few, and the same for any number of rows up to a batch's.
        assert sizes == {padded_size(count, smallest=50) for count in (50, 51, len(good), len(rows))}

        bad = good.set_column(4, "label", pa.array(np.full(len(good), 3), pa.int8()))
        fewer = type(rows)(**{**vars(rows), "ids": rows.ids[:, :2]})
        for wrong, words in (
            (bad, rf"row 0 \(example_id \d+\): {FAULTS[1]}; {len(good)} of"),
            (good.drop_columns(["tags"]), r"not the columns of a shard of the log, query_time, .*ids, tags"),
            (fewer, r"2 single-valued features .*; the log has 3 and \['tags'\]"),
        ):
            with pytest.raises(InputError, match=words):
                session.score(wrong)
        # None of these ended it.
        session.advance()


@pytest.mark.soak
def test_an_interval_waits_for_its_teacher(growing, make_config, tmp_path):
    config = make_config({**ROOTS, **TEACHER})
    rng = np.random.default_rng(3)

    def teach() -> None:
        write_teacher(growing.folder, "teacher", lambda ids: rng.normal(size=len(ids)), slice(-1, None))

    growing.grow()
    teach()
    with open_session(growing.folder, config, tmp_path / "run") as session:
        session.advance()
        growing.grow()
        position = session.run.position.examples
        with pytest.raises(InputError, match=r"sidecar teacher of .*no value for \d+ of \d+ rows") as refusal:
            session.advance()
        assert "\n" not in str(refusal.value)
        assert session.run.position.examples == position
        teach()
        assert session.advance().rows > 300
        session.save()
    growing.grow()
    # Also where another session begins with what is not taught.
    with open_session(growing.folder, config, tmp_path / "run") as session:
        with pytest.raises(InputError, match=r"no value for \d+ of \d+ rows"):
            session.advance()
        teach()
        summary = session.finish()
    whole = train(growing.folder, config, tmp_path / "whole")
    assert without_timings(summary) == without_timings(whole)
    assert last_weights(tmp_path / "run") == last_weights(tmp_path / "whole")


def test_logs_that_are_not_what_they_were_are_refused(growing, exposure, make_config, tmp_path):
    config = make_config({**ROOTS, **constrained(exposure.folder)}, logistic=True)
    for log in (growing, exposure):
        log.partitions = 1
        log.grow()
    with open_session(growing.folder, config, tmp_path / "run") as session:
        session.advance()
        with (
            pytest.raises(InputError, match="another process is training in this run directory"),
            open_session(growing.folder, config, tmp_path / "run"),
        ):
            pass
        for log, name in ((exposure, "constraint log exposure"), (growing, "log")):
            log.partitions = 0
            log.grow()
            with pytest.raises(InputError, match=f"the {name} is not the one .* first 1 partitions differ"):
                session.advance()
            first = read_manifests(log.folder)[0].name
            for path in (
                log.folder / "manifests" / f"{first}.json",
                *(log.folder / "shards").glob(f"{first}-*"),
            ):
                path.unlink()
        assert session.finish()["log_rows"] == read_manifests(growing.folder)[0].rows


def test_after_an_exception_nothing_is_saved(growing, make_config, tmp_path):
    def stop(position, _):
        raise KeyboardInterrupt

    config = make_config(ROOTS, logistic=True)
    with open_session(growing.grow(), config, tmp_path / "run", stop) as session:
        with pytest.raises(KeyboardInterrupt):
            session.advance()
        for method in (session.save, session.finish, session.advance):
            with pytest.raises(RuntimeError, match="ended with an exception; open another one"):
                method()
    assert not list(tmp_path.glob("run/checkpoints/*"))
