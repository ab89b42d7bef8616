"""What workers of one machine exchange through memory, and what they say of those that are gone; threads as workers."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ctr.workers.local import Board, LostError, add_up
from ctr.workers.seats import Seat, make_seats, read_place


@pytest.fixture
def boards():
    """Makes the boards of workers that are threads of this process."""
    made: list[tuple[Seat, Board]] = []

    def make(size: int) -> list[Board]:
        for seat in make_seats(size):
            sockets = tuple(os.dup(one) if one >= 0 else -1 for one in seat.sockets)
            own = Seat(seat.rank, sockets, tuple(tuple(map(os.dup, areas)) for areas in seat.areas))
            made.append((own, Board(own)))
        return [board for _, board in made]

    yield make
    for seat, board in made:
        board.close()
        for areas in seat.areas:
            for descriptor in areas:
                os.close(descriptor)


def test_all_have_the_arrays_of_all_whatever_their_size(boards):
    workers = boards(3)
    sizes, kinds = (3, 0, 200_000, 5, 70_000), (np.float32, np.int64, np.float64, np.int32, np.float32)

    def exchange(rank: int) -> list[list[np.ndarray]]:
        found = []
        for number, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
            array = (np.arange(size) * 3 + rank).astype(kind)
            found.append([one.copy() for one in workers[rank].exchange(number, array)])
            # What was read is read, though the others go on.
            time.sleep(0.01 * rank)
        return found

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(exchange, range(3)):
            for arrays, size, kind in zip(found, sizes, kinds, strict=True):
                assert [array.dtype for array in arrays] == [kind] * 3
                assert [array.tolist() for array in arrays] == [
                    (np.arange(size) * 3 + one).astype(kind).tolist() for one in range(3)
                ]


def test_sums_have_the_order_of_a_ring():
    one, two, three = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
    # A chunk is the next multiple of 64 bytes above a third: 32 numbers.
    expected = np.concatenate([((one + two) + three)[:32], ((two + three) + one)[32:]])
    np.testing.assert_array_equal(add_up([one, two, three]), expected)
    assert (((one + two) + three)[32:] != expected[32:]).any()


def test_a_worker_that_is_gone_is_named_by_all_and_not_one_that_ended_because_of_it(boards):
    first, gone, last = boards(3)
    # Who does not notice it waits for so long, and then names another one.
    first.until = last.until = time.monotonic() + 10
    gone.close()
    with pytest.raises(LostError):
        first.exchange(1, np.ones(3))
    first.close()
    with pytest.raises(LostError):
        last.exchange(1, np.ones(3))
    assert first.lost == last.lost == (1,)
    # And nothing is exchanged any more.
    with pytest.raises(LostError):
        last.exchange(1, np.ones(3))


def test_workers_that_make_different_exchanges_are_a_fault_of_the_program(boards):
    workers = boards(2)

    def exchange(rank: int) -> None:
        with pytest.raises(RuntimeError, match=f"worker {1 - rank} exchanges .* this one, {rank}, "):
            workers[rank].exchange(rank, np.ones(3))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(exchange, range(2)))


def test_a_seat_is_for_one_process_alone():
    for seat in make_seats(3):
        for descriptor in seat.descriptors:
            os.set_inheritable(descriptor, True)
        environment = {**seat.variable(), "TF_CONFIG": "{"}
        assert read_place(environment) == seat
        assert environment == {"TF_CONFIG": "{"}
        assert not any(map(os.get_inheritable, seat.descriptors))
    assert read_place({}) is None


def test_the_ends_of_a_worker_are_closed_once_it_is_started():
    before = set(os.listdir("/proc/self/fd"))
    for seat in make_seats(40):
        assert len(seat.descriptors) == 39 + 80
    assert set(os.listdir("/proc/self/fd")) == before
