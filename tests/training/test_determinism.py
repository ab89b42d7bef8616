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
from small_runs import make_config, write_teacher

# Arrow computes on as many threads as OMP's variable says; sets of texts have the order of the hash seed.
VARIABLES = [
    {
        "PYTHONHASHSEED": seed,
        **dict.fromkeys(("OMP_NUM_THREADS", "ARROW_IO_THREADS", "OPENBLAS_NUM_THREADS"), threads),
    }
    for seed, threads in (("0", "1"), ("4242", "7"))
]
SCRIPT = """
import json, sys
from pathlib import Path
import pyarrow as pa
from ctr.config import parse_model
given = json.load(sys.stdin)
assert pa.cpu_count() == given["threads"] and pa.io_thread_count() == given["threads"]
out = Path(given["out"])
if "config" in given:
    from ctr.training.config import TrainConfig
    from ctr.training.session import train
    train(Path(given["log"]), parse_model(TrainConfig, given["config"], "test"), out)
else:
    from ctr.data.mapping import Mapping
    from ctr.pipelines.tables.ingest import IngestSettings, ingest
    mapping = parse_model(Mapping, given["mapping"], "test")
    ingest(mapping, [Path(given["inputs"])], out, IngestSettings(block_bytes=3000))
"""


def run_twice(root: Path, folder: Path, **given: Any) -> tuple[Path, Path]:
    """What the script wrote under each of ``VARIABLES``."""
    outs = folder / "out0", folder / "out1"
    for out, variables in zip(outs, VARIABLES, strict=True):
        threads = int(variables["OMP_NUM_THREADS"])
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=root,
            env={**os.environ, **variables},
            input=json.dumps({**given, "out": str(out), "threads": threads}),
            text=True,
            check=True,
            timeout=300,
        )
    return outs


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
    first, second = run_twice(root, tmp_path, mapping=mapping, inputs=str(tmp_path / "in"))
    assert sum(manifest.rows for manifest in read_manifests(first)) > 500
    assert log_bytes(second) == log_bytes(first)


@pytest.mark.slow
def test_a_run_gives_the_bits_of_any_other(root: Path, growing: Any, exposure: Any, tmp_path: Path) -> None:
    """Shampoo's roots, a teacher, a sample, pairs drawn from a query, two constraint families and faulty rows."""
    log = growing.grow(3)
    exposure.grow(3)
    write_teacher(log, "teacher", np.sin)
    write_decisions(log, "part", SamplingConfig(non_click_rate=0.5, salt="test"))
    changes = {
        **growing_logs.ROOTS,
        # From this size of a matrix on, more threads of BLAS would give its roots other bits.
        "model": {"crosses": {"layers": 0}, "deep": {"units": [256]}},
        "sampling": {"name": "part"},
        "objective": {
            **growing_logs.constrained(exposure.folder)["objective"],
            "distillation": {"teacher": "teacher"},
            "ranking": {"max_pairs": 3},
        },
    }
    config = make_config(changes).model_dump(mode="json")
    first, second = run_twice(root, tmp_path, log=str(log), config=config)
    growing_logs.assert_same(second, first)
