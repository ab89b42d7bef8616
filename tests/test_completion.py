"""`ctr completion`: what a shell completes with the script."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from ctr.cli import main, make_commands

SHELLS = ("bash", "zsh", "fish")

TRY = """
source "$1"; shift
compopt() { echo "$@"; }
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_ctr_completion ctr
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("in", ["ingest", "inspect"]),
        ("train --in", ["--init-from"]),
        ("ingest ta", ["table"]),
        ("config --kind e", ["events", "experiment"]),
        ("train log --set model.crosses.r", ["model.crosses.rank=", "model.crosses.ramp="]),
        ("sample --set non", ["non_click_rate="]),
        ("config optimizer.dense.shampoo.nes", ["optimizer.dense.shampoo.nesterov"]),
        ("completion ", list(SHELLS)),
    ],
)
def test_what_is_completed(words, completed):
    *before, begun = words.split(" ")
    items = BashComplete(make_commands(), {}, "ctr", "_CTR_COMPLETE").get_completions(before, begun)
    assert sorted(item.value for item in items) == sorted(completed)


def test_bash_asks_the_command_and_puts_no_space_behind_a_key(root, tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    program = tmp_path / "ctr"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ctr "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(root)}

    def complete(*words: str) -> list[str]:
        given = ["bash", "--norc", "-c", TRY, "bash", str(tmp_path / "script"), "ctr", *words]
        done = subprocess.run(given, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    assert complete("exp") == ["export"]
    assert complete("sample", "--set", "non") == ["-o", "nospace", "non_click_rate="]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell, capsys, tmp_path):
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == shell
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_CTR_COMPLETE={shell}_complete" in script
    path = tmp_path / "script"
    path.write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)
