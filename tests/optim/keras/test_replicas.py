"""Shampoo in either Keras under tf.distribute: the steps of one replica on the whole batch, the same bits on all."""

import json

import numpy as np
import pytest

from worker_group import Group, run_group

KERAS = {"keras3": {"TF_USE_LEGACY_KERAS": "0"}, "keras2": {"TF_USE_LEGACY_KERAS": "1"}}


def run(size, folder, function, version, **arguments):
    """The arrays that a function of keras_replicas returns in each of several processes."""
    call = json.dumps({"function": function, **arguments})
    group = Group(size, [call, str(folder)], folder, "keras_replicas.py", KERAS[version], is_cluster=True)
    run_group(group)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]


def named(found, key):
    """What comes after a key and a bar."""
    own = {name.removeprefix(f"{key}|"): one for name, one in found.items() if name.startswith(f"{key}|")}
    assert own, key
    return own


def assert_agree(found, one, bits=False, exact=1e-12):
    """Whether what training came to is the same: to rounding, or in all bits."""
    assert found["same"] and one["same"]
    assert one["report|layers_ready"] == one["report|layers"] > 0
    compared = 0
    for name, value in one.items():
        if bits and not name.startswith("report|"):
            assert found[name].tobytes() == value.tobytes(), name
        elif name.startswith("weight") or (name.startswith("report|") and name != "report|residual_max"):
            rtol = 1e-9 if name == "report|condition_max" else 0  # It may be in the thousands.
            np.testing.assert_allclose(found[name], value, rtol=rtol, atol=exact, err_msg=name)
        compared += name.startswith("weight")
    assert compared == 7


@pytest.fixture(scope="module", params=KERAS)
def in_one_process(request, tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("replicas"), {}
    for count in (2, 1, 4) if request.param == "keras2" else (2, 1):
        given = {"saves": str(folder / "saved"), "count": count}
        found |= run(1, folder / str(count), "one_process", request.param, **given)[0]
    return request.param, found


@pytest.mark.slow(first=1)
def test_replicas_that_divide_blocks_take_the_steps_of_one_also_from_what_others_saved(in_one_process):
    version, found = in_one_process
    one = named(found, "averages|1")
    assert one["report|nonfinite_steps"] == 1
    for how in ["2", "eager", *(["4 by 2"] if version == "keras2" else [])]:
        assert_agree(named(found, f"averages|{how}"), one)
    two = named(found, "averages|2")
    for way in ("checkpoint", "keras"):
        assert_agree(named(found, f"averages|2 from 2 by {way}"), two, bits=True)
    assert_agree(named(found, "averages|1 from 2 by checkpoint"), two)


@pytest.mark.slow(first=1)
def test_fit_on_two_replicas_takes_the_steps_of_one_and_computes_each_root_once(in_one_process):
    version, found = in_one_process
    for case in ["clipped"] if version == "keras3" else ["clipped", "averages in place"]:
        one, two = (named(found, f"{case}|fit {count}") for count in (1, 2))
        assert_agree(two, one, exact=1e-10)
        assert one["report|refreshed"] > 0
        if case == "clipped":  # Factors of one-sided tables are with each replica.
            assert two["computed"] == one["computed"] >= one["report|refreshed"]


@pytest.mark.slow(first=1)
def test_what_several_replicas_do_not_do_is_refused(in_one_process):
    version, found = in_one_process
    expected = {
        "jit_compile": "Shampoo on 2 replicas cannot be compiled by XLA; train without jit_compile=True",
        "elsewhere": "has 2 replicas, and Shampoo was built for 1",
        "groups": "ValueError: num_replicas_per_group is 3 under a tf.distribute strategy of 2 replicas; allowed: "
        "a number that divides that of the replicas, or None",
    }
    if version == "keras3":
        options = {
            "accumulation": "gradient_accumulation_steps",
            "averages in place": "ema_overwrite_frequency",
        }
        for name, option in options.items():
            expected[name] = f"RuntimeError: {option} does not work in Keras 3 under a tf.distribute strategy"
    for name, words in expected.items():
        assert words in found[f"refused|{name}"].item(), name


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("version", list(KERAS)[::-1])
def test_processes_divide_blocks_and_go_on_from_what_they_saved(version, tmp_path):
    # All write the same files, each to a folder of its own.
    saved = str(tmp_path / "saved")
    found = run(2, tmp_path / "two", "processes", version, saves=saved)
    (one,) = run(1, tmp_path / "one", "alone", version, saves=saved)
    for rank in found:
        whole = named(rank, "whole")
        assert_agree(whole, named(one, "whole"))
        for name in (name for name in whole if name.startswith("weight")):
            assert whole[name].tobytes() == found[0][f"whole|{name}"].tobytes(), name
        for way in ("checkpoint", "keras"):
            assert_agree(named(rank, f"by {way}"), whole, bits=True)
            assert_agree(named(one, f"by {way}"), whole)
        if version == "keras2":
            assert_agree(named(rank, "fit"), named(one, "fit"), exact=1e-10)
        else:
            # In Keras 3.15 and TensorFlow 2.21, whatever the optimizer: Keras reduces a batch outside any replica,
            # before it builds the model. Where this fails, `fit` works, and the guide is to say so.
            message = rank["refused|fit"].item()
            assert "PerReplica" in message and "to a Tensor" in message
    if version == "keras2":
        computed = sum(rank["fit|computed"] for rank in found)
        assert computed == one["fit|computed"] >= one["fit|report|refreshed"] > 0
