"""What is reported of an optimizer: figures worked by hand, bytes that are those of its variables."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.host import COUNTERS, STATUS


def test_a_report_by_hand():
    # Layers: [5, 3] in two blocks, a vector, [4, 4], and a table.
    start = [np.zeros(shape) for shape in ((5, 3), (3,), (4, 4), (6, 2))]
    core = reference.make_core(reference.options(rows="one_sided"), start, tables=[3])
    assert core.layout.matrix_tensors.tolist() == [0, 0, 0, 0, 2, 2, 3]
    assert not any(value for name, value in core.report().items() if name != "layers")
    assert core.spectra() == {}
    core.step.assign(100)
    core.exchanged.counters.assign(range(1, len(COUNTERS) + 1))
    rows = dict(zip(STATUS, np.zeros((len(STATUS), 7)), strict=True))
    rows["certified"][:] = [1, 1, 1, 0, 1, 1, 1]
    rows["root_step"][:] = [90, 80, 90, 0, 60, 100, 90]
    # What is not in use does not count.
    rows["residual"][:] = [1e-9, 2e-3, 1e-9, 0.5, 1e-9, 3e-3, 0]
    # Nobody computed those of the second and the last, and those of the third are beyond the working precision.
    rows["smallest"][:] = [2.0, 0, 1.0, 0.25, 0, 1.0, 0]
    rows["largest"][:] = [8.0, 0, np.inf, 64, 2.0, 3.0, 0]
    rows["condition"][:] = [3.5, 9e6, 9e6, 9e6, 1e6, 2.5, 9e6]
    core.exchanged.status.assign(np.stack(list(rows.values())))
    assert core.report() == dict(zip(COUNTERS, range(1, len(COUNTERS) + 1), strict=True)) | {
        "layers": 3,
        "layers_ready": 2,
        "staleness_max": 40,
        "staleness_mean": (10 + 20 + 10 + 40 + 0 + 10) / 6,
        "residual_max": 3e-3,
        "condition_max": 2.0**52,
        "condition_median": 4.0,
        "singular_value_max": 8.0,
        "singular_value_min": 0.0,
    }
    # Of one tensor the condition is that of one matrix; a singular one has the largest that float64 tells.
    assert core.spectra("abcd") == {"a": (2.0, 8.0, 4.0, 3.5), "c": (0.0, 3.0, 2.0**52, 1e6)}
    assert core.spectra("xyxz") == {"x": (0.0, 8.0, 2.0**52, 1e6)}


@pytest.mark.parametrize(
    "changed",
    [
        {"beta2": 0.9, "epsilon": 0.125, "roots": {"damping": "absolute"}},
        {"roots": {"asynchronous": False}},
        {"method": "eigenvalue_corrected", "roots": {"damping": "absolute"}},
    ],
    ids=["decayed, absolute", "sums, synchronous", "bases"],
)
def test_spectra_are_those_of_the_statistics_that_roots_in_use_are_of(changed):
    # Of the first tensor two blocks of [4, 4], of the second one of [4, 3]; vectors have no statistics.
    shapes = [(8, 4), (4, 3), (5,)]
    options = reference.options(precondition_frequency=4, **changed)
    core = reference.make_core(options, reference.initial(shapes))
    history = reference.drifting(shapes, 9)
    reference.train(core, history, 0.125)
    # Exchanges at 3 and 7; without waiting, those of 7 come into use at 11.
    sent = history[:3] if core.options.roots.asynchronous else history[:7]
    beta2 = core.options.beta2
    weights = [beta2 ** (len(sent) - 1 - place) for place in range(len(sent))]
    total = sum(weights) if beta2 < 1.0 else 1.0
    # Bases are certified with damping of their own.
    epsilon = 1e-8 if core.options.corrects else core.options.epsilon
    is_absolute = core.options.roots.damping == "absolute" and not core.options.corrects
    expected = {}
    for name, tensor, blocks in (("a", 0, (slice(0, 4), slice(4, 8))), ("b", 1, (slice(None),))):
        values = []
        for block in blocks:
            parts = [gradients[tensor][block] for gradients in sent]
            for sides in (parts, [part.T for part in parts]):
                statistics = sum(w * g @ g.T for w, g in zip(weights, sides, strict=True)) / total
                values.append(np.linalg.eigvalsh(statistics))
        expected[name] = (
            min(one[0] for one in values),
            max(one[-1] for one in values),
            max(one[-1] / one[0] for one in values),
            max(
                (one[-1] + damping) / (one[0] + damping)
                for one in values
                for damping in [epsilon * (1.0 if is_absolute else one[-1])]
            ),
        )
    found = core.spectra("abc")
    assert found.keys() == expected.keys()
    for name, spectrum in found.items():
        np.testing.assert_allclose(spectrum, expected[name], rtol=1e-8)
    report = core.report()
    low, high, condition, _ = (np.array(one) for one in zip(*expected.values(), strict=True))
    assert report["singular_value_min"] == pytest.approx(low.min(), rel=1e-8)
    assert report["singular_value_max"] == pytest.approx(high.max(), rel=1e-8)
    assert report["condition_max"] == pytest.approx(condition.max(), rel=1e-8)


def test_roots_of_the_device_have_no_spectra():
    core = reference.make_core(
        reference.options(precondition_frequency=4, roots={"asynchronous": False}),
        [np.zeros((4, 3)), np.zeros((4, 4))],
    )
    history = reference.drifting([(4, 3), (4, 4)], 7)
    reference.train(core, history[:6], 0.1)
    assert core.spectra("ab").keys() == {"a", "b"}
    reference.train(core, history[6:], 0.1, on_device=True)
    report = core.report()
    assert report["device"] == 4 and core.spectra("ab") == {}
    assert report["condition_max"] == report["singular_value_max"] == report["singular_value_min"] == 0.0


def rows_of(text):
    """Cells of each line by tensor."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.split("\n")]
    return {own[0]: own for own in cells if own}


