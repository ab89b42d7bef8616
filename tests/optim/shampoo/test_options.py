"""Options that make no sense are refused with their path, their value and what is allowed."""

import dataclasses
import math

import numpy as np
import pytest

from ctr.optim.checked import Options, groups_of
from ctr.optim.first_order.options import LAMB, SGD, AdaGrad, Adam, Graft, RMSprop, SecondMoments
from ctr.optim.shampoo.methods import KL, Diagonal, EigenvalueCorrected, OneSided, RootMethod, Shampoo
from ctr.optim.shampoo.options import (
    Blocking,
    Coupled,
    GradientAverage,
    Limits,
    Roots,
    Rows,
    ShampooOptions,
    Statistics,
)

# By group, and by what groups have in common.
WHOLE = {
    ShampooOptions: {
        "block_size": (1, 65536),
        "exponent_override": (1, 64),
        "start_preconditioning_step": (0, 2**62),
        "precondition_frequency": (1, 100_000),
    },
    Blocking: {"max_dimension": (1, 65536), "merge": (1, 2**31), "merge_until": (1, 100)},
    Statistics: {"frequency": (1, 100_000)},
    Coupled: {
        "max_iterations": (1, 10_000),
        "projected": (0, 1000),
        "most_projected": (0, 1000),
        "power_iterations": (1, 10_000),
    },
    Roots: {"first": (0, 2**62), "phase": (0, 99_999)},
    Graft: {"blend_steps": (0, 2**62)},
}
OPTIONAL = {"exponent_override", "start_preconditioning_step", "merge", "first", "phase"}
# Allowed, refused and the interval as it is reported.
DECAY = ([0, 0.5, 0.999], [-0.1, 1, 1.5], "[0.0, 1.0)")
NOT_NEGATIVE = ([0, 1e-9, 3.0], [-1e-9, math.inf], "[0.0, inf)")
SHARE = ([0, 0.5, 1], [-1e-9, 1.1], "[0.0, 1.0]")
OWN_SHARE = ([1e-9, 0.5, 0.999], [0, 1.0, -0.1], "(0.0, 1.0)")
REAL = {
    ShampooOptions: {
        "beta2": ([1e-9, 1, 1.0], [0, 0.0, -1, 1.1], "(0.0, 1.0]"),
        "epsilon": SHARE,
        "momentum": DECAY,
        "weight_decay": NOT_NEGATIVE,
    },
    Statistics: {"initial": NOT_NEGATIVE},
    Coupled: {"desired_condition": ([1, 500.0, 1e30], [0.99, math.inf], "[1.0, inf)")},
    Roots: {"drift_bound": SHARE, "early_growth": SHARE},
    RootMethod: {"exponent_multiplier": ([1e-3, 1.82, 4], [0, 4.1, -1.0], "(0.0, 4.0]")},
    Shampoo: {"left_share": OWN_SHARE},
    Diagonal: {"left_share": OWN_SHARE},
    GradientAverage: {
        "beta1": DECAY,
        "beta3": (SHARE[0], SHARE[1], "[0.0, 1.0] or None"),
        "l2": NOT_NEGATIVE,
    },
    Limits: {"rms": NOT_NEGATIVE, "relative": NOT_NEGATIVE, "absolute": NOT_NEGATIVE},
    Rows: {"initial_accumulator": (*NOT_NEGATIVE[:2], "[0.0, inf) or None")},
    AdaGrad: {"initial_accumulator": NOT_NEGATIVE, "epsilon": NOT_NEGATIVE},
    SecondMoments: {"beta2": DECAY, "epsilon": NOT_NEGATIVE},
}
WORDS = {
    Blocking: {"split": ("balanced", "full"), "merge_from": ("left", "right"), "ones": ("drop", "keep")},
    Roots: {"damping": ("relative", "absolute")},
    OneSided: {"side": ("left", "right")},
    EigenvalueCorrected: {"basis_change": ("project", "keep"), "sides": ("both", "left", "right")},
    Rows: {"rule": ("adagrad", "adagrad_row", "one_sided")},
    Graft: {"norm": ("tensor", "block", "none"), "momentum": ("after", "separate", "before")},
}
SWITCHES = {
    ShampooOptions: ("nesterov", "momentum_follows_rate"),
    Blocking: ("skip_larger", "vectors"),
    Rows: ("graft_rows",),
    Statistics: ("bias_correction",),
    Roots: ("asynchronous", "identity"),
    KL: ("divided",),
    GradientAverage: ("bias_correction",),
    AdaGrad: ("normalized",),
    SecondMoments: ("normalized",),
}
# What another option must be for a value to be allowed.
WITH = {
    "projected": {"most_projected": 1000},
    "phase": {"early_growth": 0},
    "beta3": {"beta1": 0.5},
    "relative": {"absolute": 1.0},
    "nesterov": {"momentum": 0.9},
    "momentum_follows_rate": {"momentum": 0.9},
}


