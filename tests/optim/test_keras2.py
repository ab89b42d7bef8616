"""Shampoo in Keras 2, the Keras of the tests' process."""

import runpy
from pathlib import Path

import pytest

CHECKS = runpy.run_path(str(Path(__file__).with_name("keras_checks.py")))["CHECKS"]


@pytest.mark.parametrize("name", CHECKS)
def test_keras_2(name):
    CHECKS[name]()


def test_these_are_checks_of_keras_2():
    from ctr.optim import Shampoo

    assert Shampoo.__module__ == "ctr.optim.keras2"
    assert len(CHECKS) > 25
