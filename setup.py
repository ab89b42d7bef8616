"""Builds the package; everything it says about itself stands in pyproject.toml.

`find_packages` follows the links `ctr/models`, `ctr/optim`, `ctr/eval` and `ctr/pipelines`, so that an sdist
and a wheel hold plain folders of these names inside `ctr` and nothing of theirs at the top level.
"""

from setuptools import find_packages, setup

setup(packages=find_packages(include=["ctr", "ctr.*"]))
