"""Runs the commands of pages again, and fails where a number is outside of the interval that the page has for it.

    python docs/check_evidence.py [PAGE ...]

What is checked: blocks of shell commands directly above a block of text whose lines are ``NAME VALUE [LOW, HIGH]``, as
``ctr train`` prints them; the blocks of commands before these run, too. It takes minutes.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = ("evidence/results.md", "start/logs.md")
BLOCK = re.compile(r"^(<!-- not run.*-->\n)?```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.M | re.S)
NUMBER = re.compile(r"^ *(\S.*?) +(-?[\d.]+) +\[(-?[\d.]+), (-?[\d.]+)\]", re.M)


def differences(expected: str, printed: str) -> list[str]:
    """Names the numbers of a page that were not printed, or are outside of their interval now.

    >>> differences("auc  0.75  [0.74, 0.76]", "  auc  0.745  [0.73, 0.75]")
    []
    >>> differences("auc  0.75  [0.74, 0.76]", "  auc  0.70  [0.69, 0.71]")
    ['auc: 0.70 is outside of [0.74, 0.76]']
    >>> differences("auc  0.75  [0.74, 0.76]", "logloss  0.3  [0.2, 0.4]")
    ['auc: not printed']
    """
    values = {name: value for name, value, _, _ in NUMBER.findall(printed)}
    wrong = []
    for name, _, low, high in NUMBER.findall(expected):
        if name not in values:
            wrong.append(f"{name}: not printed")
        elif not float(low) <= float(values[name]) <= float(high):
            wrong.append(f"{name}: {values[name]} is outside of [{low}, {high}]")
    return wrong


def check_page(page: Path) -> list[str]:
    """Runs the commands of a page in a folder of its own, up to the last ones with numbers; returns what is wrong."""
    blocks = [(commands, text) for skip, commands, text in BLOCK.findall(page.read_text()) if not skip]
    last = max(index for index, (_, text) in enumerate(blocks) if NUMBER.search(text))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for commands, text in blocks[: last + 1]:
            command = ["bash", "-euo", "pipefail", "-c", commands]
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            wrong += [f"{page.name}: {line}" for line in differences(text, done.stdout)]
    return wrong


if __name__ == "__main__":
    here = Path(__file__).parent
    pages = [Path(name) for name in sys.argv[1:]] or [here / name for name in PAGES]
    wrong = [line for page in pages for line in check_page(page)]
    print("\n".join(wrong) or f"all numbers of {len(pages)} pages are in their intervals")
    sys.exit(bool(wrong))
