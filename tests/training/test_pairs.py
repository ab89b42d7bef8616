"""The expert for pairs: what it learns, how its predictions are combined with the model's, and when it sleeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.batches import whole_query_batches
from ctr.data.features import Category
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids
from ctr.io.errors import InputError
from ctr.serving.export import export_run
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.logs import open_logs
from ctr.training.loop import open_session, train
from ctr.training.pair_combination import FIRST_LOOK, FIRST_ROWS, Combination
from ctr.training.run import checkpoint
from ctr.training.run.snapshot import read_snapshot
from fingerprint_logs import SCHEMA, growing_table, prints_of, publish_growing
from growing_logs import read_predictions, train_part
from small_runs import Examples, draw_examples, merged, publish

CONTENT: dict[str, Any] = {
    "batch": {"rows": 12, "max_query_rows": 64},
    "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}, "query_size": False, "pairs": True},
    "compute_dtype": "float32",
}
LINEAR = {"model": {"deep": {"units": []}, "pairs": False}}
SINGLES = ("user", "item", "position")
PAIRS = (("user", "item"), ("user", "position"), ("item", "position"))


def config_of(*changes: dict[str, Any]) -> TrainConfig:
    content = CONTENT
    for change in changes:
        content = merged(content, change)
    return parse_model(TrainConfig, content, "test")


def draw_pairs(queries: int = 240) -> Examples:
    """Rows of which a click says which of item and position are odd, and neither says anything alone."""
    rows = draw_examples(queries)
    odd = rows.ids[:, 1] % 2 != rows.ids[:, 2] % 2
    label = np.random.default_rng(5).random(len(rows)) < np.where(odd, 0.7, 0.1)
    return Examples(**{**vars(rows), "label": label.astype(int)})


@pytest.fixture(scope="module")
def rows() -> Examples:
    return draw_pairs()


@pytest.fixture(scope="module")
def log(rows, tmp_path_factory) -> Path:
    return publish_growing(tmp_path_factory.mktemp("pairs") / "log", rows)


@pytest.fixture(scope="module")
def paired(log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("pairs") / "run"
    train(log, config_of(), run)
    return run


@pytest.fixture(scope="module")
def plain(log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("plain") / "run"
    train(log, config_of({"model": {"pairs": False}}), run)
    return run


def batches_of(log: Path) -> list[slice]:
    """The places of each batch's rows."""
    blocks = read_rows(log, SCHEMA, read_manifests(log))
    ends = [batch.end for batch in whole_query_batches(blocks, 12, 64)]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def logits_of(run: Path) -> np.ndarray:
    return read_predictions(run)["logit"].to_numpy(np.float64)


