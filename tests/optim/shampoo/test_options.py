"""Options that make no sense are refused with their path, their value and what is allowed."""

import dataclasses
import math
import re

import numpy as np
import pytest

from ctr.optim.first_order.options import LAMB, SGD, AdaGrad, Adam, RMSprop
from ctr.optim.shampoo.options import Blocking, Roots, ShampooOptions

SIZE = r"(a valid integer|(greater|less) than or equal to \d+)"
SHARE = "(a (valid|finite) number|(greater|less) than .*)"
# Of each kind of option one: what is allowed at its ends, what is not beside them, and how that is said.
KINDS = [
    (ShampooOptions, "block_size", [1, 65536], [0, 65537, 8.0, "7", True, None], SIZE),
    (ShampooOptions, "beta2", [1e-9, 1], [0, 1.1, None, math.nan, "0.5", True], SHARE),
    (Blocking, "split", ["balanced", "full"], ["Full", None], "'balanced' or 'full'"),
    (Blocking, "vectors", [True, False], [1, None, "yes", np.True_], "a valid boolean"),
]


@pytest.mark.parametrize(("group", "name", "good", "bad", "allowed"), KINDS, ids=lambda one: str(one)[:30])
def test_values_at_the_ends_of_what_is_allowed(group, name, good, bad, allowed):
    for value in good:
        assert getattr(group(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            group(**{name: value})
        assert re.fullmatch(f"{name} is {re.escape(repr(value))}; allowed: {allowed}", str(caught.value))


def test_numbers_of_numpy_become_those_of_python():
    options = ShampooOptions(block_size=np.int64(8), momentum=np.float32(0.5), roots={"first": np.int32(1)})
    values = options.block_size, options.momentum, options.roots.first
    assert [(type(value), value) for value in values] == [(int, 8), (float, 0.5), (int, 1)]


# Groups.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"grafting": "sgd"}, {"grafting": SGD()}),
        ({"grafting": {"kind": "adam", "beta2": 0.9}}, {"grafting": Adam(beta2=0.9)}),
        # Without a kind it is the default with something changed.
        ({"grafting": {"norm": "none"}}, {"grafting": AdaGrad(norm="none")}),
    ],
)
def test_groups_may_be_given_as_mappings_and_as_kinds(given, expected):
    assert ShampooOptions(**given) == ShampooOptions(**expected)
    assert ShampooOptions().changed(given) == ShampooOptions(**expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "soap"}, "method is 'soap'; allowed: 'shampoo', 'diagonal' or 'eigenvalue_corrected'"),
        ({"grafting": "adamw"}, "grafting: 'adamw' is no optimizer; allowed: adagrad, sgd, rmsprop, adam, "),
        ({"roots": {"dampin": "none"}}, "unknown option roots.dampin; did you mean damping"),
        ({"roots": 3}, "roots is 3; allowed: "),
        # Of another kind.
        ({"grafting": {"beta2": 0.9}}, "unknown option grafting.adagrad.beta2; allowed: epsilon"),
        ({"blocksize": 8}, "ShampooOptions has no option 'blocksize'; did you mean block_size"),
        # Of several a line, too.
        ({"block_size": "a", "beta1": 3}, "beta1 is 3; allowed: less than 1; block_size is 'a'; allowed: a "),
    ],
)
def test_what_is_wrong_in_a_group_is_reported_with_its_path(given, message):
    for make in (lambda changes: ShampooOptions(**changes), ShampooOptions().changed):
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            make(given)


def test_a_change_leaves_all_else_as_it_is():
    options = ShampooOptions(
        block_size=8, grafting=LAMB(beta2=0.9, norm="block"), roots=Roots(drift_bound=0.5, identity=True)
    )
    assert options.changed({}) == options
    found = options.changed({"grafting": {"epsilon": 0.5}, "roots": {"first": 1}})
    assert found == dataclasses.replace(
        options,
        grafting=LAMB(beta2=0.9, norm="block", epsilon=0.5),
        roots=Roots(drift_bound=0.5, identity=True, first=1),
    )
    # Another kind begins with its defaults; its own one does not.
    assert options.changed({"grafting": "rmsprop"}).grafting == RMSprop()
    assert options.changed({"grafting": "lamb"}).grafting == options.grafting
    assert options.changed({"grafting": {"kind": "lamb"}}).grafting == options.grafting
    assert options.changed({"grafting": SGD()}).grafting == SGD()


# Together.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nesterov": True}, "nesterov requires a momentum above 0"),
        (
            {"grafting": {"momentum": "before", "norm": "block"}, "momentum": 0.9},
            "grafting.momentum before requires grafting.norm tensor",
        ),
        ({"roots": {"phase": 1}}, "roots: phase requires early_growth 0"),
        ({"roots": {"phase": 50, "early_growth": 0}}, "roots.phase must be below precondition_frequency"),
        ({"roots": {"first": 2}}, "roots.first must not be after start_preconditioning_step"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ShampooOptions(**given)