def size(cell):
    number, unit = cell.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


@pytest.mark.parametrize(
    ("changed", "dtype"),
    [
        ({"momentum": 0.9, "beta1": 0.5, "rows": "one_sided"}, tf.float32),
        ({"grafting": "sgd", "rows": "adagrad_row", "momentum": 0.9}, tf.float64),
        ({"start_preconditioning_step": None}, tf.float32),
    ],
)
def test_bytes_are_those_of_the_variables(changed, dtype):
    shapes = [(11, 7), (5,), (3, 4, 2), (9, 4), ()]
    core = reference.make_core(reference.options(**changed), [np.zeros(s) for s in shapes], dtype, tables=[3])
    real = {"statistics": 0, "roots": 0, "first-order": 0}
    for name, variable in core.variables.items():
        kind = name.rpartition("/")[2]
        column = {"window": "statistics", "total": "statistics", "root": "roots"}.get(kind, "first-order")
        if "/" in name:
            real[column] += variable.numpy().nbytes
    text = core.describe(list("abcde"))
    assert ("one sum per row" in text) == (changed.get("rows") == "adagrad_row")
    total = rows_of(text)["total"]
    for cell, (column, expected) in zip(total[1:4], real.items(), strict=True):
        # A tenth of a KiB is as much as is reported.
        assert size(cell) == pytest.approx(expected, abs=0.05 * 1024 * (expected >= 1024)), column
    assert (real["statistics"] == 0) == (changed.get("start_preconditioning_step", 3) is None)


def test_a_description_names_the_treatment_size_and_work_of_each_tensor():
    changed = {"block_size": 256, "blocking": {"max_dimension": 600}, "statistics": {"frequency": 4}}
    options = reference.options(**changed, rows="one_sided", momentum=0.9)
    shapes = {"kernel": (416, 1024), "deep": (300, 200), "filter": (3, 3, 8, 16)}
    shapes |= {"bias": (64,), "scale": (), "ids": (1000, 8)}
    weights = [np.zeros(shape, np.float32) for shape in shapes.values()]
    core = reference.make_core(options, weights, tf.float32, tables=[5])
    rows = rows_of(core.describe(list(shapes)))
    assert rows["kernel"][1:3] == ["416x1024", "Shampoo along 0, 2 blocks of 208x1024, exponent -0.5"]
    assert rows["deep"][1:3] == ["300x200", "Shampoo, 2 blocks of 150x200, exponent -0.25"]
    assert rows["filter"][1:3] == ["3x3x8x16", "Shampoo, 1 block of 3x3x8x16, exponent -0.125"]
    assert rows["bias"][1:] == ["64", "adagrad", "0 B", "0 B", "512 B", "-"]
    assert rows["scale"][1:] == ["scalar", "adagrad", "0 B", "0 B", "8 B", "-"]
    assert rows["ids"][1:3] == ["1000x8", "rows: right side, exponent -0.5; AdaGrad's step"]
    # Two blocks, sides of 150 and 200: triangles of window and total are 12 bytes an element, roots 4.
    triangles, roots = 150 * 151 + 200 * 201, 2 * (150**2 + 200**2)
    assert rows["deep"][3:5] == [f"{size / 2**10:.1f} KiB" for size in (triangles * 12, roots * 4)]
    # Each side multiplies once a step, and once more every fourth for its statistics.
    assert rows["deep"][6] == f"{2 * 300 * 200 * (150 + 200) * 1.25 / 1e6:.1f}"
