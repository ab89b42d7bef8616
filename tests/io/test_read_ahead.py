"""The thread that reads ahead."""

import threading
import time

import pytest

from ctr.io.read_ahead import read_ahead


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
