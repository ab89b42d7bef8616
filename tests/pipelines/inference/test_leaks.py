"""Columns that are known only after the label: by their values, by their names, and how strong a column is alone."""

import json

import numpy as np
import pytest

from ctr.pipelines.inference.leaks import (
    find_leak,
    find_outcome,
    is_suspicious,
    strongest_columns,
    strongest_text,
)
from made_tables import becomes, facts_of, inferred, reasons, write_table

ROWS = 12_000


def clicks_after(
    share: float, opened: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Labels, what must happen before a click, and a generator."""
    rng = np.random.default_rng(seed)
    before = rng.random(ROWS) < opened
    return (before & (rng.random(ROWS) < share)).astype(np.int8), before, rng


def leak(values, label, name="a") -> str:
    values = values.tolist() if isinstance(values, np.ndarray) else values
    return find_leak(facts_of(values, name), label, np.ones(len(label), bool))


@pytest.mark.parametrize("share", [0.003, 0.05, 0.5])
def test_columns_made_of_the_label_leak_and_others_do_not(share):
    rng = np.random.default_rng(1)
    label = (rng.random(20_000) < share).astype(np.int8)
    rows = len(label)
    leaks = {
        "dwell": np.where(label, rng.integers(30, 900, rows), 0),
        "paid": [round(float(rng.random() * 50), 2) if one and rng.random() < 0.6 else None for one in label],
        "state": ["done" if one else str(rng.choice(["open", "seen"])) for one in label],
        "noisy": label ^ (rng.random(rows) < share * 0.004),
    }
    plain = {
        "ids": rng.integers(0, 3000, rows),
        "price": rng.random(rows),
        "strong": np.where(rng.random(rows) < 0.4, label, rng.integers(0, 2, rows)),
        "gaps": [None if rng.random() < 0.9 else 1 for _ in label],
        "unique": np.arange(rows),
    }
    for name, values in (leaks | plain).items():
        assert bool(leak(values, label, name)) == (name in leaks), name


@pytest.mark.parametrize(("share", "opened"), [(0.1, 0.4), (0.3, 0.85), (0.9, 0.6)])
def test_a_value_of_many_rows_that_is_never_positive_leaks(share, opened):
    label, before, rng = clicks_after(share, opened)
    amount = np.where(before, rng.random(ROWS).round(2) + 1, 0)
    spread = np.where(before, rng.integers(50, 900, ROWS), rng.integers(0, 50, ROWS))
    cases = {
        "two values": before.astype(int),
        "words": np.where(before, rng.choice(["seen", "read", "kept"], ROWS), "sent"),
        "many times the same amount": amount,
        "the smallest numbers": spread,
        "the largest numbers": -spread,
        "missing": [value if there else None for value, there in zip(amount.tolist(), before, strict=True)],
    }
    for name, values in cases.items():
        assert "never positive" in leak(values, label), name
    # A few clicks without it are lost openings.
    label[np.flatnonzero(~before)[:2]] = 1
    assert "never positive" in leak(before.astype(int), label)


def test_values_that_are_seldom_clicked_are_features():
    label, _, rng = clicks_after(0.15, 1.0)
    ad = rng.integers(0, 40, ROWS)
    dull = np.isin(ad, [3, 17])
    label[dull] = 0
    assert label.mean() * dull.sum() > 60
    assert not leak(ad, label) and not leak([f"ad{one}" for one in ad], label)
    score = rng.random(ROWS)
    by_score = (rng.random(ROWS) < 0.4 * score**3).astype(np.int8)
    assert not leak(score.round(4), by_score)
    place = rng.integers(1, 5, ROWS)
    below = ((place < 4) & (label > 0)).astype(np.int8)
    assert not leak(place, below, "position") and leak(place, below, "a")


def outcome(values, label, name) -> str:
    return find_outcome(facts_of(np.asarray(values).tolist(), name), label, np.ones(len(label), bool))


# Of two values, whatever the rows say.
OUTCOMES = "is_follow isComment is_profile_enter skip_2 not_skipped opened unsubscribed bounced forward:token"
# Amounts, where the label agrees; and times, spent or of a deed, by their names.
AMOUNTS = "profile_stay_time comment_stay_time tips revenue_usd order_value view_duration"
TIMES = "watch_ratio dwell_time play_time_ms clicked_at purchased_at play_duration"
# Features with such words.
FLAGS = "is_open subscribed paid"
COUNTS = "comment_count num_orders share_price payment_type return_days like_rate play_store order_id"
COUNTS += " total_watch_time stay_time created_at registered_at last_clicked_at video_time"


def test_columns_named_like_an_outcome_are_one_and_features_with_such_words_stay():
    label, _, rng = clicks_after(0.3, 1.0)
    flags, counts = rng.integers(0, 2, ROWS), rng.integers(0, 900, ROWS)
    rare = label & (rng.random(ROWS) < 0.02)
    for name in OUTCOMES.split():
        assert outcome(flags, label, name) and not outcome(flags, label, f"past_{name}s_7d"), name
    # A word that means other things, too.
    assert outcome(rare, label, "added_to_cart") and not outcome(rare, label, "past_added_to_carts_7d")
    few = (label > 0) & (rng.random(ROWS) < 0.03)
    rarely = np.where(few, rng.integers(1, 90_000, ROWS), 0)
    longer = np.where(label > 0, rng.integers(20, 90, ROWS), rng.integers(0, 60, ROWS))
    for name in AMOUNTS.split():
        assert outcome(rarely, label, name) and outcome(longer, label, name), name
        assert not outcome(counts, label, name), name
    for name in TIMES.split():
        assert outcome(counts, label, name), name
    for values, names in ((flags, FLAGS), (counts % 30, COUNTS)):
        assert not [name for name in names.split() if outcome(values, label, name)]


def test_outcomes_are_shown_with_what_keeps_them(tmp_path):
    label, before, rng = clicks_after(0.3, 0.5)
    columns = {
        "user": rng.integers(0, 50, ROWS).tolist(),
        "Status (mail)": np.where(before, "read", "sent").tolist(),
        "is_forward": (rng.random(ROWS) < 0.02).astype(int).tolist(),
        "click": label.tolist(),
    }
    path = write_table(tmp_path / "x.csv", columns)
    found = inferred(path)
    assert [feature["name"] for feature in found.content["features"]] == ["user"]
    why = reasons(found)
    assert (
        "--keep 'Status (mail)' keeps it" in why["Status (mail)"] and "--keep is_forward" in why["is_forward"]
    )
    assert (
        "not used, known only after the click (leak): Status (mail), is_forward; --keep COLUMN keeps one"
        in found.notes
    )
    kept = inferred(path, keep=("Status (mail)", "is_forward"))
    assert becomes(kept)["Status (mail)"] == becomes(kept)["is_forward"] == "category"
    # What is kept ranks the rows as well as anything can that does not know the label.
    assert kept.strongest[0][0] == "Status (mail)"


def test_the_strongest_columns_are_named_by_their_auc_alone():
    rng = np.random.default_rng(1)
    label = (rng.random(ROWS) < 0.2).astype(np.int8)
    columns = {
        "noise": rng.integers(0, 5, ROWS),
        "unique": np.arange(ROWS),
        "ids": rng.integers(0, 4000, ROWS),
        "strong": np.where(rng.random(ROWS) < 0.8, label, rng.integers(0, 2, ROWS)),
        "number": rng.normal(label, 1).round(3),
        "weak": rng.normal(0.6 * label, 1).round(3),
    }
    facts = {name: facts_of(values.tolist(), name) for name, values in columns.items()}
    found = strongest_columns(facts, label, np.ones(ROWS, bool))
    assert [name for name, *_ in found] == ["strong", "number", "weak"] and found[0][2] == 2
    # 0.8 + 0.2 / 2 of either class has the value of its own; Phi(1 / sqrt 2) and Phi(0.6 / sqrt 2).
    assert [auc for _, auc, _ in found] == pytest.approx([0.9, 0.760, 0.664], abs=0.03)
    few = {"number": facts_of(columns["number"][:50].tolist())}
    assert strongest_columns(few, label[:50], np.ones(50, bool)) == []


@pytest.mark.parametrize(
    ("auc", "values", "model", "suspicious"),
    [
        *((0.9, 400, None, True), (0.86, 400, 0.99, True), (0.75, 2, 0.77, True)),
        *((0.75, 400, 0.77, False), (0.75, 2, 0.85, False), (0.6, 2, 0.6, False)),
    ],
)
def test_a_column_as_strong_as_the_model_is_suspicious(auc, values, model, suspicious):
    assert is_suspicious(auc, values, model) == suspicious
    found = [{"column": "a b", "auc": auc, "suspicious": suspicious}]
    assert ("--drop 'a b'" in strongest_text(found)) == suspicious
    assert f"a b {auc:.3f}" in strongest_text(found) and strongest_text([]) == ""
    assert json.dumps(found)
