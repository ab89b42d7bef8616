"""Shampoo on several workers: the trajectory of one process, the same bits everywhere, and state in parts."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.shampoo.division import Division, assign
from ctr.optim.shampoo.layout import Blocks, lay_out
from ctr.workers.cluster import Cluster
from ctr.workers.collectives import Workers
from ctr.workers.parts import reshard, shard
from gang import gang
from sharded_shampoo import BREAK, CASE, CASES, merged, run


def together(size, call):
    """What ``call(workers)`` returns on each of several workers, which are threads of this process."""
    barrier, given_by = threading.Barrier(size), [None] * size

    def member(rank):
        workers = Workers(Cluster(rank, tuple(f"h:{i}" for i in range(size))))

        def all_gather(tensor):
            given_by[rank] = tensor
            barrier.wait(900)
            found = tf.concat(given_by, axis=0)
            # Nobody gives the next tensor before all have these.
            barrier.wait(900)
            return found

        workers.all_gather = all_gather
        try:
            return call(workers)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


@st.composite
def divided(draw):
    """A layout, the number of workers, and the owners of its blocks."""
    shape = st.lists(st.integers(1, 9), max_size=3).map(tuple)
    shapes = draw(st.lists(shape, min_size=1, max_size=4))
    options = reference.options(block_size=draw(st.integers(1, 4)), blocking={"max_dimension": 7})
    layout, size = lay_out(options, shapes), draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return layout, size, rng.integers(0, size, sum(stack.blocks for stack in layout.stacks)).tolist()


@settings(max_examples=25)
@given(divided())
def test_what_workers_take_is_stacked_gathered_and_counted_as_a_whole(case):
    layout, size, owners = case
    tensors = {
        index: tf.constant(np.random.default_rng(index).normal(size=tensor.shape))
        for index, tensor in enumerate(layout.tensors)
    }
    alone = Blocks(layout)
    expected = alone.stack(alone.take(tensors), tf.float64)
    status = tf.random.stateless_normal([6, layout.matrices], [1, 1], dtype=tf.float64)
    before = tf.constant([5, 0], tf.int64)

    def there_and_back(workers):
        division = Division(layout, owners, workers)
        own = division.take(tensors)
        stacked = division.stack(own, tf.float64)
        for index, tensor in own.items():
            assert tensor.shape == division.shape(index)
        for index, tensor in division.unstack(stacked).items() if stacked else ():
            np.testing.assert_array_equal(tensor, own[index])
        for stack, found, whole in zip(division.own.stack_factors, stacked, expected, strict=True):
            numbers = division.own.factors[stack[0]].numbers
            np.testing.assert_array_equal(found, whole.numpy()[list(numbers)])
        mine = division.take_status(status)
        assert mine.shape == (6, division.own.matrices)
        numbers = [tf.constant(1.0), tf.constant(workers.rank + 1.0)]
        return (
            division.gather(own),
            division.gather_status(mine),
            division.add_counts(before, before + tf.constant([workers.rank, 1], tf.int64)),
            tf.stack([division.sum(numbers), division.max(numbers)]),
        )

    for gathered, all_status, counts, numbers in together(size, there_and_back):
        assert gathered.keys() == tensors.keys()
        for index, tensor in tensors.items():
            np.testing.assert_array_equal(gathered[index], tensor)
        np.testing.assert_array_equal(all_status, status)
        np.testing.assert_array_equal(counts, [5 + sum(range(size)), size])
        np.testing.assert_array_equal(numbers, [[size, size * (size + 1) / 2], [1, size]])


@settings(max_examples=25)
@given(divided())
def test_parts_are_those_of_the_state_and_make_the_whole_again(case):
    layout, size, owners = case
    divisions = together(size, lambda workers: Division(layout, owners, workers))

    def parts(name):
        return [division.part(name) for division in divisions]

    for index, tensor in enumerate(layout.tensors):
        whole = np.random.default_rng(index).normal(size=tensor.shape)
        name = f"tensor{index}/momentum"
        assert (parts(name)[0] is not None) == bool(tensor.axes)
        if tensor.axes:
            held = [division.take({index: tf.constant(whole)})[index].numpy() for division in divisions]
            for part, values in zip(parts(name), held, strict=True):
                np.testing.assert_array_equal(shard(whole, part), values)
            np.testing.assert_array_equal(reshard(list(zip(parts(name), held, strict=True))), whole)
    for number, factor in enumerate(layout.factors):
        cube = np.random.default_rng(number).normal(size=(factor.count, 2, 2))
        held = [(part, shard(cube, part)) for part in parts(f"{factor.name}/root")]
        assert [len(values) for _, values in held] == [d.own.factors[number].count for d in divisions]
        np.testing.assert_array_equal(reshard(held), cube)
    assert sum(division.own.matrices for division in divisions) == layout.matrices


def test_tables_and_their_factors_stay_whole():
    options = reference.options(rows={"rule": "one_sided"})
    layout = lay_out(options, [(7, 5), (8, 2), (9, 3), (6, 3)], tables=[1, 2, 3])
    tensors = {index: tf.ones(tensor.shape) for index, tensor in enumerate(layout.tensors)}
    owners = assign(options, layout, 2)
    for rank, division in enumerate(together(2, lambda workers: Division(layout, owners, workers))):
        for index in (1, 2, 3):
            assert division.take(tensors)[index] is tensors[index]
            assert division.own.table_factors[index] == layout.table_factors[index]
        *stacks, twos, threes = division.own.factors
        assert [(factor.count, factor.owners, factor.numbers) for factor in (twos, threes)] == [
            (1, (1,), (0,)),
            (2, (2, 3), (0, 1)),
        ]
        # Their places in what all send each other follow those of the blocks, and each of their roots counts once.
        assert twos.offset == sum(factor.count for factor in stacks) and threes.offset == twos.offset + 1
        assert twos.is_copy == threes.is_copy == (rank > 0)
        assert all(division.part(name) is None for name in ("tables2/root", "tensor1/accumulator"))


def test_element_state_and_matrices_of_a_wide_model_are_divided_evenly():
    shapes = [(416, 416), (416, 1024), (1024, 256), (256, 1), (256,)]
    options = reference.options(block_size=128, momentum=0.9)
    layout = lay_out(options, shapes)
    whole = 16 * sum(f.count * f.size**2 for f in layout.factors) + 8 * sum(map(math.prod, shapes))
    for size in (2, 4, 8):
        owners = assign(options, layout, size)
        for division in together(size, lambda workers, owners=owners: Division(layout, owners, workers)):
            matrices = sum(factor.count * factor.size**2 for factor in division.own.factors)
            elements = sum(math.prod(division.shape(index)) for index in range(len(shapes)))
            assert 16 * matrices + 8 * elements <= whole / size * 1.1


def assert_same_run(found, expected):
    """Weights are those of one process, and to the bit those of all workers; so are reports and the whole state."""
    for name, value in expected.items():
        kind = name.partition("|")[0]
        if kind == "weight":
            np.testing.assert_allclose(found[0][name], value, rtol=1e-12, atol=1e-12)
            assert all(own[name].tobytes() == found[0][name].tobytes() for own in found), name
        elif kind == "report":
            for own in found:
                np.testing.assert_allclose(own[name], value, rtol=1e-6, atol=1e-9, err_msg=name)
        elif kind == "state":
            held = sum(own[name].size for own in found)
            is_divided = name.replace("state|", "rows|") in found[0]
            assert held == value.size * (1 if is_divided else len(found)), name
            if not name.endswith("status"):
                whole = merged(found)[name]
                np.testing.assert_allclose(whole, value, rtol=1e-9, atol=1e-10, err_msg=name)


SLOW = list(CASES)[3:]


@pytest.mark.parametrize(
    "case", [*list(CASES)[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_workers_take_the_steps_of_one_process(case):
    assert_same_run(together(3, lambda workers: run(workers, case)), run(case=case))


def test_what_one_number_of_workers_saved_goes_on_with_another():
    one = run()
    resumed = run(begin=BREAK, state=merged(together(2, lambda workers: run(workers, end=BREAK))))
    assert_same_run([resumed], {name: one[name] for name in resumed if name.startswith("weight|")})
    broken = run(end=BREAK)
    found, again = (together(3, lambda workers: run(workers, begin=BREAK, state=broken)) for _ in range(2))
    assert_same_run(found, {name: one[name] for name in found[0] if name.startswith("weight|")})
    for own, other in zip(found, again, strict=True):
        assert all(own[name].tobytes() == value.tobytes() for name, value in other.items())


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_processes_exchange_what_they_need_in_graphs(size, tmp_path):
    np.savez(tmp_path / "state.npz", **run(end=BREAK))
    folder = tmp_path / "gang"
    folder.mkdir()
    found = gang(size, folder, "sharded_shampoo:run_and_resume", path=str(tmp_path / "state.npz"))
    one = run()
    assert_same_run(found, one)
    for prefix, expected in (("resumed|", one), ("between|", run(end=9, between=True))):
        for own in found:
            weights = {n: v for n, v in own.items() if n.startswith(f"{prefix}weight|")}
            assert len(weights) >= 9 * len(CASES[CASE][0])
            for name, value in weights.items():
                np.testing.assert_allclose(value, expected[name.removeprefix(prefix)], rtol=1e-12, atol=1e-12)
