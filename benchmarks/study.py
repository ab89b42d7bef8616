"""Runs a study of ``benchmarks/studies``: a measurement that takes hours and that the documentation cites.

    python benchmarks/study.py NAME [--OPTION VALUE ...]

A study and its processes can import the modules of ``benchmarks`` and of its own folder.
"""

import os
import runpy
import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parent / "studies"


def main(arguments: list[str]) -> None:
    """Runs the study named by the first argument, with the other arguments as its options."""
    names = sorted(path.stem for path in STUDIES.glob("*.py") if "__main__" in path.read_text())
    if not arguments or arguments[0] not in names:
        raise SystemExit(f"usage: study.py NAME [--OPTION VALUE ...], NAME being one of {', '.join(names)}")
    sys.path.append(str(STUDIES))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STUDIES), os.environ.get("PYTHONPATH")]))
    sys.argv = [str(STUDIES / f"{arguments[0]}.py"), *arguments[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
