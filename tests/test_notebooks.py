"""The notebooks run from the first cell to the last in a new process."""

import json

import pytest


@pytest.mark.soak
def test_one_pass_and_one_comparison(root, fresh_python, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    content = json.loads((root / "examples" / "notebooks" / "one_pass.ipynb").read_text())
    assert not any(cell.get("outputs") for cell in content["cells"])
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    printed = fresh_python("-c", "\n".join(cells), cwd=tmp_path, path=root).stdout
    verdicts = {line.split()[0]: line.split()[-1] for line in printed.splitlines() if line}
    assert verdicts["PerQueryAUC"] == verdicts["logloss"] == "better"
