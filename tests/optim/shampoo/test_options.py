"""Options that make no sense are refused with their path, their value and what is allowed."""

import dataclasses
import math

import numpy as np
import pytest

from ctr.optim.first_order.options import LAMB, SGD, AdaGrad, Adam, Graft, RMSprop
from ctr.optim.shampoo.options import Blocking, Roots, ShampooOptions

# Of each kind of option one: what is allowed at its ends, what is not beside them, and how that is said.
KINDS = [
    (
        ShampooOptions,
        "block_size",
        [1, 65536],
        [0, 65537, 8.0, "7", True, None],
        "a whole number in 1..65536",
    ),
    (ShampooOptions, "exponent_override", [1, 64, None], [0, 65], "a whole number in 1..64 or None"),
    (ShampooOptions, "beta2", [1e-9, 1], [0, 1.1, None, math.nan, "0.5", True], "(0.0, 1.0]"),
    (ShampooOptions, "momentum", [0, 0.999], [-0.1, 1], "[0.0, 1.0)"),
    (ShampooOptions, "weight_decay", [0, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
    (Roots, "drift_bound", [0, 1.0], [-0.1, 1.1], "[0.0, 1.0]"),
    (Blocking, "split", ["balanced", "full"], ["", "Full", None, 1], "balanced, full"),
    (Blocking, "vectors", [True, False], [0, 1, None, "yes", np.True_], "True, False"),
]


@pytest.mark.parametrize(("group", "name", "good", "bad", "allowed"), KINDS, ids=lambda one: str(one)[:30])
def test_values_at_the_ends_of_what_is_allowed(group, name, good, bad, allowed):
    for value in good:
        assert getattr(group(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            group(**{name: value})
        assert str(caught.value) == f"{name} is {value!r}; allowed: {allowed}"


def test_numbers_of_numpy_become_those_of_python():
    options = ShampooOptions(block_size=np.int64(8), momentum=np.float32(0.5), roots={"first": np.int32(1)})
    values = options.block_size, options.momentum, options.roots.first
    assert [(type(value), value) for value in values] == [(int, 8), (float, 0.5), (int, 1)]


# Groups.


METHODS = "shampoo, diagonal, eigenvalue_corrected"
GRAFTS = "adagrad, sgd, rmsprop, adam, lars, lamb"


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
        ({"method": "soap"}, f"method is 'soap'; allowed: {METHODS}"),
        ({"grafting": Graft()}, f"grafting is {Graft()!r}; allowed: {GRAFTS}"),
        ({"roots": {"solver": "qr"}}, "roots: solver is 'qr'; allowed: eigh, coupled"),
        ({"roots": 3}, "roots is 3; allowed: a group of keys"),
        # Of another kind.
        (
            {"grafting": {"beta2": 0.9}},
            "grafting: unknown key beta2; allowed: epsilon, initial_accumulator",
        ),
    ],
)
def test_what_is_wrong_in_a_group_is_reported_with_its_path(given, message):
    for make in (lambda given: ShampooOptions(**given), ShampooOptions().changed):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            make(given)
        assert str(caught.value).startswith(message)


def test_a_change_leaves_all_else_as_it_is():
    options = ShampooOptions(
        block_size=8,
        grafting=LAMB(beta2=0.9, norm="block"),
        roots=Roots(drift_bound=0.5, solver="coupled"),
    )
    assert options.changed({}) == options
    found = options.changed({"grafting": {"epsilon": 0.5}, "roots": {"first": 1}})
    assert found == dataclasses.replace(
        options,
        grafting=LAMB(beta2=0.9, norm="block", epsilon=0.5),
        roots=Roots(drift_bound=0.5, solver="coupled", first=1),
    )
    # Another kind begins with its defaults; its own one does not.
    assert options.changed({"grafting": "rmsprop"}).grafting == RMSprop()
    assert options.changed({"grafting": "lamb"}).grafting == options.grafting
    assert options.changed({"grafting": {"kind": "lamb"}}).grafting == options.grafting
    assert options.changed({"grafting": SGD()}).grafting == SGD()


def test_keys_that_are_left_out_are_unknown():
    options, content = ShampooOptions(), {"rows": "adagrad"}
    options.changed(content)
    with pytest.raises(ValueError, match=r"^unknown key rows; allowed: beta1, beta2, block_size, blocking, "):
        options.changed(content, ("rows",))
    assert options.changed({"roots": {"first": 1}}, ("rows",)).roots.first == 1


# Together.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nesterov": True}, "nesterov requires a momentum above 0"),
        ({"grafting": {"momentum": "before"}}, "grafting.momentum before requires a momentum above 0"),
        ({"limits": {"relative": 0.5}}, "limits: relative requires an absolute limit above 0"),
        ({"roots": {"phase": 1}}, "roots: phase requires early_growth 0"),
        ({"roots": {"phase": 50, "early_growth": 0}}, "roots.phase must be below precondition_frequency"),
        ({"roots": {"first": 2}}, "roots.first must not be after start_preconditioning_step"),
        (
            {"roots": {"solver": "coupled"}, "method": "eigenvalue_corrected"},
            "roots.solver coupled .*allowed with eigenvalue_corrected: eigh",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ShampooOptions(**given)


def test_the_last_that_go_together():
    for given in (
        {"roots": {"first": 2}, "start_preconditioning_step": 2},
        {"roots": {"phase": 49, "early_growth": 0}},
    ):
        assert ShampooOptions().changed(given) == ShampooOptions(**given)
