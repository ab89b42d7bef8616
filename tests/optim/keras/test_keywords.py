"""What editors, type checkers and people see of the optimizers' options."""

import dataclasses
import inspect
from typing import Unpack

from ctr.optim import AdafactorOptions, ShampooOptions
from ctr.optim.keras.keywords import AdafactorKeywords, KerasKeywords, ShampooKeywords


def test_keywords_are_the_options_and_those_of_keras(api):
    for name, keywords, options in (
        ("Shampoo", ShampooKeywords, ShampooOptions),
        ("Soap", ShampooKeywords, ShampooOptions),
        ("Adafactor", AdafactorKeywords, AdafactorOptions),
    ):
        own = {field.name for field in dataclasses.fields(options)}
        others = {*KerasKeywords.__annotations__, "num_replicas_per_group"}
        assert own <= {*keywords.__annotations__} <= own | others
        # By this editors complete them, and type checkers refuse any other.
        signature = inspect.signature(getattr(api.optim, name))
        assert signature.parameters["options"].annotation == Unpack[keywords]


def test_what_is_shown_of_an_optimizer_is_what_differs_from_the_defaults(api):
    shown = repr(api.optim.Shampoo(0.1, block_size=8, roots={"asynchronous": False}, tables=None))
    assert shown == "Shampoo(0.1, roots={'asynchronous': False}, block_size=8, tables=None)"
    changed = api.optim.Soap(grafting={"epsilon": 1e-6}, beta1=0.9)
    assert repr(changed) == "Soap(0.003, beta1=0.9, grafting={'epsilon': 1e-06})"
    assert repr(api.optim.Soap()) == "Soap(0.003)"
    schedule = api.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    assert "ExponentialDecay" in repr(api.optim.Adafactor(schedule))