def loss_of(logit: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float:
    return float(weight @ (np.logaddexp(0, logit) - label * logit))


def weights_of(run: Path) -> dict[str, np.ndarray]:
    arrays, _ = checkpoint.read(run / "checkpoints")
    return {name: array for name, array in arrays.items() if name.startswith("weights|")}


def crossed_table(rows: Examples) -> tuple[Schema, pa.Table]:
    """The same rows, with a feature of its own for each pair of features."""
    pairs = tuple(Category(name=f"pair_{number}", source=f"pair_{number}") for number in range(3))
    schema = Schema(features=(*SCHEMA.features, *pairs))
    columns = dict(zip(SINGLES, rows.ids.T, strict=True))
    ids = [
        values if name == "item" else prints_of(values)
        for name, values in zip(SINGLES, rows.ids.T, strict=True)
    ]
    ids += [prints_of(columns[left] * 1000 + columns[right]) for left, right in PAIRS]
    order = [*SINGLES, "pair_0", "pair_1", "pair_2"]
    matrix = np.stack([ids[order.index(name)] for name in schema.single_valued], axis=1)
    table = growing_table(rows)
    place = table.column_names.index("ids")
    return schema, table.set_column(place, "ids", pack_ids(matrix.astype(np.int64)))


def test_predictions_lie_between_those_of_two_models_by_what_the_second_has_gained(
    rows, log, paired, plain, tmp_path
):
    """The expert is what a model of linear weights is that has each pair as a feature."""
    batches = batches_of(log)
    first = next(batch.start for batch in batches if batch.start >= FIRST_ROWS)
    schema, table = crossed_table(rows)
    times = int(rows.query[first]) * 1000
    publish(tmp_path / "log", table, ((times, 240_000),), schema)
    train(tmp_path / "log", config_of(LINEAR), tmp_path / "run")
    z, v = logits_of(plain), np.full(len(rows), np.nan)
    v[first:] = logits_of(tmp_path / "run")
    expected, weights, known = z.copy(), np.zeros(2), np.zeros((2, 2))
    gained = passed = 0.0
    for batch in batches:
        if batch.start < first:
            continue
        y, w = rows.label[batch], rows.train_weight[batch]
        x = np.stack([np.ones(len(y)), v[batch] - z[batch]], axis=1)
        moved = z[batch] + x @ weights
        expected[batch] += (moved - z[batch]) / (1 + np.exp(-gained))
        passed += w.sum()
        if not w.sum():
            continue
        share = w.sum() / passed
        gained = (1 - share / 2) * gained + loss_of(z[batch], y, w) - loss_of(moved, y, w)
        p = 1 / (1 + np.exp(-moved))
        known = (1 - share) * known + (x * (w * p * (1 - p))[:, np.newaxis]).T @ x
        step = np.linalg.solve(known + 10 * np.eye(2), x.T @ (w * (p - y)))
        weights = weights - np.clip(step, -1, 1)
        weights[1] = np.clip(weights[1], 0, 1)
    assert weights[1] > 0.5
    np.testing.assert_allclose(logits_of(paired), expected, atol=2e-4)
    w = rows.metric_weight[first:]
    losses = [loss_of(one[first:], rows.label[first:], w) for one in (logits_of(paired), z)]
    assert losses[0] < 0.95 * losses[1]


@pytest.fixture
def short_looks(monkeypatch) -> None:
    """An expert that has to prove itself within 96 rows, and is looked at again when the log is twice as long."""
    for name, value in (("FIRST_LOOK", 96), ("_AGAIN", 2)):
        monkeypatch.setattr(f"ctr.training.pair_combination.{name}", value)


@pytest.mark.slow
def test_a_useless_expert_sleeps_and_is_looked_at_again(short_looks, tmp_path):
    rows = draw_examples()
    log = publish_growing(tmp_path / "log", rows)
    for name in (True, False):
        train(log, config_of({"model": {"pairs": name}}), tmp_path / str(name))
    is_other = logits_of(tmp_path / "True") != logits_of(tmp_path / "False")
    batches = batches_of(log)
    other = [bool(is_other[batch].any()) for batch in batches]
    changes = [
        batch.start
        for batch, before, now in zip(batches[1:], other, other[1:], strict=False)
        if before != now
    ]
    # A gate that begins at 0 moves nothing in the first batch of a look.
    woken, slept, again, once_more = changes[:4]
    assert FIRST_ROWS < woken < FIRST_ROWS + 40 and FIRST_ROWS + 96 <= slept < FIRST_ROWS + 130
    assert 2 * slept < again < 2 * slept + 40 and again < once_more < again + 130


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3, 16])
def test_bits_do_not_depend_on_where_it_stopped_and_what_shares_a_call(
    steps, short_looks, tmp_path, monkeypatch
):
    monkeypatch.setattr("ctr.training.shapes.FUSED_FROM", 0)
    log = publish_growing(tmp_path / "log", draw_examples())
    changes = {"batch": {"steps_per_execution": max(2, steps)}}
    train(log, config_of({"batch": {"steps_per_execution": 8}}), tmp_path / "whole")
    if steps == 1:
        train_part(log, config_of(changes), tmp_path / "other", 300)
        train_part(log, config_of(changes), tmp_path / "other", 700)
    train(log, config_of(changes), tmp_path / "other")
    np.testing.assert_array_equal(logits_of(tmp_path / "whole"), logits_of(tmp_path / "other"))
    own, other = weights_of(tmp_path / "whole"), weights_of(tmp_path / "other")
    assert own.keys() == other.keys() and any("pairs/" in name for name in own)
    for name, array in own.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_an_export_predicts_as_the_run_does(log, paired, tmp_path):
    exported = export_run(paired, tmp_path / "models")
    scorer = Scorer(exported.path)
    rows = next(read_rows(log, SCHEMA, read_manifests(log)))
    with open_session(log, config_of(), paired) as session:
        expected = session.score(rows)
    np.testing.assert_allclose(score_rows(scorer, rows), expected, atol=2e-6)
    assert read_snapshot(paired).architecture.pairs


def passed_by(gain: float, looks: int) -> list[tuple[int, bool]]:
    """Rows after which an expert falls asleep or wakes up that makes each row's loss smaller by a share."""
    combination, found = Combination(), []
    z = np.full(64, -np.log(3), np.float32)
    label = (np.arange(64) % 4 == 0).astype(np.float32)
    better = np.where(label > 0, z + gain, z - gain).astype(np.float32)
    while len(found) < looks:
        before = combination.is_awake
        if before:
            combination.learn(z, better, label, np.ones(64, np.float32))
        combination.count(64)
        if combination.is_awake != before:
            found.append((int(combination.passed), bool(combination.is_awake)))
        if combination.passed > 3_000_000:
            break
    return found


def test_looks_become_rare_and_what_helps_stays():
    first = FIRST_ROWS + FIRST_LOOK
    again = 8 * first
    assert passed_by(0.0, 4) == [
        (FIRST_ROWS, True),
        (first, False),
        (again, True),
        (again + FIRST_LOOK, False),
    ]
    assert passed_by(0.5, 2) == [(FIRST_ROWS, True)]


def test_what_is_not_finite_changes_nothing():
    combination = Combination(gate=0.5, advantage=3.0)
    plain, broken = np.array([1.0, -2.0], np.float32), np.array([np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(combination.combine(plain, broken), plain)
    before = combination.to_array()
    combination.learn(plain, broken, np.ones(2, np.float32), np.ones(2, np.float32))
    combination.learn(plain, -plain, np.ones(2, np.float32), np.zeros(2, np.float32))
    np.testing.assert_array_equal(combination.to_array(), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"network_loss": "joint"}}, "network_loss own"),
        ({"optimizer": {"embeddings": {"linear_rule": "adagrad"}}}, "linear_rule newton"),
        ({"objective": {"ranking": {}}}, "logistic loss alone"),
    ],
)
def test_what_pairs_cannot_go_with_is_refused_and_auto_does_without(log, changes, message):
    with pytest.raises(InputError, match=message):
        config_of(changes)
    auto = config_of(changes, {"model": {"pairs": "auto"}})
    assert open_logs(log, auto).config.model.pairs is False
    assert open_logs(log, config_of({"model": {"pairs": "auto"}})).config.model.pairs is True
