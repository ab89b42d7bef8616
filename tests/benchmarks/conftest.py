"""Lets tests import the modules of benchmarks/ and of its studies, which are no packages."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "studies")]