def all_groups(group=ShampooOptions):
    """A group, and all those that it may have below it."""
    below = [one for name in group.names() for one in groups_of(group, name)]
    return list(dict.fromkeys([group, *(found for one in below for found in all_groups(one))]))


def of(table, group):
    """What a table has of a group, by name."""
    return {name: value for kind in table if issubclass(group, kind) for name, value in table[kind].items()}


def refusal(group, name, value):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        group(**WITH.get(name, {}) | {name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is {value!r}; allowed: "), message
    return message.partition("allowed: ")[2]


def kept(group, name, value):
    return getattr(group(**{name: value} | WITH.get(name, {})), name)


groups = pytest.mark.parametrize("group", all_groups(), ids=lambda group: group.__name__)


@groups
def test_every_option_is_looked_at_here(group):
    switches = [name for kind, names in SWITCHES.items() if issubclass(group, kind) for name in names]
    values = [name for name in group.names() if name != "kind" and not groups_of(group, name)]
    assert sorted([*of(WHOLE, group), *of(REAL, group), *of(WORDS, group), *switches]) == sorted(values)


@groups
def test_whole_numbers_in_their_range(group):
    for name, (low, high) in of(WHOLE, group).items():
        assert [kept(group, name, value) for value in (low, high)] == [low, high]
        bad = [low - 1, high + 1, float(high), "7", True, math.nan]
        if name in OPTIONAL:
            assert kept(group, name, None) is None
        else:
            bad.append(None)
        for value in bad:
            allowed = f"a whole number in {low}..{high}" + (" or None" if name in OPTIONAL else "")
            assert refusal(group, name, value) == allowed


@groups
def test_real_numbers_in_their_interval(group):
    for name, (good, bad, interval) in of(REAL, group).items():
        assert [kept(group, name, value) for value in good] == good
        if interval.endswith("None"):
            assert kept(group, name, None) is None
        nothing = () if interval.endswith("None") else (None,)
        for value in [*bad, math.nan, -math.inf, True, *nothing, "0.5"]:
            assert refusal(group, name, value) == interval


@groups
def test_words_from_their_list(group):
    words = of(WORDS, group)
    if hasattr(group, "kind"):
        words["kind"] = (group.kind,)
    for name, allowed in words.items():
        assert [kept(group, name, value) for value in allowed] == list(allowed)
        for value in ("", "Adagrad", None, 1):
            assert refusal(group, name, value) == ", ".join(allowed)


@groups
def test_switches_take_true_and_false_alone(group):
    for name in (name for kind, names in SWITCHES.items() if issubclass(group, kind) for name in names):
        for value in (0, 1, None, "yes", np.True_):
            assert refusal(group, name, value) == "True, False"
        assert [kept(group, name, value) for value in (True, False)] == [True, False]


def test_numbers_of_numpy_become_those_of_python():
    options = ShampooOptions(block_size=np.int64(8), momentum=np.float32(0.5), roots={"first": np.int32(1)})
    values = options.block_size, options.momentum, options.roots.first
    assert [(type(value), value) for value in values] == [(int, 8), (float, 0.5), (int, 1)]


# Groups.


METHODS = "shampoo, diagonal, one_sided, kl, eigenvalue_corrected"
GRAFTS = "adagrad, sgd, rmsprop, adam, sign, lars, lamb"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"grafting": "sgd"}, {"grafting": SGD()}),
        ({"grafting": {"kind": "adam", "beta2": 0.9}}, {"grafting": Adam(beta2=0.9)}),
        # Without a kind it is the default with something changed.
        ({"grafting": {"norm": "none"}}, {"grafting": AdaGrad(norm="none")}),
        ({"grafting": {}}, {}),
        (
            {"method": {"kind": "eigenvalue_corrected", "sides": "left"}},
            {"method": EigenvalueCorrected(sides="left")},
        ),
        ({"method": {"left_share": 0.25}}, {"method": Shampoo(left_share=0.25)}),
        ({"blocking": {"merge": 64}}, {"blocking": Blocking(merge=64)}),
        ({"roots": {"solver": "coupled"}}, {"roots": Roots(solver=Coupled())}),
        (
            {"roots": {"asynchronous": False, "solver": {"kind": "coupled", "max_iterations": 7}}},
            {"roots": Roots(asynchronous=False, solver=Coupled(max_iterations=7))},
        ),
    ],
)
def test_groups_may_be_given_as_mappings_and_as_kinds(given, expected):
    assert ShampooOptions(**given) == ShampooOptions(**expected)
    assert ShampooOptions().changed(given) == ShampooOptions(**expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "soap"}, f"method is 'soap'; allowed: {METHODS}"),
        ({"method": {"kind": "soap"}}, f"method is {{'kind': 'soap'}}; allowed: {METHODS}"),
        ({"method": Adam()}, f"method is {Adam()!r}; allowed: {METHODS}"),
        ({"method": None}, f"method is None; allowed: {METHODS}"),
        ({"grafting": 1}, f"grafting is 1; allowed: {GRAFTS}"),
        ({"grafting": Graft()}, f"grafting is {Graft()!r}; allowed: {GRAFTS}"),
        ({"roots": {"solver": "qr"}}, "roots: solver is 'qr'; allowed: eigh, coupled"),
        ({"roots": 3}, "roots is 3; allowed: a group of keys"),
        ({"roots": "fast"}, "roots is 'fast'; allowed: a group of keys"),
        ({"roots": Blocking()}, f"roots is {Blocking()!r}; allowed: a group of keys"),
        (
            {"blocking": {"merge": 0}},
            "blocking: merge is 0; allowed: a whole number in 1..2147483648 or None",
        ),
        (
            {"roots": {"solver": {"kind": "coupled", "projected": -1}}},
            "roots: solver: projected is -1; allowed: a whole number in 0..1000",
        ),
        (
            {"statistics": {"every": 3}},
            "statistics: unknown key every; allowed: bias_correction, frequency, initial",
        ),
        # Of another kind.
        (
            {"grafting": {"kind": "lamb", "initial_accumulator": 0.1}},
            "grafting: unknown key initial_accumulator; allowed: "
            "beta2, blend_steps, epsilon, momentum, norm, normalized",
        ),
        (
            {"grafting": {"beta2": 0.9}},
            "grafting: unknown key beta2; allowed: blend_steps, epsilon, initial_",
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
        roots=Roots(drift_bound=0.5, solver=Coupled(projected=3)),
    )
    assert options.changed({}) == options
    found = options.changed({"grafting": {"epsilon": 0.5}, "roots": {"solver": {"max_iterations": 9}}})
    assert found == dataclasses.replace(
        options,
        grafting=LAMB(beta2=0.9, norm="block", epsilon=0.5),
        roots=Roots(drift_bound=0.5, solver=Coupled(projected=3, max_iterations=9)),
    )
    # Another kind begins with its defaults; its own one does not.
    assert options.changed({"grafting": "rmsprop"}).grafting == RMSprop()
    assert options.changed({"grafting": "lamb"}).grafting == options.grafting
    assert options.changed({"grafting": {"kind": "lamb"}}).grafting == options.grafting
    assert options.changed({"grafting": SGD()}).grafting == SGD()


