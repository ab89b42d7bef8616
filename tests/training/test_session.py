"""A run that goes on as its logs grow ends in the bits of one pass over them, whatever it scores in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.data.log import read_manifests
from ctr.data.reader import FAULTS, join_rows, read_rows
from ctr.data.shards import read_shard
from ctr.io.errors import InputError
from ctr.training import row_scores as module
from ctr.training.session import open_session, train
from ctr.training.sizes import fit
from growing_logs import ROOTS, last_weights, read_predictions
from small_runs import make_config


def good_rows(log: Path, schema, partitions: slice = slice(None)):
    manifests = read_manifests(log)[partitions]
    rows = join_rows(list(read_rows(log, schema, manifests)))
    return rows.keep(rows.fault == 0)


@pytest.mark.slow
def test_nothing_waits_where_the_next_interval_needs_it(growing, tmp_path, schema):
    """As separate runs over the log so far do it, which resume from one another's checkpoints."""
    config = make_config(ROOTS, logistic=True)
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


def test_scoring_takes_few_sizes_and_any_number_of_rows(growing, schema, tmp_path, monkeypatch):
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
        assert sizes == {fit(count, least=50) for count in (50, 51, len(good), len(rows))}

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


def test_after_an_exception_nothing_is_saved(growing, tmp_path):
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
