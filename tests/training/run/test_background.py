"""Jobs beside training: in order, one at a time, and a failure is never lost."""

import threading

import pytest

from ctr.training.run.files import Background


def test_they_do_not_pile_up():
    background, may_go, given = Background("test"), threading.Event(), []

    def give() -> None:
        for number in range(9):
            background.submit(may_go.wait)
            given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.3)
    assert 0 < len(given) < 5
    may_go.set()
    giver.join()
    background.wait()
    assert len(given) == 9


def test_after_one_that_fails_nothing_is_begun_and_all_say_so():
    background, done, may_go = Background("test"), [], threading.Event()

    def fail() -> None:
        may_go.wait()
        raise OSError("full")

    background.submit(fail)
    background.submit(lambda: done.append(1))
    background.check()
    may_go.set()
    for call in (background.wait, background.check, lambda: background.submit(lambda: done.append(2))):
        with pytest.raises(OSError, match="full"):
            call()
    background.close()
    assert done == []
