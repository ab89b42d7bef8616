"""The table of a run's sums gives back each state bit by bit, and metrics by plain operations of pandas."""

import io

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.eval.windows import COLUMNS, PASS, Sums
from run_directories import make_rows, predict


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=200)


@pytest.fixture(scope="module")
def metrics(rows):
    metrics = ProgressiveMetrics(["position", "none"])
    # Some logits lie outside of the bins; ids may be negative.
    logit = 9 * predict(rows, 1, 1.0)
    position = rows["position"].to_numpy()
    ids = {"position": np.where(position == 3, -(2**60), position), "none": position}
    metrics.update(rows["label"], logit, rows["metric_weight"], rows["query_id"], ids)
    metrics.slices["none"].clear()
    return metrics


def read_again(sums: Sums) -> Sums:
    stream = io.BytesIO()
    pq.write_table(sums.table(), stream)
    return Sums.of(pd.read_parquet(stream))


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes()), name


def test_states_come_back_bit_by_bit(metrics):
    sums, timeline = Sums(), Timeline()
    for place, times in enumerate([(0, 5), (5, 9), (9, 9)], 1):
        timeline.add(metrics, 100 * place, times)
    arrays = {
        "position": np.array([70, 90]),
        "rows": np.array([0, 4]),
        "weight": np.zeros((2, 256)),
        "loss": np.random.default_rng(1).normal(size=(2, 256)),
        "shared/a/b": np.zeros((2, 256)),
    }
    for part in (PASS, "log other"):
        sums.add_metrics(part, metrics)
    sums.add_slices("slices", {"position": metrics.slices["position"]})
    sums.add_timeline(timeline)
    sums.add_importance(arrays)
    found = read_again(sums)
    assert tuple(sums.table().column_names) == COLUMNS
    for part in (PASS, "log other"):
        assert_equal(found.metrics(part).to_arrays(), metrics.to_arrays())
    assert found.metrics("label other") is None
    assert_equal(found.slices()["position"].to_arrays(), metrics.slices["position"].to_arrays())
    assert_equal(vars(found.timeline()) | {"_stride": np.array(1)}, vars(timeline) | {"_stride": np.array(1)})
    assert_equal(found.importance(), arrays)
    empty = Sums()
    empty.add_metrics(PASS, ProgressiveMetrics())
    empty.add_timeline(Timeline())
    empty.add_importance({})
    found = read_again(empty)
    assert len(found.timeline()) == 0 and found.importance() == {} and found.slices() == {}


def test_metrics_are_groups_of_rows(rows, metrics):
    sums = Sums()
    sums.add_metrics(PASS, metrics)
    table = sums.table().to_pandas()
    total = table.groupby("metric")["value"].sum()
    assert total["traffic/examples"] == len(rows)
    weight = total["calibration/sums/weight"]
    assert total["logloss/loss"] / weight == pytest.approx(metrics.logloss.result(), rel=1e-12)
    mean = total["per_query_auc/auc_sum"] / total["per_query_auc/scored"]
    assert mean == pytest.approx(metrics.per_query_auc.result(), rel=1e-12)
    # Without a bucket, a replicate of the jackknife.
    loss = table[table["metric"] == "logloss/loss"].set_index("bucket")["value"]
    own = table[table["metric"] == "calibration/sums/weight"].set_index("bucket")["value"]
    replicates = (loss.sum() - loss) / (own.sum() - own)
    np.testing.assert_allclose(metrics.logloss.estimate().replicates[loss.index], replicates, rtol=1e-12)
    # Calibration of a slice.
    of_slice = table[(table["slice"] == "position") & (table["id"] == 2)].groupby("metric")["value"].sum()
    expected = metrics.slices["position"].result().set_index("id").loc[2]
    ratio = of_slice["slice/predicted/bucket"] / of_slice["slice/clicks/bucket"]
    assert ratio == pytest.approx(expected["calibration_ratio"], rel=1e-12)
