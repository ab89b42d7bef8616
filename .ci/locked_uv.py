"""Prints the version of uv that uv.lock has, with its hashes, as pip takes it: .ci/locked_uv.py | pip install -r ..."""

import tomllib
from pathlib import Path

packages = tomllib.loads(Path(__file__).resolve().parent.parent.joinpath("uv.lock").read_text())["package"]
[uv] = [package for package in packages if package["name"] == "uv"]
print(f"uv=={uv['version']}", *(f"--hash={wheel['hash']}" for wheel in uv["wheels"]))
