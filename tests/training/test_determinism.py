"""The same seed gives the same bits in another process, however many threads read and whatever order sets have."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import growing_logs
from ctr.data.log import read_manifests
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from small_runs import write_teacher

# Arrow computes on as many threads as OMP's variable says; sets of texts have the order of the hash seed.
VARIABLES = [
    {
        "PYTHONHASHSEED": seed,
        **dict.fromkeys(("OMP_NUM_THREADS", "ARROW_IO_THREADS", "OPENBLAS_NUM_THREADS"), threads),
    }
    for seed, threads in (("0", "1"), ("4242", "7"))
]
TRAIN = """
import json, sys
from pathlib import Path
import pyarrow as pa
from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train
given = json.load(sys.stdin)
assert pa.cpu_count() == given["threads"] and pa.io_thread_count() == given["threads"]
train(Path(given["log"]), parse_model(TrainConfig, given["config"], "test"), Path(given["run"]))
"""
INGEST = """
import json, sys
from pathlib import Path
import pyarrow as pa
from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.pipelines.ingest.run import ingest
given = json.load(sys.stdin)
assert pa.cpu_count() == given["threads"] and pa.io_thread_count() == given["threads"]
ingest(
    parse_model(Mapping, given["mapping"], "test"), [Path(path) for path in given["inputs"]], Path(given["log"]),
    block_bytes=3000,
)
"""


def run_script(script: str, root: Path, variables: dict[str, str], given: dict[str, Any]) -> None:
    environment = {**os.environ, **variables}
    threads = int(variables["OMP_NUM_THREADS"])
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env=environment,
        input=json.dumps({**given, "threads": threads}),
        text=True,
        check=True,
        timeout=300,
    )


def log_bytes(log: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(log)): path.read_bytes() for path in sorted(log.rglob("*")) if path.is_file()
    }


@pytest.mark.slow
def test_an_ingest_gives_the_bytes_of_any_other(root: Path, tmp_path: Path) -> None:
    """Several files, a column each of numbers, texts, lists and crosses, and rows that are refused."""
    rng = np.random.default_rng(5)
    for number in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        lines = [
            {
                "time": int(rng.integers(0, 4 * 3600)) if row != 60 + number else "no time",
                "user": f"u{rng.integers(0, 40)}",
                "item": f"i{rng.integers(0, 90)}",
                "tags": [f"t{tag}" for tag in rng.integers(0, 9, rng.integers(0, 5))],
                "price": float(rng.random()),
                "click": int(rng.random() < 0.2),
            }
            for row in range(200)
        ]
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mapping = {
        "input": {"type": "jsonl"},
        "time": {"column": "time", "unit": "s"},
        "query": {"session": {"by": "user", "gap": "600s"}},
        "label": "click == 1",
        "partition": "1h",
        "features": [
            {"name": "user", "kind": "category", "source": "user", "buckets": 50},
            {"name": "item", "kind": "category", "source": "item", "buckets": 60},
            {"name": "price", "kind": "number", "source": "price", "boundaries": [0.2, 0.5]},
            {"name": "tags", "kind": "category", "source": "tags", "buckets": 7, "multivalent": True},
            {"name": "both", "kind": "cross", "of": ["user", "tags"], "buckets": 90},
        ],
    }
    for number, variables in enumerate(VARIABLES):
        given = {
            "mapping": mapping,
            "inputs": [str(tmp_path / "in")],
            "log": str(tmp_path / f"log{number}"),
        }
        run_script(INGEST, root, variables, given)
    assert sum(manifest.rows for manifest in read_manifests(tmp_path / "log0")) > 500
    assert log_bytes(tmp_path / "log1") == log_bytes(tmp_path / "log0")


@pytest.mark.slow
def test_a_run_gives_the_bits_of_any_other(
    root: Path, growing: Any, exposure: Any, make_config: Any, tmp_path: Path
) -> None:
    """Shampoo's roots, a teacher, a sample, pairs drawn from a query, two constraint families and faulty rows."""
    log = growing.grow(3)
    exposure.grow(3)
    write_teacher(log, "teacher", np.sin)
    write_decisions(log, "part", SamplingConfig(non_click_rate=0.5, salt="test"))
    changes = {
        **growing_logs.ROOTS,
        # From this size of a matrix on, more threads of BLAS would give its roots other bits.
        "model": {"deep": {"units": [256]}},
        "sampling": {"name": "part"},
        "objective": {
            **growing_logs.constrained(exposure.folder)["objective"],
            "distillation": {"teacher": "teacher"},
            "ranking": {"max_pairs": 3},
        },
    }
    config = make_config(changes)
    for number, variables in enumerate(VARIABLES):
        given = {
            "log": str(log),
            "config": config.model_dump(mode="json"),
            "run": str(tmp_path / f"run{number}"),
        }
        run_script(TRAIN, root, variables, given)
    growing_logs.assert_same(tmp_path / "run1", tmp_path / "run0")
