"""Any value of any key of a file is taken, or refused in words of ours.

    REFUSALS=refusals.json pytest tests/config/test_refusals.py

Where the file is missing, it is written: what becomes of each value of each key. Where it is there, every value must be
taken or refused as it says, in the same words. So two versions are compared.
"""

import copy
import hashlib
import json
import os
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from ctr.config import dump_yaml, parse_model
from ctr.config.kinds import CONFIGS, config_model
from ctr.config.schema import settable_keys
from ctr.data.event_mapping import LabelSource
from ctr.io.errors import InputError, one_line

pytestmark = pytest.mark.slow

REFUSALS = os.environ.get("REFUSALS")
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 0.5, -0.5, 5.0, -0.0, 64, 1e-3, 1e300),
    *(2**63, 2**1024, float("inf"), float("nan")),
    *("", "5", "true", "abc", "1e-3", "s3://bucket/x", "a.b", "1h", "2024-01-01", "2024-01-01T00:00:00Z"),
    *(date(2024, 1, 1), datetime(2024, 1, 1), "warmup 100", "line\nbreak"),
    *([], [1], ["a"], [True], ["5"], [1, "a"], [[1]], [64, 32]),
    *({}, {"a": 1}, {"a": {"b": 2}}, {"kind": "x"}, {"kind": []}, {"type": "x"}, {"rule": {}}),
]
CLICKS = {
    "input": {"type": "jsonl"},
    "time": {"column": "t", "unit": "ms"},
    "arrival": {"column": "a", "unit": "ms"},
    "impression_id": "id",
}
FEATURES = [{"name": "u", "kind": "category", "source": "u"}]
# What else a file needs.
CONTENTS: dict[str, dict[str, Any]] = {
    "train": {},
    "mapping": {
        "input": {"type": "csv"},
        "time": {"column": "t", "unit": "s"},
        "query": {"session": {"by": "u", "gap": "30m"}},
        "label": {"column": "c"},
        "partition": "7d",
        "features": FEATURES,
    },
    "events": {
        "impressions": {**CLICKS, "query_id": "q"},
        "clicks": CLICKS,
        **{"partition": "1h", "click_window": "30m", "delay": "10m", "features": FEATURES},
    },
    "sampling": {},
    "simulator": {"days": 2},
    "experiment": {"arms": {"a": {}, "b": {"set": {"model.prior": 0.2}}}},
    "search": {"space": {"model.deep.units.0": [32, 64]}},
}


def outcome(model: Any, content: dict[str, Any], key: str, value: Any) -> str:
    """What becomes of a value: the hash of the file that it makes, or the refusal."""
    content = copy.deepcopy(content)
    *above, last = key.split(".")
    node = content
    for name in above:
        below = node.get(name)
        node[name] = below if isinstance(below, dict) else {}
        node = node[name]
    node[last] = value
    try:
        text = dump_yaml(parse_model(model, content, "FILE"))
    except InputError as error:
        return one_line(error)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_value_is_taken_or_refused(kind):
    model, content = config_model(kind), CONTENTS[kind]
    parse_model(model, content, "FILE")
    keys = settable_keys(model)
    if kind == "events":
        content = {**content, "labels": {"sale": {**content["clicks"], "window": "3d"}}}
        keys = [*keys, *(f"labels.sale.{key}" for key in settable_keys(LabelSource))]
    pairs = [(key, value) for key in keys for value in VALUES]
    found = {f"{kind} {key} {value!r}"[:200]: outcome(model, content, key, value) for key, value in pairs}
    assert all(one.startswith("FILE: ") or " " not in one for one in found.values())
    unknown = outcome(model, content, "no_such_key", 1)
    assert "no_such_key: unknown key; allowed: " in unknown
    taken = sum(" " not in one for one in found.values())
    assert len(keys) < taken < len(found) / 2
    if REFUSALS:
        path = Path(REFUSALS)
        known = json.loads(path.read_text()) if path.exists() else {}
        assert {key: known.get(key, own) for key, own in found.items()} == found
        path.write_text(json.dumps({**found, **known}, indent=0))
