"""Further labels as columns of a log: read, sampled and shown with its rows, and no part of its features."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import join_rows, read_rows
from ctr.data.sample_log import write_sampled_log
from ctr.data.sampling import SamplingConfig
from small_runs import SCHEMA, draw_examples, labeled, publish

EXAMPLES = draw_examples(60)
DRAWN = np.random.default_rng(1).random((2, len(EXAMPLES)))
LABELS = {
    name: np.where(drawn < 0.2, 1.0, np.where(drawn < 0.8, 0.0, np.nan))
    for name, drawn in zip(("sale", "lead"), DRAWN, strict=True)
}


@pytest.fixture
def log(tmp_path):
    return publish(tmp_path / "log", **labeled(EXAMPLES.table(), **LABELS))


def rows_of(log, schema=None):
    return join_rows(list(read_rows(log, schema or read_schema(log), read_manifests(log))))


def test_rows_have_the_labels_of_their_own_log_whatever_the_reader_knows(log):
    schema = read_schema(log)
    assert schema.labels == ("sale", "lead") and schema.version == SCHEMA.version
    for known in (schema, SCHEMA, schema.model_copy(update={"labels": ("other",)})):
        rows = rows_of(log, known)
        assert set(rows.joined) == {"label:sale", "label:lead"}
        for name, values in LABELS.items():
            np.testing.assert_array_equal(rows.joined[f"label:{name}"], values.astype(np.float32))
    backwards = rows.take(np.arange(len(rows))[::-1])
    np.testing.assert_array_equal(backwards.joined["label:sale"][::-1], rows.joined["label:sale"])


def test_a_sampled_log_keeps_the_labels_of_its_rows(log, tmp_path):
    rule = parse_model(SamplingConfig, {"non_click_rate": 0.5}, "test")
    write_sampled_log(log, "half", rule, tmp_path / "half")
    before, after = rows_of(log), rows_of(tmp_path / "half")
    assert 0 < len(after) < len(before)
    places = np.searchsorted(before.example_id, after.example_id)
    for name in LABELS:
        np.testing.assert_array_equal(after.joined[f"label:{name}"], before.joined[f"label:{name}"][places])
