from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ctr.eval.auc import StreamingAUC, roc_auc
from ctr.eval.rows import scored_rows


def test_exact_auc_is_the_share_of_ordered_pairs(make_log):
    for queries in (5, 12, 2000):
        log = make_log(1, queries)
        expected = roc_auc_score(log.label, log.logit, sample_weight=log.weight)
        assert roc_auc(log.label, log.logit, log.weight) == pytest.approx(expected, abs=1e-12)
    assert roc_auc(log.label, log.logit) == pytest.approx(roc_auc_score(log.label, log.logit), abs=1e-12)
    # By hand: clicks at 3 (weight 2) and 1; non-clicks at 2, 1 (weight 3), 0: of 3 * 5 weighted pairs, the click at 3
    # wins 2 * 5, the one at 1 wins 1 and ties 3.
    assert roc_auc([1, 1, 0, 0, 0], [3, 1, 2, 1, 0], [2, 1, 1, 3, 1]) == pytest.approx(12.5 / 15)
    for scale in (1e-150, 1e150, 1e300):
        assert roc_auc([1, 0, 1, 0], [3, 2, 2, 1], np.array([1, 2, 3, 1]) * scale) == pytest.approx(9 / 12)
    # One huge weight does not drown the rest.
    assert roc_auc([1, 0, 0, 0], [1, 2, 0, 0], [1e30, 1, 1, 2]) == pytest.approx(0.75, abs=1e-15)
    assert np.isnan(roc_auc([0, 0], [0.0, 1.0])) and np.isnan(roc_auc([0, 1], [0.0, 1.0], [1, 0]))
    with pytest.raises(ValueError, match="score must hold finite numbers, got nan at row 1"):
        roc_auc([0, 1], [0.0, np.nan])


def test_stream_equals_binned_auc_within_its_bound_at_every_prefix(make_log):
    log = make_log(2)
    rng = np.random.default_rng(2)
    # Clusters far narrower than a bin, so that binning does tie pairs, in and against their order.
    object.__setattr__(log, "logit", log.logit + rng.uniform(0, 5e-4, len(log.logit)))
    auc = StreamingAUC()
    seen: list[Any] = []
    distances = []
    for batch in log.batches(queries=3):
        auc.update(scored_rows(*batch.columns()))
        seen.append(batch.columns())
        label, logit, weight, _ = (np.concatenate(column) for column in zip(*seen, strict=True))
        binned = roc_auc(label, np.floor(np.clip(logit, -16, 16 - 1e-9) * 2048), weight)
        assert auc.result() == pytest.approx(binned, abs=1e-12, nan_ok=True)
        distances.append(abs(auc.result() - roc_auc(label, logit, weight)))
        assert not distances[-1] > auc.error_bound()
    assert max(distances[5:]) > 0 and auc.error_bound() < 0.05


def test_clipped_logits_are_counted_and_tied_and_a_bin_may_hold_all_pairs():
    auc = StreamingAUC()
    auc.update(scored_rows([0, 1], [1e-6, 2e-6], [3.0, 5.0], [1, 1]))
    assert (auc.result(), auc.error_bound(), roc_auc([0, 1], [1e-6, 2e-6])) == (0.5, 0.5, 1.0)
    auc = StreamingAUC()
    auc.update(scored_rows([0, 1, 1, 0, 1], [-1e4, -17, 1e4, 16, 15.999], np.ones(5), np.zeros(5, int)))
    np.testing.assert_array_equal(auc.clipped, [2, 2])
    # Ties: (-1e4, -17) and (1e4, 16, 15.999 lies in its own bin). Pairs: 0.5 + 1 + 1 against -1e4;
    # 0 + 0.5 + 0 against 16.
    assert auc.result() == pytest.approx(3.0 / 6)


def test_interval_is_undefined_when_coarse_bins_tie_what_fine_bins_tell_apart():
    rng = np.random.default_rng(5)
    label, logit = rng.integers(0, 2, 3000), rng.normal(0, 1, 3000)
    for spread, defined in ((1.0, True), (0.2, True), (0.03, False)):
        auc = StreamingAUC()
        auc.update(scored_rows(label, spread * (logit + label), np.ones(3000), np.arange(3000)))
        assert auc.result() == pytest.approx(roc_auc(label, logit + label), abs=2e-3)
        assert np.isfinite(auc.estimate().interval()).all() == defined
    # True ties are no reason: a model of two predictions has its interval.
    auc = StreamingAUC()
    auc.update(scored_rows(label, np.sign(logit + label), np.ones(3000), np.arange(3000)))
    assert np.isfinite(auc.estimate().interval()).all()
