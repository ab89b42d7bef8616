"""Padded feeds, and the thread that reads ahead."""

import threading
import time

import pytest

from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.io.read_ahead import read_ahead
from ctr.training.feed import make_feed
from small_runs import make_config


def test_a_feed_is_its_batch_with_padding_of_weight_0(log, schema):
    layouts = make_config().table_layouts(schema)
    batches = list(whole_query_batches(read_rows(log, schema, read_manifests(log)), 50, 64))
    assert len({len(batch.rows) for batch in batches}) > 3
    for batch in batches:
        feed = make_feed(batch, layouts, 50)
        count = len(batch.rows)
        assert feed.batch is batch
        assert feed.targets["label"].shape == (50,)
        assert feed.targets["label"][:count].tolist() == batch.rows.label.tolist()
        for name in ("weight", "own_weight"):
            assert feed.targets[name][:count].tolist() == batch.rows.train_weight.tolist()
            assert feed.targets[name].shape == (50,) and not feed.targets[name][count:].any()
        assert [plan.single.shape[0] for plan in feed.plans] == [50] * len(layouts)
    # A larger query takes a larger size.
    for batch_rows in (1, 2, 3, 7, 20):
        targets = make_feed(batches[0], layouts, batch_rows).targets
        count = len(batches[0].rows)
        assert count <= len(targets["label"]) < count * 4 / 3
        assert not targets["weight"][count:].any() and not targets["own_weight"][count:].any()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "reader"]


def test_items_come_in_order_and_at_most_depth_of_them_wait():
    assert list(read_ahead(range(100), depth=3)) == list(range(100))
    assert threads() == [] == list(read_ahead([]))
    taken = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    ahead = read_ahead(items(), depth=3)
    next(ahead)
    deadline = time.monotonic() + 10
    while len(taken) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    # One was given out, three wait, and one more is in the thread's hand.
    assert len(taken) == 5
    ahead.close()


def test_an_exception_comes_in_its_place_and_ends_the_thread():
    def items():
        yield from range(3)
        raise ArithmeticError("the fourth")

    found = []
    with pytest.raises(ArithmeticError, match="the fourth"):
        found.extend(read_ahead(items()))
    assert found == [0, 1, 2]
    assert threads() == []
