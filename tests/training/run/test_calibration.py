"""What a run says of predicted over actual clicks, and when it warns."""

import logging
import re

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.config.schema import settable_keys
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.training.config import TrainConfig
from ctr.training.observers.metrics import last_window
from ctr.training.run.summary import calibration_text, calibration_warning, summary_text
from ctr.training.session import train
from growing_logs import ADAGRAD
from small_runs import make_config, merged


def summary_of(shift, top_shift=0.0, late_shift=None):
    """The summary of 10,000 rows whose clicks have the predicted probability but for shifts of the logits.

    ``top_shift`` is that of the tenth with the highest predictions, ``late_shift`` that of the last of ten windows.
    """
    rng = np.random.default_rng(3)
    logit = rng.normal(-1, 0.5, 10_000)
    label = rng.random(len(logit)) < 1 / (1 + np.exp(-logit))
    top = logit > np.quantile(logit, 0.9)
    shifts = np.where(top, top_shift, 0.0) + shift
    total, timeline = ProgressiveMetrics(), Timeline()
    for window, rows in enumerate(np.array_split(np.arange(len(logit)), 10)):
        own = shifts[rows] if late_shift is None or window < 9 else late_shift
        part = ProgressiveMetrics()
        part.update(label[rows], logit[rows] + own, np.ones(len(rows)), rows // 3)
        timeline.add(part, int(rows[-1]) + 1, (int(rows[0]), int(rows[-1])))
        total.merge(part)
    return {**total.summary(), "last_window": last_window(timeline)}


def config_of(**content):
    return parse_model(TrainConfig, {"model": {"prior": 0.28}, **content}, "test")


def test_a_run_within_a_tenth_does_not_warn_and_a_miscalibrated_one_says_what_to_look_at():
    for shift in (-0.1, 0.0, 0.1):
        assert calibration_warning(summary_of(shift), config_of()) is None
    for shift, many in ((0.5, "many"), (-0.5, "few")):
        summary = summary_of(shift)
        text = calibration_warning(summary, config_of())
        found = [float(number) for number in re.findall(r"\d+\.\d+", text)[:3]]
        expected = [summary["calibration_ratio"], *summary["calibration_ratio_ci95"]]
        assert found == pytest.approx(expected, abs=0.006)
        assert f"too {many} predicted clicks; look at " in text
        assert "decile" not in text and "model.prior" not in text and "last window" not in text
        assert "optimizer.dense.learning_rate" in text and "objective.bias_constraints" in text


def test_what_is_configured_is_named_where_it_may_be_the_cause_and_every_key_that_is_named_exists():
    causes = {
        "model.prior (0.5, the rate of clicks is 0.28)": {"model": {"prior": 0.5}},
        "label_delay (60 s": {"label_delay": 60},
        "sampling.name": {"sampling": {"name": "half"}},
        "objective.ranking": {"objective": {"ranking": {}}},
        "objective.distillation": {"objective": {"distillation": {"teacher": "big"}}},
    }
    summary = summary_of(0.5)
    plain, of_top, of_the_end = texts = [
        calibration_warning(summary_of(*one), config_of()) for one in ((0.5,), (0.0, 2.5), (0.6, 0.0, 0.0))
    ]
    # Too many clicks in the highest decile alone; and a pass that ends calibrated.
    [share] = re.findall(r"([\d.]+)% of the difference is in the decile of the highest predictions", of_top)
    assert float(share) > 90
    assert "optimizer.embeddings.learning_rate" in of_top and "optimizer.dense" not in of_top
    assert "the last window alone is calibrated" in of_the_end and "batch.rows" in of_the_end
    for named, content in causes.items():
        texts.append(calibration_warning(summary, config_of(**content)))
        assert named in texts[-1] and named not in plain
    found = {key for text in texts for key in re.findall(r"\b[a-z_]+\.[a-z][a-z_.]*[a-z]", text)}
    assert len(found) >= 8
    keys = settable_keys(TrainConfig)
    for key in found:
        assert any(known == key or known.startswith(f"{key}.") for known in keys), key


def test_the_line_says_the_ratio_of_the_pass_and_of_its_last_window():
    summary = summary_of(0.5, late_shift=0.0)
    text = calibration_text(summary)
    assert re.fullmatch(
        r"predicted / actual clicks 1\.\d+ \[1\.\d+, 1\.\d+\]: over-predicts by \d\d\.\d%: "
        r"the interval excludes 0\.9 to 1\.1; in the last window (0\.9|1\.0)\d* \[0\.\d+, 1\.\d+\]",
        text,
    ), text
    without = {
        **summary,
        "calibration_ratio": None,
        "calibration_ratio_ci95": [None, None],
        "last_window": None,
    }
    assert calibration_text(without) == "predicted / actual clicks – –: undefined: no clicks"


@pytest.mark.slow
def test_a_run_warns_at_its_end_and_shows_the_line(log, tmp_path, caplog):
    # Nothing is learned: the prior is what is predicted.
    rates = {
        "embeddings": {"learning_rate": 0.0, "linear_learning_rate": 0.0},
        "dense": {"learning_rate": 0.0},
    }

    def of_prior(prior: float) -> dict:
        caplog.clear()
        changes = {"optimizer": rates, "model": {"prior": prior, "init_scale": 0}}
        config = make_config(merged(ADAGRAD, changes))
        run = tmp_path / str(prior)
        with caplog.at_level(logging.WARNING):
            summary = train(log, config, run)
        assert f"  {calibration_text(summary)}" in summary_text(run, summary).splitlines()
        return summary

    wrong = of_prior(0.9)
    assert wrong["calibration_warning"] in caplog.text
    assert "model.prior (0.9" in wrong["calibration_warning"]
    buckets = wrong["calibration_buckets"]
    rate = sum((row["mean_label"] or 0) * row["weight"] for row in buckets) / wrong["weight_sum"]
    right = of_prior(rate)
    assert right["calibration_warning"] is None
    assert not [record for record in caplog.records if record.name.startswith("ctr")]
    assert right["calibration_ratio"] == pytest.approx(1, abs=0.01)
