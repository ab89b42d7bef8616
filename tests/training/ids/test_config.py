"""The configuration of growing ids."""

import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.training.ids.config import IdsConfig


def test_a_feature_may_have_a_capacity_of_its_own():
    config = parse_model(IdsConfig, {"capacity": 10, "capacities": {"user": 20}}, "here")
    assert (config.capacity_of("user"), config.capacity_of("item")) == (20, 10)
    assert IdsConfig().capacity_of("user") == 2**22


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"capacity": 0}, "here: capacity: 0 is not allowed"),
        ({"capacities": {"user": 0}}, "here: capacities.user: 0 is not allowed"),
        ({"capacities": {"a user": 5}}, "here: capacities.a user"),
        ({"shared_rows": 0}, "here: shared_rows: 0"),
        ({"admission": {"rule": "never"}}, "admission.rule: 'never' is not allowed: .*'always', 'count' or"),
        ({"admission": {"probability": 0}}, "admission.probability: 0"),
        ({"eviction": {"policy": "oldest"}}, "eviction.policy: 'oldest'"),
        ({"eviction": {"share": 1.5}}, "eviction.share: 1.5"),
        ({"eviction": {"half_life": 0}}, "eviction.half_life: 0"),
        ({"eviction": {"max_idle": "1"}}, "eviction.max_idle: '1' is not allowed: a number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(content, expected):
    with pytest.raises(InputError, match=expected) as refusal:
        parse_model(IdsConfig, content, "here")
    assert "\n" not in str(refusal.value)
