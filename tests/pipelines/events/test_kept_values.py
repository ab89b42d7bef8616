"""Dictionaries of the values of events: those of the published examples, in the same bytes however the events came."""

from typing import Any

import event_files
from ctr.data.kept_values import FOLDER, read_values
from ctr.data.log import read_manifests
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import ingest_events, watch_events
from log_files import ids_of_rows

FEATURES = [
    {"name": "own", "kind": "category", "source": "color"},
    {"name": "labels", "kind": "category", "source": "tags", "multivalent": True, "max_values": 3},
    *event_files.FEATURES,
    {"name": "own_labels", "kind": "cross", "of": ["own", "labels"]},
]
KEPT = ("own", "labels", "own_labels")
DRAIN = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0, drain=True)


def values_of(event: dict[str, Any]) -> dict[str, list[str]]:
    """What the ids of an event stand for, in plain Python."""
    color, tags = event["color"], (event["tags"] or [])[:3]
    return {
        "own": [color] if color else [],
        "labels": tags,
        "own_labels": [f"{color or 'missing'} x {tag}" for tag in tags],
    }


def test_values_are_those_of_the_events(tmp_path):
    events, log = event_files.draw_events(150), tmp_path / "log"
    folder = event_files.write_events(tmp_path / "events", events)
    mapping = event_files.mapping(features=FEATURES, keep_values=KEPT)
    ingest_events(mapping, [folder], log, max_reject_share=0)
    ids = ids_of_rows(log)
    assert len(ids) > 100
    kept = read_values(log, {name: {number for row in ids.values() for number in row[name]} for name in KEPT})
    for example, row in ids.items():
        # Of the impressions with one id the first one stays, unless it came too late.
        shown = [event for event in events["impressions"] if event["impression_id"] == example]
        values = {name: [kept[name][number] for number in row[name]] for name in KEPT}
        assert values in [values_of(event) for event in shown]


def test_every_driver_gives_the_same_values_in_any_order(tmp_path):
    """With one bucket all colors have the same id, so that impressions that differ in it are copies of each other."""
    feature = {"name": "color", "kind": "category", "source": "color", "buckets": 2}
    mapping = event_files.mapping(features=[feature], keep_values=["color"], delay="60s")
    colors = ["red", "blue", "green", "red", "cyan"]
    shown = [
        event_files.impression(number % 7, 3.0 * (number % 7), 40.0, color=colors[(number * 3) % 5])
        for number in range(20)
    ]
    clicks = [event_files.click(1, 5.0)]
    files = event_files.encode_files({"impressions": shown[::-1], "clicks": clicks}, 2)
    folder = event_files.write_files(tmp_path / "in", files)
    ingest_events(mapping, [folder], tmp_path / "batch", max_reject_share=0)
    watch_events(mapping, [folder], tmp_path / "watch", DRAIN, lambda: False)
    steps = [
        event_files.raw(kind, *events, made=mapping)
        for kind, events in (("impressions", shown[:9]), ("clicks", clicks), ("impressions", shown[9:]))
    ]
    event_files.run_stream(tmp_path / "stream", steps, mapping)
    first, *others = (event_files.published(tmp_path / name) for name in ("batch", "watch", "stream"))
    assert others == [first] * 2
    assert sum(name.startswith(f"{FOLDER}/") for name in first) == 1
    # Of each impression the first value in the order of the alphabet: of what arrived at one time, no other is earlier.
    firsts = {min(event["color"] for event in shown if event["impression_id"] == one) for one in range(7)}
    assert read_values(tmp_path / "batch", {"color": [1]}) == {"color": {1: min(firsts)}}
    [manifest] = [one for one in read_manifests(tmp_path / "batch") if one.rows]
    assert manifest.values is not None