def test_keys_that_are_left_out_are_unknown():
    options = ShampooOptions()
    without = ("rows", "roots.asynchronous", "roots.solver.projected")
    for content, message in (
        ({"rows": {"rule": "adagrad"}}, "unknown key rows; allowed: beta2, block_size, blocking, epsilon"),
        ({"roots": {"asynchronous": True}}, "roots: unknown key asynchronous; allowed: damping, drift_bound"),
        (
            {"roots": {"solver": {"kind": "coupled", "projected": 1}}},
            "roots: solver: unknown key projected; allowed: desired_condition, max_iterations",
        ),
    ):
        assert isinstance(options.changed(content), Options)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            options.changed(content, without)
        assert str(caught.value).startswith(message)
    assert options.changed({"roots": {"first": 1}}, without).roots.first == 1
    with pytest.raises(ValueError, match="unknown key foo; allowed: beta2, block_size"):
        options.changed({"foo": 1})


# Together.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nesterov": True}, "nesterov requires a momentum above 0"),
        ({"momentum_follows_rate": True}, "momentum_follows_rate requires a momentum above 0"),
        ({"grafting": {"momentum": "separate"}}, "grafting.momentum separate requires a momentum above 0"),
        ({"grafting": {"momentum": "before"}}, "grafting.momentum before requires a momentum above 0"),
        ({"gradient": {"beta3": 0.5}}, "gradient: beta3 requires a beta1 above 0"),
        ({"limits": {"relative": 0.5}}, "limits: relative requires an absolute limit above 0"),
        ({"roots": {"phase": 1}}, "roots: phase requires early_growth 0"),
        ({"roots": {"phase": 50, "early_growth": 0}}, "roots.phase must be below precondition_frequency"),
        ({"roots": {"first": 2}}, "roots.first must not be after start_preconditioning_step"),
        (
            {"method": {"left_share": 0.75}, "exponent_override": 1},
            r"method.left_share is 0.75: roots A\^\(-1.5\); allowed: exponents of at most 1",
        ),
        ({"method": {"kind": "diagonal", "left_share": 0.25}, "exponent_override": 1}, "left_share is 0.25"),
        (
            {"method": {"exponent_multiplier": 3.0}, "exponent_override": 2},
            r"exponent_multiplier is 3.0 and exponent_override is 2: roots A\^\(-1.5\).*at most 1",
        ),
        *(
            ({"roots": {"solver": "coupled"}, "method": method}, "roots.solver coupled .*allowed: eigh")
            for method in (
                "eigenvalue_corrected",
                {"left_share": 0.25},
                {"kind": "diagonal", "left_share": 0.25},
                {"exponent_multiplier": 1.82},
                {"kind": "kl", "exponent_multiplier": 0.5},
            )
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ShampooOptions(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"roots": {"first": 2}, "start_preconditioning_step": None},
        {"roots": {"first": 2}, "start_preconditioning_step": 2},
        {"roots": {"phase": 49, "early_growth": 0}},
        {"roots": {"solver": "coupled"}, "method": "kl"},
        {"roots": {"solver": "coupled"}, "method": {"kind": "one_sided", "side": "left"}},
        {"grafting": {"momentum": "before"}, "momentum": 0.9},
        {"epsilon": 0.0, "roots": {"damping": "absolute"}},
    ],
)
def test_others_go_together(given):
    assert ShampooOptions().changed(given) == ShampooOptions(**given)


