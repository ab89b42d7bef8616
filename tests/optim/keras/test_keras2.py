"""Shampoo in Keras 2, the Keras of the tests' process."""

import pytest

from keras_checks import CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_keras_2(name):
    CHECKS[name]()


def test_these_are_checks_of_keras_2_and_the_other_adapter_does_no_harm():
    import ctr.optim
    from ctr.optim.keras import keras2, keras3

    assert ctr.optim.Shampoo is keras2.Shampoo is not keras3.Shampoo
    assert ctr.optim.ShampooCallback is keras2.ShampooCallback
    assert len(CHECKS) > 25
