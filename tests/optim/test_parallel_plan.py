"""Who preconditions what on a mesh: table 6.4 and the examples of the thesis, and every slice exactly once."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.assignment import balanced, by_layers
from ctr.optim.options import ShampooOptions
from ctr.optim.parallel_plan import Layer, Mesh, plan, stages_of

WHOLE = ShampooOptions(block_size=65536)


def gpt2(decoders, mesh, hidden=1024):
    """Transformer decoder layers of Megatron-LM's GPT-2, four matrices and a bias each (THESIS 6.4, figure 6.3)."""
    layers = []
    for number, stage in enumerate(stages_of(decoders, mesh.pipeline)):
        layers += [
            Layer(f"{number}.attention.query_key_value", (3 * hidden, hidden), stage, split=0),
            Layer(f"{number}.attention.dense", (hidden, hidden), stage, split=1),
            Layer(f"{number}.mlp.dense_h_to_4h", (4 * hidden, hidden), stage, split=0),
            Layer(f"{number}.mlp.dense_4h_to_h", (hidden, 4 * hidden), stage, split=1),
            Layer(f"{number}.layernorm", (hidden,), stage),
        ]
    return layers


def decoders_of(found, rank):
    """The decoder layers of which a rank preconditions matrices."""
    return sorted({layer // 5 for layer in found.layers_of(rank)})


def matrices(found, rank):
    """How many preconditioning matrices of which size a rank has."""
    return Counter(side for task in found.of_rank(rank) for side in task.block.sides)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        # Table 6.4 with eight decoder layers. "Split layers by number of GPUs":
        (Mesh(data=8), [[rank] for rank in range(8)]),
        # "The Pipeline splits decide which GPU does compute which preconditioning matrices":
        (Mesh(pipeline=8), [[rank] for rank in range(8)]),
        # "OP split the weights accordingly to each GPU. No distribution is needed":
        (Mesh(operator=8), [list(range(8))] * 8),
        # "Each Pipeline split will be further split by N_DP": ranks 0 to 3 are the first stage.
        (Mesh(data=4, pipeline=2), [[rank] for rank in range(8)]),
        # "Each OP split will be further split by N_DP": ranks 0, 2, 4, 6 hold the first slices of all layers.
        (Mesh(data=4, operator=2), [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]),
        # "The PP + OP splits decide":
        (Mesh(pipeline=4, operator=2), [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]),
        # "Each PP + OP split will be further split by N_DP":
        (
            Mesh(data=2, pipeline=2, operator=2),
            [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]],
        ),
        # "None. We only have 1 GPU, which has to compute all the preconditioning matrices of all the layers":
        (Mesh(), [list(range(8))]),
    ],
)
def test_the_table_of_parallelisms(mesh, expected):
    found = plan(mesh, gpt2(8, mesh), WHOLE)
    assert [decoders_of(found, rank) for rank in range(mesh.ranks)] == expected
    # Who shares no weights with anybody gathers nothing.
    assert bool(found.gathers) == (mesh.data > 1)


def test_groups_that_gather():
    """THESIS table 6.4's example: three stages, each of which two ranks divide; and one group for each slice."""
    assert plan(Mesh(data=2, pipeline=3), [], WHOLE).gathers == ((0, 1), (2, 3), (4, 5))
    assert plan(Mesh(data=2, operator=2), [], WHOLE).gathers == ((0, 2), (1, 3))
    found = plan(Mesh(data=2, pipeline=2, operator=2), [], WHOLE)
    assert found.gathers == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_the_example_of_three_stages():
    mesh = Mesh(data=2, pipeline=3)
    found = plan(mesh, gpt2(6, mesh), WHOLE)
    assert [decoders_of(found, rank) for rank in range(6)] == [[0], [1], [2], [3], [4], [5]]


def test_sixteen_decoder_layers_on_sixteen_data_parallel_ranks():
    """THESIS 6.7, figure 6.9: each rank has one layer to precondition."""
    found = plan(Mesh(data=16), gpt2(16, Mesh(data=16)), WHOLE)
    assert [decoders_of(found, rank) for rank in range(16)] == [[rank] for rank in range(16)]


def test_matrices_of_eight_slices():
    """THESIS figure 6.5: 64 for each rank, 312.5 MB."""
    mesh = Mesh(operator=8)
    found = plan(mesh, gpt2(8, mesh), WHOLE)
    for rank in range(8):
        assert matrices(found, rank) == {384: 8, 128: 8, 512: 16, 1024: 32}
        assert round(found.preconditioner_bytes(rank) / 1e6, 1) == 312.5


