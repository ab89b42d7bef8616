"""Costs of candidates, and prefixes of a log."""

from pathlib import Path

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.experiments.measure import measure
from ctr.io.errors import InputError
from ctr.search.config import SearchConfig
from ctr.search.problem import cost_of, counted, find_prefix
from ctr.search.space import make_space
from small_runs import SMALL, merged


def times_of(log: Path, time_range: TimeRange) -> np.ndarray:
    blocks = read_selection(log, read_schema(log), read_manifests(log), Selection(time_range=time_range))
    return np.concatenate([np.zeros(0, np.int64), *(block.query_time for block in blocks)])


@pytest.mark.parametrize(
    "given_range", [{}, {"start": "1970-01-01T00:00:00.050", "end": "1970-01-01T00:00:00.200"}]
)
def test_a_prefix_has_whole_queries_and_its_share_of_the_rows(log, given_range):
    time_range = TimeRange.model_validate(given_range)
    times = times_of(log, time_range)
    for share in (0.1, 0.25, 0.5, 1.0):
        prefix, rows = find_prefix(log, time_range, share)
        assert rows == len(times)
        until = {"end": prefix.end} if prefix.end else {}
        read = times_of(log, TimeRange.model_validate({**given_range, **until}))
        assert len(read) == prefix.rows
        # At most one query, of ten rows, is missing.
        assert share * len(times) - 10 <= prefix.rows <= share * len(times)
        if prefix.end_us is not None:
            assert (read < prefix.end_us).all() and prefix.end_us in times


def test_a_prefix_without_rows_is_refused(log):
    late = TimeRange.model_validate({"start": "2030-01-01"})
    with pytest.raises(InputError, match="no rows in the time range"):
        find_prefix(log, late, 0.5)


WIDTHS = {"user": 4, "item": 4}
RANKED = merged(SMALL, {"model": {"deep": {"units": [16, 8], "ranks": [4, 0]}, "widths": WIDTHS}})
CHOICES = {
    "model.deep.units.0": [8, 16],
    "model.deep.units.1": [0, 4, 8],
    "model.deep.ranks.0": [2, 4],
    "model.crosses.layers": [0, 2],
    "model.crosses.rank": [1, 3],
    "model.widths.user,item": [0, 2, 4],
    "features.tags": [True, False],
}


def test_the_cost_is_what_an_experiment_counts(log):
    search = parse_model(SearchConfig, {"space": CHOICES}, "search")
    space = make_space(search, RANKED, read_schema(log), "search")
    choices = [*space.candidates()][::59]
    configs = {str(choice): space.apply(RANKED, choice).model_dump(mode="json") for choice in choices}
    found = measure(log, {**configs, "base": RANKED}, "base", 0)
    for purpose, key in (("training", "train_flops"), ("serving", "inference_flops")):
        cost = cost_of(space, RANKED, counted(log, purpose))
        for choice in choices:
            assert cost(choice) == found[str(choice)][key] / found["base"][key]
        assert cost(space.baseline(RANKED)) == 1.0
