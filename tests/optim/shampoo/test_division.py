"""Shampoo on several workers: the trajectory of one process, the same bits everywhere, and state in parts."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
import sharded_shampoo
from ctr.optim.shampoo.division import Division, assign
from ctr.optim.shampoo.layout import Blocks, lay_out
from ctr.workers.cluster import Cluster
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part, reshard, shard
from gang import gang
from sharded_shampoo import CASE

BREAK = 29


class Mailbox:
    """What workers send each other, when one after the other calls what all call at once."""

    def __init__(self, size):
        self.size, self.sent, self.complete = size, [], False

    def worker(self, rank):
        workers = Workers(Cluster(rank, tuple(f"h:{i}" for i in range(self.size))))
        calls = itertools.count()

        def all_gather(tensor):
            call = next(calls)
            if not self.complete:
                self.sent.append((call, tensor))
                return tf.concat([tensor] * self.size, axis=0)
            return tf.concat([sent for number, sent in self.sent if number == call], axis=0)

        workers.all_gather = all_gather
        return workers

    def all_call(self, make, function):
        """What ``function(make(workers))`` returns on each worker."""
        for rank in range(self.size):
            function(make(self.worker(rank)))
        self.complete = True
        return [function(make(self.worker(rank))) for rank in range(self.size)]


shapes = st.lists(st.lists(st.integers(1, 9), min_size=0, max_size=3).map(tuple), min_size=1, max_size=4)


def owners_of(layout, size, seed):
    blocks = sum(stack.blocks for stack in layout.stacks)
    return tuple(np.random.default_rng(seed).integers(0, size, blocks).tolist())


@settings(max_examples=25)
@given(shapes, st.integers(1, 4), st.integers(2, 4), st.integers(0, 99))
def test_elements_that_workers_take_are_stacked_and_gathered_again(shapes, block_size, size, seed):
    layout = lay_out(reference.options(block_size=block_size, max_dimension=7), shapes)
    owners = owners_of(layout, size, seed)
    tensors = {
        index: tf.constant(np.random.default_rng(index).normal(size=shape))
        for index, shape in enumerate(shapes)
    }
    alone = Blocks(layout)
    expected = alone.stack(alone.take(tensors), tf.float64)

    def there_and_back(division):
        own = division.take(tensors)
        stacked = division.stack(own, tf.float64)
        for index, tensor in own.items():
            assert tensor.shape == division.shape(index)
        for index, tensor in division.unstack(stacked).items() if stacked else ():
            np.testing.assert_array_equal(tensor, own[index])
        for stack, found, whole in zip(division.own.stack_factors, stacked, expected, strict=True):
            numbers = division.own.factors[stack[0]].numbers
            np.testing.assert_array_equal(found, whole.numpy()[list(numbers)])
        return division.gather(own)

    mailbox = Mailbox(size)
    for gathered in mailbox.all_call(lambda workers: Division(layout, owners, workers), there_and_back):
        assert gathered.keys() == tensors.keys()
        for index, tensor in tensors.items():
            np.testing.assert_array_equal(gathered[index], tensor)


@settings(max_examples=25)
@given(shapes, st.integers(1, 4), st.integers(2, 4), st.integers(0, 99))
def test_parts_are_those_of_the_state_and_make_the_whole_again(shapes, block_size, size, seed):
    layout = lay_out(reference.options(block_size=block_size, max_dimension=7), shapes)
    owners = owners_of(layout, size, seed)
    divisions = [Division(layout, owners, Mailbox(size).worker(rank)) for rank in range(size)]

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
            merged = reshard(list(zip(parts(name), held, strict=True)))
            np.testing.assert_array_equal(merged, whole)
    for number, factor in enumerate(layout.factors):
        cube = np.random.default_rng(number).normal(size=(factor.count, 2, 2))
        held = [(part, shard(cube, part)) for part in parts(f"{factor.name}/root")]
        assert [len(values) for _, values in held] == [d.own.factors[number].count for d in divisions]
        np.testing.assert_array_equal(reshard(held), cube)
    assert sum(division.own.matrices for division in divisions) == layout.matrices


@settings(max_examples=25)
@given(shapes, st.integers(1, 4), st.integers(2, 4), st.integers(0, 99))
def test_the_status_of_all_matrices_and_all_counts_come_together(shapes, block_size, size, seed):
    layout = lay_out(reference.options(block_size=block_size, max_dimension=7), shapes)
    owners = owners_of(layout, size, seed)
    whole = tf.random.stateless_normal([6, layout.matrices], [seed, 1], dtype=tf.float64)
    before = tf.constant([5, 0], tf.int64)

    def exchange(division):
        own = division.take_status(whole)
        assert own.shape == (6, division.own.matrices)
        counted = before + tf.constant([division.workers.rank, 1], tf.int64)
        numbers = [tf.constant(1.0), tf.constant(division.workers.rank + 1.0)]
        return (
            division.gather_status(own),
            division.add_counts(before, counted),
            tf.stack([division.sum(numbers), division.max(numbers)]),
        )

    mailbox = Mailbox(size)
    found = mailbox.all_call(lambda workers: Division(layout, owners, workers), exchange)
    for status, counts, numbers in found:
        np.testing.assert_array_equal(numbers, [[size, size * (size + 1) / 2], [1, size]])
        np.testing.assert_array_equal(status, whole)
        np.testing.assert_array_equal(counts, [5 + sum(range(size)), size])


def test_a_process_alone_has_what_it_is_given():
    layout = lay_out(reference.options(), [(7, 5), (3,)])
    division = Blocks(layout)
    tensor, status = tf.ones([7, 5]), tf.ones([6, layout.matrices])
    assert (
        division.own is layout and division.part("tensor0/momentum") is None and division.shape(0) == (7, 5)
    )
    assert division.take({0: tensor})[0] is tensor and division.gather({0: tensor})[0] is tensor
    assert division.sum([tensor])[0] is tensor and division.max([tensor])[0] is tensor
    assert division.take_status(status) is status and division.gather_status(status) is status
    assert division.add_counts(tensor, status) is status


def test_tables_and_their_factors_stay_whole():
    options = reference.options(sparse="one_sided", block_size=4)
    layout = lay_out(options, [(7, 5), (8, 2), (9, 3), (6, 3)], tables=[1, 2, 3])
    tensors = {index: tf.ones(tensor.shape) for index, tensor in enumerate(layout.tensors)}
    for rank in range(2):
        division = Division(layout, assign(options, layout, 2), Mailbox(2).worker(rank))
        for index in (1, 2, 3):
            assert division.take(tensors)[index] is tensors[index]
            assert division.own.table_factors[index] == layout.table_factors[index]
        *stacks, twos, threes = division.own.factors
        assert [(factor.count, factor.owners, factor.numbers) for factor in (twos, threes)] == [
            (1, (1,), (0,)),
            (2, (2, 3), (0, 1)),
        ]
        # Their places in what all send each other follow those of the blocks.
        assert twos.offset == sum(factor.count for factor in stacks) and threes.offset == twos.offset + 1
        # Each of their roots counts once.
        assert twos.is_copy == threes.is_copy == (rank > 0)
        assert all(division.part(name) is None for name in ("tables2/root", "tensor1/accumulator"))


# In processes of their own.


def weights_by_step(found, case):
    return {name: value for name, value in found.items() if name.startswith(f"{case}|weight|")}


def merged(found, case):
    """The state of one process, from what all workers hold."""
    state = {}
    for name, value in found[0].items():
        if not name.startswith(f"{case}|state|"):
            continue
        plain = name.split("|", 2)[2]
        if f"{case}|rows|{plain}" in found[0]:
            parts = []
            for rank in found:
                total = int(rank[f"{case}|total|{plain}"])
                shape = tuple(rank[f"{case}|shape|{plain}"].tolist()) or None
                parts.append((Part(rank[f"{case}|rows|{plain}"], total, shape), rank[name]))
            value = reshard(parts)
        state[plain] = value
    return state


@pytest.fixture(scope="module")
def one():
    return sharded_shampoo.run()


@pytest.fixture(scope="module")
def broken_off(one, tmp_path_factory):
    """A run of one process up to a step between two exchanges, with roots in flight, as a file."""
    found = sharded_shampoo.run(cases=[CASE], steps=BREAK)
    path = tmp_path_factory.mktemp("broken") / "state.npz"
    arrays = {f"state|{name}": value for name, value in merged([found], CASE).items()}
    for i in range(len(sharded_shampoo.CASES[CASE][0])):
        arrays[f"weight|{i}"] = found[f"{CASE}|weight|{BREAK - 1}|{i}"]
    np.savez(path, **arrays)
    return path


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("size", "cases"),
    [
        (4, [CASE, list(sharded_shampoo.CASES)[3]]),
        pytest.param(2, list(sharded_shampoo.CASES), marks=pytest.mark.soak),
        pytest.param(3, list(sharded_shampoo.CASES)[1:3], marks=pytest.mark.soak),
    ],
)
def test_workers_take_the_steps_of_one_process(size, cases, one, broken_off, tmp_path):
    found = gang(
        size, tmp_path, "sharded_shampoo:run_and_resume", cases=cases, path=str(broken_off), begin=BREAK
    )
    for case in cases:
        tensors = sharded_shampoo.CASES[case][0]
        expected = weights_by_step(one, case)
        assert len(expected) == sharded_shampoo.STEPS * len(tensors)
        for name, value in expected.items():
            np.testing.assert_allclose(found[0][name], value, rtol=1e-12, atol=1e-12)
            assert all(rank[name].tobytes() == found[0][name].tobytes() for rank in found), name
        for name, value in one.items():
            if name.startswith(f"{case}|report|"):
                for rank in found:
                    np.testing.assert_allclose(rank[name], value, rtol=1e-6, atol=1e-9, err_msg=name)
        states = merged([one], case), merged(found, case)
        assert states[0].keys() == states[1].keys()
        for name, value in states[0].items():
            if name != "shampoo/status":
                np.testing.assert_allclose(states[1][name], value, rtol=1e-9, atol=1e-10, err_msg=name)
            held = [rank[f"{case}|state|{name}"].size for rank in found]
            divided = f"{case}|rows|{name}" in found[0]
            assert sum(held) == value.size * (1 if divided else size)
    # What one process saved goes on on several workers.
    resumed = {name: value for name, value in found[0].items() if name.startswith("resumed|")}
    assert len(weights_by_step({n.partition("|")[2]: v for n, v in resumed.items()}, CASE)) > 0
    for name, value in resumed.items():
        plain = name.partition("|")[2]
        if "|weight|" in name:
            np.testing.assert_allclose(value, one[plain], rtol=1e-12, atol=1e-12)
            assert all(rank[name].tobytes() == value.tobytes() for rank in found)
    for name, value in sharded_shampoo.between_steps().items():
        np.testing.assert_allclose(found[-1][f"between|{name}"], value, rtol=1e-12, atol=1e-12)
    # And on as many workers to the bit: from what each held in between.
    assert all(rank["repeated"].item() for rank in found)


@pytest.mark.slow
def test_what_several_workers_saved_goes_on_in_one_process(one, tmp_path):
    found = gang(2, tmp_path / "gang", "sharded_shampoo:run", cases=[CASE], steps=BREAK)
    arrays = {f"state|{name}": value for name, value in merged(found, CASE).items()}
    for i in range(len(sharded_shampoo.CASES[CASE][0])):
        arrays[f"weight|{i}"] = found[1][f"{CASE}|weight|{BREAK - 1}|{i}"]
    np.savez(tmp_path / "state.npz", **arrays)
    resumed = sharded_shampoo.resumed(ALONE, CASE, str(tmp_path / "state.npz"), BREAK)
    for name, value in weights_by_step(resumed, CASE).items():
        np.testing.assert_allclose(value, one[name], rtol=1e-12, atol=1e-12)


def test_element_state_and_matrices_of_a_wide_model_are_divided_evenly():
    shapes = [(416, 416), (416, 1024), (1024, 256), (256, 1), (256,)]
    options = reference.options(block_size=128, momentum=0.9)
    layout = lay_out(options, shapes)
    for size in (2, 4, 8):
        owners = assign(options, layout, size)
        held = []
        for rank in range(size):
            division = Division(layout, owners, Mailbox(size).worker(rank))
            matrices = sum(factor.count * factor.size**2 for factor in division.own.factors)
            elements = sum(math.prod(division.shape(index)) for index in range(len(shapes)))
            held.append(16 * matrices + 8 * elements)
        whole = 16 * sum(f.count * f.size**2 for f in layout.factors) + 8 * sum(map(math.prod, shapes))
        assert max(held) <= whole * (1 / size) * 1.1
