"""Numbers that the network reads: normalized by the rows learned before, the same after a resume, and refused."""

import json

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.batches import set_rejects_apart
from ctr.data.reader import Rows, rows_of_table
from ctr.data.schema import Schema
from ctr.data.value_arrays import numbers_of_ids
from ctr.io.errors import InputError
from ctr.training.compiled_step import CompiledStep
from ctr.training.feed import make_feed
from ctr.training.run import checkpoint
from ctr.training.session import train
from ctr.training.state import TrainState
from ctr.training.warm_start.start import InitFrom
from growing_logs import ADAGRAD, STANDS, assert_same, train_part
from small_runs import INTERVALS, NUMBERS, draw_examples, make_config, publish, with_numbers

NETWORK = {"model": {"experts": ["linear", "network"]}, **ADAGRAD}


def rows_of(queries: int, seed: int = 0) -> Rows:
    return rows_of_table(with_numbers(draw_examples(queries, seed).table(), seed), NUMBERS, 0)


@pytest.fixture
def run():
    """A state, and functions that score rows and learn from them; the latter returns also whether it did."""
    config = make_config(NETWORK)
    state = TrainState(config.table_layouts(NUMBERS), config, "float32")
    step = CompiledStep(state, config, jit=False)

    def feed(rows: Rows):
        return make_feed(set_rejects_apart(rows), state.layouts, 64)

    def score(rows: Rows) -> np.ndarray:
        return step.score(feed(rows), config.ramps_at(0)).logit

    def learn(rows: Rows) -> tuple[np.ndarray, bool]:
        result = step.learn(feed(rows), config.ramps_at(0), config.rates_at(0))
        return result.logit, bool(result.applied)

    return state, score, learn


def test_a_batch_is_scored_by_the_rows_before_and_a_step_that_is_skipped_learns_nothing(run):
    state, score, learn = run
    seen = []
    for seed in range(3):
        rows = rows_of(8, seed)
        expected = score(rows)
        logit, applied = learn(rows)
        assert applied
        np.testing.assert_allclose(logit, expected, rtol=0, atol=1e-6)
        seen.append(rows)
        prices = np.concatenate(
            [numbers_of_ids(one.ids[:, 3])[one.train_weight > 0].astype(np.float64) for one in seen]
        )
        prices = np.log1p(prices[~np.isnan(prices)])
        count, mean, squares = state.statistics.numpy()[:, 0]
        assert count == len(prices)
        np.testing.assert_allclose([mean, squares / count], [prices.mean(), prices.var()], rtol=1e-12)
    # Statistics decide what is predicted.
    before, statistics = score(rows), state.statistics.numpy()
    state.statistics.assign(statistics * [[1], [3], [1]])
    assert np.abs(score(rows) - before).max() > 1e-4
    state.statistics.assign(statistics)
    weight = state.dense[0].numpy()
    state.dense[0].assign(np.full_like(weight, np.nan))
    assert learn(rows)[1] is False
    np.testing.assert_array_equal(state.statistics.numpy(), statistics)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("log"), with_numbers(draw_examples().table()), schema=NUMBERS)


@pytest.mark.slow
def test_a_run_in_parts_has_the_bits_of_a_whole_one(log, tmp_path):
    """In compiled calls of several batches."""
    config = make_config({**NETWORK, "batch": {"rows": 20, "growth": 0.01, "least": 4}})
    summary = train(log, config, tmp_path / "whole")
    assert 0 < train_part(log, config, tmp_path / "parts", 600) < summary["examples"]
    train(log, config, tmp_path / "parts")
    assert_same(tmp_path / "parts", tmp_path / "whole", *STANDS)


@pytest.mark.soak
def test_a_warm_start_goes_on_with_what_numbers_were_like(log, tmp_path):
    table, config = with_numbers(draw_examples().table()), make_config(NETWORK)
    early = publish(tmp_path / "early", table, INTERVALS[:2], NUMBERS)
    train(early, config, tmp_path / "old")
    train(log, config, tmp_path / "run", init_from=InitFrom(tmp_path / "old"))
    lines = json.loads((tmp_path / "run" / "init_from.json").read_text())["table"]
    assert {one["status"] for one in lines if one["name"] in ("price", "image")} == {"taken"}
    train(log, config, tmp_path / "whole")
    found, expected = (
        checkpoint.read(tmp_path / name / "checkpoints")[0]["weights|numbers"] for name in ("run", "whole")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_models_and_slices_that_cannot_read_numbers_are_refused(log, tmp_path):
    for model, line in (
        ({"experts": ["linear"]}, "the network alone reads the numbers of price"),
        ({"widths": {"image": 8}}, "model.widths names image, whose numbers have no embedding"),
        ({"without": ["user", "item", "tags", "position"]}, "all features of the model are numbers"),
    ):
        with pytest.raises(InputError, match=line):
            make_config({"model": model}).table_layouts(NUMBERS)
    sliced = make_config({"metrics": {"slices": ["price"]}})
    with pytest.raises(InputError, match="slices names price, which is not a single-valued feature"):
        train(log, sliced, tmp_path / "run")


FEATURES = [
    {"name": "price", "kind": "number", "source": "price", "as": "value"},
    {"name": "user", "kind": "category", "source": "user"},
]


def test_schemas_that_cannot_be_are_refused():
    for added, line in (
        ({"kind": "cross", "of": ["price", "user"]}, "x crosses price, whose numbers the network reads"),
        ({"kind": "number", "source": "p", "as": "value", "width": 4}, "width is not allowed"),
    ):
        with pytest.raises(InputError, match=line):
            parse_model(Schema, {"features": [*FEATURES, {"name": "x", **added}]}, "test")