@pytest.mark.parametrize(
    ("block_size", "number"),
    [(65536, 8), (2048, 14), (1024, 24), (512, 96), (256, 384), (128, 1536), (64, 6144)],
)
def test_matrices_of_one_decoder_layer(block_size, number):
    """THESIS table 6.5."""
    found = plan(Mesh(), gpt2(1, Mesh()), ShampooOptions(block_size=block_size))
    assert matrices(found, 0).total() == number


def test_memory_of_one_decoder_layer():
    """THESIS 6.7: 2 of 4096, 1 of 3072 and 5 of 1024 take 385.9 MB; blocks of 1024 take 201.3 MB."""
    whole = plan(Mesh(), gpt2(1, Mesh()), WHOLE)
    assert matrices(whole, 0) == {4096: 2, 3072: 1, 1024: 5}
    assert round(whole.preconditioner_bytes(0) / 1e6, 1) == 385.9
    blocks = plan(Mesh(), gpt2(1, Mesh()), ShampooOptions(block_size=1024))
    assert round(blocks.preconditioner_bytes(0) / 1e6, 1) == 201.3


def test_more_ranks_than_layers():
    """THESIS figure 5.4: four ranks and three layers; the last one preconditions nothing."""
    layers = [Layer(f"linear{number}", (4, 4)) for number in range(3)]
    found = plan(Mesh(data=4), layers, WHOLE)
    assert [found.layers_of(rank) for rank in range(4)] == [(0,), (1,), (2,), ()]


def test_a_layer_that_is_not_split_is_preconditioned_in_each_operator_rank():
    layers = [Layer("split", (8, 6), split=0), Layer("whole", (8, 6)), Layer("bias", (6,))]
    found = plan(Mesh(operator=2), layers, WHOLE)
    assert [(task.rank, task.layer, task.slice, task.block.shape) for task in found.tasks] == [
        (0, 0, 0, (4, 6)),
        (0, 1, 0, (8, 6)),
        (1, 0, 1, (4, 6)),
        (1, 1, 0, (8, 6)),
    ]


def test_blocks_may_be_balanced_instead_of_layers():
    """One layer of four blocks: whole, it has one owner; by blocks, two."""
    layers = [Layer("wide", (512, 512))]
    assert [len(plan(Mesh(data=2), layers, assign=by_layers).of_rank(rank)) for rank in (0, 1)] == [4, 0]
    assert [len(plan(Mesh(data=2), layers, assign=balanced).of_rank(rank)) for rank in (0, 1)] == [2, 2]


@settings(max_examples=40, deadline=None)
@given(
    st.builds(Mesh, st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4])),
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2), st.sampled_from([None, 0, 1])),
        max_size=5,
    ),
    st.sampled_from([by_layers, balanced]),
)
def test_every_slice_is_preconditioned_once_by_who_holds_it(mesh, raw, assign):
    layers = [
        Layer(str(place), (4 * m, 4 * n), stage % mesh.pipeline, split)
        for place, (m, n, stage, split) in enumerate(raw)
    ]
    found = plan(mesh, layers, ShampooOptions(block_size=4), assign)
    assert found == plan(mesh, layers, ShampooOptions(block_size=4), assign)
    for index, layer in enumerate(layers):
        tasks = [task for task in found.tasks if task.layer == index]
        copies = mesh.operator if layer.split is None else 1
        # A vector has no preconditioner: one dimension of a slice may be 1, where layers are narrow.
        shape = list(layer.shape)
        if layer.split is not None:
            shape[layer.split] //= mesh.operator
        if 1 in shape:
            assert not tasks
            continue
        assert sum(task.block.elements for task in tasks) == copies * layer.shape[0] * layer.shape[1]
        for task in tasks:
            stage, place = divmod(task.rank, mesh.data * mesh.operator)
            assert stage == layer.stage
            assert task.slice == (0 if layer.split is None else place % mesh.operator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(data=0), "data is 0; allowed: 1 or more"),
        (
            lambda: plan(Mesh(), [Layer("late", (4, 4), stage=1)]),
            r"layer late is in stage 1; allowed: 0\.\.0, the stages of the mesh",
        ),
        (
            lambda: plan(Mesh(operator=3), [Layer("heads", (16, 4), split=0)]),
            r"layer heads of shape \[16, 4\] cannot be split along dimension 0 into 3 slices",
        ),
        (
            lambda: plan(Mesh(operator=2), [Layer("flat", (16, 4), split=2)]),
            "cannot be split along dimension 2",
        ),
    ],
)
def test_bad_plans(make, message):
    with pytest.raises(ValueError, match=message):
        make()
