"""Jobs beside training wait for each other."""

import threading

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
