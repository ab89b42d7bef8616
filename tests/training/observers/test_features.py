"""What a run says of the features of its log, against its rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.training.observers.features import Features
from ctr.training.observers.observer import Scored, Turn


@pytest.fixture(scope="module")
def batches(log, schema):
    return list(whole_query_batches(read_rows(log, schema, read_manifests(log)), 50, 64))


def test_missing_values_are_those_of_the_rows_and_a_state_goes_on_where_it_was(batches, schema):
    run: Any = SimpleNamespace(schema=schema)
    features = Features()
    features.begin(run, {})
    names = (*schema.single_valued, *schema.multivalent)
    found = dict.fromkeys(names, 0)
    for number, batch in enumerate(batches):
        if number == 5:
            saved = {name: array.copy() for name, array in features.checkpoint().items()}
            features = Features()
            features.begin(run, saved)
        logit = np.zeros(len(batch.rows), np.float32)
        features.batch(Turn(True, [Scored(1, batch, logit, ()), Scored(0, batch, logit, ())]))
        for name in schema.single_valued:
            ids = batch.rows.ids[:, schema.single_valued.index(name)]
            found[name] += int((ids == 0).sum())
        for name in schema.multivalent:
            found[name] += int((np.diff(batch.rows.multivalent[name][1]) == 0).sum())
    assert features.missing == found and any(found.values())