def test_settings_do_not_change_once_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ShampooOptions().epsilon = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        ShampooOptions().roots.first = 3


# Exponents.


def test_two_sides_share_the_sum_of_their_exponents():
    for method in (Shampoo(left_share=0.25), Diagonal(left_share=0.25)):
        options = ShampooOptions(method=method)
        assert [options.side_exponent(axis, 2, 2) for axis in (0, 1)] == [1 / 8, 3 / 8]
        # A single side, and tensors of another order, have the exponents of all.
        assert options.side_exponent(0, 1, 2) == 1 / 2
        assert options.side_exponent(1, 3, 3) == 1 / 6
        assert not options.has_whole_roots
    assert ShampooOptions(method=OneSided()).has_whole_roots


def test_the_coupled_solver_computes_roots_of_any_whole_order():
    options = ShampooOptions(roots=Roots(solver=Coupled()), exponent_override=3)
    assert options.exponent(2) == 1 / 3


@pytest.mark.parametrize(
    ("override", "multiplier", "exponents"),
    [
        (None, 1.0, [1 / 2, 1 / 4, 1 / 6, 1 / 8]),
        (2, 1.0, [1 / 2, 1 / 2, 1 / 2, 1 / 2]),
        (None, 1.5, [3 / 4, 3 / 8, 1 / 4, 3 / 16]),
        (3, 0.75, [1 / 4] * 4),
    ],
)
def test_exponents_by_number_of_preconditioned_sides(override, multiplier, exponents):
    options = ShampooOptions(exponent_override=override, method=Shampoo(exponent_multiplier=multiplier))
    assert [options.exponent(sides) for sides in (1, 2, 3, 4)] == pytest.approx(exponents, rel=1e-15)


def test_an_exponent_above_one_has_no_certified_root_and_is_refused():
    options = ShampooOptions(method=Shampoo(exponent_multiplier=3.0))
    assert options.exponent(2) == 0.75
    with pytest.raises(ValueError, match=r"exponent_multiplier.*3\.0.*at most 1"):
        options.exponent(1)


def test_square_roots_are_the_default_of_kl_shampoo():
    assert [ShampooOptions(method=KL()).exponent(sides) for sides in (2, 3)] == [0.5, 0.5]
    assert ShampooOptions(method=KL(), exponent_override=4).exponent(2) == 0.25
    assert ShampooOptions(method=KL(divided=False)).exponent(2) == 0.25


def test_second_moments_have_an_exponent_of_their_own():
    corrected = ShampooOptions(method=EigenvalueCorrected())
    assert corrected.correction_exponent == 1 / 2
    assert dataclasses.replace(corrected, exponent_override=3).correction_exponent == 1 / 3
