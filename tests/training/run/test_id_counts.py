"""What a run says of the ids that it met, against the rows of its log."""

import json

import numpy as np
import pytest

from ctr.data.batches import whole_query_batches
from ctr.data.features import Category, Number
from ctr.data.kept_values import value_of_id
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.data.schema import Schema
from ctr.eval.run_files import read_timeline, read_windows
from ctr.training.feed import make_feed
from ctr.training.loop import train
from ctr.training.run.id_counts import IdCounts
from small_runs import make_config


@pytest.fixture(scope="module")
def batches(log, schema):
    return list(whole_query_batches(read_rows(log, schema, read_manifests(log)), 50, 64))


def values_of(batch, schema, name):
    """A feature's ids in a batch, that of a missing single value left out; rows without a value."""
    if name in schema.multivalent:
        values, offsets = batch.rows.multivalent[name]
        return values, int((np.diff(offsets) == 0).sum())
    ids = batch.rows.ids[:, schema.single_valued.index(name)]
    return ids[ids != 0], int((ids == 0).sum())


def test_counts_are_those_of_the_rows_and_a_state_goes_on_where_it_was(batches, schema):
    layouts = make_config().table_layouts(schema)
    counts = IdCounts(layouts, schema)
    met = {name: set() for name in counts.features}
    sums = {name: np.zeros(4, np.int64) for name in counts.features}
    counted = {name: np.zeros(schema.by_name[name].buckets, np.int64) for name in counts.features}
    for number, batch in enumerate(batches):
        if number == 5:
            saved = {name: array.copy() for name, array in counts.to_arrays().items()}
            counts = IdCounts(layouts, schema)
            counts.restore(saved)
        counts.update(make_feed(batch, layouts, 50))
        for name in counts.features:
            values, missing = values_of(batch, schema, name)
            new = sum(int(one) not in met[name] for one in values)
            sums[name] += (len(batch.rows), missing, len(values), new)
            met[name] |= set(map(int, values))
            if number % 8 == 0:
                np.add.at(counted[name], values, 1)
    window, slots = counts.close_window()
    assert not slots
    for name in counts.features:
        assert window[name] == sums[name].tolist(), name
        seen, found = counts.occurrences(name)
        # A missing value's place is counted too, and left out where it is read.
        begin = 0 if name in schema.multivalent else 1
        assert set(np.flatnonzero(seen[begin:]) + begin) == met[name]
        assert found[begin:].tolist() == counted[name][begin:].tolist()
    assert any(sums[name][1] for name in counts.features)
    assert not counts.window.any()


def test_what_ids_stand_for():
    words = Category(name="w", source="w", vocabulary=("tea", "coffee"))
    assert [value_of_id(words, one) for one in range(4)] == ["missing", "tea", "coffee", "other"]
    number = Number(name="n", source="n", boundaries=(0.5, 2, 10))
    assert [value_of_id(number, one) for one in range(5)] == [
        "missing", "below 0.5", "0.5 to 2", "2 to 10", "10 and more",
    ]  # fmt: skip
    assert value_of_id(Category(name="h", source="h", buckets=10), 3) is None


@pytest.mark.slow
def test_a_run_writes_what_it_met(log, schema: Schema, tmp_path):
    config = make_config({"metrics": {"window_examples": 300}}, logistic=True)
    summary = train(log, config, tmp_path / "run")
    windows, timeline = read_windows(tmp_path / "run"), read_timeline(tmp_path / "run")
    assert timeline.windows[:, 0].tolist() == windows["examples"].tolist()
    # Of ids that grow it has nothing to say.
    assert "ids" not in summary and not timeline.slots
    for metric in ("per_query_auc", "logloss"):
        np.testing.assert_allclose(timeline.estimate(metric).point, windows[metric], rtol=1e-9)
        cumulative = timeline.estimate(metric, cumulative=True).point
        assert cumulative[-1] == pytest.approx(summary[metric], rel=1e-9)
    health = json.loads((tmp_path / "run" / "data_health.json").read_text())
    assert [one["name"] for one in health["features"]] == [one.name for one in schema.features]
    assert {one["rows"] for one in health["features"]} == {summary["examples"]}
    assert set(health["slice_values"]) == {"position"}
