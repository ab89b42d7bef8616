"""Runs a study, a measurement of hours that a page of the documentation cites: one of ``benchmarks/studies``.

    python benchmarks/study.py NAME [--OPTION VALUE ...]

A study imports the files of ``benchmarks`` and of its own folder, and its processes do too.
"""

import os
import runpy
import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parent / "studies"


def main(arguments: list[str]) -> None:
    """Runs the study that the first word names, with the other words as its options."""
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
