"""`ctr completion`: what a shell completes with the script."""

import json
import shutil
import subprocess

import pytest

from ctr.cli import main, make_parser
from ctr.cli_parser import CONFIGS, SHELLS, completion_script, config_keys

TRY = """
source "$1"; shift
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_ctr
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """What bash makes of words, the last of which is being typed."""
    folder = tmp_path_factory.mktemp("completion")
    script = folder / "ctr.bash"
    script.write_text(completion_script(make_parser(), "bash"))
    (folder / "logs").mkdir()
    (folder / "logs.yaml").touch()

    def run(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", TRY, "bash", str(script), "ctr", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return run


def test_what_is_completed(complete):
    for words, found in (
        ("in", ["ingest", "inspect"]),
        ("train --in", ["--init-from"]),
        ("-q train log --fol", ["--follow"]),
        ("config --kind e", ["events", "experiment"]),
        ("inspect log", ["logs", "logs.yaml"]),
        ("train logs --config log", ["logs", "logs.yaml"]),
        ("train log --set model.crosses.r", ["model.crosses.rank=", "model.crosses.ramp="]),
        ("sample --set non", ["non_click_rate="]),
        ("search --set tar", ["target="]),
        ("config optimizer.dense.shampoo.nes", ["optimizer.dense.shampoo.nesterov"]),
    ):
        assert sorted(complete(*words.split())) == sorted(found)
    assert {"train", "config", "completion"} < set(complete("")) and complete("completion", "") == list(
        SHELLS
    )
    for kind in CONFIGS:
        keys = config_keys(kind)
        assert keys and not any("[" in key or "NAME" in key for key in keys)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell, capsys, tmp_path):
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == shell
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "model.crosses.ramp=" in script and "inspect" in script
    path = tmp_path / "script"
    path.write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)
