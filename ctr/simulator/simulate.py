"""The simulated log: a day after the other, each an interval with its true probabilities beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.log import create_log, publish_interval
from ctr.data.sidecar import write_sidecar_interval
from ctr.data.transform import pack_table
from ctr.simulator.config import DAY_US, SimulatorConfig
from ctr.simulator.features import SCHEMA, RawColumns
from ctr.simulator.traffic import Impressions, calibrate, click_probability, draw_day
from ctr.simulator.world import CALIBRATION_STREAM, TRAFFIC_STREAM, draw_world, random_stream, walk

TRUTH = "truth"
"""The sidecar with the true click ``probability`` (float32) of each example; training never reads it."""

_QUERIES_PER_DAY_LIMIT = 10**6
_ADS_PER_QUERY_LIMIT = 64


def simulate(
    config: SimulatorConfig, out: Path, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Writes a simulated log with the sidecar ``TRUTH``. The same config always gives the same bytes.

    Publishing continues a log that an interrupted run of the same config left.

    Args:
        out: the log's folder.
        progress: called with the number of examples written so far.

    Returns:
        Counts: ``examples, queries, clicks, intervals``, the ``ctr`` and the ``mean_probability`` of the log.

    Raises:
        InputError: the folder holds something else, for example the log of another config.
    """
    world = calibrate(config, draw_world(config), random_stream(config, CALIBRATION_STREAM))
    columns = RawColumns(world)
    create_log(out, SCHEMA)
    examples = queries = clicks = intervals = 0
    expected = 0.0
    for day, coefficients in enumerate(walk(config, world)):
        rng = random_stream(config, TRAFFIC_STREAM, day)
        impressions = draw_day(config, world, day, rng)
        probability = click_probability(world, coefficients, impressions)
        label = rng.random(len(probability), np.float32) < probability
        if len(label) > config.examples - examples:
            impressions = impressions.first(config.examples - examples)
            probability, label = probability[: len(impressions.ad)], label[: len(impressions.ad)]
        keys = _keys(impressions, label)
        start = config.start_us + day * DAY_US
        rows = pack_table(SCHEMA, keys, columns.table(impressions))
        manifest = publish_interval(out, SCHEMA, start, start + DAY_US, rows)
        truth = pa.table({"example_id": keys.column("example_id"), "probability": probability})
        write_sidecar_interval(out, TRUTH, manifest, truth)
        examples += manifest.rows
        queries += manifest.queries
        clicks += manifest.clicks
        intervals += 1
        expected += float(probability.sum(dtype=np.float64))
        if progress is not None:
            progress(examples)
        if examples == config.examples:
            break
    return {
        "examples": examples,
        "queries": queries,
        "clicks": clicks,
        "intervals": intervals,
        "ctr": clicks / examples,
        "mean_probability": expected / examples,
    }


def _keys(impressions: Impressions, label: np.ndarray) -> pa.Table:
    """The key columns. Ids rise with time and never repeat: day, query of the day, position."""
    query_id = impressions.day * _QUERIES_PER_DAY_LIMIT + np.arange(len(impressions.user))
    query = impressions.query
    weight = np.ones(len(query), np.float32)
    return pa.table(
        {
            "query_time": impressions.time_us[query],
            "timestamp": impressions.time_us[query],
            "query_id": query_id[query],
            "example_id": query_id[query] * _ADS_PER_QUERY_LIMIT + impressions.position,
            "label": label.astype(np.int8),
            "train_weight": weight,
            "metric_weight": weight,
        }
    )
