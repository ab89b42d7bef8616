"""Broken inputs for every parser: a few that are the same every time, and others for as long as one likes."""

import os
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import config_targets
import input_targets
import run_targets
from mutate import mutate

from ctr.io.errors import InputError

TARGETS = {**config_targets.TARGETS, **input_targets.TARGETS, **run_targets.TARGETS}
EXECUTIONS = int(os.environ.get("CTR_FUZZ_EXECUTIONS", "8"))
SEED = os.environ.get("CTR_FUZZ_SEED", "1")
MEMORY = 8 << 30

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + EXECUTIONS)]


@pytest.fixture(autouse=True)
def limited_memory() -> Iterator[None]:
    """What a parser takes beyond ``MEMORY`` fails."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", TARGETS)
def test_no_parser_fails_in_another_way_than_it_should(name, tmp_path, monkeypatch):
    """The input that failed, or ended the process, is the file ``current`` of the folder."""
    target, folder = TARGETS[name], tmp_path / "parsed"
    folder.mkdir()
    seeds = target.prepare(folder)
    # Relative paths in mutated files stay in here.
    monkeypatch.chdir(folder)
    target.parse(folder, seeds[0])
    for number in range(EXECUTIONS):
        content = mutate(random.Random(f"{name} {SEED} {number}"), target.form, seeds)
        (tmp_path / "current").write_bytes(content)
        try:
            target.parse(folder, content)
        except (InputError, OSError) as error:
            # The command line says errors of the system in one line, too.
            if not str(error).strip() or (isinstance(error, OSError) and error.errno is None):
                raise
