"""What editors, type checkers and people see of the optimizers' options."""

import dataclasses
import subprocess
import sys

import pytest

from ctr.optim import AdafactorOptions, ShampooOptions
from ctr.optim.keras.keywords import AdafactorKeywords, KerasKeywords, ShampooKeywords

TYPED = """
from ctr.optim import Adafactor, Shampoo, Soap

reveal_type(Shampoo(0.1, block_size=4, grafting="adam", roots={"first": 1}, clipnorm=1.0))
reveal_type(Soap())
Shampoo(learningrate=0.1)
Adafactor(beta1="0.5")
"""


def test_keywords_are_the_options_and_those_of_keras():
    for keywords, options in ((ShampooKeywords, ShampooOptions), (AdafactorKeywords, AdafactorOptions)):
        own = {field.name for field in dataclasses.fields(options)}
        others = {*KerasKeywords.__annotations__, "num_replicas_per_group"}
        assert own <= {*keywords.__annotations__} <= own | others


def test_what_is_shown_of_an_optimizer_is_what_differs_from_the_defaults(api):
    shown = repr(api.optim.Shampoo(0.1, block_size=8, roots={"asynchronous": False}, tables=None))
    assert shown == "Shampoo(0.1, roots={'asynchronous': False}, block_size=8, tables=None)"
    changed = api.optim.Soap(grafting={"epsilon": 1e-6}, beta1=0.9)
    assert repr(changed) == "Soap(0.003, beta1=0.9, grafting={'epsilon': 1e-06})"
    assert repr(api.optim.Soap()) == "Soap(0.003)"
    schedule = api.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    assert "ExponentialDecay" in repr(api.optim.Adafactor(schedule))


@pytest.mark.slow
def test_a_type_checker_knows_the_classes_and_their_keywords(root, tmp_path):
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", path]
    lines = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.splitlines()
    errors = [line.partition(".py:")[2] for line in lines if ": error: " in line]
    revealed = [line.partition('type is "')[2].rstrip('"') for line in lines if "Revealed type" in line]
    assert revealed == ["ctr.optim.keras.keras3.Shampoo", "ctr.optim.keras.keras3.Soap"]
    assert [line.partition(":")[0] for line in errors] == ["6", "7"]
    assert 'did you mean "learning_rate"?' in errors[0]
