"""The demo: commands that train the model of "On the Factory Floor" on a simulated log, as ``ctr demo`` runs them."""

import shlex
from pathlib import Path

from ctr.io.files import check_output_folder

_COMMANDS = """
simulate --examples {examples} --out {out}/simulated --events {out}/events
ingest events {out}/events --mapping {here}/factory-floor/events.yaml --stream --drain --out {out}/log
train {out}/log --config {here}/factory-floor/teacher.yaml --record teacher --out {out}/teacher
sample {out}/log --config {here}/factory-floor/sampling.yaml --name sample
train {out}/log --config {here}/factory-floor.yaml --out {out}/student
export {out}/student --out {out}/model
score {out}/model {out}/log --out {out}/scores.parquet
train {out}/log --set model.experts=[linear] --out {out}/logistic
train {out}/log --out {out}/default
compare {out}/logistic {out}/student
compare {out}/default {out}/student
report {out}/student {out}/default {out}/logistic --out {out}/report.html
"""
"""Words after ``ctr``. The YAML files of this folder are links to those in ``examples``; a wheel has the files."""


def check_demo_folder(out: Path) -> None:
    """Raises InputError if a directory is not empty and was not written by ``ctr demo``."""
    # Every demo has this folder, because the log is written first.
    check_output_folder(out, "a demo", lambda path: (path / "simulated").is_dir())


def demo_commands(out: Path, examples: int) -> list[list[str]]:
    """Returns the arguments of each command, in order; commands skip work whose result is in ``out``."""
    values = {"out": out, "examples": examples, "here": Path(__file__).parent}
    return [[word.format(**values) for word in shlex.split(line)] for line in _COMMANDS.strip().splitlines()]
